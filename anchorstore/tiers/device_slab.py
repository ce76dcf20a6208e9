"""Whose memory an hbm tier lies in: the daemon's own, or an engine's.

::

    OwnSlab      the daemon allocates and exports     --handle--> sessions of the tier's domain
    EngineSlab   an engine allocates and exports      --handle--> the daemon, which passes it on

A tier does not care which of the two it has.
"""

from __future__ import annotations

from typing import Protocol

from anchorstore.transport.cuda import CudaDevice, CudaError
from anchorstore.transport.device_memory import OpenSlab, SlabExport
from anchorstore.units import MIB

SLAB_ALIGN_BYTES = 2 * MIB
"""Smaller allocations share a block of the driver's, which a handle would open as a whole."""


class Slab(Protocol):
    """Device memory that holds a tier's segments."""

    @property
    def device(self) -> CudaDevice: ...
    @property
    def address(self) -> int:
        """In this process."""

    @property
    def size_bytes(self) -> int: ...
    def export(self) -> SlabExport:
        """With which other processes open it."""

    def close(self) -> None:
        """Lets go of it; CudaError where the device is gone."""


class OwnSlab:
    """Memory that this process takes from the device, whole blocks of SLAB_ALIGN_BYTES.

    OutOfDeviceMemory, or another CudaError, where it cannot be had or exported.
    """

    def __init__(self, device: CudaDevice, size_bytes: int) -> None:
        self.device, self.size_bytes = device, size_bytes
        self._is_shared = False
        self.address = device.allocate(-(-size_bytes // SLAB_ALIGN_BYTES) * SLAB_ALIGN_BYTES)
        try:
            handle = device.export_handle(self.address)
        except CudaError:
            device.free(self.address)
            raise
        self._export = SlabExport(device.bus_id, handle, 0, size_bytes)

    def export(self) -> SlabExport:
        """See Slab."""
        self._is_shared = True
        return self._export

    def close(self) -> None:
        """See Slab.  What others may have open goes with the process: freeing it is undefined."""
        if not self._is_shared:
            self.device.free(self.address)


class EngineSlab(OpenSlab):
    """Memory that an engine owns: opened here, and passed on with the engine's own handle."""

    def __init__(self, device: CudaDevice, export: SlabExport) -> None:
        super().__init__(device, export)
        self._export = export

    def export(self) -> SlabExport:
        """See Slab."""
        return self._export
