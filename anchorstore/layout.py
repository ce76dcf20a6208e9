"""Layouts: what the bytes of one block mean, and the digest that names that meaning.

A page carries up to three components; each has one block a page (kv may be cut by heads)::

    anchor   [stored group][row][hidden]                the page's last rows, ascending
    kv       [attention layer][k, v][token][head][dim]  after rotary embedding
    kv (MLA) [attention layer][token][latent width]     compressed row, then its rotary part
    state    opaque bytes under a label

Row-major, little-endian, no padding.  A layout's digest is the SHA-256 of its canonical CBOR; a
head range is not in it: it is the block's *shard* (docs/formats.md, section 3).  Layouts are
no part of a namespace, so changing the rows of one component never discards another.  Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from typing import Any, ClassVar, Protocol

from anchorstore.errors import SpecMismatch
from anchorstore.keys import PAGE_TOKENS_DEFAULT, PAGE_TOKENS_MAX, canonical_cbor

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "float8_e4m3fn": 1}
"""Bytes of one element, by dtype name."""

ENCODED_BYTES_MAX = 1024
BLOCK_BYTES_MAX = 2**30
LAYERS_MAX = 4096
HEADS_MAX = 65_535  # a head range is packed in two 16-bit halves
WIDTH_MAX = 2**20
LABEL_BYTES_MAX = 256


class Component(enum.IntEnum):
    """Kind of data that a page can carry; numbers of the schema."""

    ANCHOR = 1
    KV = 2
    STATE = 3


class Layout(Protocol):
    """What every layout can say about one block of one page."""

    @property
    def component(self) -> Component:
        """The component whose blocks this describes."""

    @property
    def page_tokens(self) -> int:
        """Tokens in a page; the namespace must say the same."""

    @property
    def head_start(self) -> int:
        """First key-value head of this shard; 0 where the component has no heads."""

    @property
    def head_stop(self) -> int:
        """One past the last head of this shard; 0 where the component has no heads."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one block of this shard, row-major."""

    @property
    def dtype(self) -> str:
        """Name of the element type, a key of DTYPE_BYTES."""

    def encoded(self) -> bytes:
        """Canonical CBOR, without the head range."""

    def digest(self) -> bytes:
        """32 bytes: SHA-256 of encoded()."""

    def block_bytes(self) -> int:
        """Bytes of one block of this shard."""

    def shard(self) -> int:
        """head_start << 16 | head_stop."""


class _Base:
    """What the layouts share: everything that follows from fields, dtype and shape."""

    __slots__ = ()

    component: ClassVar[Component]
    format: ClassVar[str]
    dtype: str
    page_tokens: int
    head_start: int
    head_stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def fields(self) -> dict[str, int | str]:
        """What the digest covers, but for the format."""
        raise NotImplementedError

    def encoded(self) -> bytes:
        return canonical_cbor({"format": self.format, **self.fields()})

    def digest(self) -> bytes:
        return hashlib.sha256(self.encoded()).digest()

    def block_bytes(self) -> int:
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size

    def shard(self) -> int:
        return self.head_start << 16 | self.head_stop

    def _check(self, **limits: int) -> None:
        """SpecMismatch unless every named field is an integer from 1 to its limit."""
        for name, limit in {"page_tokens": PAGE_TOKENS_MAX, **limits}.items():
            _check_integer(self.format, name, getattr(self, name), 1, limit)
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            names = ", ".join(DTYPE_BYTES)
            raise SpecMismatch(f"{self.format}: dtype {self.dtype!r} is not one of {names}")

    def _check_block(self) -> None:
        if self.block_bytes() > BLOCK_BYTES_MAX:
            raise SpecMismatch(
                f"{self.format}: a block of {self.block_bytes()} bytes, limit {BLOCK_BYTES_MAX}"
            )


