"""Copied pages on their way to the daemon: a queue of bounded size and a thread that empties it.

::

    a step:  copy out of the blocks --> submit --> [queue, at most so many bytes] --> thread: put

A step never waits for the daemon.  Where the queue is full, pages are not saved, and counted: a
cache may always forget.  Nor does the thread end for what goes wrong with one of them.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from anchorstore.client.counters import MISS_REASONS
from anchorstore.errors import AnchorStoreError
from anchorstore.keys import DIGEST_BYTES
from engine_adapter.vllm.cores import step_aside
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.tally import Tally

log = logging.getLogger("anchorstore.vllm")

PAGES_PER_PUT = 64
CLOSE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """A run of pages outside of the engine's blocks.

    Attributes:
        blocks: by layout of the session, [pages, *layout.shape] in host memory, contiguous.
        arrived: set once they hold what was copied; None where they do already.
    """

    space: SpaceKey
    parent_hash: bytes | None
    first_page: int
    hashes: bytes
    blocks: Mapping[int, torch.Tensor]
    lineage: int
    arrived: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(each.numel() * each.element_size() for each in self.blocks.values())


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in host memory, contiguous; from a device it is still on its way (see arrival)."""
    if not tensor.is_cuda:
        return tensor.contiguous()
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)


def arrival(device: torch.device) -> Any:
    """Something to wait for until copies that were started on `device` have arrived, or None."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _rows(blocks: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of each of `blocks` [pages, ...], contiguous, in place."""
    return blocks.flatten(1).view(torch.uint8).numpy()


def _has_rows(anchors: torch.Tensor) -> bool:
    """Whether something was captured of every page and group of [pages, groups, rows, hidden].

    By numpy: torch would start threads of its own here, on the cores of the step.
    """
    octets = anchors.view(torch.uint8).numpy()
    return bool(octets.reshape(*octets.shape[:2], -1).max(2).all())


class Saver:
    """Puts pages from a thread of its own."""

    def __init__(self, spaces: Spaces, anchors: int, queue_bytes: int, tally: Tally) -> None:
        """`anchors`: position of the anchors among the layouts of a session; it may have none."""
        self._tally, self._anchors, self._has_warned = tally, anchors, False
        self._spaces, self._room = spaces, queue_bytes
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Copied | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="anchorstore-saver", daemon=True)
        self._thread.start()

    @property
    def room_bytes(self) -> int:
        """What the queue can take on."""
        with self._lock:
            return self._room

    def submit(self, copied: Copied) -> None:
        """Leaves the pages to the thread, or drops them where too much waits."""
        size = copied.size_bytes
        with self._lock:
            if size > self._room:
                self._unsaved(copied, "queue_full")
                return
            self._room -= size
        self._queue.put(copied)

    def _work(self) -> None:
        step_aside()
        while (copied := self._queue.get()) is not None:
            self._attempt(copied)
            with self._lock:
                self._room += copied.size_bytes
        self._spaces.close()

    def _attempt(self, copied: Copied) -> None:
        """Puts them, or says in the log why not."""
        try:
            self._put(copied)
        except AnchorStoreError as error:
            self._unsaved(copied, "refused")
            log.warning("pages were not saved: %s", error)
        except Exception:
            self._unsaved(copied, "error")
            log.exception("pages were not saved")
            self._tally.add("thread_errors", label="saver")

    def _put(self, copied: Copied) -> None:
        if copied.arrived is not None:
            copied.arrived.synchronize()
        anchors = copied.blocks.get(self._anchors)
        if anchors is not None and not _has_rows(anchors):
            self._report_no_capture(copied)
            return
        client = self._spaces.get(copied.space)
        if isinstance(client, str):
            self._unsaved(copied, client)
            return
        hashes, pages = copied.hashes, len(copied.hashes) // DIGEST_BYTES
        batch = min(PAGES_PER_PUT, client.max_pages or PAGES_PER_PUT)
        for first in range(0, pages, batch):
            stop = min(first + batch, pages)
            before = hashes[(first - 1) * DIGEST_BYTES : first * DIGEST_BYTES]
            outcome = client.put(
                before if first else copied.parent_hash,
                copied.first_page + first,
                hashes[first * DIGEST_BYTES : stop * DIGEST_BYTES],
                {layout: _rows(each[first:stop]) for layout, each in copied.blocks.items()},
                lineage=copied.lineage,
            )
            if outcome.reason in MISS_REASONS:  # nobody was asked
                self._tally.add("pages_unsaved", stop - first, outcome.reason)
                continue
            for kind in ("sealed", "known", "declined", "mismatched"):
                self._tally.add("blocks", getattr(outcome, kind), kind)

    def _report_no_capture(self, copied: Copied) -> None:
        """Rows of zeros: nothing was captured, say by code that was compiled without the taps."""
        if not self._has_warned:
            log.error("pages without captured rows are not saved: the model runs without its taps")
        self._has_warned = True
        self._unsaved(copied, "no_capture")

    def _unsaved(self, copied: Copied, reason: str) -> None:
        self._tally.add("pages_unsaved", len(copied.hashes) // DIGEST_BYTES, reason)

    def close(self) -> None:
        """Lets the thread finish what waits, for a while."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
