"""Goal: callers' memory is taken as bytes in place, blocks are handed out in place, read-only.
Method: every kind of buffer; addresses are compared, so that a copy shows.
"""

from __future__ import annotations

import array
import warnings
from typing import Any

import numpy as np
import pytest

from anchorstore.client.buffers import array_of, byte_array, tensor_of
from anchorstore.errors import InvalidRequest


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(range(16)),
        memoryview(bytearray(range(16))),
        array.array("I", [1, 2, 3, 4]),
        np.arange(4, dtype=np.float32),
        np.arange(8, dtype=np.int16).reshape(2, 4),
    ],
)
def test_byte_array_of_a_buffer_is_its_memory(buffer: Any) -> None:
    found = byte_array(buffer, "it", writable=True)
    assert found.dtype == np.uint8 and found.shape == (16,)
    found[:] = 7
    assert bytes(memoryview(buffer).cast("B")) == b"\7" * 16


def test_byte_array_of_a_tensor_is_its_memory() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((2, 3), dtype=torch.bfloat16)
    byte_array(tensor, "it", writable=True)[:] = 0x3F
    assert (tensor != 0).all()


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (np.zeros((4, 4), np.uint8)[:, ::2], "not contiguous"),
        (b"fixed", "read-only"),
        (17, "int has no bytes"),
        (np.empty(4, object), "Python objects"),
        (np.empty(4, [("size", "u4"), ("owner", object)]), "Python objects"),
    ],
)
def test_byte_array_of_what_cannot_be_filled_is_refused(buffer: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        byte_array(buffer, "it", writable=True)


def test_byte_array_goes_by_what_fields_are_not_by_their_names() -> None:
    records = np.zeros(2, [("Owner", "u4"), ("size", "u4")])
    byte_array(records, "it", writable=True)[:] = 1
    assert (records["Owner"] == 0x01010101).all()


def test_byte_array_of_a_transposed_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidRequest, match="contiguous"):
        byte_array(torch.zeros(2, 3).t(), "it")


def test_array_of_a_block_is_in_place_and_read_only() -> None:
    memory = bytearray(np.arange(6, dtype=np.float32).tobytes())
    found = array_of(memoryview(memory), np.float32, (2, 3))
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    memory[0:4] = np.float32(9).tobytes()
    assert found[0, 0] == 9 and not found.flags.writeable


def test_tensor_of_a_read_only_block_is_in_place_and_silent() -> None:
    torch = pytest.importorskip("torch")
    memory = bytearray(np.arange(6, dtype=np.float32).tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tensor_of(memoryview(memory).toreadonly(), "float32", (2, 3))
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]] and found.dtype == torch.float32
    memory[0:4] = np.float32(9).tobytes()
    assert found[0, 0] == 9


def test_tensor_of_a_block_keeps_its_memory_alive() -> None:
    pytest.importorskip("torch")
    memory = bytearray(8)
    found = tensor_of(memoryview(memory), "uint8", None)
    with pytest.raises(BufferError):
        memory.clear()
    del found
    memory.clear()
