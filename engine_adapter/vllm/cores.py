"""Where a worker's own threads run: beside the step, not on its core.

On CPU, vLLM binds the threads of a step to cores, one each, and a thread inherits the core of the
one that started it::

    core 0    [step][step][step]            core 1    (scheduler, server)
              [save]  inherited: the step waits        [save]  where it belongs

Nothing is changed where the starting thread is not bound to a single core.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Set

log = logging.getLogger("anchorstore.vllm")


def cores_beside(own: Set[int], allowed: Set[int]) -> frozenset[int]:
    """Cores for a thread that has inherited `own`, where its process's parent has `allowed`."""
    is_bound = len(own) == 1 and own < allowed
    return frozenset(allowed - own if is_bound else own)


def step_aside() -> None:
    """Moves the calling thread off the one core that its process's main thread is bound to."""
    try:
        own = os.sched_getaffinity(0)
        cores = cores_beside(own, os.sched_getaffinity(os.getppid()))
        if cores != own:
            os.sched_setaffinity(0, cores)
    except OSError as error:  # the parent has ended, or may use cores that this process may not
        log.warning("a thread stays on the core of the step: %s", error)
