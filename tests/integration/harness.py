"""A daemon in a thread, and the plainest client there can be: frames on a socket.

The client under test elsewhere is polite; this one can send anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import mmap
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from google.protobuf.message import Message

from anchorstore.clock import SystemClock
from anchorstore.config import Config, LogConfig, build
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from anchorstore.server.daemon import Daemon, new_event_loop
from anchorstore.server.logs import make_logger
from anchorstore.server.opening import MakePlatform, cuda_platform
from anchorstore.tiers.nvme.seam import OpenFile, open_direct
from anchorstore.transport import frames
from anchorstore.transport.frames import Kind, Method
from anchorstore.transport.segment import PLACE, SegmentView
from anchorstore.wire import convert, status
from anchorstore.wire.v1 import store_pb2 as pb

Say = Callable[..., tuple[int, str, str]]
"""Runs a command line: exit code, standard output, standard error."""

MIB = 2**20
KV = KvLayout(layers=2, heads=2, head_dim=32, dtype="bfloat16", head_start=0, head_stop=2)
ANCHOR = AnchorLayout(groups=3, rows=4, hidden=64, dtype="float32")
WAIT_SECONDS = 20.0
_OPENED: list[Wire] = []  # closed when the daemon that they talk to stops


def config_of(tmp_path: pathlib.Path, **changes: Any) -> Config:
    """A small daemon below `tmp_path`; `changes` by key, dots written as double underscores."""
    values: dict[str, Any] = {
        "listen.socket": str(tmp_path / "engine.sock"),
        "listen.http": "",
        "tiers.dram.capacity": 16 * MIB,
        "tiers.dram.segment": 1 * MIB,
        "limits.staging_per_session": 8 * MIB,
        "node.drain": 1.0,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return build(values)


@dataclasses.dataclass
class Running:
    """A daemon that serves, and the loop on which it lives."""

    daemon: Daemon
    loop: asyncio.AbstractEventLoop
    log: io.StringIO

    @property
    def socket(self) -> str:
        return str(self.daemon.carriers.local.path)

    @property
    def tcp(self) -> tuple[str, int]:
        remote = self.daemon.carriers.remote
        assert remote is not None
        return remote.host, remote.port

    def on_loop(self, work: Any) -> Any:
        """`await work()` on the daemon's loop, from here."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(WAIT_SECONDS)

    def do(self, work: Any) -> Any:
        """`work()` on the daemon's loop, from here."""

        async def run() -> Any:
            return work()

        return self.on_loop(run)


