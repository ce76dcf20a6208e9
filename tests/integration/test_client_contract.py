"""Goal: both faces, near and far, store and find the same bytes under the same rules.
Method: one contract, run over Client and AsyncClient, the Unix socket and framed TCP, against a
real daemon process.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.client import NeedAll, NeedLast, NeedWindow
from anchorstore.clock import ManualClock
from anchorstore.errors import HandleClosed, InvalidRequest, LeaseExpired, SpecMismatch
from anchorstore.layout import KvLayout
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import (
    ANCHOR,
    KV,
    LAYOUTS,
    OPTIONS,
    eventually,
    namespace,
    pages,
    stored,
)
from tests.integration.faces import Face

ALL_KV = [NeedAll(0)]
BOTH = [NeedAll(0), NeedWindow(1, ratio=0.05, max_rows=16, rows_per_page=4)]
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: pathlib.Path = tmp_path_factory.mktemp("daemon")
    with Daemon(folder) as running:
        yield running


@pytest.fixture(params=["unix", "tcp"])
def connect(request: pytest.FixtureRequest, daemon: Daemon, face: Face) -> Iterator[Connect]:
    """Makes clients of one face over one carrier; closes them."""
    address = daemon.address if request.param == "unix" else daemon.tcp_address
    made: list[Any] = []

    def connect_one(**arguments: Any) -> Any:
        given = {"namespace": namespace(), "layouts": LAYOUTS, "options": OPTIONS, **arguments}
        made.append(face.connect(address, **given))
        return made[-1]

    yield connect_one
    for client in made:
        client.close()


def read_all(window: Any, need: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    blocks = window.blocks(need)
    out = np.empty((len(blocks), blocks.block_bytes), np.uint8)
    blocks.copy_into(out)
    return out


def test_put_then_lookup_gives_the_sealed_bytes(connect: Connect) -> None:
    client = connect()
    made = stored(client, 12)
    with client.lookup(made.hashes, BOTH, margin_pages=2) as window:
        assert (window.hit, window.miss, window.lineage) == (True, "", 0)
        assert (window.boundary_pages, window.resume_pages) == (12, 10)
        kv, anchors = window.blocks(0), window.blocks(1)
        assert (kv.layout, kv.first_page, len(kv)) == (0, 0, 10)
        assert anchors.layout == 1 and anchors.first_page + len(anchors) == 10
        assert (read_all(window, 0) == made.kv[:10]).all()
        anchors.load()
        for index in range(len(anchors)):
            assert bytes(anchors[index]) == made.anchor[anchors.first_page + index].tobytes()
        window.verify()
    counters = client.counters()
    assert (counters["lookups"], counters["hits"], counters["pages_hit"]) == (1, 1, 10)
    assert counters["blocks_sealed"] == 24


def test_lookup_of_a_longer_path_finds_the_shared_prefix(connect: Connect) -> None:
    client = connect()
    made = stored(client, 6)
    with client.lookup(made.hashes + bytes(64), ALL_KV) as window:
        assert window.boundary_pages == 6
    with client.lookup(made.hashes[:96], [NeedAll(0, first_page=1)]) as window:
        assert window.boundary_pages == 3 and window.blocks(0).first_page == 1
        assert (read_all(window, 0) == made.kv[1:3]).all()


def test_lookup_that_misses_says_why(connect: Connect) -> None:
    client = connect()
    made = pages(client, 4)
    with client.lookup(made.hashes, BOTH) as window:
        assert (window.hit, window.miss) == (False, "not_stored")
    client.put(client.root_digest, 0, made.hashes, {0: made.kv}, lineage=3)
    with client.lookup(made.hashes, BOTH) as window:
        assert window.miss == "incomplete"
    with client.lookup(made.hashes, ALL_KV, max_lineage=2) as window:
        assert window.miss == "lineage"
    with client.lookup(made.hashes, ALL_KV, margin_pages=4) as window:
        assert window.miss == "margin"
    with client.lookup(made.hashes, ALL_KV, max_lineage=3) as window:
        assert window.hit and window.lineage == 3


def test_put_again_is_known_and_exact_replaces_approximate(connect: Connect) -> None:
    client = connect()
    made = pages(client, 3)
    put = dataclasses.replace(made)
    assert client.put(None, 0, put.hashes, {0: made.kv[::-1].copy()}, lineage=2).sealed == 3
    assert client.put(None, 0, put.hashes, {0: made.kv}, lineage=2).known == 3
    assert client.put(None, 0, put.hashes, {0: made.kv}).sealed == 3
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.lineage == 0 and (read_all(window, 0) == made.kv).all()


def test_put_continues_a_path_from_its_parent(connect: Connect) -> None:
    client = connect()
    made = pages(client, 6)
    client.put(client.root_digest, 0, made.hashes[:96], {0: made.kv[:3]})
    client.put(made.hashes[64:96], 3, made.hashes[96:], {0: made.kv[3:]})
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.boundary_pages == 6 and (read_all(window, 0) == made.kv).all()


def test_put_larger_than_staging_is_sealed_whole(connect: Connect) -> None:
    options = dataclasses.replace(OPTIONS, staging_bytes=3 * KV.block_bytes())
    client = connect(options=options)
    made = stored(client, 10)
    with client.lookup(made.hashes, BOTH) as window:
        assert window.boundary_pages == 10 and (read_all(window, 0) == made.kv).all()


def test_reservation_seals_only_what_was_written(connect: Connect) -> None:
    client = connect()
    made = pages(client, 4)
    with client.reserve(None, 0, made.hashes, layouts=[0, 1]) as reservation:
        assert list(reservation.wanted()) == [(p, layout) for p in range(4) for layout in (0, 1)]
        for page in (0, 1, 3):
            reservation.buffer(page, 0)[:] = memoryview(made.kv[page])
        assert reservation.seal().sealed == 3
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.boundary_pages == 2 and (read_all(window, 0) == made.kv[:2]).all()
    with client.lookup(made.hashes, [NeedLast(0)]) as window:
        assert window.boundary_pages == 4 and (read_all(window, 0) == made.kv[3:]).all()


def test_reservation_left_without_seal_stores_nothing(connect: Connect) -> None:
    client = connect()
    made = pages(client, 2)
    with client.reserve(None, 0, made.hashes, layouts=[0]) as reservation:
        reservation.buffer(0, 0)[:] = memoryview(made.kv[0])
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.miss == "not_stored"
    with pytest.raises(HandleClosed):
        reservation.seal()


def test_released_lease_waits_for_the_next_lookup(connect: Connect) -> None:
    client = connect(options=dataclasses.replace(OPTIONS, release_linger_seconds=60.0))
    made = stored(client, 2)
    first = client.lookup(made.hashes, ALL_KV)
    borrowed = client.open_window(first.export())
    first.release()
    borrowed.renew()  # not ended yet
    with client.lookup(made.hashes, ALL_KV), pytest.raises(LeaseExpired):
        borrowed.renew()
    borrowed.release()


def test_released_lease_ends_by_itself_where_no_lookup_follows(
    connect: Connect, face: Face
) -> None:
    client = connect(options=dataclasses.replace(OPTIONS, release_linger_seconds=0.02))
    made = stored(client, 2)
    first = client.lookup(made.hashes, ALL_KV)
    with client.open_window(first.export()) as borrowed:
        first.release()

        def is_over() -> bool:
            face.pause(0.02)
            try:
                borrowed.renew()
            except LeaseExpired:
                return True
            return False

        eventually(is_over)


def test_window_after_its_lease_ran_out_cannot_be_verified_in_place(
    connect: Connect, request: pytest.FixtureRequest
) -> None:
    clock = ManualClock()
    client = connect(clock=clock)
    made = stored(client, 2)
    with client.lookup(made.hashes, ALL_KV) as window:
        window.blocks(0).load()
        clock.advance(9.0)
        window.renew()
        clock.advance(9.0)
        window.verify()
        clock.advance(9.0)
        if client.address.startswith("unix"):
            with pytest.raises(LeaseExpired):
                window.verify()
        else:  # what was fetched is ours
            window.verify()


def test_blocks_are_read_only_views(connect: Connect) -> None:
    torch = pytest.importorskip("torch")
    client = connect()
    made = stored(client, 2)
    with client.lookup(made.hashes, ALL_KV) as window:
        blocks = window.blocks(0)
        blocks.load()
        assert blocks[1].readonly
        array = blocks.numpy(1, np.uint16, KV.shape)
        assert array.shape == KV.shape and not array.flags.writeable
        tensor = blocks.torch(1, "bfloat16", KV.shape)
        assert tensor.dtype == torch.bfloat16 and tensor.shape == KV.shape
        assert tensor.view(torch.uint8).numpy().tobytes() == made.kv[1].tobytes()
        blocks.check_checksums()


def test_wrong_requests_are_told_with_thing_value_and_limit(connect: Connect) -> None:
    client = connect()
    made = pages(client, 2)
    limit = client.max_pages
    with pytest.raises(InvalidRequest, match="65 bytes, must be a multiple of 32"):
        client.lookup(bytes(65), ALL_KV)
    with pytest.raises(InvalidRequest, match=f"{limit + 1} pages, limit {limit}"):
        client.lookup(bytes(32 * (limit + 1)), ALL_KV)
    with pytest.raises(InvalidRequest, match="layout 2 is unknown, this client has 2"):
        client.lookup(made.hashes, [NeedAll(2)])
    with pytest.raises(InvalidRequest, match="layout True is unknown"):
        client.lookup(made.hashes, [NeedAll(True)])
    with pytest.raises(InvalidRequest, match="0 is no NeedAll, NeedWindow or NeedLast"):
        client.lookup(made.hashes, [0])
    with pytest.raises(InvalidRequest, match=r"margin_pages is 1\.5, must be a whole number"):
        client.lookup(made.hashes, ALL_KV, margin_pages=1.5)
    with pytest.raises(InvalidRequest, match="layout '0' is unknown"):
        client.put(None, 0, made.hashes, {"0": made.kv})
    with pytest.raises(InvalidRequest, match="no needs"):
        client.lookup(made.hashes, [])
    with pytest.raises(InvalidRequest, match="parent hash has 5 bytes"):
        client.put(b"short", 0, made.hashes, {0: made.kv})
    with pytest.raises(InvalidRequest, match="lineage is 256"):
        client.put(None, 0, made.hashes, {0: made.kv}, lineage=256)
    assert client.attached and stored(client, 2)


def test_layout_of_another_page_size_is_refused(connect: Connect) -> None:
    other = KvLayout(1, 1, 8, "bfloat16", head_start=0, head_stop=1, page_tokens=32)
    with pytest.raises(SpecMismatch, match="32 tokens, the namespace's have 64"):
        connect(layouts=[other])


def test_two_namespaces_never_see_each_others_pages(connect: Connect) -> None:
    mine, other = connect(), connect()
    made = stored(mine, 2)
    assert mine.root_digest != other.root_digest
    with other.lookup(made.hashes, ALL_KV) as window:
        assert window.miss == "not_stored"


def test_two_clients_of_one_namespace_share_pages(connect: Connect) -> None:
    shared = namespace()
    made = stored(connect(namespace=shared), 3)
    with connect(namespace=shared).lookup(made.hashes, ALL_KV) as window:
        assert (read_all(window, 0) == made.kv).all()


def test_closed_client_refuses_further_calls(connect: Connect) -> None:
    client = connect()
    window = client.lookup(stored(client, 1).hashes, ALL_KV)
    client.close()
    client.close()
    window.release()
    with pytest.raises(HandleClosed, match="closed"):
        client.lookup(bytes(32), ALL_KV)


def test_joined_client_reads_under_the_same_lease_and_cannot_write(
    connect: Connect, face: Face
) -> None:
    client = connect()
    made = stored(client, 4)
    with client.lookup(made.hashes, BOTH) as window:
        worker = face.join(client.session_token, options=OPTIONS)
        assert worker.attached and worker.block_bytes(1) == ANCHOR.block_bytes()
        assert worker.path_hashes(range(64)) == client.path_hashes(range(64))
        with worker.open_window(window.export()) as handed:
            assert (read_all(handed, 0) == made.kv).all()
            handed.verify()
        with worker.lookup(made.hashes, ALL_KV) as own:
            assert own.boundary_pages == 4
        with pytest.raises(InvalidRequest, match="0 bytes of staging"):
            worker.put(None, 0, made.hashes, {0: made.kv})
        worker.close()
        assert client.attached
        window.verify()
