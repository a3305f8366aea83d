"""Fresh outputs: aligned to cache lines, and recycled, since untouched pages cost several times the kernel."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

LINE, PAGE = 64, 4096
KEPT_BYTES = 256 << 20  # the most memory that is held for reuse
LARGEST_KEPT = 64 << 20  # larger blocks are left to the allocator


class Pool:
    """Blocks of memory that are handed out again once no array looks into them any more."""

    def __init__(self, kept_bytes: int = KEPT_BYTES, largest_kept: int = LARGEST_KEPT) -> None:
        self._kept_bytes, self._largest_kept = kept_bytes, largest_kept
        self._blocks: dict[int, list[tuple[npt.NDArray[np.uint8], int]]] = {}
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """The memory that the pool keeps, in use or not."""
        return self._held

    def empty(self, size: int, dtype: Any) -> npt.NDArray[Any]:
        """A 1-D array of unspecified content that starts on a cache line and shares memory with no other array."""
        capacity = _capacity(size * np.dtype(dtype).itemsize)
        with self._lock:
            block, offset = self._take(capacity)
            return np.ndarray((size,), dtype, block, offset)

    def _take(self, capacity: int) -> tuple[npt.NDArray[np.uint8], int]:
        for entry in self._blocks.get(capacity, ()):
            if sys.getrefcount(entry[0]) == UNUSED:
                return entry
        entry = _new_block(capacity)
        if capacity <= self._largest_kept:
            if self._held + capacity > self._kept_bytes:
                self._drop_unused()
            if self._held + capacity <= self._kept_bytes:
                self._blocks.setdefault(capacity, []).append(entry)
                self._held += capacity
        return entry

    def _drop_unused(self) -> None:
        for capacity, entries in self._blocks.items():
            used = [entry for entry in entries if sys.getrefcount(entry[0]) != UNUSED]
            self._held -= capacity * (len(entries) - len(used))
            self._blocks[capacity] = used


def _capacity(size: int) -> int:
    """Sizes rounded up to a page, and to an eighth of a power of two above: few classes, little waste."""
    if size <= PAGE:
        return PAGE
    step = max(PAGE, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def _new_block(capacity: int) -> tuple[npt.NDArray[np.uint8], int]:
    block = np.empty(capacity + LINE, np.uint8)
    return block, -block.ctypes.data % LINE


def _unused_count() -> int:
    """What getrefcount says of a block that only the pool holds; it differs between Python versions."""
    for entry in [_new_block(PAGE)]:
        return sys.getrefcount(entry[0])
    raise AssertionError


UNUSED = _unused_count()
_pool = Pool()


def _fresh_pool() -> None:
    global _pool
    _pool = Pool()  # the lock may have been held when the process was forked


os.register_at_fork(after_in_child=_fresh_pool)


def empty(size: int, dtype: Any) -> npt.NDArray[Any]:
    """A 1-D output array from the pool of this process."""
    return _pool.empty(size, dtype)
