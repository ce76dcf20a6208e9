"""Goal: framed TCP moves the same blocks as the Unix socket, to those with a token alone, and no
peer can hold a thread, a byte or another domain's page.
Method: a daemon in a thread; raw frames with payloads, rightly and wrongly; TLS with a
certificate made here.
"""

from __future__ import annotations

import pathlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xxhash

from anchorstore import errors
from anchorstore.transport import frames
from anchorstore.transport.frames import Kind, Method
from anchorstore.transport.segment import PLACE
from anchorstore.wire.v1 import admin_pb2
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import (
    MIB,
    Engine,
    Running,
    Wire,
    attach_request,
    block_of,
    chain,
    config_of,
    running,
)

TOKEN_A, TOKEN_B, ADMIN = "team-a-token-0123456789", "team-b-token-0123456789", "x" * 32


def tcp_config(tmp_path: pathlib.Path, **changes: Any) -> Any:
    """A daemon with TCP on a free port, two tenants and an operator."""
    (tmp_path / "tokens").write_text(f"team-a {TOKEN_A}\nteam-b {TOKEN_B}\n")
    (tmp_path / "admin").write_text(f"{ADMIN}\n")
    values = {
        "listen__tcp": "127.0.0.1:0",
        "auth__token_file": str(tmp_path / "tokens"),
        "auth__admin_token_file": str(tmp_path / "admin"),
    }
    return config_of(tmp_path, **(values | changes))


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Running]:
    with running(tcp_config(tmp_path)) as here:
        yield here


class RemoteEngine:
    """A session on TCP: Write instead of shared staging, Read instead of mapping."""

    def __init__(self, wire: Wire, token: str = TOKEN_A) -> None:
        self.wire = wire
        self.grant: pb.AttachResponse = wire.call(Method.ATTACH, attach_request(token=token))
        self.session_id = self.grant.session_id

    def call(self, method: Method, cls: Any, payload: bytes = b"", **fields: Any) -> Any:
        return self.wire.call(method, cls(session_id=self.session_id, **fields), payload)

    def put(self, hashes: bytes) -> bytes:
        count = len(hashes) // 32
        reserved = self.call(
            Method.RESERVE,
            pb.ReserveRequest,
            parent_hash=self.grant.root_digest,
            path_hashes=hashes,
            layouts=[0, 1],
        )
        offset, offsets, sums = 0, [], []
        for page in range(count):
            for layout in (0, 1):
                data = block_of(100 * page + layout, self.grant.layouts[layout].block_bytes)
                self.call(Method.WRITE, pb.WriteRequest, data, staging_offset=offset)
                offsets.append(offset)
                sums.append(xxhash.xxh3_64_intdigest(data))
                offset += len(data)
        answer = self.call(
            Method.SEAL,
            pb.SealRequest,
            reservation_id=reserved.reservation_id,
            pages=np.repeat(np.arange(count, dtype="<u4"), 2).tobytes(),
            layouts=bytes([0, 1] * count),
            staging_offsets=np.array(offsets, "<u8").tobytes(),
            checksums=np.array(sums, "<u8").tobytes(),
        )
        return bytes(answer.results)

    def lookup(self, hashes: bytes) -> pb.LookupResponse:
        needs = [pb.Need(layout=layout, all=pb.NeedAll()) for layout in (0, 1)]
        answer: pb.LookupResponse = self.call(
            Method.LOOKUP, pb.LookupRequest, path_hashes=hashes, needs=needs, max_lineage=255
        )
        return answer

    def read(self, lease_id: int, need: int, first: int, count: int) -> bytes:
        request = pb.ReadRequest(
            session_id=self.session_id, lease_id=lease_id, need=need, first=first, count=count
        )
        self.wire.send(Method.READ, request)
        answer, payload = self.wire.receive_answer()
        assert answer.block_bytes * count == len(payload)  # type: ignore[attr-defined]
        return payload


