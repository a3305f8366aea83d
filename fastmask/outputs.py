"""Where a batch is written: fresh arrays, or those that the caller gave as `out`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.arrays import known_dtype, to_host
from fastmask.batch import MaskedBatch
from fastmask.call import Call, Compact, Outputs
from fastmask.plan import Plan
from fastmask.validate import OUT_DTYPES, output_dtype
from fastmask.validate_numbers import fits
from fastmask.vocab import integer

if TYPE_CHECKING:
    from fastmask.masker import Masker

RETURNS = ("decisions", "num_masked", "compact", "rates")
NOTHING: frozenset[str] = frozenset()


def checked_returns(returns: Any) -> frozenset[str]:
    """The names of further outputs. ValueError for one that does not exist."""
    if not isinstance(returns, (str, list, tuple, set, frozenset)):
        raise TypeError(f"returns must be a name or a sequence of names, got {returns!r}")
    names = frozenset((returns,) if isinstance(returns, str) else returns)
    for name in names:
        if name not in RETURNS:
            raise ValueError(f"returns may hold {', '.join(RETURNS)}, got {name!r}")
    return names


def check_returns(plan: Plan, names: frozenset[str], max_predictions: Any) -> None:
    """ValueError where what is asked for does not fit the law, or max_predictions what is asked for."""
    if "rates" in names and plan.law != "diffusion":
        raise ValueError('returns="rates" goes with Diffusion: other laws draw no rates')
    if max_predictions is not None:
        if "compact" not in names:
            raise ValueError('max_predictions goes with returns="compact"')
        if not 0 <= integer("max_predictions", max_predictions) < 1 << 31:
            raise ValueError(f"max_predictions must be in [0, 2^31), got {max_predictions}")


def listed(out: Outputs) -> Compact:
    """The selected tokens that Outputs list, flat."""
    assert out.selected_positions is not None
    assert out.selected_ids is not None
    total = int(np.asarray(out.num_masked).sum())
    weights = buffers.empty(total, np.float32)
    weights.fill(1)
    return Compact(out.selected_positions[:total], out.selected_ids[:total], weights)


def fresh_slots(out: Outputs, width: int) -> Compact:
    """Room for so many selected tokens a row. ValueError for a row that has more of them."""
    counts = np.asarray(out.num_masked)
    if counts.size and (most := int(counts.max())) > width:
        row = int(counts.argmax())
        raise ValueError(f"max_predictions = {width} is too small: {most} tokens are selected in row {row}")
    positions, ids, weights = (
        buffers.empty(counts.size * width, dtype) for dtype in (np.int64, out.labels.dtype, np.float32)
    )
    return Compact(positions, ids, weights, width)


def parts_of(out: Any) -> tuple[Any, Any]:
    """The ids and the labels of `out`: a pair, a mapping with these names, or an earlier batch."""
    if isinstance(out, (tuple, list)) and len(out) == 2:
        return out[0], out[1]
    if isinstance(out, MaskedBatch):
        return out.input_ids, out.labels
    if isinstance(out, Mapping):
        if set(out) != {"input_ids", "labels"}:
            raise ValueError(f"out must hold input_ids and labels, got {sorted(map(str, out))}")
        return out["input_ids"], out["labels"]
    raise TypeError(f"out must be a pair (input_ids, labels), such a mapping or a batch, got {type(out).__name__}")


def fresh_dtypes(masker: Masker, input_ids: Any, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtypes of new ids and labels for ids of this dtype."""
    ids, labels = masker.id_dtype or output_dtype(dtype), masker.label_dtype
    if type(input_ids) is np.ndarray:
        return ids, labels
    known = known_dtype(input_ids, labels)
    refuse_narrow_labels(known, masker.ignore_index, "labels")
    return known_dtype(input_ids, ids), known


def fresh_outputs(
    cells: int, rows: int, id_dtype: np.dtype[Any], label_dtype: np.dtype[Any], returns: frozenset[str]
) -> Outputs:
    """Outputs in memory that nobody else sees."""
    out = Outputs(buffers.empty(cells, id_dtype), buffers.empty(cells, label_dtype))
    if returns:
        _add_further(cells, rows, out, returns)
    return out


