"""Goal: gRPC answers the same calls, under tokens, with health and reflection, and off by default.
Method: a daemon in a thread, the generated stubs, a plain channel.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from anchorstore import errors
from anchorstore.wire.status import CODE_METADATA_KEY
from anchorstore.wire.v1 import admin_pb2, admin_pb2_grpc, store_pb2_grpc
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import Engine, Running, attach_request, chain, config_of, running
from tests.integration.test_remote import ADMIN, TOKEN_A, TOKEN_B, tcp_config


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Running]:
    with running(tcp_config(tmp_path, listen__tcp="", listen__grpc="127.0.0.1:0")) as here:
        yield here


def port_of(daemon: Running) -> int:
    rpc = daemon.daemon.carriers.rpc
    assert rpc is not None
    return rpc.port


@pytest.fixture
def channel(daemon: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port_of(daemon)}") as channel:
        yield channel


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 20}


def test_session_over_grpc_looks_up_and_leaves(channel: grpc.Channel) -> None:
    stub = store_pb2_grpc.StoreServiceStub(channel)
    grant = stub.Attach(attach_request(token=TOKEN_A), timeout=20)
    assert grant.domain == "team-a"
    needs = [pb.Need(layout=0, all=pb.NeedAll())]
    hashes = chain(grant.root_digest, [1, 2])
    request = pb.LookupRequest(session_id=grant.session_id, path_hashes=hashes, needs=needs)
    assert stub.Lookup(request, **bearer(TOKEN_A)).miss == pb.MISS_REASON_NOT_STORED
    for token in (TOKEN_B, ADMIN):
        with pytest.raises(grpc.RpcError) as refusal:
            stub.Lookup(request, **bearer(token))
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        trailing = refusal.value.trailing_metadata()
        codes = [str(entry.value) for entry in trailing if entry.key == CODE_METADATA_KEY]
        assert codes == ["UnknownSession"]
    stub.Detach(pb.DetachRequest(session_id=grant.session_id), **bearer(TOKEN_A))
    with pytest.raises(grpc.RpcError):
        stub.Lookup(request, **bearer(TOKEN_A))


def test_session_over_grpc_gets_no_staging_memory_and_writes_nothing(
    daemon: Running, channel: grpc.Channel
) -> None:
    """What it could never reach would be missing to those who write."""
    stub = store_pb2_grpc.StoreServiceStub(channel)
    for _ in range(3):
        grant = stub.Attach(attach_request(token=TOKEN_A, staging_bytes=2**40), timeout=20)
        assert grant.staging_bytes == 0
    assert daemon.daemon.service.stagings.used_bytes == 0
    run = pb.ReserveRequest(
        session_id=grant.session_id,
        parent_hash=grant.root_digest,
        path_hashes=chain(grant.root_digest, [1]),
        layouts=[0],
    )
    with pytest.raises(grpc.RpcError) as refusal:
        stub.Reserve(run, **bearer(TOKEN_A))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "opened over gRPC, which carries no blocks" in refusal.value.details()
    assert daemon.do(lambda: daemon.daemon.core.status(0.0)).reservations == 0


@pytest.mark.parametrize("token", ["", "nonsense-0123456789"])
def test_call_without_a_valid_token_is_unauthenticated(channel: grpc.Channel, token: str) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    with pytest.raises(grpc.RpcError) as refusal:
        stub.Status(admin_pb2.StatusRequest(), **bearer(token))
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_operator_over_grpc_sees_checks_and_switches(
    daemon: Running, channel: grpc.Channel
) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(3))
    engine.put(hashes)
    root = engine.grant.root_digest
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    status = stub.Status(admin_pb2.StatusRequest(), **bearer(ADMIN))
    assert status.pages == 3 and status.tiers[0].name == "dram"
    check = stub.Check(admin_pb2.CheckRequest(checksums=True), **bearer(ADMIN))
    assert (check.ok, check.blocks, check.blocks_verified) == (True, 6, 6)
    explained = stub.Explain(
        admin_pb2.ExplainRequest(root_digest=root, path_hashes=hashes), **bearer(ADMIN)
    )
    assert (explained.pages_asked, explained.pages_present) == (3, 3)
    listed = stub.List(admin_pb2.ListRequest(root_digest=root, limit=2), **bearer(ADMIN))
    assert [page.page for page in listed.pages] == [0, 1] and listed.next_cursor
    off = admin_pb2.SetNamespaceRequest(root_digest=root, enabled=False)
    stub.SetNamespace(off, **bearer(ADMIN))
    assert engine.lookup(hashes).miss == pb.MISS_REASON_DISABLED
    removed = stub.Remove(admin_pb2.RemoveRequest(root_digest=root), **bearer(ADMIN))
    assert removed.blocks_removed == 6
    with pytest.raises(grpc.RpcError) as refusal:
        stub.Remove(admin_pb2.RemoveRequest(root_digest=root), **bearer(TOKEN_A))
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_check_of_pool_with_a_flipped_bit_says_which_block(
    daemon: Running, channel: grpc.Channel
) -> None:
    engine = Engine(daemon.socket)
    engine.put(chain(engine.grant.root_digest, range(3)))
    table, _ = daemon.do(lambda: daemon.daemon.core.audit.sealed_blocks(0, 10))
    segment, offset = int(table.segment_index[2]), int(table.offset[2])
    daemon.daemon.tier.memory(segment)[offset] ^= 1
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    check = stub.Check(admin_pb2.CheckRequest(checksums=True), **bearer(ADMIN))
    assert not check.ok and check.blocks_verified == 5
    assert f"segment {segment} slot {int(table.slot[2])}: xxh3" in check.violations[0]


def test_health_follows_the_drain(daemon: Running, channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service="anchorstore.v1.StoreService")
    serving = health_pb2.HealthCheckResponse.SERVING
    assert stub.Check(asked, timeout=20).status == serving
    daemon.on_loop(daemon.daemon.drain)
    assert stub.Check(asked, timeout=20).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reflection_names_the_services(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=20))
    names = {service.name for service in answer.list_services_response.service}
    assert {"anchorstore.v1.StoreService", "anchorstore.v1.AdminService"} <= names


def test_port_in_use_is_refused(daemon: Running, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    config = config_of(other, listen__grpc=f"127.0.0.1:{port_of(daemon)}")
    with pytest.raises(errors.ConfigError, match=r"listen\.grpc: cannot bind"), running(config):
        pass
