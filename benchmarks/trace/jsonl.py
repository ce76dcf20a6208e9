"""A trace from a file: one JSON object a line, one line a request, in the order of arrival.

Three formats; the first line decides which one the file is in::

    {"tokens": [1, 15, 7, ...], "answer": [9, 4, ...], "seconds": 0.25}      token ids
    {"pages": ["9f1c", "02ab", ...], "prompt_tokens": 131, "seconds": 0.25}  names of whole pages
    {"timestamp": 250, "input_length": 131, "output_length": 20, "hash_ids": [0, 1, 2]}

`answer`, `prompt_tokens`, `seconds` and, of the first two, `priority` (16 bits) may be missing: no
answer, every page usable, the time of the line before, 0.  A page's name stands for all tokens up
to its end, as a path hash does; pages beyond `prompt_tokens` are the answer's.  The last format is
that of the published Mooncake traces: milliseconds, blocks of 512 tokens (--page-tokens 512), the
last one whole or not.

Anything else is refused, with the line's number.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from anchorstore.errors import InvalidKey
from anchorstore.keys import DIGEST_BYTES, path_hashes
from benchmarks.trace.trace import U32, Trace, make_trace

LINE_BYTES_MAX = 2**26
NAME_CHARACTERS_MAX = 128
TOKENS_MAX = 2**31
SECONDS_MAX = 10**12
PRIORITY_MAX = 2**15 - 1
ROOT = bytes(DIGEST_BYTES)


class TraceError(Exception):
    """A file that holds no trace: which file, which line, what is wrong with it."""


class _Wrong(Exception):
    """What is wrong with a line, without its number."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """A line, understood; `seconds` is None where the line does not tell."""

    names: Sequence[Hashable]
    usable: int
    seconds: float | None
    priority: int = 0


Fields = dict[str, Any]


def _once(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Wrong("a field is given twice")
    return fields


def _only(fields: Fields, *known: str) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise _Wrong(f"unknown field {unknown[0]!r:.80}, known are {', '.join(known)}")


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < TOKENS_MAX:
        raise _Wrong(f"{name} is {value!r:.80}, must be a whole number from 0 to {TOKENS_MAX - 1}")
    return value


def _list(fields: Fields, name: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise _Wrong(f"{name} is a {type(value).__name__}, must be a list")
    return value


def _seconds(fields: Fields, name: str, scale: float) -> float | None:
    if name not in fields:
        return None
    value = fields[name]
    if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX / scale:
        limit = f"{SECONDS_MAX / scale:g}"
        raise _Wrong(f"{name} is {value!r:.80}, must be a number of at least 0, at most {limit}")
    return float(value) * scale


def _priority(fields: Fields) -> int:
    value = fields.get("priority", 0)
    if type(value) is not int or not -PRIORITY_MAX <= value <= PRIORITY_MAX:
        raise _Wrong(
            f"priority is {value!r:.80}, must be a whole number from {-PRIORITY_MAX} to "
            f"{PRIORITY_MAX}"
        )
    return value


def _of_tokens(fields: Fields, page_tokens: int) -> _Request:
    """A line of token ids."""
    _only(fields, "tokens", "answer", "seconds", "priority")
    prompt, answer = _list(fields, "tokens"), _list(fields, "answer")
    if not prompt:
        raise _Wrong("tokens is empty: a request has at least one")
    for token in (*prompt, *answer):
        if type(token) is not int:
            raise _Wrong(f"{token!r:.80} is no token id")
    try:
        hashes = path_hashes(ROOT, [*prompt, *answer[:-1]], page_tokens)
    except InvalidKey as error:
        raise _Wrong(str(error)) from error
    names = [hashes[at : at + DIGEST_BYTES] for at in range(0, len(hashes), DIGEST_BYTES)]
    usable, seconds = (len(prompt) - 1) // page_tokens, _seconds(fields, "seconds", 1.0)
    return _Request(names, usable, seconds, _priority(fields))


def _names(fields: Fields, name: str) -> list[Hashable]:
    names = _list(fields, name)
    for one in names:
        is_text = isinstance(one, str) and 1 <= len(one) <= NAME_CHARACTERS_MAX
        if not is_text and (type(one) is not int or one < 0):
            raise _Wrong(
                f"{one!r:.80} is no name of a page: a text of 1 to {NAME_CHARACTERS_MAX} "
                "characters or a whole number"
            )
    return names


def _of_pages(fields: Fields, page_tokens: int) -> _Request:
    """A line of page names."""
    _only(fields, "pages", "prompt_tokens", "seconds", "priority")
    names = _names(fields, "pages")
    usable = len(names)
    if "prompt_tokens" in fields:
        prompt_tokens = _count(fields, "prompt_tokens")
        if not prompt_tokens or prompt_tokens // page_tokens > len(names):
            raise _Wrong(
                f"prompt_tokens is {prompt_tokens}, must be at least 1 and have no more whole "
                f"pages of {page_tokens} tokens than there are pages, {len(names)}"
            )
        usable = min(usable, (prompt_tokens - 1) // page_tokens)
    return _Request(names, usable, _seconds(fields, "seconds", 1.0), _priority(fields))


def _of_blocks(fields: Fields, page_tokens: int) -> _Request:
    """A line of a Mooncake trace; what was answered is in no block, so nothing of it is kept."""
    _only(fields, "timestamp", "input_length", "output_length", "hash_ids")
    names, prompt_tokens = _names(fields, "hash_ids"), _count(fields, "input_length")
    _count(fields, "output_length")
    if not prompt_tokens or -(-prompt_tokens // page_tokens) != len(names):
        raise _Wrong(
            f"input_length is {prompt_tokens}, {-(-prompt_tokens // page_tokens)} blocks of "
            f"{page_tokens} tokens, and hash_ids has {len(names)} (--page-tokens says how long a "
            "block is)"
        )
    whole = names[: prompt_tokens // page_tokens]
    return _Request(whole, (prompt_tokens - 1) // page_tokens, _seconds(fields, "timestamp", 1e-3))


_READERS: dict[str, Callable[[Fields, int], _Request]] = {
    "tokens": _of_tokens,
    "pages": _of_pages,
    "hash_ids": _of_blocks,
}


class _Pages:
    """Numbers for names, and which page comes before each: a name has one."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._above: list[int | None] = []

    def numbers(self, names: Sequence[Hashable]) -> list[int]:
        """The path of a request."""
        path: list[int] = []
        above: int | None = None
        for name in names:
            number = self._numbers.setdefault(name, len(self._above))
            if number == len(self._above):
                self._above.append(above)
            elif self._above[number] != above:
                raise _Wrong(
                    f"page {name!r:.80} follows another page here than before: "
                    "a page's name must stand for all tokens up to its end"
                )
            path.append(number)
            above = number
        return path


