"""A lane to a device: one side stream's worth of copies, through pinned memory of the daemon's own.

::

    host memory --copy, xxh3--> | half 0 | --DMA, stream 0--> slots       write
                                | half 1 | --DMA, stream 1-->
    host memory <--copy, xxh3-- | half 0 | <--DMA, stream 0-- slots       read

While one half travels the processor fills (or empties) the other.  What is hashed on the way in is
what travels, so nobody can change it in between; on the way out it is what has arrived.  A block
larger than a half travels in pieces, and is sealed after its last one.

A lane serves one job at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.tiers.base import MemoryOf, Moved, Moves
from anchorstore.transport.cuda import CudaDevice, CudaError, DeviceLost, DeviceStuck
from anchorstore.transport.segment import GENERATION, RECORD_BODY, record_offset

Address = Callable[[int], int]
"""Of a segment on the device, by its index."""
Head = Callable[[int], npt.NDArray[np.uint8]]
"""Header and records of a segment, writable, by its index."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Part of a block that travels at once: bytes start..start+size-1 of block `row`, which lie at
    `at` in a half."""

    row: int
    start: int
    size: int
    at: int
    is_last: bool


def loads(block_bytes: list[int], half_bytes: int) -> Iterator[list[Piece]]:
    """Packs blocks, in order, into loads of at most `half_bytes`."""
    load, at = list[Piece](), 0
    for row, size in enumerate(block_bytes):
        start = 0
        while start < size:
            part = min(size - start, half_bytes - at)
            load.append(Piece(row, start, part, at, start + part == size))
            start, at = start + part, at + part
            if at == half_bytes:
                yield load
                load, at = [], 0
    if load:
        yield load


class _Half:
    """Pinned memory with a stream of its own, and what travels on it."""

    def __init__(self, device: CudaDevice, size_bytes: int) -> None:
        self._device = device
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
        self.address = self.memory.ctypes.data
        self.stream = device.make_stream()
        self.load: list[Piece] = []
        self.refusal: CudaError | None = None
        try:
            device.register(self.address, size_bytes)
        except DeviceLost:
            raise
        except CudaError as error:  # the driver then copies by way of its own pinned memory
            self.refusal = error

    def close(self) -> None:
        """Unpins it; CudaError where the device is gone."""
        self._device.drop_stream(self.stream)
        if self.refusal is None:
            self._device.unregister(self.address)


@dataclasses.dataclass(slots=True)
class _Job:
    """A write or a read under way."""

    moves: Moves
    memory_of: MemoryOf
    moved: Moved
    hashes: list[xxhash.xxh3_64]
    bad: set[int]

    def host(self, piece: Piece) -> npt.NDArray[np.uint8]:
        """The host's end of a piece."""
        start = int(self.moves.memory_offsets[piece.row]) + piece.start
        return self.memory_of(int(self.moves.memories[piece.row]))[start : start + piece.size]


def _job(moves: Moves, memory_of: MemoryOf) -> _Job:
    hashes = [xxhash.xxh3_64() for _ in range(len(moves))]
    return _Job(moves, memory_of, np.zeros(len(moves), np.bool_), hashes, set())


