"""Device memory: arrays in one region, apart from each other, whose bytes are known to be written or not."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from device.runtime import BASE, CAPACITY, EMPTY, FREE, FUEL, LOCALS, MUTANT, STATE, WRITTEN, blame, look

Ints = npt.NDArray[Any]
Shape = int | tuple[int, ...]

BYTES = 1 << 26
ALIGNMENT = 256  # of an allocation, as on a GPU
RED_ZONE = 256  # bytes at least that belong to no array, behind each


class UnwrittenError(AssertionError):
    """A copy to the host would hold bytes that nothing has written."""


class Snapshot(NamedTuple):
    """What bytes were, and whether they were written."""

    at: Ints
    bytes: Ints
    shadow: Ints


class DeviceArray(np.ndarray[Any, Any]):
    """An array in the machine's memory, as Numba's arrays on a GPU are to their users."""

    device_index = 0
    memory: Memory | None = None

    def __array_finalize__(self, parent: Any) -> None:
        self.memory = getattr(parent, "memory", None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = self.__array_interface__
        return {name: interface[name] for name in ("shape", "typestr", "data", "strides")} | {"version": 3}

    def is_c_contiguous(self) -> bool:
        return bool(self.flags.c_contiguous)

    def copy_to_host(self, stream: Any = 0) -> Ints:
        """A copy. UnwrittenError where part of it was never written."""
        assert self.memory is not None
        unwritten = self.memory.shadow_of(self) != WRITTEN
        if unwritten.any():
            first = int(np.flatnonzero(unwritten)[0])
            raise UnwrittenError(f"{int(unwritten.sum())} of {unwritten.size} bytes, from byte {first} on")
        return np.array(self, subok=False)


class Memory:
    """The memory of one process's machines, with its shadow and stamps (see `runtime`).

    There is one for all, since the symbols that translated kernels refer to are the process's.
    """

    def __init__(self) -> None:
        raw = np.zeros(BYTES + 4096, np.uint8)
        self.bytes = raw[-raw.ctypes.data % 4096 :][:BYTES]
        self.shadow = np.full(BYTES, FREE, np.uint8)
        self.readers, self.writers = np.zeros(BYTES, np.int64), np.zeros(BYTES, np.int64)
        self.state = np.zeros(STATE, np.int64)
        self.state[BASE], self.state[CAPACITY] = self.bytes.ctypes.data, BYTES
        self._end = LOCALS
        self._free: dict[int, list[int]] = defaultdict(list)
        state = self.state.ctypes.data
        places = {
            "memory": self.bytes.ctypes.data,
            "shadow": self.shadow.ctypes.data,
            "readers": self.readers.ctypes.data,
            "writers": self.writers.ctypes.data,
            "state": state,
            "fuel": state + 8 * FUEL,
            "mutant": state + 8 * MUTANT,
            "look": look.address,
            "blame": blame.address,
        }
        for name, address in places.items():
            llvm.add_symbol(f"ptx.{name}", address)

    @property
    def base(self) -> int:
        return int(self.state[BASE])

    def empty(self, shape: Shape, dtype: Any = np.float64, stream: Any = 0, *, shift: int = 0) -> DeviceArray:
        """An array of which nothing is written, `shift` bytes behind an aligned address. MemoryError where none fits.

        Its memory is free again once the array, and whatever views it, is gone.
        """
        dtype, extents = np.dtype(dtype), (shape,) if isinstance(shape, int | np.integer) else shape
        size = math.prod(extents) * dtype.itemsize
        room = -(-(shift + size + RED_ZONE) // ALIGNMENT) * ALIGNMENT
        start = self._free[room].pop() if self._free[room] else self._end
        if start + room > BYTES:
            raise MemoryError(f"{size} bytes")
        self._end = max(self._end, start + room)
        offset = start + shift
        self.shadow[offset : offset + size] = EMPTY
        owner = np.ndarray.__new__(DeviceArray, (size,), np.uint8, self.bytes.data, offset)
        owner.memory = self
        weakref.finalize(owner, self._release, start, room)
        return owner.view(dtype).reshape(extents) if size else self._nothing(owner, extents, dtype)

    @staticmethod
    def _nothing(owner: DeviceArray, shape: Shape, dtype: Any) -> DeviceArray:
        array = np.ndarray.__new__(DeviceArray, shape, dtype)
        array.memory = owner.memory
        return array

    def _release(self, start: int, room: int) -> None:
        self.shadow[start : start + room] = FREE
        self._free[room].append(start)

    def to_device(
        self, array: Any, stream: Any = 0, copy: bool = True, to: Any = None, *, shift: int = 0
    ) -> DeviceArray:
        """A copy of a host array, with its strides, `shift` bytes behind an aligned address."""
        array = np.asarray(array)
        if not array.flags.c_contiguous:
            return self._to_device_as_it_lies(array)
        made = self.empty(array.shape, array.dtype, shift=shift)
        made[...] = array
        self.shadow_of(made)[...] = WRITTEN
        return made

    def _to_device_as_it_lies(self, array: Ints) -> DeviceArray:
        low, high = byte_bounds(array)
        span = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        there = self.to_device(span)
        made: DeviceArray = np.ndarray.__new__(
            DeviceArray, array.shape, array.dtype, there.data, array.ctypes.data - low, array.strides
        )
        made.memory = self
        return made

    def snapshot(self, arrays: Iterable[DeviceArray]) -> Snapshot:
        """The memory of some arrays as it is."""
        offsets = ((array.ctypes.data - self.base, array.nbytes) for array in arrays if array.size)
        at = np.concatenate([np.arange(first, first + size, dtype=np.uint32) for first, size in offsets])
        return Snapshot(at, self.bytes[at], self.shadow[at])

    def restore(self, then: Snapshot) -> None:
        """The memory of those arrays is as it was."""
        self.bytes[then.at], self.shadow[then.at] = then.bytes, then.shadow

    def shadow_of(self, array: DeviceArray) -> Ints:
        """The shadow of a contiguous array's bytes."""
        assert array.flags.c_contiguous
        offset = array.ctypes.data - self.base if array.size else 0
        return self.shadow[offset : offset + array.nbytes]


_one: list[Memory] = []


def memory() -> Memory:
    """The process's memory."""
    if not _one:
        _one.append(Memory())
    return _one[0]
