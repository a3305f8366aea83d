"""Device memory: how each framework's arrays are read by kernels, allocated like, and queued behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastmask.arrays import as_kind_of, describe, is_jax, is_torch, kind_of
from fastmask.kernels import cuda_launch as launch
from fastmask.kernels.cuda_compiler import cuda
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
        like: the array in whose memory the call works.
        stream: what `handle_of` knows; None: the stream that the array names.
    """

    def __init__(self, name: str, like: Any, stream: Any = None) -> None:
        self.name = name
        self.device_index = _device_index(like)
        named = getattr(like, "__cuda_array_interface__", {}).get("stream") or 0
        self.stream: int = named if stream is None else handle_of(stream)

    def is_capturing(self) -> bool:
        """Whether what is queued becomes part of a CUDA graph."""
        with launch.on_device(self, self.stream) as queue:
            return bool(queue.stream) and launch.is_capturing(queue.stream)

    def returned(self, x: Any) -> Any:
        """What `empty` made, once it is written, as the caller's framework has it."""
        return x

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """A new array of unspecified content."""
        with launch.on_device(self, self.stream) as queue:
            return cuda.device_array(shape, dtype, stream=queue.stream)

    def upload(self, values: Any) -> Any:
        """A copy of a small host array, flat; kernels queued afterwards find it there."""
        with launch.on_device(self, self.stream):
            return self.flat("values", launch.to_device(values, self.device_index))

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

    def __init__(self, name: str, like: Any, stream: Any = None) -> None:
        import torch

        self._torch, self._device = torch, like.device
        self.name, self.device_index = name, like.device.index
        current = torch.cuda.current_stream(like.device).cuda_stream
        self.stream = current if stream is None else handle_of(stream)
        # Torch hands memory out again to what its current stream does next.
        self._other = None if self.stream == current else torch.cuda.ExternalStream(self.stream, like.device)

    def _entered(self) -> Any:
        """Within the block torch allocates for, and copies on, the stream of the call."""
        return nullcontext() if self._other is None else self._torch.cuda.stream(self._other)

    def empty(self, shape: Shape, dtype: Any) -> Any:
        with self._entered():
            return self._torch.empty(shape, dtype=getattr(self._torch, np.dtype(dtype).name), device=self._device)

    def upload(self, values: Any) -> Any:
        # As bytes, since torch does little with unsigned integers; pinned, since the copy would wait for the GPU.
        pinned = self._torch.from_numpy(values.view(np.uint8)).pin_memory()
        with self._entered():
            return self.flat("values", pinned.to(self._device, non_blocking=True)).view(values.dtype)

    def readable(self, name: str, x: Any) -> Any:
        with self._entered():
            return self.flat(name, x.detach().contiguous() if is_torch(x) else x)


class CupyMemory(NumbaMemory):
    """Arrays of CuPy."""

    def __init__(self, name: str, like: Any, stream: Any = None) -> None:
        import cupy

        self._cupy, self._device = cupy, like.device
        self.name, self.device_index = name, like.device.id
        with self._device:
            current = cupy.cuda.get_current_stream().ptr
        self.stream = current if stream is None else handle_of(stream)
        self._other = None if self.stream == current else cupy.cuda.ExternalStream(self.stream, self.device_index)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within the block CuPy allocates for, and copies on, the stream of the call."""
        with self._device, nullcontext() if self._other is None else self._other:
            yield

    def empty(self, shape: Shape, dtype: Any) -> Any:
        with self._entered():
            return self._cupy.empty(shape, dtype)

    def upload(self, values: Any) -> Any:
        with self._entered():
            return self.flat("values", self._cupy.asarray(values))

    def readable(self, name: str, x: Any) -> Any:
        if isinstance(x, self._cupy.ndarray) and x.device == self._device:
            with self._entered():
                x = self._cupy.ascontiguousarray(x)
        return self.flat(name, x)


class JaxMemory(CupyMemory):
    """Arrays of JAX on a GPU: CuPy looks into their memory, and JAX into what CuPy allocates, by DLPack.

    Its protocol has each framework's streams wait for the other's, so that the host waits for neither.
    """

    def __init__(self, name: str, like: Any, stream: Any = None) -> None:
        super().__init__(name, _as_cupy(like), stream)
        self._like = like

    def flat(self, name: str, x: Any) -> Any:
        with self._entered():
            return super().flat(name, _as_cupy(x) if is_jax(x) else x)

    def readable(self, name: str, x: Any) -> Any:
        return self.flat(name, x)

    def returned(self, x: Any) -> Any:
        with self._entered():
            return as_kind_of(self._like, x)


def _as_cupy(x: Any) -> Any:
    """CuPy's view of an array of JAX."""
    try:
        import cupy
    except ImportError:
        needed = "pip install 'fastmask-kernels[cu13]' (or [cu12])"
        raise RuntimeError(f"arrays of JAX on a GPU need CuPy, which is not here: {needed}") from None
    return cupy.from_dlpack(x)


def memory_of(name: str, x: Any, stream: Any = None) -> NumbaMemory:
    """The memory that an array lives in; messages call the array by this name.

    A stream given takes the place of the one that the framework, or the array, names.
    """
    if is_torch(x):
        return TorchMemory(name, x, stream)
    if is_jax(x):
        return JaxMemory(name, x, stream)
    if type(x).__module__.partition(".")[0] == "cupy":
        return CupyMemory(name, x, stream)
    return NumbaMemory(name, x, stream)


def handle_of(stream: Any) -> int:
    """The handle of a stream of torch, CuPy, Numba or whatever has `__cuda_stream__`; an int is one.

    Raises TypeError for anything else.

    >>> handle_of(77)
    77
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):  # of torch, of CuPy
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"stream must be a stream or its handle, got {stream!r}")


def dtype_of(name: str, x: Any) -> np.dtype[Any]:
    """The NumPy dtype of an array of any framework. TypeError where NumPy has none such."""
    dtype = str(x.dtype).removeprefix("torch.")
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = np.dtype("V")
    if known.isbuiltin == 2 or known.kind == "V":  # a package may have registered further ones
        raise TypeError(f"{name} is of dtype {dtype}, which kernels do not read")
    return known


def read_dtype(name: str, x: Any) -> np.dtype[Any]:
    """What kernels read the ids as. TypeError for a dtype that ids cannot have."""
    dtype = dtype_of(name, x)
    if dtype not in KERNEL_DTYPES:
        raise TypeError(f"{name} must be {ID_DTYPES}, got {dtype}")
    return KERNEL_DTYPES[dtype]
