"""What a loader's worker hands over: a batch whose tensors lie in one block of shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

LINE = 64  # bytes; each tensor begins at a multiple of it


class SharedBatch(dict[str, Any]):
    """The NumPy arrays of a batch as tensors in one block of shared memory, and its other values as they are.

    A tensor that goes to another process costs a file, a file descriptor and a connection to hand it over. The block
    costs that once for all of them. On the other side the batch is a plain dictionary of tensors that share the block.
    """

    def __init__(self, batch: Mapping[str, Any]) -> None:
        super().__init__(batch)
        tensors = {name: torch.from_numpy(value) for name, value in batch.items() if isinstance(value, np.ndarray)}
        size = sum(map(_room, tensors.values()))
        storage = torch.UntypedStorage._new_shared(max(size, LINE), device="cpu")  # as torch's own collate function
        self._block = torch.empty(0, dtype=torch.uint8).set_(storage)
        first = 0
        for name, tensor in tensors.items():
            part = self._block[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            self[name] = part.copy_(tensor)
            first += _room(tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, (self._block, {name: self._place(value) for name, value in self.items()})

    def _place(self, value: Any) -> Any:
        """Where a tensor lies in the block; another value, which may have been put here since, as it is."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
            return value
        if value.untyped_storage().data_ptr() != self._block.untyped_storage().data_ptr():
            return value
        return _Place(value.dtype, value.shape, value.stride(), value.storage_offset())


class _Place(NamedTuple):
    """A tensor of a block."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    first: int

    def within(self, block: torch.Tensor) -> torch.Tensor:
        return block.view(self.dtype).as_strided(self.shape, self.strides, self.first)


def _plain(block: torch.Tensor, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.within(block) if type(value) is _Place else value for name, value in values.items()}


def _room(tensor: torch.Tensor) -> int:
    return -(-int(tensor.nbytes) // LINE) * LINE
