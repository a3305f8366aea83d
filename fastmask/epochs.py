"""The epoch of an adapter: one number in memory that the process and its workers share."""

from __future__ import annotations

import ctypes
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

from fastmask.validate import checked_epoch


class SharedEpoch:
    """An epoch that is set in one process and read in the workers it started, by fork, spawn or forkserver.

    Handed to a process that is being started, it stays the same number; pickled otherwise, it carries its value.

    Args:
        epoch: 0 <= epoch < 2^24.

    Raises:
        TypeError, ValueError: not such a number.

    >>> SharedEpoch(3).value
    3
    """

    def __init__(self, epoch: int = 0) -> None:
        self._shared = RawValue(ctypes.c_uint32, checked_epoch(epoch))

    @property
    def value(self) -> int:
        """The epoch at this moment."""
        return int(self._shared.value)

    @value.setter
    def value(self, epoch: int) -> None:
        self._shared.value = checked_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return SharedEpoch, (self.value,)
        return _attached, (self._shared,)

    def __repr__(self) -> str:
        return f"SharedEpoch({self.value})"


def _attached(shared: Any) -> SharedEpoch:
    """The epoch that lies in memory which another process shares."""
    epoch = SharedEpoch.__new__(SharedEpoch)
    epoch._shared = shared
    return epoch
