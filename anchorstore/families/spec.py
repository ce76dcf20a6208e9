"""AnchorSpec: what a hybrid model's layers leave behind, and where its anchors are taken.

::

    layer_kinds     L L L A  L L L A  L L L A        L linear   A attention
    groups          (0,1,2)  (4,5,6)  (8,9,10)       F feed-forward only   B both in parallel
                     ^        ^        ^
    entry            |        anchors: the residual stream, stored
                     token embedding: rebuilt, never stored

A group is a maximal run of layers without attention that holds a linear layer; feed-forward
layers at its ends are left out.  A layer that runs both side by side is a group of its own.  Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from anchorstore.errors import ModelError
from anchorstore.keys import PAGE_TOKENS_DEFAULT
from anchorstore.layout import AnchorLayout, KvLatentLayout, KvLayout

GapMode = Literal["reset", "concat"]

KIND_OF_TYPE = {
    "linear_attention": "L",
    "mamba": "L",
    "full_attention": "A",
    "attention": "A",
    "mlp": "F",
    "moe": "F",
    "hybrid": "B",
}
"""Letter of a layer type, under its present and its older name."""


@dataclasses.dataclass(frozen=True, slots=True)
class AnchorSpec:
    """Everything about a model that storing and replaying its anchors needs.

    Attributes:
        model_type: as in config.json, of the text part.
        hidden: width of the residual stream (D).
        layer_kinds: a letter a layer: L, A, F or B.
        groups: layer numbers of every group, in order.
        first_group_is_embedding: group 0 enters with the token embedding and is never stored.
        gap_mode: how rows that do not adjoin are replayed: "reset" starts the convolution anew at
            every run (GDN, KDA), "concat" runs on (Mamba).
        attention_layers: layer numbers that keep keys and values, in order.
        kv_heads: key-value heads; 1 for MLA.
        head_dim: width of a head; the latent row's for MLA.
        kv_latent_width: MLA: latent rank plus rotary width; None for keys and values a head.
        recurrent_bytes: float32 recurrent states of all layers.
        conv_bytes: bfloat16 convolution windows (kernel - 1 columns) of all layers.
        dtype: the model's element type.
    """

    model_type: str
    hidden: int
    layer_kinds: str
    groups: tuple[tuple[int, ...], ...]
    first_group_is_embedding: bool
    gap_mode: GapMode
    attention_layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    kv_latent_width: int | None
    recurrent_bytes: int
    conv_bytes: int
    dtype: str

    @property
    def stored_groups(self) -> int:
        """Groups whose anchors are stored."""
        return len(self.groups) - self.first_group_is_embedding

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Layer numbers that keep a recurrent state, in order."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind in "LB")

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint of every linear layer's state."""
        return self.recurrent_bytes + self.conv_bytes

    def anchor_layout(
        self, rows: int, dtype: str | None = None, page_tokens: int = PAGE_TOKENS_DEFAULT
    ) -> AnchorLayout:
        """Layout of the anchors with `rows` rows a page."""
        return AnchorLayout(self.stored_groups, rows, self.hidden, dtype or self.dtype, page_tokens)

    def kv_layout(
        self, dtype: str | None = None, page_tokens: int = PAGE_TOKENS_DEFAULT
    ) -> KvLayout | KvLatentLayout:
        """Layout of keys and values, all heads in one shard."""
        layers, kind = len(self.attention_layers), dtype or self.dtype
        if self.kv_latent_width is not None:
            return KvLatentLayout(layers, self.kv_latent_width, kind, page_tokens)
        return KvLayout(layers, self.kv_heads, self.head_dim, kind, 0, self.kv_heads, page_tokens)


def kinds_of_types(layer_types: Sequence[str], key: str) -> str:
    """A letter a layer; ModelError for a type that replay cannot handle."""
    for index, name in enumerate(layer_types):
        if name not in KIND_OF_TYPE:
            known = ", ".join(KIND_OF_TYPE)
            raise ModelError(f"config: {key}[{index}] is {name!r:.80}, must be one of {known}")
    return "".join(KIND_OF_TYPE[name] for name in layer_types)


def groups_of_kinds(layer_kinds: str) -> tuple[tuple[int, ...], ...]:
    """Layer numbers of every group, in order."""
    groups: list[tuple[int, ...]] = []
    run: list[int] = []
    for index, kind in enumerate(layer_kinds + "A"):
        if kind in "LF":
            run.append(index)
            continue
        linear = [layer for layer in run if layer_kinds[layer] == "L"]
        if linear:
            groups.append(tuple(range(linear[0], linear[-1] + 1)))
        run = []
        if kind == "B":
            groups.append((index,))
    return tuple(groups)
