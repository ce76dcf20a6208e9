"""Who watches the background work: a task that dies takes the daemon with it, loudly.

Expiry, eviction, carriers and copies all run under one Supervisor.  The first failure is kept; the
daemon waits for it beside its signals and leaves with a non-zero exit code.  A half-dead daemon
would be worse than none: an engine without one merely prefills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Report = Callable[[str, BaseException], None]


class Supervisor:
    """Owns tasks.  Bound to the running event loop; not for use from other threads.

    Args:
        report: called once, with the name and the error of the first thing that failed.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed = asyncio.Event()
        self.failure: tuple[str, BaseException] | None = None

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work`, which may end only by being cancelled: an early return is a failure."""

        async def endless() -> None:
            await work
            raise AssertionError(f"{name} ended by itself")

        return self.watch(name, endless())

    def watch(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work`, which ends when it is done; an error in it is a failure."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(task.get_name(), error)

    def fail(self, name: str, error: BaseException) -> None:
        """Records a failure; the first one counts."""
        if self.failure is None:
            self.failure = (name, error)
            self._report(name, error)
        self.failed.set()

    async def stop(self) -> None:
        """Cancels every task and waits for the end of all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
