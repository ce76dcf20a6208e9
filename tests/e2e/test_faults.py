"""Goal: whoever dies, hangs or lies, nothing wrong is served and nothing leaks past its lease.

Method: a real daemon and real client processes that are killed or stopped at chosen moments; the
daemon's own status and invariant walk say what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anchorstore.client import NeedAll
from anchorstore.errors import BootChanged, LeaseError
from anchorstore.testing.daemon import Daemon
from tests.e2e import actor

HERE = pathlib.Path(__file__).parent
SETTINGS = {"lease.read_ttl": "2s", "lease.write_ttl": "2s", "lease.session_ttl": "5s"}


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings=SETTINGS) as running:
        yield running


def operator(daemon: Daemon, command: str) -> dict[str, Any]:
    """What `anchorstore COMMAND --json` says."""
    arguments = [sys.executable, "-m", "anchorstore", command, "--json"]
    arguments += ["--socket", daemon.socket_path]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def acting(daemon: Daemon, seed: int, role: str) -> Iterator[subprocess.Popen[str]]:
    """An actor's process, once it has done its part."""
    command = [sys.executable, str(HERE / "actor.py"), daemon.address, str(seed), role]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{role} did not get ready"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Waits for `condition`; fails where it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.05)


def assert_sound(daemon: Daemon) -> None:
    found = operator(daemon, "check")
    assert found["ok"], found["violations"]


def read_all(client: Any, seed: int) -> int:
    """Pages of a prompt that are served, every byte compared."""
    with client.lookup(client.path_hashes(actor.tokens(seed)), [NeedAll(0)]) as window:
        if not window.hit:
            return 0
        blocks = window.blocks(0)
        served = [bytes(blocks[index]) for index in range(len(blocks))]
        try:
            window.verify()
        except LeaseError:
            return 0
        assert served == [actor.block(seed, page) for page in range(len(served))]
        return len(served)


def test_writer_killed_in_mid_write_is_never_a_hit_and_leaves_nothing(daemon: Daemon) -> None:
    with acting(daemon, 1, "half-write") as process:
        assert operator(daemon, "status")["reservations"] == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: operator(daemon, "status")["sessions"] == 0)
    status = operator(daemon, "status")
    assert (status["reservations"], status["pages"]) == (0, 0)
    with actor.connect(daemon.address) as client:
        assert read_all(client, 1) == 0
        assert actor.put(client, 1) == actor.PAGES
        assert read_all(client, 1) == actor.PAGES
    assert_sound(daemon)


def test_writer_that_reserves_and_hangs_is_forgotten_after_its_lease(daemon: Daemon) -> None:
    with acting(daemon, 2, "reserve") as process:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: operator(daemon, "status")["reservations"] == 0)
        with actor.connect(daemon.address) as client:
            assert read_all(client, 2) == 0
            assert actor.put(client, 2) == actor.PAGES
    assert_sound(daemon)


def test_reader_killed_in_mid_read_gives_its_leases_back(daemon: Daemon) -> None:
    with actor.connect(daemon.address) as client:
        assert actor.put(client, 3) == actor.PAGES
        with acting(daemon, 3, "read") as process:
            assert operator(daemon, "status")["leases"] == 1
            process.send_signal(signal.SIGKILL)
            process.wait()
        eventually(lambda: operator(daemon, "status")["leases"] == 0)
        assert read_all(client, 3) == actor.PAGES
    assert_sound(daemon)


def test_reader_stopped_past_its_lease_is_told_so(daemon: Daemon) -> None:
    with actor.connect(daemon.address) as client:
        assert actor.put(client, 4) == actor.PAGES
        with client.lookup(client.path_hashes(actor.tokens(4)), [NeedAll(0)]) as window:
            assert window.hit
            eventually(lambda: operator(daemon, "status")["leases"] == 0)
            seed = 100
            while operator(daemon, "status")["counters"].get("pages_evicted", 0) < 64:
                actor.put(client, seed)  # other pages take the slots
                seed += 1
            with pytest.raises(LeaseError):
                window.verify()


def test_daemon_killed_in_mid_put_is_a_miss_and_comes_back_empty_and_sound(
    daemon: Daemon,
) -> None:
    with acting(daemon, 1000, "put-forever"), actor.connect(daemon.address) as client:
        for seed in (5, 6, 7):
            actor.put(client, seed)
            daemon.kill()
            assert read_all(client, seed) == 0
            assert actor.put(client, seed) == 0
            daemon.start()
            eventually(lambda: actor.put(client, 5) == actor.PAGES)
            assert read_all(client, 5) == actor.PAGES
            assert_sound(daemon)