def _lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                yield number, line
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error


def _fields_of(line: bytes) -> Fields:
    if len(line) > LINE_BYTES_MAX:
        raise _Wrong(f"longer than {LINE_BYTES_MAX} bytes")
    try:
        fields = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number without end
        raise _Wrong(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _Wrong(f"a {type(fields).__name__}, must be an object")
    return fields


def _format_of(fields: Fields) -> str:
    found = [name for name in _READERS if name in fields]
    if len(found) != 1:
        raise _Wrong(f"must have one of {', '.join(_READERS)}, and only one")
    return found[0]


def read_trace(path: pathlib.Path, page_tokens: int) -> Trace:
    """The trace in a file; TraceError for anything but the formats above."""
    pages, kind = _Pages(), ""
    paths: list[U32] = []
    usable: list[int] = []
    seconds: list[float] = []
    priorities: list[int] = []
    for number, line in _lines(path):
        try:
            fields = _fields_of(line)
            kind = kind or _format_of(fields)
            if kind not in fields:
                raise _Wrong(f"has no {kind}, as the first line has")
            request = _READERS[kind](fields, page_tokens)
            before = seconds[-1] if seconds else 0.0
            now = before if request.seconds is None else request.seconds
            if now < before:
                raise _Wrong(f"comes {before - now:g} s before the line above")
            paths.append(np.array(pages.numbers(request.names), np.uint32))
        except _Wrong as wrong:
            raise TraceError(f"{path}, line {number}: {wrong}") from wrong
        usable.append(request.usable)
        seconds.append(now)
        priorities.append(request.priority)
    if not paths:
        raise TraceError(f"{path} is empty")
    return make_trace(path.name, page_tokens, paths, usable, seconds, priorities)
