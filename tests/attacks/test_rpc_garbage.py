"""Goal: bytes that are no message get the same refusal over gRPC as over frames, and no traceback.

Method: a raw channel sends every call garbage; the refusal's code and what reaches standard error.
"""

from __future__ import annotations

import pathlib
from typing import Any

import grpc
import pytest

from anchorstore.server.rpc import SERVICES
from anchorstore.wire.status import CODE_METADATA_KEY
from tests.integration.harness import Engine, config_of, running

GARBAGE = b"\x0a\xff\xff\xff\xff\x0fgarbage"


def test_garbage_in_every_call_is_an_invalid_request(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(config_of(tmp_path, listen__grpc="127.0.0.1:0")) as daemon:
        rpc = daemon.daemon.carriers.rpc
        assert rpc is not None
        with grpc.insecure_channel(f"{rpc.host}:{rpc.port}") as channel:
            for service in SERVICES:
                for method in service.methods:
                    path = f"/{service.full_name}/{method.name}"
                    call: Any = channel.unary_unary(path, None, None)  # bytes as they are
                    with pytest.raises(grpc.RpcError) as refusal:
                        call(GARBAGE, timeout=10)
                    error: Any = refusal.value
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                    trailers = {entry.key: entry.value for entry in error.trailing_metadata() or ()}
                    assert trailers[CODE_METADATA_KEY] == "InvalidRequest"
        assert Engine(daemon.socket).grant.session_id
    assert "Traceback" not in capfd.readouterr().err