def _check_integer(thing: str, name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int:
        raise SpecMismatch(f"{thing}: {name} is {value!r:.80}, must be an integer")
    if not low <= value <= high:
        raise SpecMismatch(f"{thing}: {name} is {value}, must be {low} to {high}")


@dataclasses.dataclass(frozen=True, slots=True)
class AnchorLayout(_Base):
    """Anchors of one page: [groups][rows][hidden].

    Attributes:
        groups: stored groups; a group that enters with the token embedding is not one of them.
        rows: kept tokens a page, the last ones, in ascending order.
        hidden: width of the residual stream.
        dtype: element type.
        page_tokens: tokens in a page.
    """

    component: ClassVar[Component] = Component.ANCHOR
    format: ClassVar[str] = "anchorstore/anchor/1"
    head_start: ClassVar[int] = 0  # type: ignore[misc]
    head_stop: ClassVar[int] = 0  # type: ignore[misc]

    groups: int
    rows: int
    hidden: int
    dtype: str
    page_tokens: int = PAGE_TOKENS_DEFAULT

    def __post_init__(self) -> None:
        self._check(groups=LAYERS_MAX, hidden=WIDTH_MAX)
        self._check(rows=self.page_tokens)
        self._check_block()

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.groups, self.rows, self.hidden)

    def fields(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in _FIELDS[AnchorLayout]}


@dataclasses.dataclass(frozen=True, slots=True)
class KvLayout(_Base):
    """Keys and values of one page: [layers][k, v][page_tokens][head_stop - head_start][head_dim].

    Attributes:
        layers: full-attention layers of the model, in its order.
        heads: key-value heads of the whole model, however they are cut.
        head_dim: width of a head.
        dtype: element type.
        head_start: first head of this shard.
        head_stop: one past its last head.
        page_tokens: tokens in a page.
    """

    component: ClassVar[Component] = Component.KV
    format: ClassVar[str] = "anchorstore/kv/1"

    layers: int
    heads: int
    head_dim: int
    dtype: str
    head_start: int
    head_stop: int
    page_tokens: int = PAGE_TOKENS_DEFAULT

    def __post_init__(self) -> None:
        self._check(layers=LAYERS_MAX, heads=HEADS_MAX, head_dim=WIDTH_MAX)
        _check_integer(self.format, "head_start", self.head_start, 0, self.heads - 1)
        _check_integer(self.format, "head_stop", self.head_stop, self.head_start + 1, self.heads)
        self._check_block()

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.page_tokens, self.head_stop - self.head_start, self.head_dim)

    def fields(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in _FIELDS[KvLayout]}

    def with_heads(self, head_start: int, head_stop: int) -> KvLayout:
        """The same layout for the shard of heads [head_start, head_stop)."""
        return dataclasses.replace(self, head_start=head_start, head_stop=head_stop)


@dataclasses.dataclass(frozen=True, slots=True)
class KvLatentLayout(_Base):
    """Compressed keys and values (MLA) of one page: [layers][page_tokens][width].

    Attributes:
        layers: full-attention layers of the model, in its order.
        width: latent rank plus the width of the rotary part, which follows it.
        dtype: element type.
        page_tokens: tokens in a page.
    """

    component: ClassVar[Component] = Component.KV
    format: ClassVar[str] = "anchorstore/kv-latent/1"
    head_start: ClassVar[int] = 0  # type: ignore[misc]
    head_stop: ClassVar[int] = 0  # type: ignore[misc]

    layers: int
    width: int
    dtype: str
    page_tokens: int = PAGE_TOKENS_DEFAULT

    def __post_init__(self) -> None:
        self._check(layers=LAYERS_MAX, width=WIDTH_MAX)
        self._check_block()

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.layers, self.page_tokens, self.width)

    def fields(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in _FIELDS[KvLatentLayout]}


@dataclasses.dataclass(frozen=True, slots=True)
class StateLayout(_Base):
    """An exact checkpoint of the recurrent states at the end of a page: opaque bytes.

    Attributes:
        state_bytes: bytes of one checkpoint.
        label: says what the bytes are, to whoever wrote them (engine, version, order, dtypes).
        page_tokens: tokens in a page.
    """

    component: ClassVar[Component] = Component.STATE
    format: ClassVar[str] = "anchorstore/state/1"
    head_start: ClassVar[int] = 0  # type: ignore[misc]
    head_stop: ClassVar[int] = 0  # type: ignore[misc]
    dtype: ClassVar[str] = "uint8"  # type: ignore[misc]

    state_bytes: int
    label: str
    page_tokens: int = PAGE_TOKENS_DEFAULT

    def __post_init__(self) -> None:
        self._check(state_bytes=BLOCK_BYTES_MAX)
        if not isinstance(self.label, str):
            raise SpecMismatch(f"{self.format}: label is {self.label!r:.80}, must be text")
        size = len(self.label.encode())
        if not 1 <= size <= LABEL_BYTES_MAX:
            raise SpecMismatch(f"{self.format}: label of {size} bytes, must be 1 to 256")

    @property
    def shape(self) -> tuple[int]:
        return (self.state_bytes,)

    def fields(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in _FIELDS[StateLayout]}