def test_window_of_a_killed_daemon_keeps_its_bytes_but_never_verifies_after_the_next_boot(
    daemon: Daemon,
) -> None:
    with actor.connect(daemon.address) as client:
        assert actor.put(client, 8) == actor.PAGES
        with client.lookup(client.path_hashes(actor.tokens(8)), [NeedAll(0)]) as window:
            blocks = window.blocks(0)
            assert bytes(blocks[0]) == actor.block(8, 0)  # mapped from here on
            daemon.restart()
            assert bytes(blocks[3]) == actor.block(8, 3)
            eventually(lambda: actor.put(client, 9) == actor.PAGES)
            with pytest.raises(BootChanged):
                window.verify()


def test_client_with_leases_left_to_give_back_finds_the_next_daemon(daemon: Daemon) -> None:
    """What it does in the background about them must not keep its calls from trying."""
    with actor.connect(daemon.address) as client:
        assert actor.put(client, 15) == actor.PAGES
        for _ in range(3):
            with client.lookup(client.path_hashes(actor.tokens(15)), [NeedAll(0)]) as window:
                assert window.hit
            daemon.restart()
            assert read_all(client, 15) == 0
            eventually(lambda: actor.put(client, 15) == actor.PAGES, seconds=4)


def test_frozen_daemon_is_a_miss_within_the_deadline_and_thawed_it_serves_on(
    daemon: Daemon,
) -> None:
    with actor.connect(daemon.address, deadline_seconds=0.5) as client:
        assert actor.put(client, 10) == actor.PAGES
        daemon.freeze()
        with client.lookup(client.path_hashes(actor.tokens(10)), [NeedAll(0)]) as window:
            assert not window.hit
            assert window.miss == "deadline"
        assert actor.put(client, 11) == 0
        daemon.thaw()
        eventually(lambda: read_all(client, 10) == actor.PAGES)
    eventually(lambda: operator(daemon, "status")["leases"] == 0)
    assert_sound(daemon)


def test_killed_writers_under_load_leave_no_wrong_byte(daemon: Daemon) -> None:
    """Whole prompts may have lost their ends to eviction; read_all compares what is left."""
    seed, served = 2000, 0
    with actor.connect(daemon.address) as client:
        for round_number in range(5):
            with acting(daemon, seed, "put-forever") as process:
                time.sleep(0.05 * round_number)
                process.send_signal(signal.SIGKILL)
                process.wait()
            served += sum(read_all(client, known) for known in range(seed, seed + 40))
            seed += 1000
    assert served > actor.PAGES
    eventually(lambda: operator(daemon, "status")["sessions"] == 0)
    assert operator(daemon, "status")["reservations"] == 0
    assert_sound(daemon)


@pytest.mark.skipif(os.geteuid() != 0, reason="two users need root")
def test_two_users_neither_match_nor_map_each_other(tmp_path: pathlib.Path) -> None:
    """Domains by user id on the Unix socket: same model, same tokens, nothing in common."""
    settings = {**SETTINGS, "auth.uids.65534": "other", "listen.socket_mode": "0666"}
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    code = (
        "import os, sys; sys.path.append(sys.argv[2])\n"
        "from tests.e2e import actor; from anchorstore.client import NeedAll\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)  # what is imported may be root's\n"
        "client = actor.connect(sys.argv[1])\n"
        "window = client.lookup(client.path_hashes(actor.tokens(12)), [NeedAll(0)])\n"
        "stolen = client.lookup(bytes.fromhex(sys.argv[3]), [NeedAll(0)])\n"
        "print(client.root_digest.hex(), window.miss, stolen.miss)"
    )
    with Daemon(tmp_path, settings=settings) as daemon, actor.connect(daemon.address) as client:
        assert actor.put(client, 12) == actor.PAGES
        hashes = client.path_hashes(actor.tokens(12))
        command = [
            sys.executable,
            "-c",
            code,
            daemon.address,
            str(HERE.parent.parent),
            hashes.hex(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        root, own, stolen = done.stdout.split()
        assert (own, stolen) == ("not_stored", "not_stored")
        assert client.root_digest is not None and root != client.root_digest.hex()
        assert read_all(client, 12) == actor.PAGES
