"""Tokens to names: the namespace's root digest and the chain of path hashes.

A path hash names the whole prefix that ends with a page::

    root ----------> h0 = H(root, page 0) ----> h1 = H(h0, page 1) ----> h2 ...
    namespace        names tokens 0..63         names tokens 0..127

    H(parent, page) = SHA-256(parent digest || the page's token ids as little-endian int32)

The root is the SHA-256 of the namespace's canonical CBOR, so equal tokens under another model,
weights, adapter, page size, salt or domain have nothing in common (docs/formats.md, section 1).
Pure: no I/O, no clock.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import cbor2
import numpy as np
import numpy.typing as npt

from anchorstore.errors import InvalidKey

DIGEST_BYTES = 32
PAGE_TOKENS_DEFAULT = 64
PAGE_TOKENS_MAX = 65_536
TOKEN_ID_LIMIT = 2**31  # ids are unsigned and fit an int32; multimodal placeholders do not
NAMESPACE_FORMAT = "anchorstore/namespace/1"
TEXT_BYTES_MAX = 1024
SALT_BYTES_MAX = 256
LINEAGE_ANY = 255
"""A bound that every lineage satisfies; those of blocks are 0..254, deeper ones count as 254."""


def canonical_cbor(value: Any) -> bytes:
    """Canonical CBOR (RFC 8949 section 4.2.3: length-first map order) of plain data."""
    return cbor2.dumps(value, canonical=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """What makes two prefixes comparable.  Layouts are not part of it.

    Attributes:
        domain: the tenant, as the daemon authenticated it.
        model: the model's name, as operators know it.
        weights_digest: 32 bytes, SHA-256 over the sorted tensors (docs/formats.md).
        adapter: identity of a LoRA adapter, "" for none.
        page_tokens: tokens in a page.
        salt: the caller's cache salt, b"" for none.
    """

    domain: str
    model: str
    weights_digest: bytes
    adapter: str = ""
    page_tokens: int = PAGE_TOKENS_DEFAULT
    salt: bytes = b""

    def __post_init__(self) -> None:
        for name in ("domain", "model"):
            if not getattr(self, name):
                raise InvalidKey(f"namespace: {name} is empty")
        for name in ("domain", "model", "adapter"):
            try:
                size = len(getattr(self, name).encode())
            except UnicodeEncodeError as error:
                raise InvalidKey(f"namespace: {name} is no text: {error.reason}") from error
            if size > TEXT_BYTES_MAX:
                raise InvalidKey(f"namespace: {name} has {size} bytes, limit {TEXT_BYTES_MAX}")
        if len(self.weights_digest) != DIGEST_BYTES:
            raise InvalidKey(
                f"namespace: weights_digest has {len(self.weights_digest)} bytes, "
                f"must have {DIGEST_BYTES}"
            )
        if not 1 <= self.page_tokens <= PAGE_TOKENS_MAX:
            raise InvalidKey(
                f"namespace: page_tokens is {self.page_tokens}, must be 1 to {PAGE_TOKENS_MAX}"
            )
        if len(self.salt) > SALT_BYTES_MAX:
            raise InvalidKey(f"namespace: salt has {len(self.salt)} bytes, limit {SALT_BYTES_MAX}")

    def root_digest(self) -> bytes:
        """32 bytes: parent of the first page of every prefix in this namespace."""
        fields = {
            "format": NAMESPACE_FORMAT,
            "domain": self.domain,
            "model": self.model,
            "weights": self.weights_digest,
            "adapter": self.adapter,
            "page_tokens": self.page_tokens,
            "salt": self.salt,
        }
        return hashlib.sha256(canonical_cbor(fields)).digest()


def token_array(tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """`tokens` as little-endian int32 [n]; InvalidKey for an id outside 0..2^31-1."""
    try:
        array = np.asarray(tokens)
    except (ValueError, OverflowError) as error:
        raise InvalidKey(f"tokens must be a flat list of integers: {error}") from error
    if array.size == 0:
        return np.empty(0, "<i4")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidKey(
            f"tokens must be a flat list of integers, not {array.ndim}-d {array.dtype}: "
            "prompts with image or audio parts cannot be keyed"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= TOKEN_ID_LIMIT:
        bad = low if low < 0 else high
        raise InvalidKey(f"token id {bad} is outside 0..{TOKEN_ID_LIMIT - 1}")
    return array.astype("<i4")


def path_hashes(
    root: bytes,
    tokens: Sequence[int] | npt.NDArray[Any],
    page_tokens: int = PAGE_TOKENS_DEFAULT,
) -> bytes:
    """Path hashes of every whole page of `tokens`, chained from `root`.

    Returns 32 n bytes for n = len(tokens) // page_tokens; a partial last page has no hash.
    `root` may also be the path hash of an earlier page: then `tokens` continue after it.
    """
    if len(root) != DIGEST_BYTES:
        raise InvalidKey(f"parent hash has {len(root)} bytes, must have {DIGEST_BYTES}")
    if not 1 <= page_tokens <= PAGE_TOKENS_MAX:
        raise InvalidKey(f"page_tokens is {page_tokens}, must be 1 to {PAGE_TOKENS_MAX}")
    data = token_array(tokens).tobytes()
    step = 4 * page_tokens
    out, parent = [], root
    for start in range(0, len(data) - step + 1, step):
        parent = hashlib.sha256(parent + data[start : start + step]).digest()
        out.append(parent)
    return b"".join(out)
