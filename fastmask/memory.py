"""Device memory: how each framework's arrays are read by kernels, allocated like, and queued behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from fastmask.arrays import describe, is_torch, kind_of
from fastmask.kernels import cuda_launch as launch
from fastmask.validate import ID_DTYPES, KERNEL_DTYPES

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Contiguous device memory as kernels take it: 1-D, at an address. It keeps the memory's owner alive."""

    address: int
    size: int
    dtype: np.dtype[Any]
    device_index: int
    owner: Any
    read_only: bool = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.address, self.read_only)
        return {"shape": (self.size,), "typestr": self.dtype.str, "data": data, "version": 3}

    def view(self, dtype: np.dtype[Any]) -> Flat:
        """The same memory, read as another dtype."""
        size = self.size * self.dtype.itemsize // dtype.itemsize
        return Flat(self.address, size, dtype, self.device_index, self.owner, self.read_only)


def _flat(name: str, x: Any) -> Any:
    """The flat array that kernels take for x, of the same memory; None where x is not contiguous.

    The simulator's kernels take its own arrays, those of a GPU take a Flat.
    """
    if launch.SIMULATED:
        return x.reshape(x.size) if x.is_c_contiguous() else None
    if is_torch(x):
        if not x.is_contiguous():
            return None
        return Flat(x.data_ptr(), x.numel(), dtype_of(name, x), x.device.index, x)
    interface = x.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    # Numba calls an array contiguous whose rows lie on top of each other.
    strides = x.strides if hasattr(x, "gpu_data") else interface.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, dtype.itemsize):
        return None
    address, read_only = interface["data"]
    return Flat(address, math.prod(shape), dtype, _device_index(x), x, read_only)


def _is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """True where the last index moves by one item, and each other by all that lies behind it."""
    step = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step and 0 not in shape:
            return False
        step *= extent
    return True


def _device_index(x: Any) -> int:
    """The index of the device that holds an array that is not torch's."""
    index = getattr(getattr(x, "device", None), "id", None)  # CuPy's
    return launch.device_of(x) if index is None else int(index)


def span_of(array: Any) -> tuple[int, int]:
    """Where the memory of a kernel's array begins, and where it ends."""
    first = array.address if isinstance(array, Flat) else array.ctypes.data
    return first, first + array.size * array.dtype.itemsize


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays of kernels share memory."""
    (a_first, a_end), (b_first, b_end) = span_of(a), span_of(b)
    return a.size > 0 and b.size > 0 and a_first < b_end and b_first < a_end


class NumbaMemory:
    """Arrays of Numba, of its simulator, and of whatever else has `__cuda_array_interface__`.

    Args:
        name: what messages call the array.
        like: the array in whose memory the call works, on the stream that it names.
    """

    def __init__(self, name: str, like: Any) -> None:
        self.name = name
        self.device_index = _device_index(like)
        self.stream: int = getattr(like, "__cuda_array_interface__", {}).get("stream") or 0

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """A new array of unspecified content."""
        with launch.on_device(self, self.stream) as queue:
            return cuda.device_array(shape, dtype, stream=queue.stream)

    def upload(self, values: Any) -> Any:
        """A copy of a small host array, flat; kernels queued afterwards find it there."""
        with launch.on_device(self, self.stream):
            return self.flat("values", launch.to_device(values))

    def readable(self, name: str, x: Any) -> Any:
        """The flat array that kernels read for x: the same memory where it is contiguous, else a copy."""
        return self.flat(name, x)

    def flat(self, name: str, x: Any) -> Any:
        """The flat array of x's memory. ValueError where x is on another device or not contiguous."""
        array = _flat(name, x)
        if array is None:
            raise ValueError(f"{name} must be contiguous: a {describe(x)} cannot be copied into another layout")
        if isinstance(array, Flat) and array.device_index != self.device_index:
            here = f"{self.name} is on device {self.device_index}"
            raise ValueError(f"{name} is on device {array.device_index}, but {here}")
        return array

    def require(self, name: str, x: Any, shape: Shape | None = None, dtype: Any = None) -> None:
        """TypeError where x is in host memory or of another dtype, ValueError where it has another shape."""
        if kind_of(x) != "cuda":
            raise TypeError(f"{name} is a {describe(x)} in host memory while {self.name} is in device memory")
        if shape is not None and tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}")
        if dtype is not None and dtype_of(name, x) != dtype:
            raise TypeError(f"{name} must be {np.dtype(dtype)} on a GPU, got {dtype_of(name, x)}")


class TorchMemory(NumbaMemory):
    """Tensors of torch on a GPU."""

    def __init__(self, name: str, like: Any) -> None:
        import torch

        self._torch, self._device = torch, like.device
        self.name, self.device_index = name, like.device.index
        self.stream = torch.cuda.current_stream(like.device).cuda_stream

    def empty(self, shape: Shape, dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, np.dtype(dtype).name), device=self._device)

    def upload(self, values: Any) -> Any:
        # As bytes, since torch does little with unsigned integers; pinned, since the copy would wait for the GPU.
        pinned = self._torch.from_numpy(values.view(np.uint8)).pin_memory()
        return self.flat("values", pinned.to(self._device, non_blocking=True)).view(values.dtype)

    def readable(self, name: str, x: Any) -> Any:
        return self.flat(name, x.detach().contiguous() if is_torch(x) else x)


class CupyMemory(NumbaMemory):
    """Arrays of CuPy."""

    def __init__(self, name: str, like: Any) -> None:
        import cupy

        self._cupy, self._device = cupy, like.device
        self.name, self.device_index = name, like.device.id
        with self._device:
            self.stream = cupy.cuda.get_current_stream().ptr

    def empty(self, shape: Shape, dtype: Any) -> Any:
        with self._device:
            return self._cupy.empty(shape, dtype)

    def upload(self, values: Any) -> Any:
        with self._device:
            return self.flat("values", self._cupy.asarray(values))

    def readable(self, name: str, x: Any) -> Any:
        if isinstance(x, self._cupy.ndarray) and x.device == self._device:
            with self._device:
                x = self._cupy.ascontiguousarray(x)
        return self.flat(name, x)


def memory_of(name: str, x: Any) -> NumbaMemory:
    """The memory that an array lives in; messages call the array by this name."""
    if is_torch(x):
        return TorchMemory(name, x)
    if type(x).__module__.partition(".")[0] == "cupy":
        return CupyMemory(name, x)
    return NumbaMemory(name, x)


def dtype_of(name: str, x: Any) -> np.dtype[Any]:
    """The NumPy dtype of an array of any framework. TypeError where NumPy has none such."""
    dtype = str(x.dtype).removeprefix("torch.")
    try:
        return np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name} is of dtype {dtype}, which kernels do not read") from None


def read_dtype(name: str, x: Any) -> np.dtype[Any]:
    """What kernels read the ids as. TypeError for a dtype that ids cannot have."""
    dtype = dtype_of(name, x)
    if dtype not in KERNEL_DTYPES:
        raise TypeError(f"{name} must be {ID_DTYPES}, got {dtype}")
    return KERNEL_DTYPES[dtype]
