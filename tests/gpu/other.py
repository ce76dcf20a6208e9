"""Another process on the same device: opens a slab, or owns one, and says what it sees there.

::

    test or probe  --one JSON object a line-->  python -m tests.gpu.other
                   <-------- and back ---------

It uses what an engine would use: the driver, the slab's description, torch where it is installed.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import xxhash

from anchorstore.tiers.device_slab import OwnSlab
from anchorstore.transport.cuda import CudaDevice
from anchorstore.transport.cuda_driver import DriverDevice
from anchorstore.transport.device_memory import OpenSlab, SlabExport

SECONDS = 20.0


def to_json(export: SlabExport) -> dict[str, Any]:
    """A description as it may travel."""
    handle = base64.b64encode(export.handle).decode()
    return {
        "bus_id": export.bus_id,
        "handle": handle,
        "offset": export.offset,
        "size_bytes": export.size_bytes,
    }


def from_json(found: dict[str, Any]) -> SlabExport:
    return SlabExport(
        found["bus_id"], base64.b64decode(found["handle"]), found["offset"], found["size_bytes"]
    )


def copy_out(device: CudaDevice, address: int, size: int) -> np.ndarray:
    """Bytes of the device, by a stream of one's own."""
    found, stream = np.zeros(size, np.uint8), device.make_stream()
    device.to_host(found.ctypes.data, address, size, stream)
    device.finish(stream, SECONDS)
    device.drop_stream(stream)
    return found


class _Side:
    """What this process has open."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.slab: OwnSlab | OpenSlab | None = None

    def own(self, size_bytes: int) -> dict[str, Any]:
        """Takes a slab from the device."""
        slab = self.slab = OwnSlab(self.device, size_bytes)
        return to_json(slab.export())

    def open(self, export: dict[str, Any]) -> int:
        """Opens somebody's slab."""
        self.slab = OpenSlab(self.device, from_json(export))
        return self.slab.size_bytes

    def sum(self, start: int, size: int) -> int:
        """xxh3 of bytes of the slab."""
        assert self.slab is not None
        return xxhash.xxh3_64_intdigest(copy_out(self.device, self.slab.address + start, size))

    def torch(self, start: int, size: int) -> int | None:
        """The same by a tensor over the slab; None without torch."""
        try:
            import torch
        except ImportError:
            return None
        assert isinstance(self.slab, OpenSlab)
        view = self.slab.view(start, size)
        tensor = torch.as_tensor(view, device=f"cuda:{self.device.ordinal}")
        assert tensor.data_ptr() == view.address, "torch has made a copy"
        return xxhash.xxh3_64_intdigest(tensor.cpu().numpy())

    def close(self) -> bool:
        """Lets go of the slab."""
        if self.slab is not None:
            self.slab.close()
        self.slab = None
        return True


def serve(device: CudaDevice, asked: Iterable[str], answer: Callable[[str], object]) -> None:
    """Answers requests {"do": method, ...} until there are no more."""
    side = _Side(device)
    for line in asked:
        request = json.loads(line)
        try:
            found = getattr(side, request.pop("do"))(**request)
            answer(json.dumps({"found": found}))
        except Exception as error:  # noqa: BLE001 - told to whoever asked, whatever it is
            answer(json.dumps({"error": f"{type(error).__name__}: {error}"}))


class Other:
    """Such a process; a context manager that starts and ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.other"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: object) -> Any:
        """What it found; RuntimeError with what it met instead."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{do}: the other process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{do}: {answer['error']}")
        return answer["found"]

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    serve(DriverDevice(0), sys.stdin, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