@contextlib.contextmanager
def running(
    config: Config,
    open_file: OpenFile = open_direct,
    make_platform: MakePlatform = cuda_platform,
) -> Iterator[Running]:
    """Starts a daemon in a thread; stops it, and fails where a part of it failed."""
    loop, log = new_event_loop(), io.StringIO()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Daemon:
        logger = make_logger(LogConfig(), "test", log)
        daemon = Daemon(config, logger, SystemClock(), open_file, make_platform)
        try:
            await daemon.start()
        except BaseException:
            await daemon.close()
            raise
        return daemon

    try:
        daemon = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_SECONDS)
        here = Running(daemon, loop, log)
        try:
            yield here
            assert here.do(daemon.core.check) == []
            assert daemon.supervisor.failure is None, log.getvalue()
        finally:
            close_all()
            here.on_loop(daemon.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def close_all() -> None:
    """Closes every Wire that is still open."""
    while _OPENED:
        _OPENED.pop().close()


class Wire:
    """Frames on one blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_SECONDS)
        self.sock = sock
        _OPENED.append(self)
        self._held = bytearray()
        self.descriptors: list[int] = []
        self._next_call = 1

    @classmethod
    def unix(cls, path: str) -> Wire:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        return cls(sock)

    @classmethod
    def tcp(cls, address: tuple[str, int]) -> Wire:
        return cls(socket.create_connection(address))

    def send(self, method: Method, message: Message, payload: bytes = b"") -> int:
        """Sends a request; its call id."""
        call_id, self._next_call = self._next_call, self._next_call + 1
        body = message.SerializeToString()
        self.sock.sendall(frames.encode(Kind.REQUEST, method, call_id, body, len(payload)))
        self.sock.sendall(payload)
        return call_id

    def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            if self.sock.family == socket.AF_UNIX:
                data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 16, 253)
                self.descriptors += descriptors
            else:
                data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._held += data
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def receive(self) -> tuple[frames.Header, bytes, bytes]:
        """(header, body, payload) of the next frame."""
        head = self._take(frames.HEADER_BYTES)
        header = frames.parse_header(head, payload_bytes_max=frames.PAYLOAD_BYTES_MAX)
        return header, self._take(header.body_bytes), self._take(header.payload_bytes)

    def receive_answer(self) -> tuple[Message, bytes]:
        """The next frame's message and payload; raises the error that it carries."""
        header, body, payload = self.receive()
        if header.kind is Kind.ERROR:
            raise status.error_of(pb.ErrorReply.FromString(body))
        return frames.MESSAGES[header.method][1].FromString(body), payload

    def call(self, method: Method, message: Message, payload: bytes = b"") -> Any:
        """The answer to one request."""
        self.send(method, message, payload)
        return self.receive_answer()[0]

    def is_closed(self) -> bool:
        """Whether the other side hangs up, whatever it sends first."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def attach_request(layouts: Sequence[Layout] = (KV, ANCHOR), **fields: Any) -> pb.AttachRequest:
    """A request that is right in everything that `fields` does not change."""
    values: dict[str, Any] = {
        "protocol_version": frames.VERSION,
        "client_name": "test",
        "namespace": pb.NamespaceSpec(model="m", weights_digest=bytes(32), page_tokens=64),
        "layouts": [convert.layout_spec(layout) for layout in layouts],
        "staging_bytes": 4 * MIB,
    }
    return pb.AttachRequest(**(values | fields))


def chain(root: bytes, seeds: Sequence[int]) -> bytes:
    """Path hashes of pages that differ by their seed."""
    found, parent = [], root
    for seed in seeds:
        parent = hashlib.sha256(parent + seed.to_bytes(8, "little")).digest()
        found.append(parent)
    return b"".join(found)


def block_of(seed: int, size: int) -> bytes:
    """Bytes that belong to one page and layout."""
    return np.random.default_rng(seed).bytes(size)


class Engine:
    """A session on the Unix socket that puts and gets, step by step."""

    def __init__(self, path: str, **fields: Any) -> None:
        self.wire = Wire.unix(path)
        self.grant: pb.AttachResponse = self.wire.call(Method.ATTACH, attach_request(**fields))
        self.session_id = self.grant.session_id
        self.staging: mmap.mmap | None = None
        if self.grant.staging_bytes:
            answer = self.map([], staging=True)
            self.staging = mmap.mmap(self.wire.descriptors.pop(), answer.staging_bytes)

    def call(self, method: Method, cls: type[Message], **fields: Any) -> Any:
        return self.wire.call(method, cls(session_id=self.session_id, **fields))

    def map(self, segment_ids: Sequence[int], *, staging: bool = False) -> pb.MapResponse:
        answer: pb.MapResponse = self.call(
            Method.MAP, pb.MapRequest, segment_ids=segment_ids, staging=staging
        )
        return answer

    def reserve(self, hashes: bytes, layouts: Sequence[int] = (0, 1), **fields: Any) -> Any:
        values = {"parent_hash": self.grant.root_digest, "path_hashes": hashes, "layouts": layouts}
        return self.call(Method.RESERVE, pb.ReserveRequest, **(values | fields))

    def stage(self, pages: int, layouts: Sequence[int] = (0, 1)) -> dict[str, bytes]:
        """Writes a block a page and layout to staging; the columns of the Seal that names them."""
        assert self.staging is not None
        sizes = [self.grant.layouts[layout].block_bytes for layout in layouts]
        offset, offsets, sums, rows, positions = 0, [], [], [], []
        for page in range(pages):
            for position, size in enumerate(sizes):
                data = block_of(100 * page + layouts[position], size)
                self.staging[offset : offset + size] = data
                offsets.append(offset)
                sums.append(xxhash.xxh3_64_intdigest(data))
                rows.append(page)
                positions.append(position)
                offset += size
        return {
            "pages": np.array(rows, "<u4").tobytes(),
            "layouts": bytes(positions),
            "staging_offsets": np.array(offsets, "<u8").tobytes(),
            "checksums": np.array(sums, "<u8").tobytes(),
        }

    def put(self, hashes: bytes) -> bytes:
        """Reserves, stages and seals every page; the seal's results."""
        reserved = self.reserve(hashes)
        columns = self.stage(len(hashes) // 32)
        answer = self.call(
            Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns
        )
        return bytes(answer.results)

    def lookup(self, hashes: bytes, **fields: Any) -> pb.LookupResponse:
        """All pages of both layouts."""
        needs = [pb.Need(layout=layout, all=pb.NeedAll()) for layout in (0, 1)]
        values = {"path_hashes": hashes, "needs": needs, "max_lineage": 255}
        answer: pb.LookupResponse = self.call(Method.LOOKUP, pb.LookupRequest, **(values | fields))
        return answer

    def read(self, columns: pb.BlockColumns) -> list[bytes]:
        """The blocks of one need, through mapped segments, generations checked."""
        places = np.frombuffer(columns.places, PLACE)
        ids = sorted(set(places["segment"].tolist()))
        answer = self.map(ids)
        descriptors, self.wire.descriptors = self.wire.descriptors, []
        views = {}
        for number, descriptor, size in zip(ids, descriptors, answer.segment_bytes, strict=True):
            memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
            views[number] = SegmentView(memoryview(memory), self.grant.boot_id, number)
        size = self.grant.layouts[columns.layout].block_bytes
        blocks = []
        for row, (number, slot, _, _) in enumerate(places.tolist()):
            view, place = views[number], places[row : row + 1]
            assert view.stands(place["slot"], place["generation"]).all()
            blocks.append(bytes(view.block(slot, size)))
        return blocks

    def close(self) -> None:
        self.wire.close()