_Class = type[AnchorLayout] | type[KvLayout] | type[KvLatentLayout] | type[StateLayout]
_FIELDS: dict[_Class, tuple[str, ...]] = {
    AnchorLayout: ("groups", "rows", "hidden", "dtype", "page_tokens"),
    KvLayout: ("layers", "heads", "head_dim", "dtype", "page_tokens"),
    KvLatentLayout: ("layers", "width", "dtype", "page_tokens"),
    StateLayout: ("state_bytes", "label", "page_tokens"),
}
_BY_FORMAT: dict[str, _Class] = {cls.format: cls for cls in _FIELDS}


def layout_from_cbor(component: int, encoded: bytes, head_start: int, head_stop: int) -> Layout:
    """The layout in `encoded`, which may be hostile.

    Raises:
        SpecMismatch: not canonical CBOR of a known format with exactly its fields, each within
            its limit; another component's; or a head range that does not fit.
    """
    if len(encoded) > ENCODED_BYTES_MAX:
        raise SpecMismatch(f"layout of {len(encoded)} bytes, limit {ENCODED_BYTES_MAX}")
    fields = _decode_flat_map(bytes(encoded))
    name = fields.pop("format", None)
    cls = _BY_FORMAT.get(name) if isinstance(name, str) else None
    if cls is None:
        known = ", ".join(_BY_FORMAT)
        raise SpecMismatch(f"layout format {name!r:.80} is not one of {known}")
    if component != cls.component:
        raise SpecMismatch(
            f"{name} belongs to component {int(cls.component)}, was sent as {component}"
        )
    if set(fields) != set(_FIELDS[cls]):
        raise SpecMismatch(f"{name} has fields {sorted(fields)}, must have {sorted(_FIELDS[cls])}")
    values: dict[str, Any] = dict(fields)
    if cls is KvLayout:
        values |= {"head_start": head_start, "head_stop": head_stop}
    elif (head_start, head_stop) != (0, 0):
        raise SpecMismatch(f"{name} has no heads, was sent with {head_start} to {head_stop}")
    layout = cls(**values)
    if layout.encoded() != encoded:
        raise SpecMismatch(f"{name} is not in canonical CBOR")
    return layout


def _decode_flat_map(data: bytes) -> dict[str, int | str]:
    """A CBOR map of text to text or unsigned integers, and nothing after it.

    Our own, because the general decoder follows tags and nesting that a hostile peer picks.
    """
    count, at = _head(data, 0, (5,))[1:]
    fields: dict[str, int | str] = {}
    for _ in range(min(count, ENCODED_BYTES_MAX)):
        key, at = _item(data, at, (3,))
        value, at = _item(data, at, (0, 3))
        if key in fields:
            raise SpecMismatch(f"layout names {key!r:.80} twice")
        fields[str(key)] = value
    if at != len(data):
        raise SpecMismatch(f"layout: {len(data)} bytes, its map ends at {at}")
    return fields


def _item(data: bytes, at: int, allowed: tuple[int, ...]) -> tuple[int | str, int]:
    major, argument, at = _head(data, at, allowed)
    if major == 0:
        return argument, at
    if argument > len(data) - at:
        raise SpecMismatch(f"layout ends within a text of {argument} bytes")
    try:
        return data[at : at + argument].decode(), at + argument
    except UnicodeDecodeError as error:
        raise SpecMismatch(f"layout: text at byte {at} is not UTF-8") from error


def _head(data: bytes, at: int, allowed: tuple[int, ...]) -> tuple[int, int, int]:
    """Major type, argument and next offset of the CBOR item at `at`."""
    if at >= len(data):
        raise SpecMismatch(f"layout of {len(data)} bytes ends too early")
    major, short = data[at] >> 5, data[at] & 31
    if major not in allowed:
        raise SpecMismatch(
            f"layout: CBOR major type {major} at byte {at}, must be a flat map of text to text "
            "or unsigned integers"
        )
    at += 1
    if short < 24:
        return major, short, at
    if short > 27:
        raise SpecMismatch(f"layout: CBOR length code {short} at byte {at - 1}, limit 27")
    size = 1 << (short - 24)
    if at + size > len(data):
        raise SpecMismatch(f"layout of {len(data)} bytes ends too early")
    return major, int.from_bytes(data[at : at + size], "big"), at + size
