"""Resident memory of the processes of a session, from /proc."""

from __future__ import annotations

import dataclasses
import os
import pathlib

PROC = pathlib.Path("/proc")
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Resident:
    """What a process has in memory.

    Attributes:
        name: what it calls itself.
        total_bytes: all of it: VmRSS.
        shared_bytes: of which memory that others have mapped, too, as the store's pool: RssShmem.
    """

    name: str
    total_bytes: int
    shared_bytes: int

    def __str__(self) -> str:
        own = (self.total_bytes - self.shared_bytes) / MIB
        return f"{self.name} {self.total_bytes / MIB:.0f} MiB ({own:.0f} its own)"


def _status(process: pathlib.Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def _bytes(words: str) -> int:
    number, unit = words.split()
    assert unit == "kB", words
    return int(number) * 1024


def resident(session: int) -> dict[int, Resident]:
    """By process id, those of the session that process `session` leads."""
    found = {}
    for process in PROC.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if os.getsid(int(process.name)) != session:
                continue
            status = _status(process)
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended meanwhile
        if "VmRSS" in status:  # a zombie has none
            sizes = (_bytes(status["VmRSS"]), _bytes(status["RssShmem"]))
            found[int(process.name)] = Resident(status["Name"], *sizes)
    return found
