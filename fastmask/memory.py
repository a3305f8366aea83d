"""Device memory: how each framework's arrays are read by kernels, allocated like, and queued behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, cuda

from fastmask.arrays import describe, is_torch
from fastmask.validate import KERNEL_DTYPES

Shape = tuple[int, ...]


class NumbaMemory:
    """Arrays of Numba, of its simulator, and of whatever else has `__cuda_array_interface__`."""

    def __init__(self, like: Any) -> None:
        self.stream = 0

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """A new array of unspecified content."""
        return cuda.device_array(shape, dtype)

    def kernel_array(self, name: str, x: Any) -> Any:
        """x as a flat array that kernels take, of the same memory. ValueError where it is not contiguous."""
        array = x if config.ENABLE_CUDASIM else cuda.as_cuda_array(x, sync=False)
        if not array.is_c_contiguous():
            raise ValueError(f"{name} must be contiguous: a {describe(x)} cannot be copied into another layout")
        return array.reshape(int(np.prod(array.shape, dtype=np.int64)))

    def upload(self, values: Any) -> Any:
        """A copy of a small host array."""
        return cuda.to_device(values)


class TorchMemory(NumbaMemory):
    """Tensors of torch on a GPU."""

    def __init__(self, like: Any) -> None:
        import torch

        self._torch, self._device = torch, like.device
        self.stream = torch.cuda.current_stream(like.device).cuda_stream

    def empty(self, shape: Shape, dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, np.dtype(dtype).name), device=self._device)

    def kernel_array(self, name: str, x: Any) -> Any:
        if is_torch(x):
            if x.device != self._device:
                raise ValueError(f"{name} is on {x.device}, but input_ids is on {self._device}")
            x = x.detach().contiguous().view(-1)
        return super().kernel_array(name, x)

    def upload(self, values: Any) -> Any:
        return super().kernel_array("values", self._torch.from_numpy(values).to(self._device))


class CupyMemory(NumbaMemory):
    """Arrays of CuPy."""

    def __init__(self, like: Any) -> None:
        import cupy

        self._cupy, self._device = cupy, like.device
        self.stream = cupy.cuda.get_current_stream().ptr

    def empty(self, shape: Shape, dtype: Any) -> Any:
        with self._device:
            return self._cupy.empty(shape, dtype)

    def kernel_array(self, name: str, x: Any) -> Any:
        if isinstance(x, self._cupy.ndarray):
            if x.device != self._device:
                raise ValueError(f"{name} is on {x.device}, but input_ids is on {self._device}")
            with self._device:
                x = self._cupy.ascontiguousarray(x).reshape(-1)
        return super().kernel_array(name, x)

    def upload(self, values: Any) -> Any:
        with self._device:
            return super().kernel_array("values", self._cupy.asarray(values))


def memory_of(x: Any) -> NumbaMemory:
    """The memory that an array lives in."""
    if is_torch(x):
        return TorchMemory(x)
    if type(x).__module__.partition(".")[0] == "cupy":
        return CupyMemory(x)
    return NumbaMemory(x)


def dtype_of(x: Any) -> np.dtype[Any]:
    """The NumPy dtype of an array of any framework."""
    return np.dtype(str(x.dtype).removeprefix("torch."))


def read_dtype(name: str, x: Any) -> np.dtype[Any]:
    """What kernels read the ids as. TypeError for a dtype that ids cannot have."""
    dtype = dtype_of(x)
    if dtype not in KERNEL_DTYPES:
        raise TypeError(f"{name} must be int64, int32, uint16, uint32 or int16, got {dtype}")
    return KERNEL_DTYPES[dtype]