def test_put_and_get_over_tcp_move_the_same_bytes(daemon: Running) -> None:
    writer = RemoteEngine(Wire.tcp(daemon.tcp))
    hashes = chain(writer.grant.root_digest, range(6))
    assert writer.put(hashes) == bytes([1] * 12)
    reader = RemoteEngine(Wire.tcp(daemon.tcp))
    hit = reader.lookup(hashes)
    assert hit.boundary_pages == 6
    for need in (0, 1):
        size = reader.grant.layouts[need].block_bytes
        expected = [block_of(100 * page + need, size) for page in range(6)]
        assert reader.read(hit.lease_id, need, 0, 6) == b"".join(expected)
        assert reader.read(hit.lease_id, need, 2, 1) == expected[2]
        assert reader.read(hit.lease_id, need, 6, 0) == b""


def test_domains_on_one_daemon_neither_match_nor_read_each_other(daemon: Running) -> None:
    a = RemoteEngine(Wire.tcp(daemon.tcp), TOKEN_A)
    b = RemoteEngine(Wire.tcp(daemon.tcp), TOKEN_B)
    local = Engine(daemon.socket)  # the default domain
    roots = {engine.grant.root_digest for engine in (a, b, local)}
    assert len(roots) == 3
    hashes = chain(a.grant.root_digest, range(3))
    a.put(hashes)
    hit = a.lookup(hashes)
    for other in (b, local):
        assert other.lookup(hashes).miss == pb.MISS_REASON_NOT_STORED
    segments = np.frombuffer(hit.columns[0].places, PLACE)["segment"].tolist()
    with pytest.raises(errors.InvalidRequest) as foreign:
        local.map(segments[:1])
    with pytest.raises(errors.InvalidRequest) as absent:
        local.map([987654])
    assert str(foreign.value).replace(str(segments[0]), "987654") == str(absent.value)
    join = pb.JoinRequest(protocol_version=1, session_id=a.session_id, token=TOKEN_B)
    with pytest.raises(errors.UnknownSession):
        Wire.tcp(daemon.tcp).call(Method.JOIN, join)
    with pytest.raises(errors.LeaseError):
        b.read(hit.lease_id, 0, 0, 1)
    with pytest.raises(errors.Forbidden):
        a.wire.call(Method.JOIN, join)


