"""Goal: both of the kernel's asynchronous interfaces answer each operation once, with its tag.
Method: one suite for both, on a real file and a real kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import platform
import threading
import time
from collections.abc import Iterator

import pytest

from anchorstore.tiers.nvme.aio import KernelAio
from anchorstore.tiers.nvme.kernel_queue import PATIENCE_SECONDS, Call, KernelQueue
from anchorstore.tiers.nvme.seam import address_of, aligned
from tests.unit.tiers.nvme.queues import ALLOWED, QUEUES

PAGE = 4096
ENTRIES = 8
WAKE = 99


@pytest.fixture(params=ALLOWED)
def queue(request: pytest.FixtureRequest) -> Iterator[KernelQueue]:
    subject = QUEUES[request.param](ENTRIES)
    yield subject
    subject.close()


@pytest.fixture
def descriptor(tmp_path: pathlib.Path) -> Iterator[int]:
    """Of a file whose page n is filled with n."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([number]) * PAGE for number in range(ENTRIES)))
    opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, opened)
        yield opened


def collected(queue: KernelQueue, count: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while len(found) < count:
        queue.enter(1)
        for tag, result in queue.completions():
            assert tag not in found
            found[tag] = result
    return found


def vectors_of(*parts: memoryview) -> memoryview:
    made = memoryview(bytearray(16 * len(parts)))
    for at, part in enumerate(parts):
        made.cast("Q")[2 * at], made.cast("Q")[2 * at + 1] = address_of(part), len(part)
    return made


def test_queue_moves_what_it_is_told(queue: KernelQueue, descriptor: int) -> None:
    memory = aligned(4 * PAGE)
    first, second, third, fourth = (memory[at : at + PAGE] for at in range(0, len(memory), PAGE))
    third[:], fourth[:] = b"a" * PAGE, b"b" * PAGE
    written, read = vectors_of(third, fourth), vectors_of(first, second)
    queue.push(queue.operation(Call.READ, descriptor, address_of(first), PAGE, 3 * PAGE, 1))
    queue.push(queue.operation(Call.WRITEV, descriptor, address_of(written), 2, 5 * PAGE, 2))
    assert collected(queue, 2) == {1: PAGE, 2: 2 * PAGE}
    assert bytes(first) == bytes([3]) * PAGE
    queue.push(queue.operation(Call.READV, descriptor, address_of(read), 2, 5 * PAGE, 3))
    assert collected(queue, 1) == {3: 2 * PAGE}
    assert (bytes(first), bytes(second)) == (b"a" * PAGE, b"b" * PAGE)


def test_queue_answers_more_than_it_holds_at_once(queue: KernelQueue, descriptor: int) -> None:
    memory = aligned(ENTRIES * PAGE)
    for turn in range(20):
        for at in range(ENTRIES):
            where = address_of(memory[at * PAGE :])
            tag = turn * ENTRIES + at
            queue.push(queue.operation(Call.READ, descriptor, where, PAGE, at * PAGE, tag))
        tags = range(turn * ENTRIES, (turn + 1) * ENTRIES)
        assert collected(queue, ENTRIES) == dict.fromkeys(tags, PAGE)
    assert [memory[at * PAGE] for at in range(ENTRIES)] == list(range(ENTRIES))


def test_queue_says_what_the_kernel_refused_and_goes_on(
    queue: KernelQueue, descriptor: int
) -> None:
    memory = aligned(PAGE)
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    for tag, file in enumerate((descriptor, closed, descriptor)):
        queue.push(queue.operation(Call.READ, file, address_of(memory), PAGE, PAGE, tag))
    assert collected(queue, 3) == {0: PAGE, 1: -errno.EBADF, 2: PAGE}


def test_queue_ends_at_the_end_of_the_file(queue: KernelQueue, descriptor: int) -> None:
    memory = aligned(2 * PAGE)
    for tag, page in enumerate((ENTRIES - 1, ENTRIES)):
        where = address_of(memory)
        queue.push(queue.operation(Call.READ, descriptor, where, 2 * PAGE, page * PAGE, tag))
    assert collected(queue, 2) == {0: PAGE, 1: 0}


def test_queue_is_woken_as_often_as_it_listens(queue: KernelQueue) -> None:
    for _ in range(3):
        queue.listen(WAKE)
        queue.enter(0)
        assert list(queue.completions()) == []
        os.eventfd_write(queue.wake, 2)
        assert set(collected(queue, 1)) == {WAKE}


def test_queue_that_waits_is_woken_by_another_thread(queue: KernelQueue) -> None:
    queue.listen(WAKE)

    def write_later() -> None:
        time.sleep(0.02)
        os.eventfd_write(queue.wake, 1)

    writer = threading.Thread(target=write_later)
    writer.start()
    assert set(collected(queue, 1)) == {WAKE}
    writer.join()


def test_queue_that_waits_for_several_has_patience_for_so_long(
    queue: KernelQueue, descriptor: int
) -> None:
    memory = aligned(PAGE)
    queue.listen(WAKE)  # nobody will
    queue.push(queue.operation(Call.READ, descriptor, address_of(memory), PAGE, PAGE, 1))
    queue.enter(2)
    assert dict(queue.completions()) == {1: PAGE}


def test_queue_without_patience_still_waits_for_one(queue: KernelQueue) -> None:
    queue.listen(WAKE)
    queue.enter(0)
    waking = threading.Timer(10 * PATIENCE_SECONDS, os.eventfd_write, (queue.wake, 1))
    waking.start()
    queue.enter(2)
    assert [tag for tag, _ in queue.completions()] == [WAKE]
    waking.join()


@pytest.mark.parametrize("name", ALLOWED)
def test_queue_gives_its_descriptors_back(name: str) -> None:
    def held() -> int:
        return len(list(pathlib.Path("/proc/self/fd").iterdir()))

    before = held()
    for _ in range(3):
        subject = QUEUES[name](ENTRIES)
        subject.listen(WAKE)
        subject.enter(0)
        subject.close()
    assert held() == before


def test_aio_says_where_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="not used on vax"):
        KernelAio(2)


def test_aio_beyond_what_the_kernel_gives_says_so() -> None:
    with pytest.raises(OSError):
        KernelAio(2**30)
