"""The nvme tier: several devices as one space of units.

::

    unit      0 .. | segment_units ..            | ..                      |
              none | device 0: its units         | device 1: its units     |

Plans are cut by device and their ends put together again; each device has its own journal, threads,
limits and faults.  Namespaces and kinds have numbers of the tier's own, which are translated into
each device's.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock
from anchorstore.errors import ConfigError
from anchorstore.layout import Layout
from anchorstore.tiers.nvme.device import NvmeDevice, Options
from anchorstore.tiers.nvme.format import ENTRY, UNIT_BYTES, Entries
from anchorstore.tiers.nvme.jobs import MemoryOf
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import Done, ReadPlan, WritePlan, chosen, promise
from anchorstore.tiers.nvme.replay import Recovered, once
from anchorstore.tiers.nvme.seam import Log, OpenFile, open_direct

U32 = npt.NDArray[np.uint32]
UNITS_MAX = 2**32
_Number = TypeVar("_Number", np.uint16, np.uint32)


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePlace:
    """A path and the bytes to take there."""

    path: pathlib.Path
    capacity_bytes: int


class NvmeTier:
    """See above.  Segments are numbered from 1, all devices after each other; unit 0 is none."""

    name = "nvme"

    def __init__(self, devices: Sequence[NvmeDevice]) -> None:
        assert devices and len({device.segment_bytes for device in devices}) == 1
        self.devices = list(devices)
        self.segment_bytes = devices[0].segment_bytes
        self.segments = sum(device.segments for device in devices)
        self._bases = np.array([device.base_unit for device in devices], np.uint32)
        self._lock = threading.Lock()
        self._namespaces: dict[bytes, int] = {}
        self._kinds: dict[Layout, int] = {}
        self._namespace_maps: list[list[int]] = [[] for _ in devices]
        self._kind_maps: list[list[int]] = [[] for _ in devices]

    @classmethod
    def open(
        cls,
        places: Sequence[DevicePlace],
        segment_bytes: int,
        *,
        log: Log,
        options: Options | None = None,
        open_file: OpenFile = open_direct,
        clock: Clock | None = None,
    ) -> NvmeTier:
        """Opens every device; blocks.  ConfigError where one of them cannot be used."""
        devices: list[NvmeDevice] = []
        base = segment_bytes // UNIT_BYTES
        try:
            for place in places:
                device = NvmeDevice.open(
                    place.path,
                    place.capacity_bytes,
                    segment_bytes,
                    log=log,
                    options=options,
                    base_unit=base,
                    open_file=open_file,
                    clock=clock,
                )
                devices.append(device)
                base += device.units
            if base > UNITS_MAX:
                raise ConfigError(
                    f"tiers.nvme: the devices have {base * UNIT_BYTES} bytes together, limit 16TiB"
                )
        except BaseException:
            for device in devices:
                device.close()
            raise
        return cls(devices)

    def recover(self) -> Recovered:
        """What all journals held, once; numbers and units are the tier's.  Of two devices' blocks
        that was used last which lies further towards the end of its own device's."""
        merged, parts, ages = Recovered(), [np.zeros(0, ENTRY)], [np.zeros(0)]
        for device in self.devices:
            found = device.recover()
            namespaces = [self.namespace_number(note) for note in found.namespaces]
            kinds = [self.kind_number(kind) for kind in found.kinds]
            entries = found.entries
            if len(entries):
                entries["namespace"] = np.array(namespaces, np.uint32)[entries["namespace"]]
                entries["kind"] = np.array(kinds, np.uint16)[entries["kind"]]
            parts.append(entries)
            ages.append((found.recency + 0.5) / max(1, len(entries)))
            merged.frames += found.frames
            for reason, count in found.dropped.items():
                merged.drop(reason, count)
            merged.namespaces += found.namespaces
        notes: dict[bytes, NamespaceNote] = {}
        for note in merged.namespaces:  # off on one device, which may have been away: off
            before = notes.setdefault(note.namespace.root_digest(), note)
            enabled = before.enabled and note.enabled
            notes[note.namespace.root_digest()] = dataclasses.replace(note, enabled=enabled)
        merged.namespaces = [notes[root] for root in self._namespaces]
        merged.kinds = list(self._kinds)
        whole = np.concatenate(parts)
        merged.entries, kept = once(merged, whole, np.arange(len(whole)))
        merged.recency = np.argsort(np.argsort(np.concatenate(ages)[kept], kind="stable"))
        if len(merged.entries) < len(whole):
            self.note_gone(np.setdiff1d(whole["unit"], merged.entries["unit"]))
        return merged

    def devices_of(self, units: U32) -> npt.NDArray[np.intp]:
        """Position of each unit's device."""
        found: npt.NDArray[np.intp] = np.searchsorted(self._bases, units, "right") - 1
        assert not len(found) or found.min() >= 0, "a unit before the first device"
        return found

    def _spread(self, units: U32, act: Callable[[int, npt.NDArray[np.bool_]], None]) -> None:
        """Calls `act(device, which)` for each device that has some of the units."""
        of = self.devices_of(units)
        for device in np.unique(of).tolist():
            act(device, of == device)

    # -- blocks

    def write(self, plan: WritePlan, memory_of: MemoryOf) -> Future[Done]:
        """As NvmeDevice.write, over all devices."""
        return self._both(plan, memory_of)

    def read(self, plan: ReadPlan, memory_of: MemoryOf) -> Future[Done]:
        """As NvmeDevice.read, over all devices."""
        return self._both(plan, memory_of)

    def _both(self, plan: WritePlan | ReadPlan, memory_of: MemoryOf) -> Future[Done]:
        joined = _Joined(len(plan))

        def begin(device: int, which: npt.NDArray[np.bool_]) -> None:
            part = chosen(plan, which)
            target = self.devices[device]
            if isinstance(part, WritePlan):
                part = dataclasses.replace(
                    part,
                    namespace=_mapped(self._namespace_maps[device], part.namespace),
                    kind=_mapped(self._kind_maps[device], part.kind),
                )
                joined.add(which, target.write(part, memory_of))
            else:
                joined.add(which, target.read(part, memory_of))

        self._spread(plan.unit, begin)
        joined.all_begun()
        return joined.future

    # -- journals

    def namespace_number(self, note: NamespaceNote) -> int:
        """The tier's number of a namespace, from 0; idempotent."""
        with self._lock:
            root = note.namespace.root_digest()
            number = self._namespaces.setdefault(root, len(self._namespaces))
            for device, numbers in zip(self.devices, self._namespace_maps, strict=True):
                at_device = device.namespace_number(note)
                if number == len(numbers):
                    numbers.append(at_device)
            return number

    def kind_number(self, layout: Layout) -> int:
        """The tier's number of a layout and shard, from 0; idempotent."""
        with self._lock:
            number = self._kinds.get(layout)
            if number is None:
                number = self._kinds[layout] = len(self._kinds)
                for device, numbers in zip(self.devices, self._kind_maps, strict=True):
                    numbers.append(device.kind_number(layout))
            return number

    def note_blocks(self, entries: Entries) -> None:
        """As NvmeDevice.note_blocks."""

        def note(device: int, which: npt.NDArray[np.bool_]) -> None:
            part = entries[which]
            part["namespace"] = _mapped(self._namespace_maps[device], part["namespace"])
            part["kind"] = _mapped(self._kind_maps[device], part["kind"])
            self.devices[device].note_blocks(part)

        self._spread(entries["unit"], note)

    def note_gone(self, units: U32) -> None:
        """As NvmeDevice.note_gone."""
        self._spread(units, lambda at, which: self.devices[at].note_gone(units[which]))

    def note_used(self, units: U32) -> None:
        """As NvmeDevice.note_used."""
        self._spread(units, lambda at, which: self.devices[at].note_used(units[which]))

    def flush(self) -> Future[None]:
        """Done when every device has flushed."""
        done: Future[None] = promise()
        left = [len(self.devices)]

        def ended(_: Future[None]) -> None:
            with self._lock:
                left[0] -= 1
                is_last = not left[0]
            if is_last:
                done.set_result(None)

        for device in self.devices:
            device.flush().add_done_callback(ended)
        return done

    def close(self, timeout_seconds: float = 5.0) -> bool:
        """Ends every device; False where one still holds calls that it does not answer."""
        ended = [device.close(timeout_seconds) for device in self.devices]
        return all(ended)


class _Joined:
    """The ends of a plan's parts as one."""

    def __init__(self, count: int) -> None:
        self.future: Future[Done] = promise()
        self._status = np.zeros(count, np.uint8)
        self._lock = threading.Lock()
        self._open = 1  # ourselves, until all parts have begun
        self._error: BaseException | None = None

    def add(self, which: npt.NDArray[np.bool_], part: Future[Done]) -> None:
        """Waits for one part."""
        with self._lock:
            self._open += 1

        def ended(part: Future[Done]) -> None:
            error = part.exception()
            if error is None:
                self._status[which] = part.result().status
            self._end(error)

        part.add_done_callback(ended)

    def all_begun(self) -> None:
        """No further part comes."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._open -= 1
            is_last = not self._open
        if not is_last:
            return
        if self._error is None:
            self.future.set_result(Done(self._status))
        else:
            self.future.set_exception(self._error)


def _mapped(numbers: list[int], column: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """The device's numbers for the tier's."""
    return np.array(numbers, column.dtype)[column] if len(column) else column
