"""What a server could have reused: the longest prefix of a prompt that it has met before.

Token sequences lie sorted, each token as four big-endian bytes, so that a new one's nearest
relatives are its two neighbours::

    ... [7 3 1] [7 3 9 4] <- insert [7 3 9 9] -> [8 0] ...      shared = 3 tokens

Pure: no clock, no I/O.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

TOKEN_BYTES = 4
DEPTH_EDGES = (0, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Lower ends, in tokens, of the depths by which the report is split."""


def encode(tokens: Sequence[int]) -> bytes:
    """Tokens so that bytes compare as they do; ValueError for what is no 32-bit token id."""
    wide = np.asarray(tokens, np.int64)
    if wide.size and (wide.min() < 0 or wide.max() >= 2**32):
        raise ValueError("a token id is outside 0 .. 2^32 - 1")
    return wide.astype(">u4").tobytes()


def common_tokens(one: bytes, other: bytes) -> int:
    """Leading tokens that two encoded sequences share."""
    length = min(len(one), len(other)) // TOKEN_BYTES * TOKEN_BYTES
    left = np.frombuffer(one, np.uint32, length // TOKEN_BYTES)
    right = np.frombuffer(other, np.uint32, length // TOKEN_BYTES)
    differ = np.flatnonzero(left != right)
    return int(differ[0]) if differ.size else len(left)


class Seen:
    """Every token sequence that a server has computed."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []

    def shared(self, tokens: Sequence[int]) -> int:
        """Length in tokens of the longest prefix of `tokens` that was met before."""
        encoded = encode(tokens)
        at = bisect.bisect_left(self._sorted, encoded)
        return max(
            (common_tokens(encoded, near) for near in self._sorted[max(0, at - 1) : at + 1]),
            default=0,
        )

    def add(self, tokens: Sequence[int]) -> None:
        """Remembers a sequence: prompt and answer, but the answer's last token.

        A model never computes on the token that it answered last.
        """
        bisect.insort(self._sorted, encode(tokens))


def ideal_reuse(shared: int, prompt_tokens: int, page_tokens: int, margin_tokens: int) -> int:
    """Most tokens that page-granular reuse can take, with `margin_tokens` computed again.

    At least one token of the prompt is always computed: its output is what the request asks for.
    """
    assert 0 <= shared <= prompt_tokens, (shared, prompt_tokens)
    reusable = max(0, min(shared, prompt_tokens - 1))
    return max(0, reusable // page_tokens * page_tokens - margin_tokens)


def depth_range(shared: int) -> tuple[int, int | None]:
    """The depth that `shared` tokens fall in: lower end, and upper end (exclusive; None: open)."""
    at = bisect.bisect_right(DEPTH_EDGES, shared) - 1
    upper = DEPTH_EDGES[at + 1] if at + 1 < len(DEPTH_EDGES) else None
    return DEPTH_EDGES[at], upper


def depth_label(lower: int, upper: int | None) -> str:
    """A depth for people, in tokens."""
    return f"{lower}+" if upper is None else f"{lower}-{upper - 1}"
