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


class FreeList:
    """Blocks of memory that are handed out again once no array looks into them any more."""

    def __init__(self, kept_bytes: int = KEPT_BYTES, largest_kept: int = LARGEST_KEPT) -> None:
        self._kept_bytes, self._largest_kept = kept_bytes, largest_kept
        self._blocks: dict[int, list[tuple[npt.NDArray[np.uint8], int]]] = {}
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """The memory that the list keeps, in use or not."""
        return self._held

    def empty(self, size: int, dtype: Any) -> npt.NDArray[Any]:
        """A 1-D array of unspecified content that starts on a cache line and shares memory with no other array."""
        dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        wanted = size * dtype.itemsize
        capacity = PAGE if wanted <= PAGE else _capacity(wanted)
        entered = False
        try:
            # Never waited for: a signal handler may come while its own thread holds the lock.
            entered = self._lock.acquire(False)
            if entered:
                for block, offset in self._blocks.get(capacity, ()):
                    if sys.getrefcount(block) == UNUSED:
                        return np.ndarray((size,), dtype, block, offset)
            block, offset = self._add_block(capacity) if entered else _new_block(capacity)
            return np.ndarray((size,), dtype, block, offset)
        finally:
            if entered:
                self._lock.release()

    def _add_block(self, capacity: int) -> tuple[npt.NDArray[np.uint8], int]:
        """A new block, kept where there is room."""
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
            used = [(block, offset) for block, offset in entries if sys.getrefcount(block) != UNUSED]
            self._held -= capacity * (len(entries) - len(used))
            self._blocks[capacity] = used


def _capacity(size: int) -> int:
    """Sizes above a page rounded up to whole ones, and to an eighth of a power of two: few classes, little waste."""
    step = max(PAGE, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def _new_block(capacity: int) -> tuple[npt.NDArray[np.uint8], int]:
    block = np.empty(capacity + LINE, np.uint8)
    return block, -block.ctypes.data % LINE


def _unused_count() -> int:
    """What getrefcount says of a block that only the list holds; it differs between Python versions."""
    for block, _offset in [_new_block(PAGE)]:
        return sys.getrefcount(block)
    raise AssertionError


UNUSED = _unused_count()
_free_list = FreeList()


def _fresh_free_list() -> None:
    global _free_list
    _free_list = FreeList()  # the lock may have been held when the process was forked


os.register_at_fork(after_in_child=_fresh_free_list)


def empty(size: int, dtype: Any) -> npt.NDArray[Any]:
    """A 1-D output array from the free list of this process."""
    return _free_list.empty(size, dtype)