@pytest.mark.parametrize("token", ["", "wrong-token-0123456789"])
def test_token_wrong_or_missing_is_refused(daemon: Running, token: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        RemoteEngine(Wire.tcp(daemon.tcp), token)


def test_status_by_token_shows_own_domain_or_all(daemon: Running) -> None:
    engines = [RemoteEngine(Wire.tcp(daemon.tcp), token) for token in (TOKEN_A, TOKEN_B)]
    wire = Wire.tcp(daemon.tcp)
    own = wire.call(Method.STATUS, admin_pb2.StatusRequest(token=TOKEN_A))
    assert [space.domain for space in own.namespaces] == ["team-a"]
    assert not own.counters and not own.tiers and own.sessions == 1
    every = Wire.tcp(daemon.tcp).call(Method.STATUS, admin_pb2.StatusRequest(token=ADMIN))
    assert {space.domain for space in every.namespaces} == {"team-a", "team-b"}
    root_b = engines[1].grant.root_digest
    with pytest.raises(errors.InvalidRequest) as foreign:
        wire.call(Method.LIST, admin_pb2.ListRequest(token=TOKEN_A, root_digest=root_b))
    with pytest.raises(errors.InvalidRequest) as absent:
        wire.call(Method.LIST, admin_pb2.ListRequest(token=TOKEN_A, root_digest=bytes(32)))
    assert str(foreign.value).replace(root_b.hex(), bytes(32).hex()) == str(absent.value)
    with pytest.raises(errors.Forbidden):
        wire.call(Method.CHECK, admin_pb2.CheckRequest(token=TOKEN_A))


def test_write_outside_staging_is_refused_and_the_stream_goes_on(daemon: Running) -> None:
    engine = RemoteEngine(Wire.tcp(daemon.tcp))
    for offset in (4 * MIB - 10, 2**63):
        with pytest.raises(errors.InvalidRequest, match=f"outside the {4 * MIB} bytes"):
            engine.call(Method.WRITE, pb.WriteRequest, bytes(100), staging_offset=offset)
    stranger = Wire.tcp(daemon.tcp)
    with pytest.raises(errors.UnknownSession):
        stranger.call(Method.WRITE, pb.WriteRequest(session_id=engine.session_id), bytes(10))
    assert engine.put(chain(engine.grant.root_digest, [0])) == b"\1\1"


def test_read_beyond_the_lease_names_blocks_and_lease(daemon: Running) -> None:
    engine = RemoteEngine(Wire.tcp(daemon.tcp))
    hashes = chain(engine.grant.root_digest, range(2))
    engine.put(hashes)
    hit = engine.lookup(hashes)
    with pytest.raises(errors.InvalidRequest, match="blocks 1 to 3 of need 0, which has 2"):
        engine.read(hit.lease_id, 0, 1, 2)
    with pytest.raises(errors.AnchorStoreError):
        engine.read(hit.lease_id, 7, 0, 1)
    engine.call(Method.RELEASE, pb.ReleaseRequest, lease_ids=[hit.lease_id])
    with pytest.raises(errors.LeaseExpired):
        engine.read(hit.lease_id, 0, 0, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        frames.HEADER.pack(b"AS", 1, 1, Method.WRITE, 0, 1, 0, 2**40),
        frames.HEADER.pack(b"AS", 1, 1, Method.LOOKUP, 0, 1, 0, 5) + b"12345",
        frames.HEADER.pack(b"AS", 1, 2, Method.LOOKUP, 0, 1, 0, 0),
    ],
)
def test_frame_that_breaks_the_rules_gets_one_refusal_and_the_end(
    daemon: Running, data: bytes
) -> None:
    wire = Wire.tcp(daemon.tcp)
    wire.sock.sendall(data)
    with pytest.raises(errors.InvalidRequest):
        wire.receive_answer()
    assert wire.is_closed()
    RemoteEngine(Wire.tcp(daemon.tcp))


def test_map_over_tcp_is_refused(daemon: Running) -> None:
    engine = RemoteEngine(Wire.tcp(daemon.tcp))
    with pytest.raises(errors.InvalidRequest, match="map is not a call of this carrier"):
        engine.call(Method.MAP, pb.MapRequest, staging=True)


def test_connection_lost_ends_its_session(daemon: Running) -> None:
    engine = RemoteEngine(Wire.tcp(daemon.tcp))
    engine.wire.close()
    other = RemoteEngine(Wire.tcp(daemon.tcp))
    while daemon.do(lambda: daemon.daemon.core.status(0.0)).sessions != 1:
        pass  # bounded by the test's timeout
    other.wire.close()


def test_peers_that_stall_are_cut_off(tmp_path: pathlib.Path) -> None:
    config = tcp_config(tmp_path, deadlines__handshake=0.1, deadlines__frame=0.1)
    with running(config) as daemon:
        silent, half = Wire.tcp(daemon.tcp), RemoteEngine(Wire.tcp(daemon.tcp))
        half.wire.sock.sendall(frames.encode(Kind.REQUEST, Method.WRITE, 9, b"", 1000)[:20])
        assert silent.is_closed() and half.wire.is_closed()
        assert RemoteEngine(Wire.tcp(daemon.tcp)).grant.boot_id == daemon.daemon.boot_id


