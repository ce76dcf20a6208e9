"""What the scheduler tells the workers in one step.  Plain data that crosses processes.  Pure.

::

    scheduler half                        worker half, one or several
      match ---- window, blocks --------> LoadJob: a thread copies kv pages and anchors out
             <--- Report ----------------          copied, or failed, each worker on its own
      agreed --- all of them have it ---> replay: kv into blocks, anchors -> states, together
             --- one has not -----------> drop: the request computes its prefix
             <--- Report ----------------          refused: its LoRA adapter is in no slot; as drop
      step ----- pages that are full ---> SaveJob: copy out of the blocks, hand to a thread
      finish --- the last of them ------> SaveJob with is_last: the blocks go once it is copied

A replay runs layers that add up over the workers, so either all of them run it, in the same order
and step, or none does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from engine_adapter.packing import Positions
from engine_adapter.vllm.geometry import Slots


@dataclasses.dataclass(frozen=True, slots=True)
class SpaceKey:
    """What beside the weights makes prefixes comparable: a namespace each."""

    adapter: str = ""
    salt: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadJob:
    """A prefix to be brought into a request's blocks.

    Attributes:
        request_id: whose.
        space: its adapter and salt.
        session_token: of the session in which the lookup was made.
        window: the exported window.
        page_slots: where its kv pages go; the last of them ends at the resume point.
        skipped_pages: kv pages at the window's start that vLLM holds already.
        positions: token positions of the rows to replay, ascending.
        tokens: token ids at these positions.
        resume_tokens: where the prefix ends.
        state_blocks: for each group of linear layers the block that takes the state.
        adapter: vLLM's number of the request's LoRA adapter, 0 for none.
    """

    request_id: str
    space: SpaceKey
    session_token: bytes
    window: bytes
    page_slots: Slots
    skipped_pages: int
    positions: Positions
    tokens: npt.NDArray[np.int64]
    resume_tokens: int
    state_blocks: Mapping[int, int]
    adapter: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SaveJob:
    """Full pages of a request to be stored.

    Attributes:
        request_id: whose.
        space: its adapter and salt.
        parent_hash: path hash before the first page; None for page 0.
        first_page: index of the first page.
        hashes: path hashes, 32 bytes a page.
        page_slots: where the pages lie.
        lineage: replays behind their bytes.
        is_last: the request has finished: report it once its pages are copied.
    """

    request_id: str
    space: SpaceKey
    parent_hash: bytes | None
    first_page: int
    hashes: bytes
    page_slots: Slots
    lineage: int
    is_last: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StepJobs:
    """All of one step.

    Attributes:
        loads: to be started.
        replays: requests whose copied prefix is to be brought in, in this order.
        drops: requests whose prefix is not.
        saves: to be copied out.
    """

    loads: tuple[LoadJob, ...] = ()
    replays: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    saves: tuple[SaveJob, ...] = ()


@dataclasses.dataclass(slots=True)
class Report:
    """By request, how many workers have copied its prefix, and how many could not; and which ones
    could not be replayed, which all workers find alike."""

    copied: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: set[str] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.copied or self.failed or self.refused)

    def plus(self, other: Report) -> Report:
        """Both together."""
        return Report(
            self.copied + other.copied, self.failed + other.failed, self.refused | other.refused
        )
