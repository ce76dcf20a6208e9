"""Which of the kernel's queues there are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from anchorstore.tiers.nvme.aio import KernelAio
from anchorstore.tiers.nvme.kernel_queue import KernelQueue
from anchorstore.tiers.nvme.uring import Ring

QUEUES: Mapping[str, Callable[[int], KernelQueue]] = {"io_uring": Ring, "aio": KernelAio}


def is_allowed(name: str) -> bool:
    """Whether the kernel opens such a queue."""
    try:
        QUEUES[name](2).close()
    except OSError:
        return False
    return True


ALLOWED = [
    pytest.param(
        name, marks=pytest.mark.skipif(not is_allowed(name), reason=f"the kernel refuses {name}")
    )
    for name in QUEUES
]