def test_peer_that_reads_nothing_is_cut_off(tmp_path: pathlib.Path) -> None:
    config = tcp_config(tmp_path, deadlines__idle_write=0.2)
    with running(config) as daemon:
        engine = RemoteEngine(Wire.tcp(daemon.tcp))
        hashes = chain(engine.grant.root_digest, range(20))
        engine.put(hashes)
        lease = engine.lookup(hashes).lease_id
        request = pb.ReadRequest(session_id=engine.session_id, lease_id=lease, count=20)
        body = request.SerializeToString()
        frame = frames.encode(Kind.REQUEST, Method.READ, 1, body)
        engine.wire.sock.settimeout(0.5)
        with pytest.raises(OSError):
            while True:
                engine.wire.sock.sendall(frame * 1000)
        remote = daemon.daemon.carriers.remote
        assert remote is not None
        while remote.connections_open:
            pass  # bounded by the test's timeout


def test_port_in_use_is_refused(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = tcp_config(tmp_path, listen__tcp=f"127.0.0.1:{port}")
        with pytest.raises(errors.ConfigError, match=f"127.0.0.1:{port}"), running(config):
            pass
    assert not pathlib.Path(config.listen.socket).exists()


@pytest.mark.parametrize("key", ["listen__tcp", "listen__grpc"])
def test_bind_beyond_loopback_without_tls_and_tokens_is_refused(
    tmp_path: pathlib.Path, key: str
) -> None:
    config = config_of(tmp_path, **{key: "0.0.0.0:0"})
    with pytest.raises(errors.ConfigError, match=r"0\.0\.0\.0.*insecure_bind"), running(config):
        pass
    insecure = config_of(tmp_path, **{key: "0.0.0.0:0", "listen__insecure_bind": True})
    with running(insecure):
        pass


def certificate(tmp_path: pathlib.Path) -> dict[str, str]:
    """A self-signed certificate for localhost."""
    paths = {"certificate": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-out", str(paths["certificate"]), "-keyout", str(paths["key"])]
    subprocess.run([*command.split(), *subject, *files], check=True, capture_output=True)
    return {name: str(path) for name, path in paths.items()}


def test_tls_carries_blocks_and_refuses_plain_text(tmp_path: pathlib.Path) -> None:
    made = certificate(tmp_path)
    config = tcp_config(tmp_path, tls__certificate=made["certificate"], tls__key=made["key"])
    with running(config) as daemon:
        plain = Wire.tcp(daemon.tcp)
        plain.sock.sendall(frames.encode(Kind.REQUEST, Method.STATUS, 1, b"") * 10)
        assert plain.is_closed()
        context = ssl.create_default_context(cafile=made["certificate"])
        sock = context.wrap_socket(
            socket.create_connection(daemon.tcp), server_hostname="localhost"
        )
        engine = RemoteEngine(Wire(sock))
        hashes = chain(engine.grant.root_digest, range(4))
        assert engine.put(hashes) == bytes([1] * 8)
        hit = engine.lookup(hashes)
        size = engine.grant.layouts[0].block_bytes
        assert engine.read(hit.lease_id, 0, 3, 1) == block_of(300, size)
        engine.wire.close()


def test_tls_with_files_that_do_not_fit_is_refused(tmp_path: pathlib.Path) -> None:
    made = certificate(tmp_path)
    config = tcp_config(
        tmp_path, tls__certificate=made["certificate"], tls__key=made["certificate"]
    )
    with pytest.raises(errors.ConfigError, match="tls: cannot use"), running(config):
        pass


@pytest.mark.parametrize("attempt", range(5))
def test_stop_while_peers_connect_ends_cleanly(tmp_path: pathlib.Path, attempt: int) -> None:
    """A connection accepted at the moment of the stop has its thread, or none at all."""
    ended = threading.Event()

    def hammer(address: tuple[str, int]) -> None:
        while not ended.is_set():
            try:
                socket.create_connection(address, 1).close()
            except OSError:
                ended.wait(0.001)

    with running(tcp_config(tmp_path)) as daemon:
        peers = [threading.Thread(target=hammer, args=(daemon.tcp,)) for _ in range(3)]
        for peer in peers:
            peer.start()
        ended.wait(0.02 * attempt)
    ended.set()
    for peer in peers:
        peer.join(5)
