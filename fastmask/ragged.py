"""Ragged samples: lists, arrays, tensors or Arrow's lists, of unequal lengths, as one flat array and offsets."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.arrays import to_host

INTEGERS, WHOLE, WORDS = "iu", "biu", "iuO"  # kinds of dtypes: of ids; of types and masks; of word ids, with None
NO_LIMIT = (1 << 63) - 1
Array = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Ragged:
    """Sample r is values[offsets[r]:offsets[r + 1]]. The values may be the caller's memory, and are never written.

    Attributes:
        offsets: (samples + 1,), from 0 to the number of values.
        addresses: (samples,) int64: where the values of each sample lie; None: in `values`.
        dtype: of the values.
    """

    offsets: Offsets
    _values: Array | None  # 1-D; None: those of the arrays, not joined yet
    _arrays: Sequence[Array] = ()  # of which an array may be longer than its sample
    addresses: npt.NDArray[np.int64] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._arrays[0].dtype if self._values is None else self._values.dtype

    @property
    def values(self) -> Array:
        """The values of all samples, one after the other: (values,)."""
        if self._values is None:
            bounds = zip(self._arrays, np.diff(self.offsets).tolist(), strict=True)
            self._values = _joined([array[:length] for array, length in bounds])
            if self._values.size != self.offsets[-1]:
                raise ValueError("an array changed its length while it was read")
        return self._values

    def cut(self, most: int) -> Ragged:
        """The first `most` values of each sample; itself where none is longer."""
        lengths, values = np.diff(self.offsets), self.values
        if lengths.max(initial=0) <= most:
            return self
        kept = np.minimum(lengths, most)
        bounds = zip(self.offsets.tolist(), kept.tolist(), strict=False)
        return Ragged(_offsets(kept), _joined([values[first : first + length] for first, length in bounds]))


def place(offsets: Offsets, cell: int) -> str:
    """Where a flat value lies, in words.

    >>> place(np.array([0, 3, 3, 7]), 4)
    'in sample 2, position 1'
    """
    sample = int(np.searchsorted(offsets, cell, side="right")) - 1
    return f"in sample {sample}, position {cell - int(offsets[sample])}"


def ragged(name: str, rows: Any, kernels: Any, kinds: str = INTEGERS, most: int | None = None) -> Ragged:
    """The samples of an argument, cut to their first `most` values.

    Args:
        name: of the argument, for messages.
        rows: a list (or another iterable) of 1-D arrays, tensors or lists; a pair (values, offsets); or an Arrow array
            of lists.
        kernels: the module of a host backend.
        kinds: the kinds of dtypes that values may have.
        most: >= 1; None: samples are not cut.

    Raises:
        TypeError: rows of another kind, values that are not integers.
        ValueError: a sample that is not 1-D, nulls, offsets that fall or lie outside the values.
    """
    if type(rows).__module__.partition(".")[0] == "pyarrow":
        rows = _of_arrow(name, rows, kinds)
    if isinstance(rows, tuple):
        pair = _of_pair(name, rows, kinds)
        return pair if most is None else pair.cut(most)
    if isinstance(rows, (str, bytes, dict)) or not isinstance(rows, Iterable):
        raise TypeError(f"{name} must be a list of samples, (values, offsets) or Arrow lists, got {_kind(rows)}")
    samples = list(rows)
    first = type(samples[0]) if samples else None
    if first is np.ndarray and (found := _found(samples, kernels, most)):
        return found
    lengths = _lengths(name, samples)
    if most is not None and lengths.max(initial=0) > most:
        samples = [sample[:most] for sample in samples]
        lengths = np.minimum(lengths, most)
    offsets = _offsets(lengths)
    if first is list:
        values = buffers.empty(int(offsets[-1]), np.int64)
        if kernels.read_lists(samples, offsets, kinds == WORDS, values) < 0:
            return Ragged(offsets, values)
    arrays = [_array(name, index, sample, kinds) for index, sample in enumerate(samples)]
    if list(map(len, arrays)) != lengths.tolist():
        raise ValueError(f"{name} has a sample that changed its length while it was read")
    return _found(arrays, kernels) or Ragged(offsets, _checked(name, arrays, kinds))


def _kind(x: Any) -> str:
    return type(x).__name__


def _lengths(name: str, samples: list[Any]) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(map(len, samples), np.int64, len(samples))
    except TypeError:
        index, sample = next((i, x) for i, x in enumerate(samples) if np.ndim(x) == 0)
        raise TypeError(f"{name} of sample {index} must be a list or a 1-D array, got {sample!r}") from None


def _offsets(lengths: npt.NDArray[np.int64]) -> Offsets:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _found(arrays: list[Array], kernels: Any, most: int | None = None) -> Ragged | None:
    """Arrays that can be read where they lie: 1-D, contiguous, of one dtype of integers. Others are joined: None."""
    if not arrays or arrays[0].dtype.kind not in INTEGERS or not arrays[0].dtype.isnative:
        return None
    offsets, addresses = np.empty(len(arrays) + 1, np.int64), np.empty(len(arrays), np.int64)
    if kernels.find_arrays(arrays, NO_LIMIT if most is None else most, offsets, addresses) >= 0:
        return None
    return Ragged(offsets, None, arrays, addresses)


def _joined(parts: list[Array]) -> Array:
    """1-D arrays one after the other."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) == 1 and not parts[0].dtype.hasobject:
        with contextlib.suppress(TypeError):  # arrays that are not contiguous
            return np.frombuffer(b"".join(parts), parts[0].dtype)  # type: ignore[arg-type]  # faster than concatenate
    return np.concatenate([np.empty(0, np.int64)] * (not parts) + parts)


