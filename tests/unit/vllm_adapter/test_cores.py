"""Goal: a worker's own threads leave the core that the step is bound to, and no other binding.
Method: worked examples; a thread started from one that is bound, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine_adapter.vllm.cores import cores_beside

BOUND = """
import os, threading
from engine_adapter.vllm.cores import step_aside
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
found = []
def work():
    step_aside()
    found.append(os.sched_getaffinity(0))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(sorted(found[0]), sorted(os.sched_getaffinity(0)), sep=";")
"""


@pytest.mark.parametrize(
    ("own", "allowed", "found"),
    [
        ({0}, {0, 1, 2}, {1, 2}),
        ({0}, {0}, {0}),  # the whole process is bound: there is nowhere to go
        ({0, 1}, {0, 1, 2, 3}, {0, 1}),  # a memory node, say: not to be left
        ({0, 1}, {0, 1}, {0, 1}),
        ({0}, {1, 2}, {0}),  # set apart from its parent on purpose
    ],
)
def test_cores_beside_those_of_the_step(own: set[int], allowed: set[int], found: set[int]) -> None:
    assert cores_beside(own, allowed) == found


def test_thread_of_a_bound_thread_leaves_its_core_alone() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", BOUND], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == f"{allowed[1:] or allowed};{allowed[:1]}"
