"""Goal: a lane that is stopped leaves nobody behind, and the long runs end by themselves alone.
Method: a process that starts another one in a session of its own, as tests start servers; what
pytest is told.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.lanes import APART, LANES, Lane, pytest_options, stop

LANE = """
import subprocess, sys, time
server = subprocess.Popen(
    [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
    start_new_session=True, stdout=sys.stdout,
)
time.sleep(600)
"""


def test_lane_when_stopped_takes_along_servers_in_sessions_of_their_own() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LANE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the server runs
    stop(process)
    assert process.stdout.read() == ""  # ends once the last process that could write has
    assert process.wait() < 0
    process.stdout.close()


@pytest.mark.parametrize("lane", [*LANES, *APART], ids=lambda lane: lane.name)
def test_slow_tests_of_every_lane_may_take_as_long_as_they_take(lane: Lane) -> None:
    limits = [each for each in pytest_options(lane, True, ["-k", "x"]) if "--timeout" in each]
    assert limits == ["--timeout=0"]
    assert "--timeout=0" not in pytest_options(lane, False, [])
