"""A device's file that fails where and how a test says: the shipped fake of `seam.FileSeam`.

It stands on a real file, so what works is real.  Faults are rules; the first that matches a call
decides::

    faults.fail("read", errno.EIO, start=0, stop=4096)      EIO for whatever touches these bytes
    faults.short("write", 512)                              the call moves at most so many bytes
    faults.tear("write", 4096)                              moves so many, claims all
    faults.hold("read")  ...  faults.release()              the call does not return
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from anchorstore.tiers.nvme.seam import DirectFile, FileSeam, Log, open_direct

Call = Literal["read", "write", "sync", "resize"]
END = 2**63


@dataclasses.dataclass(frozen=True)
class _Rule:
    call: Call
    start: int
    stop: int
    act: Callable[[int], int | None]  # bytes asked -> bytes to move; None = as usual
    claims_all: bool = False


class Faults:
    """What shall go wrong, for every file opened through it.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._gate = threading.Event()
        self._gate.set()
        self.held = 0
        self.is_removed = False
        self.calls: dict[Call, int] = {"read": 0, "write": 0, "sync": 0, "resize": 0}

    def open(self, path: pathlib.Path, log: Log) -> FileSeam:
        """An OpenFile."""
        return FaultyFile(open_direct(path, log), self)

    def fail(self, call: Call, code: int, *, start: int = 0, stop: int = END) -> None:
        """Calls that touch bytes [start, stop) raise OSError of that number."""

        def act(_: int) -> int | None:
            raise OSError(code, os.strerror(code))

        self._add(_Rule(call, start, stop, act))

    def short(self, call: Call, size: int, *, start: int = 0, stop: int = END) -> None:
        """Calls move at most `size` bytes, and say so."""
        self._add(_Rule(call, start, stop, lambda asked: min(asked, size)))

    def tear(self, call: Call, size: int, *, start: int = 0, stop: int = END) -> None:
        """Calls move at most `size` bytes, and claim all."""
        self._add(_Rule(call, start, stop, lambda asked: min(asked, size), claims_all=True))

    def hold(self, call: Call, *, start: int = 0, stop: int = END) -> None:
        """Calls do not return until `release`."""
        self._gate.clear()

        def act(_: int) -> int | None:
            with self._lock:
                self.held += 1
            self._gate.wait()
            return None

        self._add(_Rule(call, start, stop, act))

    def release(self) -> None:
        """Lets held calls go; no fault is left."""
        self.clear()
        self._gate.set()

    def clear(self) -> None:
        """No fault is left; held calls stay held."""
        with self._lock:
            self._rules.clear()

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def met(self, call: Call, offset: int, size: int) -> tuple[int, bool]:
        """Bytes to move, and whether to claim all; OSError where the call fails."""
        with self._lock:
            self.calls[call] += 1
            rules = list(self._rules)
        for rule in rules:
            if rule.call == call and offset < rule.stop and offset + size > rule.start:
                moved = rule.act(size)
                return (size if moved is None else moved), rule.claims_all
        return size, False


class FaultyFile:
    """A real file under Faults."""

    def __init__(self, real: DirectFile, faults: Faults) -> None:
        self._real, self._faults = real, faults
        self.name = real.name
        self.is_direct, self.is_read_only = real.is_direct, real.is_read_only

    @property
    def descriptor(self) -> int:
        """None for others: what goes by it would meet no fault."""
        raise OSError(errno.EOPNOTSUPP, "a faulty file is worked by threads")

    def size(self) -> int:
        return self._real.size()

    def is_removed(self) -> bool:
        return self._faults.is_removed or self._real.is_removed()

    def resize(self, size: int) -> None:
        self._faults.met("resize", 0, size)
        self._real.resize(size)

    def preadv(self, buffers: Sequence[Any], offset: int) -> int:
        return self._moved("read", self._real.preadv, buffers, offset)

    def pwritev(self, buffers: Sequence[Any], offset: int) -> int:
        return self._moved("write", self._real.pwritev, buffers, offset)

    def _moved(
        self,
        call: Call,
        real: Callable[[Sequence[Any], int], int],
        buffers: Sequence[Any],
        offset: int,
    ) -> int:
        asked = sum(memoryview(buffer).nbytes for buffer in buffers)
        size, claims_all = self._faults.met(call, offset, asked)
        if size >= asked:
            return real(buffers, offset)
        done = real(_cut(buffers, size), offset) if size else 0
        return asked if claims_all else done

    def fdatasync(self) -> None:
        self._faults.met("sync", 0, END)
        self._real.fdatasync()

    def close(self) -> None:
        self._real.close()


def _cut(buffers: Sequence[Any], size: int) -> list[memoryview]:
    """The first `size` bytes of the buffers."""
    kept = []
    for buffer in buffers:
        view = memoryview(buffer)[:size]
        if not view.nbytes:
            break
        kept.append(view)
        size -= view.nbytes
    return kept
