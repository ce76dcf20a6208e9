"""Goal: background work cannot die unseen.
Method: tasks that fail, end early, are cancelled, or end as they should.
"""

from __future__ import annotations

import asyncio

from anchorstore.server.supervisor import Supervisor


class Reports(list[tuple[str, BaseException]]):
    """Collects what a supervisor reports."""

    def add(self, name: str, error: BaseException) -> None:
        self.append((name, error))


async def forever() -> None:
    await asyncio.Event().wait()


async def failing(text: str) -> None:
    raise ValueError(text)


async def ending() -> str:
    return "done"


async def test_failure_of_a_task_is_reported_once_and_kept() -> None:
    reports = Reports()
    supervisor = Supervisor(reports.add)
    supervisor.spawn("expiry", failing("first"))
    await supervisor.failed.wait()
    supervisor.fail("late", ValueError("second"))
    assert [(name, str(error)) for name, error in reports] == [("expiry", "first")]
    assert supervisor.failure == reports[0]


async def test_early_end_of_an_endless_task_is_a_failure() -> None:
    supervisor = Supervisor(Reports().add)

    async def returns() -> None:
        await asyncio.sleep(0)

    supervisor.spawn("eviction", returns())
    await supervisor.failed.wait()
    assert supervisor.failure is not None and "ended by itself" in str(supervisor.failure[1])


async def test_end_of_a_watched_task_is_none() -> None:
    supervisor = Supervisor(Reports().add)
    assert await supervisor.watch("seal", ending()) == "done"
    await asyncio.sleep(0)
    assert not supervisor.failed.is_set()


async def test_stop_cancels_everything_without_a_failure() -> None:
    supervisor = Supervisor(Reports().add)
    task = supervisor.spawn("expiry", forever())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert task.cancelled() and not supervisor.failed.is_set()
