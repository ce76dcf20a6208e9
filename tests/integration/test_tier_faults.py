"""Goal: whatever happens to a device, the daemon serves on from memory, says what is wrong, and
never hands out a wrong byte.
Method: a daemon whose device fails on order (the shipped faulty file), and folders that vanish.
"""

from __future__ import annotations

import errno
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from anchorstore.config import Config
from anchorstore.testing.faulty_file import Faults
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.seam import FileSeam, Log, open_direct
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import Engine, Running, Wire, chain, running
from tests.integration.tiered import (
    PAGES,
    WAIT_MS,
    assert_right,
    counter,
    put,
    put_to_nvme,
    tiered,
    until,
)

OTHER = pb.NamespaceSpec(model="other", weights_digest=bytes(32), page_tokens=64)

pytestmark = pytest.mark.usefixtures("no_sockets_left")


@pytest.fixture
def config(tmp_path: pathlib.Path) -> Config:
    return tiered(tmp_path, tiers__nvme__deadline=20.0, tiers__nvme__engine="threads")


@pytest.fixture
def faults() -> Iterator[Faults]:
    found = Faults()
    yield found
    found.release()


def device_of(here: Running) -> admin_pb2.DeviceStatus:
    status = Wire.unix(here.socket).call(Method.STATUS, admin_pb2.StatusRequest())
    [device] = status.tiers[1].devices
    assert isinstance(device, admin_pb2.DeviceStatus)
    return device


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_device_that_takes_no_more_is_shown_and_what_it_has_is_served(
    config: Config, faults: Faults, code: int
) -> None:
    with running(config) as here:
        old = put_to_nvme(here, 1)
    with running(config, faults.open) as here:
        faults.fail("write", code)
        new = put(here, 1000)
        until(lambda: device_of(here).state == "read-only", "seen")
        engine = Engine(here.socket)
        assert_right(engine, engine.lookup(new))  # memory serves on
        assert_right(engine, engine.lookup(old, wait_ms=WAIT_MS))  # and so does the device
        assert device_of(here).reason
        assert "stores nothing new" in here.log.getvalue()
        text = here.do(here.daemon.metrics.exposition).decode()
        assert f'anchorstore_device_state{{device="{device_of(here).path}"}} 1.0' in text


def test_eio_of_one_slot_loses_its_block_alone(config: Config, faults: Faults) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config, faults.open) as here:
        assert here.daemon.nvme is not None
        [device] = here.daemon.nvme.devices
        faults.fail("read", errno.EIO, start=device.data_offset, stop=device.data_offset + 4096)
        engine = Engine(here.socket)
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        assert counter(here, "blocks_corrupt") == 1
        assert counter(here, "blocks_promoted") >= PAGES
        assert answer.miss != 0 or answer.boundary_pages < PAGES
        assert device_of(here).read_errors > 0 and device_of(here).state == "healthy"


def test_stuck_device_delays_nobody_beyond_his_wait(
    config: Config, faults: Faults, tmp_path: pathlib.Path
) -> None:
    with running(config) as here:
        cold = put_to_nvme(here, 1)
    impatient = tiered(tmp_path, tiers__nvme__deadline=0.2, tiers__nvme__engine="threads")
    with running(impatient, faults.open) as here:
        warm = put(here, 1000)
        faults.hold("read")
        engine = Engine(here.socket)
        answer = engine.lookup(cold, wait_ms=200)
        assert answer.miss == pb.MISS_REASON_COLD and answer.loading_boundary_pages == PAGES
        assert_right(engine, engine.lookup(warm))  # memory does not care
        until(lambda: device_of(here).stalled, "seen")
        other = Engine(here.socket)
        assert other.lookup(cold, wait_ms=200).miss == pb.MISS_REASON_COLD
        faults.release()
        until(lambda: counter(here, "blocks_promoted") == 2 * PAGES, "it answers in the end")
        assert_right(other, other.lookup(cold))


def test_removed_directory_ends_the_tier_and_not_the_daemon(
    config: Config, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "device"
    folder.mkdir()
    config = tiered(tmp_path, tiers__nvme__devices=[(str(folder), 64 * 2**20)])
    with running(config) as here:
        put_to_nvme(here, 1)
        shutil.rmtree(folder)
        hashes = put(here, 1000)
        until(lambda: device_of(here).state != "healthy", "seen")
        assert "removed" in device_of(here).reason
        engine = Engine(here.socket)
        assert_right(engine, engine.lookup(hashes))
        wire = Wire.unix(here.socket)
        [space] = wire.call(Method.LIST, admin_pb2.ListRequest()).namespaces
        request = admin_pb2.RemoveRequest(root_digest=space.root_digest)
        assert wire.call(Method.REMOVE, request).may_come_back


def test_torn_writes_are_never_served(config: Config, faults: Faults) -> None:
    with running(config, faults.open) as here:
        assert here.daemon.nvme is not None
        [device] = here.daemon.nvme.devices
        faults.tear("write", 4096, start=device.data_offset)
        hashes = put_to_nvme(here)
        faults.release()
    with running(config) as here:
        engine = Engine(here.socket)
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        if not answer.miss:
            assert_right(engine, answer, answer.boundary_pages)
        assert counter(here, "blocks_corrupt") > 0


def test_wait_of_a_client_that_leaves_hurts_nobody(config: Config, faults: Faults) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config, faults.open) as here:
        faults.hold("read")
        engine = Engine(here.socket)
        needs = [pb.Need(layout=layout, all=pb.NeedAll()) for layout in (0, 1)]
        request = pb.LookupRequest(
            session_id=engine.session_id, path_hashes=hashes, needs=needs, max_lineage=255,
            wait_ms=WAIT_MS,
        )  # fmt: skip
        engine.wire.send(Method.LOOKUP, request)
        until(lambda: faults.held > 0, "being read")
        engine.close()
        faults.release()
        until(lambda: counter(here, "blocks_promoted") == 2 * PAGES, "brought in")
        other = Engine(here.socket)
        assert_right(other, other.lookup(hashes))
        assert here.do(lambda: here.daemon.service.lookups.waiting) == 0


