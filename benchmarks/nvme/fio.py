"""fio as the yardstick: what the kernel and the device give to whoever asks in C.

One job on one preallocated file, random blocks, direct: `psync` with a thread a call where we have
threads, `libaio` and `io_uring` with as many calls out where we have these.  Its rates and its CPU
time are fio's own, without its start.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any

from benchmarks.nvme.figures import Round

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED = ("--iomem=mmapshared",)
HUGE = ("--iomem=mmaphuge", "--hugepage-size=2m")
IO_ENGINES = {"threads": "psync", "aio": "libaio", "io_uring": "io_uring"}


def ensure_fio() -> bool:
    """Whether fio is here, installed where that is possible."""
    if shutil.which("fio") is None:
        subprocess.run([ROOT / "scripts" / "ensure_fio.sh"], stdout=2, check=True)
    return shutil.which("fio") is not None


class Fio:
    """Runs on one file of `file_bytes`, which is written whole first.

    Args:
        engine: of ours; fio's is the one beside it in IO_ENGINES.
        depth: calls at the same time.
        is_huge: whether its memory lies on huge pages; shared as ours is in both cases.
        checks: whether it verifies what it reads, as we do: by CRC-32C, its fastest here.
    """

    def __init__(
        self,
        path: pathlib.Path,
        file_bytes: int,
        block_bytes: int,
        engine: str,
        depth: int,
        *,
        is_huge: bool = False,
        checks: bool = False,
    ) -> None:
        self._checks = checks
        threads, calls = (depth, 1) if engine == "threads" else (1, depth)
        self._command = [
            "fio",
            "--name=yardstick",
            f"--filename={path}",
            f"--size={file_bytes}",
            f"--bs={block_bytes}",
            f"--ioengine={IO_ENGINES[engine]}",
            f"--iodepth={calls}",
            f"--numjobs={threads}",
            *(HUGE if is_huge else SHARED),
            "--thread",
            "--group_reporting",
            "--direct=1",
            "--randrepeat=0",
            "--norandommap",
            "--random_generator=tausworthe64",
            "--output-format=json",
        ]

    def fill(self) -> None:
        """Writes the file with checksums, for one that checks."""
        assert self._checks
        self._run("--rw=write", "--verify=crc32c", "--do_verify=0")

    def run(self, is_write: bool, seconds: float) -> Round:
        """One timed run; RuntimeError with fio's words where it fails, or finds wrong bytes."""
        mode = "randwrite" if is_write else "randread"
        checks = ("--verify=crc32c", "--verify_fatal=1") if self._checks else ()
        duration = ("--time_based", f"--runtime={max(1, round(seconds))}")
        return round_of(self._run(f"--rw={mode}", *duration, *checks), is_write)

    def _run(self, *options: str) -> dict[str, Any]:
        command = [*self._command, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"fio: {done.stderr.strip() or done.stdout.strip()}")
        document: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return document


def round_of(document: dict[str, Any], is_write: bool) -> Round:
    """The figures in fio's JSON."""
    [job] = document["jobs"]
    side = job["write" if is_write else "read"]
    seconds = side["runtime"] / 1e3
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return Round(moved_bytes=side["io_bytes"], seconds=seconds, cpu_seconds=busy)
