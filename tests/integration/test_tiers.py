"""Goal: blocks outlive memory and the daemon in the nvme tier, and come back byte for byte, or not
at all.
Method: a daemon on a temporary folder, put and read by the plainest client; restarts and damage in
between.  Faults of a device while it runs: test_tier_faults.py.
"""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

from anchorstore.config import Config
from anchorstore.errors import ConfigError
from anchorstore.testing.daemon import Daemon
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

pytestmark = pytest.mark.usefixtures("no_sockets_left")


@pytest.fixture
def config(tmp_path: pathlib.Path) -> Config:
    return tiered(tmp_path)


def device_file(config: Config) -> pathlib.Path:
    [device] = config.tiers.nvme.devices
    return pathlib.Path(device.path) / "anchorstore.nvme"


def status_of(here: Running) -> admin_pb2.StatusResponse:
    answer: admin_pb2.StatusResponse = Wire.unix(here.socket).call(
        Method.STATUS, admin_pb2.StatusRequest()
    )
    return answer


# ---- restart ----


def test_restart_serves_what_was_written_byte_for_byte(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config) as here:
        engine = Engine(here.socket)
        cold = engine.lookup(hashes)
        assert cold.miss == pb.MISS_REASON_COLD and cold.loading_boundary_pages == 0
        assert_right(engine, engine.lookup(hashes, wait_ms=WAIT_MS))
        assert_right(engine, engine.lookup(hashes))  # from memory, at once
        assert counter(here, "blocks_promoted") == 2 * PAGES
        assert counter(here, "blocks_corrupt") == 0


def test_status_after_a_restart_shows_both_tiers_and_the_device(config: Config) -> None:
    with running(config) as here:
        put_to_nvme(here)
    with running(config) as here:
        dram, nvme = status_of(here).tiers
        assert (dram.name, nvme.name) == ("dram", "nvme")
        assert sum(part.blocks for part in dram.components) == 0
        assert sum(part.blocks for part in nvme.components) == 2 * PAGES
        [device] = nvme.devices
        assert device.path == str(device_file(config))
        assert device.state == "healthy" and not device.stalled
        text = here.do(here.daemon.metrics.exposition).decode()
        assert f'anchorstore_device_state{{device="{device.path}"}} 0.0' in text
        assert 'anchorstore_tier_used_bytes{tier="nvme"}' in text