def _checked(name: str, samples: list[Array], kinds: str) -> Array:
    """Arrays of any kind joined; the first one that is not 1-D or not of integers is named."""
    for index, sample in enumerate(samples):
        if sample.ndim != 1:
            raise ValueError(f"{name} of sample {index} must have 1 dimension, got shape {sample.shape}")
        if sample.dtype.kind not in kinds:
            raise TypeError(f"{name} of sample {index} must be integers, got {sample.dtype}")
    done = _joined(samples)
    if done.dtype.kind not in kinds:
        raise TypeError(f"{name} has samples of dtypes that no dtype of integers holds")
    return done


def _array(name: str, index: int, sample: Any, kinds: str) -> Array:
    array = to_host(f"{name} of sample {index}", sample)
    listed = isinstance(sample, (list, tuple))
    if array.size == 0 and listed:
        return array.astype(np.int64)  # an empty list has no dtype of its own
    if array.ndim == 1 and (array.dtype.hasobject or (listed and array.dtype.kind not in kinds)):
        _check_items(name, index, sample, kinds == WORDS)
    return array


def _check_items(name: str, index: int, sample: Any, with_none: bool) -> None:
    """The error for the first item of a sample that is no integer of 64 bits, nor None where that is allowed."""
    for position, item in enumerate(sample):
        where = f"in sample {index}, position {position}"
        if with_none and item is None:
            continue
        try:
            number = operator.index(item)
        except TypeError:
            raise TypeError(f"{name} must be integers, got {item!r} {where}") from None
        if not -(1 << 63) <= number < (1 << 64 if with_none else 1 << 63):
            raise ValueError(f"{name} must fit into 64 bits, got {number} {where}")


def _of_pair(name: str, pair: tuple[Any, ...], kinds: str) -> Ragged:
    """Values and offsets as Arrow has them: the first offset may lie above 0, and the last below the end."""
    if len(pair) != 2:
        raise TypeError(f"{name} as a tuple must be (values, offsets), got {len(pair)} items: samples come in a list")
    values, offsets = to_host(name, pair[0]), to_host(f"the offsets of {name}", pair[1])
    if values.ndim != 1 or offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"{name} must be 1-D values and offsets, got shapes {values.shape} and {offsets.shape}")
    if values.dtype.kind not in kinds:
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    if offsets.dtype.kind not in INTEGERS:
        raise TypeError(f"the offsets of {name} must be integers, got {offsets.dtype}")
    bounds = offsets.astype(np.int64)  # nobody else's
    if (lengths := bounds[1:] - bounds[:-1]).min(initial=0) < 0:
        sample = int((lengths < 0).argmax())
        raise ValueError(
            f"the offsets of {name} must not fall, got {offsets[sample + 1]} after {offsets[sample]} at sample {sample}"
        )
    first, end = int(bounds[0]), int(bounds[-1])
    if first < 0 or end > values.size:
        raise ValueError(f"the offsets of {name} must lie in [0, {values.size}], got {first} to {end}")
    bounds -= first
    return Ragged(bounds, values[first:end])


def _of_arrow(name: str, array: Any, kinds: str) -> tuple[Array, Array]:
    """Values and offsets of Arrow lists, in chunks or whole, sliced or not. ValueError for nulls, but in words -1."""
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    values, offsets = getattr(array, "values", None), getattr(array, "offsets", None)
    if values is None or offsets is None:
        raise TypeError(f"{name} must be an Arrow array of lists, got {getattr(array, 'type', _kind(array))}")
    if array.null_count:
        sample = array.is_null().to_numpy(zero_copy_only=False).argmax()
        raise ValueError(f"{name} must have no nulls, but sample {sample} is null")
    offsets = offsets.to_numpy()
    first, end = int(offsets[0]), int(offsets[-1])
    used, offsets = values.slice(first, end - first), offsets - first
    if kinds == WORDS:
        used = used.fill_null(-1)
    if used.null_count:
        cell = int(used.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(f"{name} must have no nulls, but there is one {place(offsets, cell)}")
    return (used.to_numpy(zero_copy_only=False) if len(used) else np.empty(0, np.int64)), offsets
