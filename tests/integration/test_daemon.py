"""Goal: the daemon starts or says why not, drains, and outlives the death of any client; and no
client is served wrong bytes when either side dies.
Method: the daemon as a process under signals, clients as processes that are killed.
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from anchorstore import errors
from anchorstore.server import mover
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import (
    WAIT_SECONDS,
    Engine,
    Wire,
    attach_request,
    chain,
    config_of,
    running,
)

pytestmark = pytest.mark.usefixtures("no_sockets_left")


class Process:
    """`anchorstore serve` with a small pool."""

    def __init__(self, tmp_path: pathlib.Path, *options: str) -> None:
        self.socket = str(tmp_path / "engine.sock")
        settings = {
            "listen.socket": self.socket,
            "listen.http": "",
            "tiers.dram.capacity": "16MiB",
            "tiers.dram.segment": "1MiB",
            "node.drain": "5s",
            "log.format": "json",
        }
        sets = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        command = [sys.executable, "-m", "anchorstore", "serve", *sets, *options]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def wait_ready(self) -> Process:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if '"ready"' in line:
                return self
        raise AssertionError(f"the daemon ended with {self.popen.wait()}")

    def end(self, *signals: int) -> tuple[int, str]:
        """Sends signals; (exit code, the rest of the log)."""
        for number in signals:
            self.popen.send_signal(number)
        _, log = self.popen.communicate(timeout=WAIT_SECONDS)
        return self.popen.returncode, log

    def __enter__(self) -> Process:
        return self.wait_ready()

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        if self.popen.stderr is not None and not self.popen.stderr.closed:
            self.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_an_idle_daemon_ends_it_with_zero(tmp_path: pathlib.Path, number: int) -> None:
    with Process(tmp_path) as daemon:
        Engine(daemon.socket)
        code, log = daemon.end(number)
        assert code == 0 and '"draining"' in log and '"stopped"' in log
        assert not os.path.exists(daemon.socket)


def test_drain_declines_new_work_and_finishes_what_is_open(tmp_path: pathlib.Path) -> None:
    with Process(tmp_path) as daemon:
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(4))
        reserved = engine.reserve(hashes[:64])
        daemon.popen.send_signal(signal.SIGTERM)
        while True:  # until the signal has arrived; bounded by the reservation's TTL
            try:
                Wire.unix(daemon.socket).call(Method.ATTACH, attach_request())
            except errors.Draining:
                break
        late = engine.reserve(hashes)
        assert (set(late.verdicts), late.reason, late.reservation_id) == ({3}, "draining", 0)
        columns = engine.stage(2)
        answer = engine.call(
            Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns
        )
        assert bytes(answer.results) == bytes([1] * 4)
        assert daemon.end()[0] == 0


def test_second_signal_ends_a_drain_at_once(tmp_path: pathlib.Path) -> None:
    with Process(tmp_path, "--set", "node.drain=1h", "--set", "lease.write_ttl=1h") as daemon:
        engine = Engine(daemon.socket)
        engine.reserve(chain(engine.grant.root_digest, range(4)))
        daemon.popen.send_signal(signal.SIGTERM)
        assert daemon.popen.stderr is not None
        next(line for line in daemon.popen.stderr if '"draining"' in line)
        assert daemon.end(signal.SIGTERM)[0] == 0


def test_start_that_cannot_be_says_why_with_exit_code_two(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for setting, words in {
            f"listen.http={taken}": f"bind {taken} (--http): Address already in use\n",
            f"listen.tcp={taken}": f"bind {taken} (--tcp): Address already in use\n",
            f"listen.grpc={taken}": f"bind {taken} (--grpc): the port is taken or the address",
            "tiers.dram.capacity=0B": "capacity",
            "tiers.dram.capacity=1024TiB tiers.dram.segment=64GiB": "memory",
            f"listen.socket={tmp_path / ('x' * 108)}": "107",
            "no.such.key=1": "no.such.key",
        }.items():
            daemon = Process(tmp_path, *(w for one in setting.split(" ") for w in ("--set", one)))
            code, log = daemon.end()
            assert code == 2 and words in log and "Traceback" not in log, (setting, log)


def test_readyz_says_no_while_the_daemon_drains(tmp_path: pathlib.Path) -> None:
    with running(config_of(tmp_path, listen__http="127.0.0.1:0")) as daemon:
        assert daemon.daemon.http is not None
        url = f"http://127.0.0.1:{daemon.daemon.http.port}"
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
        daemon.on_loop(daemon.daemon.drain)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{url}/readyz")
        assert refusal.value.code == 503
        refusal.value.close()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert b"anchorstore_draining 1.0" in answer.read()


def test_broken_invariant_in_a_call_stops_the_daemon_loudly(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(AssertionError, match="used bytes below 0"),
        running(config_of(tmp_path)) as daemon,
    ):
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(2))
        engine.put(hashes)
        space = next(iter(daemon.daemon.core._state.registry.namespaces.values()))
        space.used_bytes = 0  # a defect, as if a call had lost count
        root = engine.grant.root_digest
        with pytest.raises(errors.Unavailable, match="internal error"):
            engine.wire.call(Method.REMOVE, admin_pb2.RemoveRequest(root_digest=root))
        assert daemon.daemon.supervisor.failed.is_set()
        name, error = daemon.daemon.supervisor.failure or ("", None)
        assert name == "remove" and "seal" in str(error)  # with the events that led there
        space.used_bytes = 0
        raise AssertionError(str(error))


def test_copy_that_fails_answers_its_seal_and_stops_the_daemon(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the copy broke")

    with (
        pytest.raises(RuntimeError, match="the copy broke"),
        running(config_of(tmp_path)) as daemon,
    ):
        engine = Engine(daemon.socket)
        monkeypatch.setattr(mover, "copy_slice", broken)
        with pytest.raises(errors.Unavailable, match="the daemon stops"):
            engine.put(chain(engine.grant.root_digest, range(2)))
        name, error = daemon.daemon.supervisor.failure or ("", RuntimeError())
        assert (name, daemon.daemon.mover.queued) == ("seal", 0)
        raise error


WRITER = """
import sys, time
sys.path.append({root!r})
from tests.integration.harness import Engine, chain
engine = Engine({path!r})
hashes = chain(engine.grant.root_digest, range(8))
if {reads}:
    engine.lookup(hashes)
