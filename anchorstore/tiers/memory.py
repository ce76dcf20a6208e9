"""How much memory this process may take: the host's, its control group's, its huge pages'.

A pool beyond these would be killed page by page while it is touched, so it is refused at start.
Reads /proc and /sys below a root that tests replace.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from anchorstore.errors import ConfigError
from anchorstore.units import format_bytes

ROOT = pathlib.Path("/")
_NO_LIMIT_BYTES = 2**60  # control groups v1 write "no limit" as a number near 2**63
_MEMINFO = re.compile(r"^(\w+):\s+(\d+)(?: kB)?$", re.MULTILINE)


def _meminfo(root: pathlib.Path) -> dict[str, int]:
    path = root / "proc/meminfo"
    return {name: int(value) for name, value in _MEMINFO.findall(path.read_text())}


def available_bytes(root: pathlib.Path = ROOT) -> int:
    """Memory that the kernel would give without swapping (MemAvailable)."""
    return _meminfo(root)["MemAvailable"] * 1024


def huge_page_bytes_free(root: pathlib.Path = ROOT) -> int:
    """Bytes in huge pages of the default size that nobody has taken or reserved."""
    info = _meminfo(root)
    pages = info.get("HugePages_Free", 0) - info.get("HugePages_Rsvd", 0)
    return max(0, pages) * info.get("Hugepagesize", 0) * 1024


def _group_folders(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, pathlib.Path, str]]:
    """(top folder, this process's folder, name of the limit's file) of each hierarchy."""
    path = root / "proc/self/cgroup"
    for line in path.read_text().splitlines() if path.exists() else []:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        yield top, top / group.lstrip("/"), name


def group_limit_bytes(root: pathlib.Path = ROOT) -> int | None:
    """The tightest memory limit of this process's control groups (v2 and v1); None without one.

    In a container the group's own folder is often the top one: both are looked at, and all
    between them.
    """
    limits = []
    for top, folder, name in _group_folders(root):
        for place in {top, folder, *(p for p in folder.parents if top in p.parents)}:
            path = place / name
            text = path.read_text().strip() if path.exists() else "max"
            if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
                limits.append(int(text))
    return min(limits, default=None)


def check_room(pool_bytes: int, root: pathlib.Path = ROOT) -> None:
    """ConfigError where a pool of this size cannot be had here."""
    pool = format_bytes(pool_bytes)
    limit = group_limit_bytes(root)
    if limit is not None and pool_bytes > limit:
        raise ConfigError(
            f"tiers.dram.capacity: a pool of {pool} exceeds the control group's memory limit of "
            f"{format_bytes(limit)}"
        )
    free = available_bytes(root) + huge_page_bytes_free(root)
    if pool_bytes > free:
        raise ConfigError(
            f"tiers.dram.capacity: a pool of {pool} exceeds the {format_bytes(free)} of memory "
            "that this host has available"
        )
