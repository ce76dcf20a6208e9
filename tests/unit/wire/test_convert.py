"""Goal: bytes from outside become values that the core may trust, or one clear refusal.
Method: round trips; every column with a wrong width, a wrong length or too many elements.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from anchorstore import errors
from anchorstore.errors import InvalidKey, InvalidRequest, SpecMismatch
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from anchorstore.wire import convert, status
from anchorstore.wire.v1 import store_pb2 as pb

KV = KvLayout(layers=2, heads=4, head_dim=8, dtype="bfloat16", head_start=2, head_stop=4)
ANCHOR = AnchorLayout(groups=3, rows=4, hidden=16, dtype="float32")


def test_status_table_names_every_error_and_only_real_codes() -> None:
    assert set(status.STATUS_OF_CODE) == set(errors.BY_CODE)
    for name in status.STATUS_OF_CODE.values():
        assert isinstance(grpc.StatusCode[name], grpc.StatusCode)


def test_error_over_a_frame_comes_back_the_same() -> None:
    error = errors.Overloaded("seal: 9 waiting, limit 8")
    error.retry_after_ms = 20
    back = status.error_of(status.error_message(error))
    assert (type(back), str(back), back.retry_after_ms) == (errors.Overloaded, str(error), 20)


def test_layouts_over_the_wire_come_back_the_same() -> None:
    specs = [convert.layout_spec(layout) for layout in (KV, ANCHOR)]
    wanted: list[Layout] = [KV, ANCHOR]
    assert convert.layouts_of(specs, 2) == wanted


def test_layouts_none_or_too_many_name_the_limit() -> None:
    for specs in ([], [convert.layout_spec(KV)] * 3):
        with pytest.raises(InvalidRequest, match=f"{len(specs)} layouts, must be 1 to 2"):
            convert.layouts_of(specs, 2)


def test_layout_of_garbage_is_refused() -> None:
    with pytest.raises(SpecMismatch):
        convert.layouts_of([pb.LayoutSpec(component="COMPONENT_KV", layout=b"\xff\x00")], 1)


def test_namespace_takes_its_domain_from_the_caller_alone() -> None:
    spec = pb.NamespaceSpec(model="m", weights_digest=bytes(32), page_tokens=64)
    assert convert.namespace_of(spec, "team-a").domain == "team-a"
    spec.weights_digest = b"short"
    with pytest.raises(InvalidKey, match="weights_digest has 5 bytes, must have 32"):
        convert.namespace_of(spec, "team-a")


def test_hashes_are_counted_and_bounded() -> None:
    assert convert.hash_count(bytes(64), 2) == 2 and convert.hash_count(b"", 2) == 0
    with pytest.raises(InvalidRequest, match="has 33 bytes, must be a multiple of 32"):
        convert.hash_count(bytes(33), 2)
    with pytest.raises(InvalidRequest, match="names 3 pages, limit 2"):
        convert.hash_count(bytes(96), 2)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_version_unknown_is_refused(version: int) -> None:
    with pytest.raises(InvalidRequest, match=f"version {version}, this daemon speaks 1"):
        convert.check_version(version)


def seal(**columns: bytes) -> pb.SealRequest:
    whole: dict[str, Any] = {"pages": bytes(8), "layouts": bytes(2), "staging_offsets": bytes(16)}
    return pb.SealRequest(**(whole | columns))


def test_seal_columns_of_equal_length_are_taken() -> None:
    columns = convert.seal_columns(seal(), 2)
    assert columns.checksums is None and len(columns.pages) == 2
    with_sums = convert.seal_columns(seal(checksums=bytes(16)), 2)
    assert with_sums.checksums is not None and with_sums.checksums.dtype == np.uint64


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"pages": bytes(7)}, "pages has 7 bytes, must be a multiple of 4"),
        ({"layouts": bytes(3)}, "layouts has 3 elements"),
        ({"staging_offsets": bytes(8)}, "staging_offsets has 1 elements"),
        ({"checksums": bytes(24)}, "checksums has 3 elements"),
        ({"pages": bytes(12)}, "seal names 3 blocks, limit 2"),
    ],
)
def test_seal_columns_of_unequal_length_name_the_column(
    columns: dict[str, bytes], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        convert.seal_columns(seal(**columns), 2)