else:
    engine.reserve(hashes)
    engine.stage(3)
print("there", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("reads", [False, True])
def test_client_killed_in_the_middle_leaves_nothing_behind(
    tmp_path: pathlib.Path, reads: bool
) -> None:
    with running(config_of(tmp_path)) as daemon:
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(8))
        if reads:
            engine.put(hashes)
        root = str(pathlib.Path(__file__).resolve().parents[2])
        script = WRITER.format(root=root, path=daemon.socket, reads=reads)
        client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert client.stdout is not None and client.stdout.readline() == b"there\n"
        before = daemon.do(lambda: daemon.daemon.core.status(0.0))
        assert (before.sessions, before.leases, before.reservations) == (2, reads, not reads)
        client.kill()
        client.communicate()
        deadline = time.monotonic() + WAIT_SECONDS
        while daemon.do(lambda: daemon.daemon.core.status(0.0)).sessions > 1:
            assert time.monotonic() < deadline, "the dead client's session lives on"
        after = daemon.do(lambda: daemon.daemon.core.status(0.0))
        assert (after.leases, after.reservations) == (0, 0)
        assert daemon.daemon.service.stagings.used_bytes == engine.grant.staging_bytes
        wanted = pb.MISS_REASON_UNSPECIFIED if reads else pb.MISS_REASON_NOT_STORED
        assert engine.lookup(hashes).miss == wanted


def test_daemon_killed_in_a_put_comes_back_empty_under_a_new_boot(tmp_path: pathlib.Path) -> None:
    with Process(tmp_path) as daemon:
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(4))
        engine.reserve(hashes)
        daemon.popen.kill()
        with pytest.raises((EOFError, OSError)):
            engine.lookup(hashes)
    with Process(tmp_path) as again:
        fresh = Engine(again.socket)
        assert fresh.grant.boot_id != engine.grant.boot_id
        assert fresh.lookup(hashes).miss == pb.MISS_REASON_NOT_STORED
        with pytest.raises(errors.UnknownSession):
            fresh.wire.call(Method.RENEW, pb.RenewRequest(session_id=engine.session_id))


def test_writer_that_vanishes_loses_its_reservation_in_time(tmp_path: pathlib.Path) -> None:
    config = config_of(tmp_path, lease__write_ttl=0.1, deadlines__housekeeping=0.02)
    with running(config) as daemon:
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(4))
        reserved, columns = engine.reserve(hashes), engine.stage(4)
        while daemon.do(lambda: daemon.daemon.core.status(0.0)).reservations:
            pass  # bounded by the test's timeout
        with pytest.raises(errors.LeaseExpired):
            engine.call(
                Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns
            )
        assert engine.lookup(hashes).miss == pb.MISS_REASON_NOT_STORED