def test_full_device_leaves_what_is_new_to_the_other(tmp_path: pathlib.Path) -> None:
    faults, folders = Faults(), [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    config = tiered(
        tmp_path, tiers__nvme__devices=[(str(folder), 64 * 2**20) for folder in folders]
    )

    def open_file(path: pathlib.Path, log: Log) -> FileSeam:
        return faults.open(path, log) if path == folders[0] else open_direct(path, log)

    with running(config, open_file) as here:
        faults.fail("write", errno.ENOSPC)
        put(here, 1)
        assert here.daemon.nvme is not None
        one, two = here.daemon.nvme.devices
        until(lambda: one.health.state == State.READ_ONLY, "the first is full")
        hashes = put(here, 1000)
        until(lambda: two.counters["blocks_written"] >= 2 * PAGES, "the second takes them")
        engine = Engine(here.socket)
        assert_right(engine, engine.lookup(hashes))


def test_prefetch_that_fails_shows_nothing_and_stores_nothing(
    config: Config, faults: Faults
) -> None:
    """Neither a lookup nor a reader of hints may see what a failed read left in memory, and no
    device may be given it."""
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config, faults.open) as here:
        assert here.daemon.nvme is not None
        [device] = here.daemon.nvme.devices
        faults.fail("read", errno.EIO, start=device.data_offset)
        engine = Engine(here.socket)
        engine.lookup(hashes, prefetch=True)
        until(lambda: counter(here, "blocks_corrupt") == 2 * PAGES, "all of it failed")
        faults.release()
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        assert answer.miss == pb.MISS_REASON_NOT_STORED
        status = Wire.unix(here.socket).call(Method.STATUS, admin_pb2.StatusRequest())
        assert [tier.used_bytes for tier in status.tiers] == [0, 0]
        assert device.counters["blocks_written"] == 0
        assert put(here, 1) == hashes, "a writer brings it again"
        assert_right(engine, engine.lookup(hashes))


def test_device_never_takes_more_than_it_was_given(tmp_path: pathlib.Path) -> None:
    """Three times as much as fits is put: old blocks go, and the file stays as large as it was."""
    folder = tmp_path / "device"
    folder.mkdir()
    config = tiered(
        tmp_path,
        tiers__nvme__devices=[(str(folder), 8 * 2**20)],
        tiers__nvme__segment=2**20,
        tiers__dram__segment=2**20,
    )
    with running(config) as here:
        number = 0
        while counter(here, "pages_evicted_nvme") < 3 * PAGES:
            put(here, 1000 * number)
            number += 1
            until(lambda: here.do(lambda: here.daemon.core.blocks_to_demote) == 0, "written")
        assert [path.name for path in folder.iterdir()] == ["anchorstore.nvme"]
        assert (folder / "anchorstore.nvme").stat().st_size == 8 * 2**20


def test_flood_of_one_namespace_leaves_the_device_to_another(tmp_path: pathlib.Path) -> None:
    """A device that reads so little a second that what the flood asks for takes longer than any
    read may wait for its begin: another namespace's few blocks come all the same."""
    config = tiered(tmp_path, tiers__nvme__engine="threads")
    with running(config) as here:
        flood = [put_to_nvme(here, 1000 * number) for number in range(1, 25)]
        other = Engine(here.socket, namespace=OTHER)
        few = chain(other.grant.root_digest, range(PAGES))
        assert set(other.put(few)) == {1}
        until(lambda: here.do(lambda: here.daemon.core.blocks_to_demote) == 0, "taken")
        here.on_loop(here.daemon.drain)
    slow = tiered(
        tmp_path,
        tiers__nvme__engine="threads",
        tiers__nvme__deadline=1.0,
        tiers__nvme__read_bandwidth=2**20,
    )
    with running(slow) as here:
        many, other = Engine(here.socket), Engine(here.socket, namespace=OTHER)
        for path in flood:
            many.lookup(path, prefetch=True)
        assert_right(other, other.lookup(few, wait_ms=WAIT_MS))
        assert counter(here, "blocks_promoted") < 2 * PAGES * len(flood) // 2
        until(lambda: here.do(lambda: here.daemon.core.status(0.0).promotes_in_flight) == 0, "end")
        assert counter(here, "nvme_blocks_read_late") > 0, "it was a flood"
