"""A tensor's memory, to be indexed: by numpy where it lies on the host, by torch on a device.

torch's dispatcher and its threads cost a step on the host more than what is copied: a page's rows
are some kilobytes.  numpy knows no bfloat16, but moving elements asks for nothing but their size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def elements(tensor: torch.Tensor) -> Any:
    """`tensor` on a device, else an array that shares its memory and shape: whole numbers as large
    as its elements.  Both are indexed and assigned to alike."""
    if tensor.is_cuda:
        return tensor
    return tensor.detach().view(_WHOLE[tensor.element_size()]).numpy()


def index_for(tensor: torch.Tensor, index: npt.NDArray[np.int64]) -> Any:
    """`index` as what elements(tensor) takes for one."""
    return torch.from_numpy(index).to(tensor.device) if tensor.is_cuda else index
