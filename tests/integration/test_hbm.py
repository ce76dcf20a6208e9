"""Goal: an engine on the device reads there what is asked for again, exactly; whatever becomes of
the device, of a copy or of the daemon, it reads the same bytes from the pool, or is told.
Method: a daemon on the shipped fake device, the plain client's frames and the client's own verbs;
device memory is the fake's, so bytes are compared where the engine has them.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.cli.main import main
from anchorstore.client import Client, NeedAll
from anchorstore.client.client import Window
from anchorstore.config.hbm import DEVICES
from anchorstore.errors import AnchorStoreError, Forbidden, InvalidRequest, TornBlock, Unavailable
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu, FakePlatform
from anchorstore.transport import cuda
from anchorstore.transport.device_memory import DeviceBytes
from anchorstore.transport.frames import Method
from anchorstore.transport.segment import DEVICE_IDS_FROM, PLACE, Places
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.client_world import (
    KV,
    LAYOUTS,
    OPTIONS,
    Pages,
    eventually,
    namespace,
    stored,
)
from tests.integration.harness import MIB, Engine, Running, config_of, running

COUNT = 6
NEEDS = [NeedAll(0), NeedAll(1)]
BUS_ID = "0000:01:00.0"


class World:
    """A daemon with copies on a fake device, and engines on it."""

    def __init__(self, tmp_path: pathlib.Path, gpu: FakeGpu, here: Running) -> None:
        self.tmp_path, self.gpu, self.here = tmp_path, gpu, here
        self.clients: list[Client] = []

    @property
    def address(self) -> str:
        return f"unix://{self.here.socket}"

    def client(self, space: Any, **options: Any) -> tuple[Client, FakeCuda]:
        """An engine's client, and the device as its process sees it."""
        device = FakeCuda(self.gpu, ordinal=len(self.clients) + 1)
        chosen = OPTIONS.__class__(**(vars_of(OPTIONS) | {"device": device} | options))
        made = Client.connect(self.address, namespace=space, layouts=LAYOUTS, options=chosen)
        self.clients.append(made)
        return made, device

    def counted(self, name: str) -> int:
        devices = self.here.daemon.devices
        assert devices is not None
        return int(self.here.do(lambda: devices.copies().get(name, 0)))

    def heat(self, client: Client, made: Pages) -> None:
        """Looks up until everything has a copy."""
        blocks = self.counted("copies_made") + 2 * len(made)
        for _ in range(2):
            with client.lookup(made.hashes, NEEDS) as window:
                assert window.hit
        eventually(lambda: self.counted("copies_made") == blocks)

    def say(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        """What an operator's command prints."""
        assert main([*words, "--socket", self.here.socket]) == 0
        return capsys.readouterr().out


def vars_of(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


@contextlib.contextmanager
def hbm(
    tmp_path: pathlib.Path, *, capacity_bytes: int = 1 << 30, **changes: Any
) -> Iterator[World]:
    gpu = FakeGpu(capacity_bytes, BUS_ID)
    values = {"tiers__hbm__devices": DEVICES.parse(["cuda:0:8MiB"])} | changes
    config = config_of(tmp_path, **values)
    with running(config, make_platform=lambda: FakePlatform(gpu)) as here:
        world = World(tmp_path, gpu, here)
        yield world
        for client in world.clients:
            client.close()
        devices = here.daemon.devices
        assert devices is not None
        broken = [
            text for hot in here.do(lambda: list(devices._all())) for text in hot.mirror.check()
        ]
        assert broken == [] and gpu.misuses == []


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    with hbm(tmp_path) as made:
        yield made


def seen(device: FakeCuda, memory: DeviceBytes) -> np.ndarray:
    """Bytes of the engine's device."""
    found, stream = np.zeros(memory.size_bytes, np.uint8), device.make_stream()
    device.to_host(found.ctypes.data, memory.address, memory.size_bytes, stream)
    device.finish(stream, 1.0)
    device.drop_stream(stream)
    return found


def read(window: Window, device: FakeCuda, need: int = 0) -> np.ndarray:
    """One need's blocks, by way of the engine's device."""
    blocks = window.blocks(need)
    memory = DeviceBytes(device.allocate(blocks.size_bytes), blocks.size_bytes)
    blocks.copy_to_device(memory)
    return seen(device, memory)


def places_of(column: pb.BlockColumns) -> Places:
    return np.frombuffer(column.device_places, PLACE)


# ---- lookups, as they travel ----


def test_lookup_names_copies_once_a_block_was_asked_for_twice(world: World) -> None:
    engine = Engine(world.here.socket, device=BUS_ID)
    assert engine.grant.slab.device == BUS_ID and engine.grant.slab.size_bytes == 8 * MIB
    hashes = chain_of(engine)
    for _ in range(2):
        assert [column.device_places for column in engine.lookup(hashes).columns] == [b"", b""]
    eventually(lambda: world.counted("copies_made") == 2 * COUNT)
    for column in engine.lookup(hashes).columns:
        found, pool = places_of(column), np.frombuffer(column.places, PLACE)
        assert (found["segment"] >= DEVICE_IDS_FROM).all() and (found["generation"] == 2).all()
        assert np.array_equal(found["checksum"], pool["checksum"])
    engine.close()


def chain_of(engine: Engine) -> bytes:
    from tests.integration.harness import chain

    hashes = chain(engine.grant.root_digest, range(COUNT))
    assert set(engine.put(hashes)) == {1}
    return hashes


def test_session_without_a_device_is_answered_as_ever_and_warms_nothing(world: World) -> None:
    engine = Engine(world.here.socket)
    assert not engine.grant.HasField("slab")
    hashes = chain_of(engine)
    for _ in range(3):
        assert [column.device_places for column in engine.lookup(hashes).columns] == [b"", b""]
    assert world.counted("copies_made") == 0
    engine.close()


@pytest.mark.parametrize("device", ["0000:99:00.0", "cuda:0", "\0"])
def test_session_on_another_device_has_no_copies(world: World, device: str) -> None:
    engine = Engine(world.here.socket, device=device)
    assert not engine.grant.HasField("slab")
    engine.close()


def test_device_of_too_long_a_name_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="device has 33 characters, limit 32"):
        Engine(world.here.socket, device=33 * "x")
    assert not world.here.do(lambda: world.here.daemon.core.status(0.0).sessions)


def test_session_of_another_domain_has_no_copies(tmp_path: pathlib.Path) -> None:
    with hbm(tmp_path, tiers__hbm__domain="others") as world:
        engine = Engine(world.here.socket, device=BUS_ID)
        assert engine.grant.domain == "default" and not engine.grant.HasField("slab")
        for segment_id in (DEVICE_IDS_FROM, DEVICE_IDS_FROM + 7):
            with pytest.raises(InvalidRequest, match=f"no segment {segment_id}"):
                engine.map([segment_id])
        engine.close()


def test_heads_and_segments_are_mapped_in_the_order_asked_for(world: World) -> None:
    engine = Engine(world.here.socket, device=BUS_ID)
    hashes = chain_of(engine)
    for _ in range(2):
        engine.lookup(hashes)
    eventually(lambda: world.counted("copies_made") == 2 * COUNT)
    column = engine.lookup(hashes).columns[1]
    [head] = np.unique(places_of(column)["segment"]).tolist()
    [pool] = np.unique(np.frombuffer(column.places, PLACE)["segment"]).tolist()
    answer = engine.map([head, pool])
    tier = world.here.daemon.devices.of(BUS_ID, "default").hbm  # type: ignore[union-attr]
    assert list(answer.segment_bytes) == [tier.segment_bytes, MIB]
    assert list(answer.slab_offsets) == [tier.index_of(head) * tier.segment_bytes, 0]
    engine.close()


# ---- the client's verbs ----


def test_engine_reads_on_the_device_what_was_sealed(world: World) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, made)
    with client.lookup(made.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
        assert np.array_equal(read(window, device, need=1), made.anchor.reshape(-1))
    assert client.counters()["blocks_on_device"] == 2 * COUNT


def test_blocks_without_a_copy_come_from_the_pool(world: World) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, Pages(made.hashes[: 32 * 2], made.kv[:2], made.anchor[:2]))
    with client.lookup(made.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    assert client.counters()["blocks_on_device"] == 2


class Interrupted(FakeCuda):
    """Something happens between the moment when a copy is asked for and the one when it is made."""

    def __init__(self, gpu: FakeGpu, happens: Callable[[], None]) -> None:
        super().__init__(gpu, ordinal=9)
        self.happens: Callable[[], None] | None = happens

    def finish(self, stream: int, seconds: float) -> None:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        super().finish(stream, seconds)


def test_copy_that_makes_way_while_it_is_read_is_taken_from_the_pool(world: World) -> None:
    """The daemon gives the slots to other blocks before the copy is made: it copies theirs, and
    the generation tells."""
    space = namespace()
    client, _ = world.client(space)
    made, other = stored(client, COUNT), stored(client, COUNT, seed=1)
    world.heat(client, made)
    hot = world.here.daemon.devices.of(BUS_ID, "default")  # type: ignore[union-attr]
    assert hot is not None
    theirs = []

    def forget() -> None:
        """As when blocks leave dram, though a window's lease keeps these there."""
        for known in list(hot.mirror._known.values()):
            hot.mirror._drop(known, np.flatnonzero(known.home).astype(np.uint32))

    def reuse() -> None:
        world.here.do(forget)
        world.heat(client, other)  # into the slots that were freed last
        with client.lookup(other.hashes, NEEDS) as window:
            theirs.extend(window.blocks(0).device_places.tolist())

    device = Interrupted(world.gpu, reuse)
    reader, _ = world.client(space, device=device)
    with reader.lookup(made.hashes, NEEDS) as window:
        ours = window.blocks(0).device_places.tolist()
        memory = DeviceBytes(device.allocate(window.blocks(0).size_bytes), made.kv.size)
        window.blocks(0).copy_to_device(memory)
        assert np.array_equal(seen(device, memory), made.kv.reshape(-1))
    assert {place[:2] for place in theirs} == {place[:2] for place in ours}, "the same slots"
    assert reader.counters()["blocks_on_device"] == 0


def test_removed_block_leaves_the_device(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, made)
    root = client.root_digest
    assert root is not None
    world.say(capsys, "remove", root.hex(), "--yes")
    assert world.counted("copies_dropped") == 2 * COUNT
    with client.lookup(made.hashes, NEEDS) as window:
        assert not window.hit
    again = stored(client, COUNT, seed=7)
    world.heat(client, again)
    with client.lookup(again.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), again.kv.reshape(-1))


