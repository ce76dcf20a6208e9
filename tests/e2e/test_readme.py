"""Goal: the client example of the README runs as it stands, with a daemon and without.
Method: cut it out, point it at a socket of ours, run it as a script.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

from anchorstore.testing.daemon import Daemon

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "unix:///run/anchorstore/engine.sock"


def output_of_the_example(address: str) -> list[str]:
    """Lines that the example prints."""
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert code.count(ADDRESS) == 1, "the example has moved: mend this test"
    command = [sys.executable, "-c", code.replace(ADDRESS, address)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_example_of_the_readme_puts_and_resumes(tmp_path: pathlib.Path) -> None:
    settings = {"tiers.dram.capacity": "256MiB", "tiers.dram.segment": "4MiB"}
    with Daemon(tmp_path, settings=settings) as daemon:
        for sealed, known in ((30, 0), (0, 30)):
            put, got, copied = output_of_the_example(daemon.address)
            assert put.startswith(f"PutOutcome(sealed={sealed}, known={known}, declined=0,")
            assert got == "resume at page 14: 14 kv, 12 anchors"
            assert copied == "15 of 15 kv pages copied"


def test_example_of_the_readme_without_a_daemon_is_a_miss(tmp_path: pathlib.Path) -> None:
    lines = output_of_the_example(f"unix://{tmp_path}/none.sock")
    assert lines[1:] == ["miss: unreachable", "0 of 0 kv pages copied"]
