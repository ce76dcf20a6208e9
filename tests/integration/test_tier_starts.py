"""Goal: a daemon's process starts on whatever its devices hold, or says in one line why not: thing,
value and limit; devices may change places, leave, come, and come from another daemon.
Method: real processes, folders that are swapped between their starts, the plainest client.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from anchorstore.testing.daemon import Daemon
from anchorstore.transport.frames import Method
from anchorstore.units import TIB
from anchorstore.wire.v1 import admin_pb2
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import Engine, Wire, chain
from tests.integration.tiered import WAIT_MS, assert_right, until

pytestmark = pytest.mark.usefixtures("no_sockets_left")

PAGES = 12
SEALED = 1


def settings_of(*places: str) -> dict[str, str]:
    return {"tiers.nvme.devices": ",".join(places), "tiers.nvme.segment": "4MiB"}


@contextlib.contextmanager
def daemon_on(folder: pathlib.Path, *devices: pathlib.Path) -> Iterator[Daemon]:
    """A daemon over these folders, 64 MiB in each."""
    with Daemon(folder, settings=settings_of(*(f"{it}:64MiB" for it in devices))) as daemon:
        yield daemon


def put(daemon: Daemon, seed: int) -> bytes:
    """Puts a path and waits until it is written; its hashes."""
    engine = Engine(daemon.socket_path)
    hashes = chain(engine.grant.root_digest, range(seed, seed + PAGES))
    wire = Wire.unix(daemon.socket_path)

    def written() -> int:
        counters = wire.call(Method.STATUS, admin_pb2.StatusRequest()).counters
        return int(counters["nvme_blocks_written"])

    before = written()
    sealed = engine.put(hashes).count(SEALED)
    until(lambda: written() == before + sealed, "written behind")
    engine.close()
    return hashes


def served(daemon: Daemon, hashes: bytes) -> int:
    """Pages of a path that a lookup finds, each of them right."""
    engine = Engine(daemon.socket_path)
    answer = engine.lookup(hashes, wait_ms=WAIT_MS)
    if not answer.miss:
        assert_right(engine, answer, answer.boundary_pages)
    engine.close()
    return int(answer.boundary_pages)


def assert_sound(daemon: Daemon) -> None:
    """Nothing is broken, in the index or in any slot."""
    request = admin_pb2.CheckRequest(checksums=True)
    answer = Wire.unix(daemon.socket_path).call(Method.CHECK, request)
    assert answer.ok and not answer.nvme_blocks_unread, answer.violations


@pytest.fixture
def devices(tmp_path: pathlib.Path) -> Iterator[dict[str, pathlib.Path]]:
    found = {name: tmp_path / name for name in ("a", "b", "c", "other")}
    for folder in found.values():
        folder.mkdir()
    yield found
    for folder in found.values():
        shutil.rmtree(folder)


def test_devices_change_places_leave_and_come(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path]
) -> None:
    a, b, c = devices["a"], devices["b"], devices["c"]
    home = tmp_path / "daemon"
    with daemon_on(home, a, b) as daemon:
        first = put(daemon, 1)
        status = Wire.unix(daemon.socket_path).call(Method.STATUS, admin_pb2.StatusRequest())
        written = [device.blocks_written for device in status.tiers[1].devices]
        assert min(written) >= PAGES - 2 and sum(written) == 2 * PAGES, "both took their part"
    with daemon_on(home, b, a) as daemon:
        assert served(daemon, first) == PAGES
        assert_sound(daemon)
    with daemon_on(home, b) as daemon:  # half of the path is away
        assert served(daemon, first) < PAGES
        assert put(daemon, 1) == first
        assert served(daemon, first) == PAGES
        assert_sound(daemon)
    with daemon_on(home, c, b) as daemon:  # one is new
        assert served(daemon, first) == PAGES
        second = put(daemon, 1000)
        assert_sound(daemon)
    with daemon_on(home, a, b, c) as daemon:  # and the old one back, with blocks that b has too
        assert served(daemon, first) == served(daemon, second) == PAGES
        assert_sound(daemon)


def test_device_of_another_daemon_brings_what_it_holds(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path]
) -> None:
    with daemon_on(tmp_path / "one", devices["a"]) as daemon:
        mine = put(daemon, 1)
    with daemon_on(tmp_path / "two", devices["other"]) as daemon:
        theirs = put(daemon, 1000)
    with daemon_on(tmp_path / "one", devices["a"], devices["other"]) as daemon:
        assert served(daemon, mine) == served(daemon, theirs) == PAGES
        assert_sound(daemon)


def test_two_processes_on_one_directory_are_one_too_many(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path]
) -> None:
    with daemon_on(tmp_path / "one", devices["a"]) as daemon:
        hashes = put(daemon, 1)
        said = refusal(tmp_path / "two", f"{devices['a']}:64MiB")
        assert f"{devices['a'] / 'anchorstore.nvme'} is in use by another process" in said
        assert served(daemon, hashes) == PAGES


def refusal(folder: pathlib.Path, place: str, segment: str = "4MiB") -> str:
    """What a process says that ends at once, as one that is configured wrongly."""
    settings = settings_of(place) | {"tiers.nvme.segment": segment}
    with pytest.raises(RuntimeError) as caught:
        Daemon(folder, settings=settings).start()
    assert "ended with 2" in str(caught.value)
    return str(caught.value)


def test_process_without_the_room_names_the_file_and_the_bytes(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path]
) -> None:
    if shutil.disk_usage(tmp_path).free > 15 * TIB:
        pytest.skip("this file system has room for anything")
    said = refusal(tmp_path / "daemon", f"{devices['a']}:15TiB", segment="auto")
    assert f"{devices['a'] / 'anchorstore.nvme'} cannot have 15TiB" in said


def test_process_without_the_directory_or_the_right_names_the_path(tmp_path: pathlib.Path) -> None:
    for place in (tmp_path / "gone" / "deeper", pathlib.Path("/proc")):
        assert f"cannot open {place}" in refusal(tmp_path / "daemon", f"{place}:64MiB")


def test_process_on_a_foreign_file_leaves_it(tmp_path: pathlib.Path) -> None:
    foreign = tmp_path / "photos.img"
    foreign.write_bytes(b"holiday" * 4096)
    assert f"{foreign} holds something else" in refusal(tmp_path / "daemon", f"{foreign}:64MiB")
    assert foreign.read_bytes() == b"holiday" * 4096


@pytest.mark.parametrize("cut", [False, True])
def test_process_on_a_damaged_device_serves_what_is_right(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path], cut: bool
) -> None:
    """Every second slot is scrambled, or the file ends in its midst."""
    with daemon_on(tmp_path / "daemon", devices["a"]) as daemon:
        hashes = put(daemon, 1)
    path = devices["a"] / "anchorstore.nvme"
    with path.open("r+b") as file:
        whole = file.read()
        places = [at for at in range(0, len(whole), 4096) if whole[at : at + 4096].count(0) < 2048]
        assert len(places) > PAGES
        for at in places[-PAGES::2]:
            file.seek(at + 1000)
            file.write(bytes(64))
        if cut:
            file.truncate(places[-PAGES])
    with daemon_on(tmp_path / "daemon", devices["a"]) as daemon:
        assert served(daemon, hashes) < PAGES
        wire = Wire.unix(daemon.socket_path)
        counters = wire.call(Method.STATUS, admin_pb2.StatusRequest()).counters
        assert counters["blocks_corrupt"] > 0
        assert put(daemon, 1) == hashes
        assert served(daemon, hashes) == PAGES


def test_miss_of_a_device_that_is_away_says_so(
    tmp_path: pathlib.Path, devices: dict[str, pathlib.Path]
) -> None:
    with daemon_on(tmp_path / "daemon", devices["a"]) as daemon:
        hashes = put(daemon, 1)
    with daemon_on(tmp_path / "daemon", devices["b"]) as daemon:
        engine = Engine(daemon.socket_path)
        assert engine.lookup(hashes, wait_ms=WAIT_MS).miss == pb.MISS_REASON_NOT_STORED
        engine.close()