def test_restart_with_a_damaged_slot_loses_that_block_alone(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
        assert here.daemon.nvme is not None
        [device] = here.daemon.nvme.devices
        data_offset, segment_bytes = device.data_offset, device.segment_bytes
    with device_file(config).open("r+b") as file:  # the first block that lies there
        file.seek(data_offset)
        data = np.frombuffer(file.read(segment_bytes), np.uint8)
        first = int(np.flatnonzero(data)[0])
        file.seek(data_offset + first)
        file.write(bytes([data[first] ^ 0xFF]))
    with running(config) as here:
        engine = Engine(here.socket)
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        assert counter(here, "blocks_corrupt") == 1
        assert answer.miss != 0 or answer.boundary_pages < PAGES
        if not answer.miss:
            assert_right(engine, answer, answer.boundary_pages)


def test_removal_outlives_a_restart(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
        wire = Wire.unix(here.socket)
        spaces = wire.call(Method.LIST, admin_pb2.ListRequest()).namespaces
        request = admin_pb2.RemoveRequest(root_digest=spaces[0].root_digest)
        answer = wire.call(Method.REMOVE, request)
        assert answer.blocks_removed == 2 * PAGES and not answer.may_come_back
    with running(config) as here:
        assert Engine(here.socket).lookup(hashes, wait_ms=WAIT_MS).miss == pb.MISS_REASON_NOT_STORED


def test_restart_finds_what_several_devices_hold(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    config = tiered(
        tmp_path,
        tiers__nvme__devices=[(str(folder), 12 * 2**20) for folder in folders],
        tiers__nvme__segment=2**20,
        tiers__nvme__kv_share=1.0,
    )
    with running(config) as here:
        paths = [put_to_nvme(here, seed, pages=100) for seed in (1000, 2000, 3000)]
        assert here.daemon.nvme is not None
        assert all(device.counters["blocks_written"] for device in here.daemon.nvme.devices)
    with running(config) as here:
        engine = Engine(here.socket)
        for hashes in paths:
            assert_right(engine, engine.lookup(hashes, wait_ms=WAIT_MS), 100)
        assert here.daemon.nvme is not None
        assert all(device.counters["blocks_read"] for device in here.daemon.nvme.devices)


# ---- looking up what is not in memory ----


def test_prefetch_answers_at_once_and_says_what_comes(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config) as here:
        engine = Engine(here.socket)
        answer = engine.lookup(hashes, prefetch=True)
        assert answer.miss == pb.MISS_REASON_COLD and answer.loading_boundary_pages == PAGES
        until(lambda: counter(here, "blocks_promoted") == 2 * PAGES, "prefetched")
        assert_right(engine, engine.lookup(hashes))


def test_two_readers_of_cold_blocks_cause_one_read(config: Config) -> None:
    with running(config) as here:
        hashes = put_to_nvme(here)
    with running(config) as here:
        engines = [Engine(here.socket), Engine(here.socket)]
        needs = [pb.Need(layout=layout, all=pb.NeedAll()) for layout in (0, 1)]
        here.do(lambda: None)
        for engine in engines:
            request = pb.LookupRequest(
                session_id=engine.session_id,
                path_hashes=hashes,
                needs=needs,
                max_lineage=255,
                wait_ms=WAIT_MS,
            )
            engine.wire.send(Method.LOOKUP, request)
        for engine in engines:
            answer, _ = engine.wire.receive_answer()
            assert isinstance(answer, pb.LookupResponse)
            assert_right(engine, answer)
        assert counter(here, "blocks_promoted") == 2 * PAGES


def test_pressure_on_memory_demotes_and_brings_back(tmp_path: pathlib.Path) -> None:
    config = tiered(tmp_path, tiers__dram__capacity=2 * 2**20, tiers__dram__segment=256 * 1024)
    with running(config) as here:
        paths = []
        for seed in range(1, 400, 40):
            paths.append(put_to_nvme(here, seed, pages=20))
        until(lambda: counter(here, "pages_demoted") > 0, "demoted")
        engine = Engine(here.socket)
        for hashes in paths:
            answer = engine.lookup(hashes, wait_ms=WAIT_MS)
            assert_right(engine, answer, 20)
            engine.call(Method.RELEASE, pb.ReleaseRequest, lease_ids=[answer.lease_id])
        assert counter(here, "blocks_corrupt") == 0
        assert counter(here, "pages_evicted") == 0


@pytest.mark.parametrize("policy", ["lfu", "flop-aware", "segment-length", "ttl"])
@pytest.mark.parametrize("admission", ["second-sight", "size"])
def test_policy_and_admission_of_the_configuration_are_served_by(
    tmp_path: pathlib.Path, policy: str, admission: str
) -> None:
    config = tiered(
        tmp_path,
        tiers__dram__policy=policy,
        tiers__nvme__policy=policy,
        tiers__nvme__admission=admission,
        tiers__nvme__admission_least=2**30,
    )
    with running(config) as here:
        hashes = put(here, 1)
        engine = Engine(here.socket)
        for _ in range(3):
            assert_right(engine, engine.lookup(hashes))
        other = put_to_nvme(here, 1000) if admission == "second-sight" else put(here, 1000)
        assert_right(engine, engine.lookup(other, wait_ms=WAIT_MS))
        if admission == "size":  # no page is as large as that
            assert counter(here, "nvme_blocks_written") == 0


def test_lookup_without_an_nvme_tier_ignores_the_wait(tmp_path: pathlib.Path) -> None:
    with running(tiered(tmp_path, tiers__nvme__devices=())) as here:
        engine = Engine(here.socket)
        hashes = chain(engine.grant.root_digest, range(3))
        answer = engine.lookup(hashes, wait_ms=60_000, prefetch=True)
        assert answer.miss == pb.MISS_REASON_NOT_STORED
        assert len(status_of(here).tiers) == 1


# ---- starts that must not be ----


def test_start_on_a_foreign_file_is_refused_and_leaves_it(tmp_path: pathlib.Path) -> None:
    foreign = tmp_path / "photos.img"
    foreign.write_bytes(b"holiday" * 4096)
    config = tiered(tmp_path, tiers__nvme__devices=[(str(foreign), 64 * 2**20)])
    with pytest.raises(ConfigError, match=r"photos.img holds something else"), running(config):
        pass
    assert foreign.read_bytes() == b"holiday" * 4096


def test_start_of_a_second_daemon_on_a_directory_is_refused(tmp_path: pathlib.Path) -> None:
    with running(tiered(tmp_path)) as here:
        other = tiered(tmp_path, listen__socket=str(tmp_path / "other.sock"))
        with pytest.raises(ConfigError, match=r"anchorstore.nvme is in use"), running(other):
            pass
        put(here, 1)


def test_start_without_the_directory_is_refused(tmp_path: pathlib.Path) -> None:
    config = tiered(tmp_path, tiers__nvme__devices=[(str(tmp_path / "gone" / "x"), 64 * 2**20)])
    with pytest.raises(ConfigError, match="cannot open"), running(config):
        pass


# ---- processes ----


@pytest.mark.parametrize("end", ["drain", "kill"])
def test_process_that_ends_leaves_its_blocks_to_the_next(tmp_path: pathlib.Path, end: str) -> None:
    device = tmp_path / "device"
    device.mkdir()
    settings = {"tiers.nvme.devices": f"{device}:64MiB", "tiers.nvme.segment": "4MiB"}
    daemon = Daemon(tmp_path / "daemon", settings=settings)
    with daemon:
        engine = Engine(daemon.socket_path)
        hashes = chain(engine.grant.root_digest, range(PAGES))
        assert set(engine.put(hashes)) == {1}
        if end == "kill":
            _wait_for_journal(daemon)
            daemon.kill()
        else:
            assert daemon.stop() == 0
        engine.close()
        daemon.start()
        [restored] = [event for event in daemon.events() if event["event"] == "nvme restored"]
        engine = Engine(daemon.socket_path)
        answer = engine.lookup(hashes, wait_ms=WAIT_MS)
        assert restored["blocks"] == 2 * PAGES
        assert_right(engine, answer)
        engine.close()
    shutil.rmtree(device)


def by_use(here: Running) -> list[bytes]:
    """Path hashes of the pages, from the one used longest ago on."""

    def ordered() -> list[bytes]:
        index = here.daemon.core._state.index
        rows = np.flatnonzero(index.namespace[: index.rows.top])
        rows = rows[np.argsort(index.stamp[rows])]
        return [index.hashes[row].tobytes() for row in rows]

    found: list[bytes] = here.do(ordered)
    return found


def pages_of(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + 32] for at in range(0, len(hashes), 32)]


def test_restart_knows_what_was_used_last(config: Config) -> None:
    with running(config) as here:
        first, second = put_to_nvme(here, 1), put_to_nvme(here, 1000)
        engine = Engine(here.socket)
        assert_right(engine, engine.lookup(first))
        engine.close()
        here.on_loop(here.daemon.drain)
    for _ in range(2):  # the second time from what the first restart wrote down
        with running(config) as here:
            assert by_use(here) == [*pages_of(second), *pages_of(first)]


def test_killed_process_leaves_the_order_in_which_blocks_were_written(
    tmp_path: pathlib.Path,
) -> None:
    config = tiered(tmp_path)
    [device] = config.tiers.nvme.devices
    settings = {"tiers.nvme.devices": f"{device.path}:64MiB", "tiers.nvme.segment": "4MiB"}
    with Daemon(tmp_path / "daemon", settings=settings) as daemon:
        engine = Engine(daemon.socket_path)
        paths = [chain(engine.grant.root_digest, range(at, at + PAGES)) for at in (1, 1000, 2000)]
        for number, path in enumerate(paths):  # the last one lies where the first one did
            assert set(engine.put(path)) == {1}
            _wait_for_journal(daemon, blocks=2 * PAGES * (number + 1))
            if number == 1:
                request = admin_pb2.RemoveRequest(
                    root_digest=engine.grant.root_digest, path_hash=paths[0][:32]
                )
                assert not Wire.unix(daemon.socket_path).call(Method.REMOVE, request).may_come_back
        daemon.kill()
        engine.close()
    with running(config) as here:
        assert by_use(here) == [*pages_of(paths[1]), *pages_of(paths[2])]


@pytest.mark.parametrize("end", ["drain", "kill"])
def test_namespace_that_was_turned_off_is_off_in_the_next_process(
    tmp_path: pathlib.Path, end: str
) -> None:
    devices = [tmp_path / "one", tmp_path / "two"]
    for device in devices:
        device.mkdir()
    places = ",".join(f"{device}:64MiB" for device in devices)
    settings = {"tiers.nvme.devices": places, "tiers.nvme.segment": "4MiB"}
    daemon = Daemon(tmp_path / "daemon", settings=settings)

    def again() -> None:
        if end == "kill":
            daemon.kill()
        else:
            assert daemon.stop() == 0
        daemon.start()

    def turn(root: bytes, enabled: bool) -> None:
        request = admin_pb2.SetNamespaceRequest(root_digest=root, enabled=enabled)
        answer = Wire.unix(daemon.socket_path).call(Method.SET_NAMESPACE, request)
        assert not answer.until_restart

    with daemon:
        engine = Engine(daemon.socket_path)
        root = engine.grant.root_digest
        hashes = chain(root, range(PAGES))
        assert set(engine.put(hashes)) == {1}
        _wait_for_journal(daemon)
        turn(root, enabled=False)
        engine.close()
        for _ in range(2):  # the second time from what the first restart wrote down
            again()
            engine = Engine(daemon.socket_path)
            answer = engine.lookup(hashes, wait_ms=WAIT_MS)
            assert answer.miss == pb.MISS_REASON_DISABLED
            engine.close()
        turn(root, enabled=True)
        again()
        engine = Engine(daemon.socket_path)
        assert_right(engine, engine.lookup(hashes, wait_ms=WAIT_MS))
        engine.close()
    for device in devices:
        shutil.rmtree(device)


def _wait_for_journal(daemon: Daemon, blocks: int = 2 * PAGES) -> None:
    """Until everything is written and noted: a removal, even of nothing, waits for the journal."""
    wire = Wire.unix(daemon.socket_path)

    def written() -> int:
        counters = wire.call(Method.STATUS, admin_pb2.StatusRequest()).counters
        return int(counters["nvme_blocks_written"])

    until(lambda: written() == blocks, "written behind")
    [space] = wire.call(Method.LIST, admin_pb2.ListRequest()).namespaces
    request = admin_pb2.RemoveRequest(root_digest=space.root_digest, path_hash=bytes(32))
    assert not wire.call(Method.REMOVE, request).may_come_back
