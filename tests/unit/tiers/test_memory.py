"""Goal: a pool that this host or container cannot back is refused before a byte is touched.
Method: a folder that looks like /proc and /sys, in every arrangement of control groups.
"""

from __future__ import annotations

import pathlib

import pytest

from anchorstore.errors import ConfigError
from anchorstore.tiers import memory

GIB = 2**30
MEMINFO = """MemTotal:       16777216 kB
MemAvailable:    8388608 kB
HugePages_Total:     100
HugePages_Free:       60
HugePages_Rsvd:       10
Hugepagesize:       2048 kB
"""


def host(
    tmp_path: pathlib.Path, cgroup: str = "", files: dict[str, str] | None = None
) -> pathlib.Path:
    """A root folder with these control groups and limits."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in (files or {}).items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_meminfo_of_host_gives_available_and_free_huge_pages(tmp_path: pathlib.Path) -> None:
    root = host(tmp_path)
    assert memory.available_bytes(root) == 8 * GIB
    assert memory.huge_page_bytes_free(root) == 50 * 2 * 2**20


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("", {}, None),
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": f"{GIB}\n", "a/b/memory.max": "max\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": f"{GIB}\n", "a/b/memory.max": "4096\n"}, 4096),
        ("0::/a/b\n", {"memory.max": f"{3 * GIB}\n"}, 3 * GIB),  # the container's own top
        ("5:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_group_limit_in_every_hierarchy_is_the_tightest(
    tmp_path: pathlib.Path, cgroup: str, files: dict[str, str], limit: int | None
) -> None:
    assert memory.group_limit_bytes(host(tmp_path, cgroup, files)) == limit


def test_room_within_limits_is_accepted(tmp_path: pathlib.Path) -> None:
    memory.check_room(GIB, host(tmp_path, "0::/\n", {"memory.max": f"{GIB}\n"}))


def test_room_beyond_group_limit_names_pool_and_limit(tmp_path: pathlib.Path) -> None:
    root = host(tmp_path, "0::/\n", {"memory.max": f"{GIB}\n"})
    with pytest.raises(ConfigError, match=r"pool of 2GiB exceeds the control group.* of 1GiB"):
        memory.check_room(2 * GIB, root)


def test_room_beyond_available_memory_names_pool_and_host(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"pool of 9GiB exceeds the 8\.1GiB of memory"):
        memory.check_room(9 * GIB, host(tmp_path))
