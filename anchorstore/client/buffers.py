"""Callers' memory as bytes, and blocks' bytes as arrays and tensors.  No copies.

torch is imported only where a tensor is asked for or handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from anchorstore.errors import InvalidRequest

Bytes = npt.NDArray[np.uint8]
BlockRows = Sequence[Any] | npt.NDArray[Any]
"""One buffer a page: a list of them, or an array or tensor with a row a page."""


def byte_array(buffer: Any, name: str, *, writable: bool = False) -> Bytes:
    """`buffer` (bytes-like, numpy array or CPU tensor, contiguous) as uint8 [nbytes], in place."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(buffer, torch.Tensor):
        buffer = _tensor_bytes(torch, buffer, name)
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError) as error:
        if not isinstance(buffer, np.ndarray):
            raise InvalidRequest(f"{name}: {type(buffer).__name__} has no bytes") from error
        view = memoryview(buffer.view(np.uint8))  # a dtype that the buffer protocol lacks
    if isinstance(view.obj, np.ndarray) and view.obj.dtype.hasobject:
        raise InvalidRequest(f"{name} holds Python objects, must hold plain bytes")
    if not view.c_contiguous:
        raise InvalidRequest(f"{name} of shape {view.shape} is not contiguous")
    if writable and view.readonly:
        raise InvalidRequest(f"{name} is read-only")
    return np.frombuffer(view, np.uint8)


def _tensor_bytes(torch: Any, tensor: Any, name: str) -> Any:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise InvalidRequest(
            f"{name}: a {tensor.device.type} tensor of strides {tensor.stride()}, must be a "
            "contiguous one on the CPU"
        )
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def array_of(block: memoryview, dtype: Any, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """`block` as a read-only array of `dtype`, and of `shape` where one is given."""
    array = np.frombuffer(block, dtype)
    array.flags.writeable = False
    return array if shape is None else array.reshape(shape)


class _Memory:
    """Memory under numpy's array interface, marked writable so that torch takes it in silence.

    Keeps its owner alive; the pages themselves stay read-only (a write is a segmentation fault).
    """

    def __init__(self, owner: Bytes) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": owner.shape,
            "data": (owner.ctypes.data, False),
        }


def tensor_of(block: memoryview, dtype: Any, shape: tuple[int, ...] | None) -> Any:
    """`block` as a tensor of `dtype` (a torch.dtype or its name), and of `shape`.

    Never write to it: torch knows no read-only tensors.
    """
    import torch

    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    raw = np.asarray(_Memory(np.frombuffer(block, np.uint8)))
    tensor = cast(Any, torch).from_numpy(raw).view(dtype)
    return tensor if shape is None else tensor.reshape(shape)