def _add_further(cells: int, rows: int, out: Outputs, returns: frozenset[str]) -> None:
    if "decisions" in returns:
        out.decisions = buffers.empty(cells, np.uint8)
    if "num_masked" in returns or "compact" in returns:
        out.num_masked = np.zeros(rows, np.int64)  # a batch without cells runs no kernel
    if "compact" in returns:
        # A slot for every token, since their number is not known: memory that nothing writes to is never touched.
        out.selected_positions = buffers.empty(cells, np.int64)
        out.selected_ids = buffers.empty(cells, out.labels.dtype)


class GivenOutputs:
    """The ids and labels that a caller gave as `out`, checked, and what a kernel writes in their place."""

    def __init__(
        self, parts: tuple[Any, Any], ids: npt.NDArray[Any], id_dtype: np.dtype[Any] | None, ignore_index: int
    ) -> None:
        self.parts = parts
        self.input_ids = _checked_part("out's input_ids", parts[0], ids.shape)
        self.labels = _checked_part("out's labels", parts[1], ids.shape)
        refuse_narrow_labels(self.labels.dtype, ignore_index)
        if id_dtype is not None and self.input_ids.dtype != id_dtype:
            raise TypeError(f"out's input_ids is {self.input_ids.dtype}, but id_dtype is {id_dtype}")
        self.in_place = self._is_in_place(ids)

    def _is_in_place(self, ids: npt.NDArray[Any]) -> bool:
        """True where the ids are the input itself. ValueError for any other overlap."""
        owners = _owns_memory(ids) and _owns_memory(self.input_ids) and _owns_memory(self.labels)
        share_memory = operator.is_ if owners else np.shares_memory
        for name, other in (("out's input_ids", self.input_ids), ("input_ids", ids)):
            if share_memory(self.labels, other):
                raise ValueError(f"out's labels and {name} share memory")
        if not share_memory(self.input_ids, ids):
            return False
        if _cells_of(self.input_ids) != _cells_of(ids):
            raise ValueError("out's input_ids and input_ids overlap without being the same array")
        return True

    def outputs(self, call: Call, returns: frozenset[str]) -> Outputs:
        """Flat outputs: views of the given arrays, or stand-ins for those that are not contiguous."""
        out = Outputs(_flat_or_fresh(self.input_ids), _flat_or_fresh(self.labels))
        if returns:
            _add_further(call.ids.size, call.rows, out, returns)
        return out

    def fill(self, out: Outputs) -> None:
        """What stand-ins hold is copied to the given arrays."""
        for array, written in ((self.input_ids, out.input_ids), (self.labels, out.labels)):
            if not array.flags.c_contiguous:
                np.copyto(array, written.reshape(array.shape))


def refuse_narrow_labels(dtype: np.dtype[Any], ignore_index: int, name: str = "out's labels") -> None:
    """OverflowError where labels of this dtype cannot hold ignore_index."""
    if dtype.itemsize < 8 and not fits(ignore_index, dtype):
        raise OverflowError(f"{name} are {dtype}, too narrow for ignore_index = {ignore_index}")


def _owns_memory(array: npt.NDArray[Any]) -> bool:
    """True for an array that no other shares memory with, unless it is a view of this one."""
    return array.base is None and array.flags.owndata


def _cells_of(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Where each element lies and how it is read: equal for two views of the same cells."""
    steps = [(length, step) for length, step in zip(array.shape, array.strides, strict=True) if length > 1]
    return array.ctypes.data, array.dtype, steps


def _flat_or_fresh(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.ravel() if array.flags.c_contiguous else buffers.empty(array.size, array.dtype)


def _checked_part(name: str, part: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if isinstance(part, (list, tuple)):
        raise TypeError(f"{name} must be an array, got {type(part).__name__}")
    array = to_host(name, part)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but input_ids has shape {shape}")
    if array.dtype not in OUT_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {array.dtype}")
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return array
