"""Where a batch is written: fresh arrays, or those that the caller gave as `out`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.arrays import to_host
from fastmask.batch import MaskedBatch
from fastmask.call import Call, Outputs

OUT_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
RETURNS = ("decisions", "num_masked")


def checked_returns(returns: Any) -> frozenset[str]:
    """The names of further outputs. ValueError for one that does not exist."""
    names = frozenset((returns,) if isinstance(returns, str) else returns)
    for name in names:
        if name not in RETURNS:
            raise ValueError(f"returns may hold {' and '.join(RETURNS)}, got {name!r}")
    return names


def parts_of(out: Any) -> tuple[Any, Any]:
    """The ids and the labels of `out`: a pair, a mapping with these names, or an earlier batch."""
    if isinstance(out, MaskedBatch):
        return out.input_ids, out.labels
    if isinstance(out, Mapping):
        if set(out) != {"input_ids", "labels"}:
            raise ValueError(f"out must hold input_ids and labels, got {sorted(map(str, out))}")
        return out["input_ids"], out["labels"]
    if isinstance(out, (tuple, list)) and len(out) == 2:
        return out[0], out[1]
    raise TypeError(f"out must be a pair (input_ids, labels), such a mapping or a batch, got {type(out).__name__}")


class HostTarget:
    """The arrays of a call on the host: what the kernel writes, and what the caller gets."""

    def __init__(
        self,
        call: Call,
        ids: npt.NDArray[Any],
        out: Any,
        id_dtype: np.dtype[Any] | None,
        label_dtype: np.dtype[Any],
        returns: frozenset[str],
    ) -> None:
        cells = call.rows * call.row_length
        self.shape = ids.shape
        self._copies: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        if out is None:
            dtype = id_dtype or (ids.dtype.newbyteorder("=") if ids.dtype.itemsize >= 4 else OUT_DTYPES[1])
            input_ids = buffers.empty(cells, dtype if dtype in OUT_DTYPES else OUT_DTYPES[1])
            labels = buffers.empty(cells, label_dtype)
        else:
            given_ids, given_labels = self._checked(out, id_dtype)
            self._refuse_overlap(call, ids, given_ids, given_labels)
            input_ids, labels = self._writable(given_ids), self._writable(given_labels)
        decisions = buffers.empty(cells, np.uint8) if "decisions" in returns else None
        num_masked = np.empty(call.rows, np.int64) if "num_masked" in returns else None
        self.outputs = Outputs(input_ids, labels, decisions, num_masked)

    def _checked(self, out: Any, id_dtype: np.dtype[Any] | None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        arrays = []
        for name, part in zip(("input_ids", "labels"), parts_of(out), strict=True):
            array = to_host(f"out's {name}", part)
            if array is not part and isinstance(part, (list, tuple)):
                raise TypeError(f"out's {name} must be an array, got {type(part).__name__}")
            if array.shape != self.shape:
                raise ValueError(f"out's {name} has shape {array.shape}, but input_ids has shape {self.shape}")
            if array.dtype not in OUT_DTYPES:
                raise TypeError(f"out's {name} must be int32 or int64, got {array.dtype}")
            if not array.flags.writeable:
                raise ValueError(f"out's {name} is read-only")
            arrays.append(array)
        if id_dtype is not None and arrays[0].dtype != id_dtype:
            raise TypeError(f"out's input_ids is {arrays[0].dtype}, but id_dtype is {id_dtype}")
        return arrays[0], arrays[1]

    @staticmethod
    def _refuse_overlap(
        call: Call, ids: npt.NDArray[Any], out_ids: npt.NDArray[Any], labels: npt.NDArray[Any]
    ) -> None:
        if np.may_share_memory(labels, out_ids) and np.shares_memory(labels, out_ids):
            raise ValueError("out's labels and out's input_ids share memory")
        if np.may_share_memory(labels, ids) and np.shares_memory(labels, ids):
            raise ValueError("out's labels and input_ids share memory")
        if np.may_share_memory(out_ids, ids) and np.shares_memory(out_ids, ids):
            same = out_ids.ctypes.data == ids.ctypes.data and out_ids.strides == ids.strides
            if not same or out_ids.dtype != ids.dtype:
                raise ValueError("out's input_ids and input_ids overlap without being the same array")
            call.in_place = out_ids.flags.c_contiguous

    def _writable(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array flat, or a contiguous stand-in that `finish` copies from."""
        if array.flags.c_contiguous:
            return array.reshape(-1)
        fresh = buffers.empty(array.size, array.dtype)
        self._copies.append((array, fresh))
        return fresh

    def finish(self) -> Outputs:
        """The outputs in the shape of the input, and the caller's strided arrays filled."""
        for array, fresh in self._copies:
            np.copyto(array, fresh.reshape(self.shape))
        out, shape = self.outputs, self.shape
        decisions = None if out.decisions is None else out.decisions.reshape(shape)
        return Outputs(out.input_ids.reshape(shape), out.labels.reshape(shape), decisions, out.num_masked)