class Lane:
    """Copies between host memory and a device's segments.

    Args:
        half_bytes: pinned memory, twice.
        seconds: a load that has not arrived by then is DeviceStuck.
        address_of, head_of: where segments lie, see Address and Head.

    Attributes:
        is_broken: the device was lost or stuck here: no further job, and no close().
    """

    def __init__(
        self,
        device: CudaDevice,
        half_bytes: int,
        seconds: float,
        address_of: Address,
        head_of: Head,
    ) -> None:
        assert half_bytes >= mmap.PAGESIZE, half_bytes
        self._device, self._seconds = device, seconds
        self._address_of, self._head_of = address_of, head_of
        self._half_bytes, self.is_broken = half_bytes, False
        self._halves: list[_Half] = []
        try:
            for _ in range(2):
                self._halves.append(_Half(device, half_bytes))
        except CudaError:
            with contextlib.suppress(CudaError):  # the first refusal is the one to hear of
                self.close()
            raise

    @property
    def refusal(self) -> CudaError | None:
        """Why its memory could not be pinned; None where it is."""
        return next((half.refusal for half in self._halves if half.refusal), None)

    def write(self, moves: Moves, memory_of: MemoryOf) -> Moved:
        """Blocks to slots.  DeviceLost or DeviceStuck where the device is not to be used again;
        any other refusal costs its block alone."""
        job = _job(moves, memory_of)
        self._show(moves)
        with self._clean_after():
            for number, load in enumerate(loads(moves.block_bytes.tolist(), self._half_bytes)):
                half = self._halves[number % 2]
                self._land(half, job)
                half.load = load
                for piece in load:
                    if piece.row not in job.bad:
                        bounce = half.memory[piece.at : piece.at + piece.size]
                        np.copyto(bounce, job.host(piece))
                        job.hashes[piece.row].update(bounce)
                        self._queue(job, piece, half, self._device.to_device)
            for half in self._halves:
                self._land(half, job)
        return job.moved

    def read(self, moves: Moves, memory_of: MemoryOf) -> Moved:
        """Slots to host memory; as write()."""
        job = _job(moves, memory_of)
        with self._clean_after():
            number = 0
            for number, load in enumerate(loads(moves.block_bytes.tolist(), self._half_bytes)):
                half, other = self._halves[number % 2], self._halves[1 - number % 2]
                half.load = load
                for piece in load:
                    if piece.row not in job.bad:
                        self._queue(job, piece, half, self._from_device)
                self._unload(other, job)
            self._unload(self._halves[number % 2], job)
        return job.moved

    # ---- one load ----

    @contextlib.contextmanager
    def _clean_after(self) -> Iterator[None]:
        """Leaves no load of this job behind, however it ends."""
        try:
            yield
        finally:
            for half in self._halves:
                if half.load and not self.is_broken:
                    self._finish(half)
                half.load = []

    def _queue(
        self, job: _Job, piece: Piece, half: _Half, copy: Callable[[int, int, int, int], None]
    ) -> None:
        moves, row = job.moves, piece.row
        place = self._address_of(int(moves.segments[row])) + int(moves.offsets[row]) + piece.start
        try:
            copy(place, half.address + piece.at, piece.size, half.stream)
        except DeviceLost:
            self.is_broken = True
            raise
        except CudaError:
            job.bad.add(row)

    def _from_device(self, place: int, bounce: int, size: int, stream: int) -> None:
        self._device.to_host(bounce, place, size, stream)

    def _finish(self, half: _Half) -> list[Piece]:
        """What has arrived.  Whatever goes wrong while waiting goes wrong for ever."""
        load, half.load = half.load, []
        if load:
            try:
                self._device.finish(half.stream, self._seconds)
            except CudaError as error:
                self.is_broken = True
                if isinstance(error, DeviceLost | DeviceStuck):
                    raise
                raise DeviceLost(error.call, error.code, str(error)) from error
        return load

    def _land(self, half: _Half, job: _Job) -> None:
        """Seals what a half has brought to the device."""
        for piece in self._finish(half):
            row = piece.row
            if piece.is_last and row not in job.bad and self._is_right(job, row):
                self._seal(job.moves, row)
                job.moved[row] = True

    def _unload(self, half: _Half, job: _Job) -> None:
        """Takes over what a half has brought from the device."""
        for piece in self._finish(half):
            if piece.row in job.bad:
                continue
            target = job.host(piece)
            np.copyto(target, half.memory[piece.at : piece.at + piece.size])
            job.hashes[piece.row].update(target)
            if piece.is_last:
                right = self._is_right(job, piece.row) and self._stands(job.moves, piece.row)
                job.moved[piece.row] = right

    @staticmethod
    def _is_right(job: _Job, row: int) -> bool:
        return job.hashes[row].intdigest() == int(job.moves.checksums[row])

    # ---- records ----

    def _show(self, moves: Moves) -> None:
        """Marks every slot as being written, before a byte travels."""
        columns = (moves.segments, moves.slots, moves.generations)
        for segment, slot, generation in zip(*(c.tolist() for c in columns), strict=True):
            assert generation % 2 == 1, f"slot {slot}: generation {generation} is not a writer's"
            GENERATION.pack_into(self._head_of(segment), record_offset(slot), generation)

    def _seal(self, moves: Moves, row: int) -> None:
        head, record = self._head_of(int(moves.segments[row])), record_offset(int(moves.slots[row]))
        body = (
            int(moves.lineages[row]),
            int(moves.layout_keys[row]),
            int(moves.checksums[row]),
            moves.path_hashes[row].tobytes(),
        )
        RECORD_BODY.pack_into(head, record + GENERATION.size, *body)
        GENERATION.pack_into(head, record, int(moves.generations[row]) + 1)

    def _stands(self, moves: Moves, row: int) -> bool:
        generation = int(moves.generations[row])
        assert generation % 2 == 0, f"slot {moves.slots[row]}: generation {generation} is unsealed"
        head = self._head_of(int(moves.segments[row]))
        [found] = GENERATION.unpack_from(head, record_offset(int(moves.slots[row])))
        return bool(found == generation)

    def close(self) -> None:
        """Gives the pinned memory back; CudaError where the device is gone."""
        for half in self._halves:
            half.close()
        self._halves.clear()
