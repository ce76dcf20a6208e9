"""What a page and a checkpoint take, from a model's config.json, as `anchorstore size` has it."""

from __future__ import annotations

import dataclasses
import pathlib

from anchorstore.cli.size import read_config
from anchorstore.families import spec_from_config
from anchorstore.layout import AnchorLayout, KvLatentLayout, KvLayout
from anchorstore.transport.segment import slot_bytes_of

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEFAULT_MODEL = ROOT / "tests" / "data" / "configs" / "Qwen3.5-4B.json"
ROWS_PER_PAGE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that caches account by.

    Attributes:
        model: its name, for people.
        kv: layout of a page's keys and values.
        anchor: layout of a page's anchors.
        state_bytes: one checkpoint of every linear layer.
    """

    model: str
    kv: KvLayout | KvLatentLayout
    anchor: AnchorLayout
    state_bytes: int

    @property
    def kv_bytes(self) -> int:
        """The slot of a page's keys and values."""
        return slot_bytes_of(self.kv.block_bytes())

    @property
    def anchor_bytes(self) -> int:
        """The slot of a page's anchors."""
        return slot_bytes_of(self.anchor.block_bytes())

    @property
    def page_bytes(self) -> int:
        """Both."""
        return self.kv_bytes + self.anchor_bytes


def sizes_of_model(config: pathlib.Path, page_tokens: int) -> Sizes:
    """Sizes by a model's config.json; ModelError says why there are none."""
    spec = spec_from_config(read_config(config))
    return Sizes(
        model=config.resolve().parent.name if config.name == "config.json" else config.stem,
        kv=spec.kv_layout(page_tokens=page_tokens),
        anchor=spec.anchor_layout(ROWS_PER_PAGE, page_tokens=page_tokens),
        state_bytes=slot_bytes_of(spec.checkpoint_bytes),
    )