def test_kill_switch_ends_reads_on_the_device_and_lets_them_come_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, made)
    root = client.root_digest
    assert root is not None
    world.say(capsys, "namespace", "disable", root.hex())
    with client.lookup(made.hashes, NEEDS) as window:
        assert window.miss == "disabled"
    world.say(capsys, "namespace", "enable", root.hex())
    with client.lookup(made.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    assert client.counters()["blocks_on_device"] == COUNT


def test_two_sessions_share_the_copies_of_a_device(world: World) -> None:
    space = namespace()
    first, _ = world.client(space)
    second, device = world.client(space)
    made = stored(first, COUNT)
    world.heat(first, made)
    with second.lookup(made.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    assert second.counters()["blocks_on_device"] == COUNT
    assert world.counted("copies_made") == 2 * COUNT


def test_worker_that_joined_reads_on_the_device_what_its_scheduler_found(world: World) -> None:
    scheduler, _ = world.client(namespace(), device=None, device_place=BUS_ID)
    made = stored(scheduler, COUNT)
    world.heat(scheduler, made)
    token = scheduler.session_token
    assert token is not None
    device = FakeCuda(world.gpu, ordinal=9)
    worker = Client.join(token, options=OPTIONS.__class__(device=device))
    with (
        scheduler.lookup(made.hashes, NEEDS) as window,
        worker.open_window(window.export()) as theirs,
    ):
        assert np.array_equal(read(theirs, device), made.kv.reshape(-1))
    assert worker.counters()["blocks_on_device"] == COUNT
    worker.close()


def test_client_that_checks_its_reads_checks_them_in_host_memory(world: World) -> None:
    client, device = world.client(namespace(), checksum_reads=True)
    made = stored(client, COUNT)
    world.heat(client, made)
    with client.lookup(made.hashes, NEEDS) as window:
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    assert client.counters()["blocks_on_device"] == 0


# ---- what fails ----


def lost(world: World, device: FakeCuda) -> None:
    world.here.daemon.devices.of(BUS_ID, "default").hbm.take_offline("test")  # type: ignore


def closed_to_handles(world: World, device: FakeCuda) -> None:
    device.fail("open_handle", cuda.NOT_SUPPORTED)


def refusing_copies(world: World, device: FakeCuda) -> None:
    device.fail("on_device", cuda.NOT_SUPPORTED, after=2)


@pytest.mark.parametrize("broken", [lost, closed_to_handles, refusing_copies])
def test_device_that_fails_leaves_the_pool(
    world: World, broken: Callable[[World, FakeCuda], None]
) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, made)
    with client.lookup(made.hashes, NEEDS) as window:
        broken(world, device)
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    assert client.counters()["blocks_on_device"] == 0
    with client.lookup(made.hashes, NEEDS) as window:
        assert window.hit and np.array_equal(read(window, device), made.kv.reshape(-1))


def test_engine_whose_own_device_is_lost_is_told(world: World) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    with client.lookup(made.hashes, NEEDS) as window:
        blocks = window.blocks(0)
        memory = DeviceBytes(device.allocate(blocks.size_bytes), blocks.size_bytes)
        device.fail("finish", cuda.ILLEGAL_ADDRESS)
        with pytest.raises(Unavailable, match="cuda:1: finish: an illegal memory access"):
            blocks.copy_to_device(memory)
        out = np.empty((COUNT, KV.block_bytes()), np.uint8)
        blocks.copy_into(out)
        assert np.array_equal(out, made.kv)


def test_device_that_fails_in_mid_copy_takes_the_tier_offline_and_nothing_else(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    devices = world.here.daemon.devices
    assert devices is not None
    hot = devices.of(BUS_ID, "default")
    assert hot is not None
    ours = hot.hbm._slab.device
    assert isinstance(ours, FakeCuda)
    ours.fail("to_device", cuda.ILLEGAL_ADDRESS, after=3)
    for _ in range(2):
        client.lookup(made.hashes, NEEDS).release()
    eventually(lambda: bool(hot.hbm.offline_reason))
    assert "illegal memory access" in hot.hbm.offline_reason
    eventually(lambda: "is offline, the pool serves on" in world.here.log.getvalue())
    with client.lookup(made.hashes, NEEDS) as window:
        assert window.hit and not window.blocks(0).device_places["segment"].any()
        assert np.array_equal(read(window, device), made.kv.reshape(-1))
    told = world.say(capsys, "status")
    assert "offline: " in told and "cuda:0 at 0000:01:00.0" in told
    metrics = world.here.do(world.here.daemon.metrics.exposition).decode()
    assert 'anchorstore_device_state{device="cuda:0 at 0000:01:00.0"} 2.0' in metrics
    late = Engine(world.here.socket, device=BUS_ID)
    assert not late.grant.HasField("slab")
    late.close()


@pytest.mark.parametrize("size", [-1, 1])
def test_destination_of_another_size_is_refused_untouched(world: World, size: int) -> None:
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    with client.lookup(made.hashes, NEEDS) as window:
        blocks = window.blocks(0)
        memory = DeviceBytes(device.allocate(2 * blocks.size_bytes), blocks.size_bytes + size)
        with pytest.raises(InvalidRequest, match=f"the {COUNT} blocks have {blocks.size_bytes}"):
            blocks.copy_to_device(memory)
        assert set(seen(device, memory)) == {0xA5}


def test_client_without_a_device_is_told_to_name_one(world: World) -> None:
    client, device = world.client(namespace(), device=None)
    made = stored(client, COUNT)
    with (
        client.lookup(made.hashes, NEEDS) as window,
        pytest.raises(InvalidRequest, match=r"ClientOptions\.device"),
    ):
        window.blocks(0).copy_to_device(DeviceBytes(device.allocate(4096), 4096))


# ---- memory that an engine lends ----


def test_engine_that_lends_its_memory_reads_copies_there(tmp_path: pathlib.Path) -> None:
    with hbm(tmp_path, tiers__hbm__devices=(), tiers__hbm__lent_slabs=1) as world:
        space = namespace()
        client, device = world.client(space)
        made = stored(client, COUNT)
        base = device.allocate(8 * MIB)
        assert client.lend_device_memory(base + 4096, 6 * MIB) == 6 * MIB
        world.heat(client, made)
        with client.lookup(made.hashes, NEEDS) as window:
            assert np.array_equal(read(window, device), made.kv.reshape(-1))
        assert client.counters()["blocks_on_device"] == COUNT
        second, theirs = world.client(space)
        with second.lookup(made.hashes, NEEDS) as window:
            assert np.array_equal(read(window, theirs), made.kv.reshape(-1))
        assert second.counters()["blocks_on_device"] == COUNT
        second.close()
        client.close()
        eventually(lambda: not any(found.opened for found in world.gpu.by_handle.values()))
        device.free(base)
        third, third_device = world.client(space)
        with third.lookup(made.hashes, NEEDS) as window:
            assert np.array_equal(read(window, third_device), made.kv.reshape(-1))
        assert third.counters()["blocks_on_device"] == 0


def test_memory_is_lent_where_the_daemon_takes_any(world: World) -> None:
    client, device = world.client(namespace())
    base = device.allocate(8 * MIB)
    with pytest.raises(Forbidden, match=r"tiers\.hbm\.lent_slabs"):
        client.lend_device_memory(base, 8 * MIB)
    for start, size in ((base + 1, MIB), (base, 8 * MIB + 1), (base, 0), (0, MIB)):
        with pytest.raises(InvalidRequest, match="lend: "):
            client.lend_device_memory(start, size)


def test_daemon_without_the_tier_takes_no_memory_and_names_no_device(
    tmp_path: pathlib.Path,
) -> None:
    with running(config_of(tmp_path)) as here:
        assert here.daemon.devices is None
        engine = Engine(here.socket, device=BUS_ID)
        assert not engine.grant.HasField("slab")
        slab = pb.Slab(device=BUS_ID, handle=bytes(64), size_bytes=MIB)
        with pytest.raises(InvalidRequest, match="no hbm tier"):
            engine.call(Method.LEND, pb.LendRequest, slab=slab)
        engine.close()


# ---- operators ----


def test_operators_see_the_tier(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, Pages(made.hashes[:64], made.kv[:2], made.anchor[:2]))
    status = world.say(capsys, "status")
    [line] = [text for text in status.splitlines() if text.startswith("hbm ")]
    assert line.split()[:3] == ["hbm", "all", "8MiB"] and " 4 " in line
    assert "copies_made" in status
    root = client.root_digest
    assert root is not None
    pages = world.say(capsys, "ls", root.hex())
    assert pages.count("hbm") == 4
    metrics = world.here.do(world.here.daemon.metrics.exposition).decode()
    assert 'anchorstore_tier_capacity_bytes{tier="hbm"} 8.388608e+06' in metrics
    assert 'anchorstore_hbm_copies_total{event="made"} 4.0' in metrics
    assert "hbm" in world.say(capsys, "top", "--once", "--interval", "0.1s")


def test_torn_block_of_the_pool_is_torn_for_the_device_too(world: World) -> None:
    """The pool's own generations are looked at after every copy, whatever it was made from."""
    client, device = world.client(namespace())
    made = stored(client, COUNT)
    world.heat(client, made)
    with client.lookup(made.hashes, NEEDS) as window:
        blocks = window.blocks(0)
        place = blocks._places[0]
        tier = world.here.daemon.tier
        records = tier.records(tier.index_of(int(place["segment"])))
        memory = DeviceBytes(device.allocate(blocks.size_bytes), blocks.size_bytes)
        records["generation"][int(place["slot"])] += 1
        with pytest.raises((TornBlock, AnchorStoreError)):
            blocks.copy_to_device(memory)
        records["generation"][int(place["slot"])] -= 1
