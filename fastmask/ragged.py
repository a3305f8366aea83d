"""Ragged rows: samples of unequal lengths, as lists, arrays, tensors or Arrow's, as one flat array and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.arrays import to_host

INTEGERS, WHOLE, WORDS = "iu", "biu", "iuO"  # kinds of dtypes: of ids, of masks and types, of word ids with None
INT64 = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Sample r is values[offsets[r]:offsets[r + 1]]."""

    values: npt.NDArray[Any]  # 1-D, perhaps the caller's own memory: never written
    offsets: npt.NDArray[np.int64]  # (samples + 1,), from 0 to the number of values

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of values of each sample."""
        lengths: npt.NDArray[np.int64] = np.diff(self.offsets)
        return lengths

    def cut(self, most: int) -> Ragged:
        """The first `most` values of each sample; itself where none is longer."""
        lengths = self.lengths
        if lengths.max(initial=0) <= most:
            return self
        firsts, kept = self.offsets[:-1], np.minimum(lengths, most)
        return _joined([self.values[a : a + n] for a, n in zip(firsts.tolist(), kept.tolist(), strict=True)], kept)


def place(offsets: npt.NDArray[np.int64], cell: int) -> str:
    """Where a flat value lies, in words."""
    sample = int(np.searchsorted(offsets, cell, side="right")) - 1
    return f"in sample {sample}, position {cell - int(offsets[sample])}"


def ragged(name: str, rows: Any, kinds: str = INTEGERS, most: int | None = None) -> Ragged:
    """The samples of an argument, at most `most` values of each.

    Args:
        name: of the argument, for messages.
        rows: a sequence of 1-D arrays, tensors or lists; a pair (values, offsets); or an Arrow array of lists.
        kinds: the kinds of dtypes that values may have.
        most: where samples are cut; None: nowhere.

    Raises:
        TypeError: rows of another kind, values that are not integers.
        ValueError: a sample that is not 1-D, offsets that fall or leave the values, nulls. Messages name the sample.
    """
    if type(rows).__module__.partition(".")[0] == "pyarrow":
        rows = _of_arrow(name, rows, kinds)
    if isinstance(rows, tuple):
        return _of_pair(name, rows, kinds) if most is None else _of_pair(name, rows, kinds).cut(most)
    if isinstance(rows, (str, bytes, dict)) or not isinstance(rows, Iterable):
        raise TypeError(f"{name} must be a list of samples, (values, offsets) or an Arrow array, got {_name_of(rows)}")
    samples = list(rows)
    if most is not None:
        samples = [sample[:most] if _length(name, i, sample) > most else sample for i, sample in enumerate(samples)]
    return _of_lists(name, samples, kinds) if all(type(x) is list for x in samples) else _of_arrays(name, samples, kinds)


def _name_of(rows: Any) -> str:
    return type(rows).__name__


def _length(name: str, index: int, sample: Any) -> int:
    try:
        return len(sample)
    except TypeError:
        raise TypeError(f"{name} of sample {index} must be a list or an array, got {sample!r}") from None


def _of_pair(name: str, pair: tuple[Any, ...], kinds: str) -> Ragged:
    """Values and offsets as Arrow has them: the first offset may be above 0, the last one below the end."""
    if len(pair) != 2:
        raise TypeError(f"{name} as a tuple must be (values, offsets), got {len(pair)} parts; samples come in a list")
    values, offsets = to_host(name, pair[0]), to_host(f"offsets of {name}", pair[1])
    if values.ndim != 1 or offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"{name} must be 1-D values and offsets, got shapes {values.shape} and {offsets.shape}")
    if values.size == 0 and isinstance(pair[0], list):
        values = values.astype(np.int64)  # an empty list has no dtype of its own
    if offsets.dtype.kind not in INTEGERS:
        raise TypeError(f"offsets of {name} must be integers, got {offsets.dtype}")
    offsets = offsets.astype(np.int64)
    if (falls := offsets[1:] < offsets[:-1]).any():
        sample = int(falls.argmax())
        raise ValueError(f"offsets of {name} must not fall, got {offsets[sample + 1]} at the end of sample {sample}")
    if offsets[0] < 0 or offsets[-1] > values.size:
        raise ValueError(
            f"offsets of {name} must lie in [0, {values.size}], got {offsets[0]} for the first and {offsets[-1]} for the last"
        )
    if values.dtype.kind not in kinds:
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _of_arrow(name: str, array: Any, kinds: str) -> tuple[Any, Any]:
    """Values and offsets of a list array, or of a chunked one, sliced or not. ValueError for nulls but in words."""
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    if not (hasattr(array, "values") and hasattr(array, "offsets")):
        raise TypeError(f"{name} must be an Arrow array of lists, got {array.type}")
    if array.null_count:
        sample = int(np.asarray(array.is_null()).argmax())
        raise ValueError(f"{name} must have no nulls, but sample {sample} is null")
    offsets = array.offsets.to_numpy()
    used = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    if kinds == WORDS:
        used = used.fill_null(-1)
    if used.null_count:
        cell = int(np.asarray(used.is_null()).argmax())
        raise ValueError(f"{name} must have no nulls, but there is one {place(offsets - offsets[0], cell)}")
    return (used.to_numpy() if len(used) else np.empty(0, np.int64)), offsets - offsets[0]


def _joined(parts: Sequence[npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> Ragged:
    """The parts one after the other, in memory that is recycled."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    dtype = np.result_type(*{part.dtype for part in parts}) if parts else INT64
    values = buffers.empty(int(offsets[-1]), dtype)
    if parts:
        np.concatenate(parts, out=values)
    return Ragged(values, offsets)


def _of_arrays(name: str, samples: list[Any], kinds: str) -> Ragged:
    arrays = [sample if type(sample) is np.ndarray else _array(name, i, sample) for i, sample in enumerate(samples)]
    for i, array in enumerate(arrays):
        if array.ndim != 1:
            raise ValueError(f"{name} of sample {i} must have 1 dimension, got shape {array.shape}")
        if array.dtype.kind not in kinds:
            raise TypeError(f"{name} of sample {i} must be integers, got {array.dtype}")
    done = _joined(arrays, np.fromiter(map(len, arrays), np.int64, len(arrays)))
    if done.values.dtype.kind not in kinds:
        raise TypeError(f"{name} has samples whose dtypes have no integer dtype in common")
    return done


def _array(name: str, index: int, sample: Any) -> npt.NDArray[Any]:
    array = to_host(f"{name} of sample {index}", sample)
    return array.astype(np.int64) if array.size == 0 and isinstance(sample, (list, tuple)) else array


def _of_lists(name: str, samples: list[list[Any]], kinds: str) -> Ragged:
    lengths = np.fromiter(map(len, samples), np.int64, len(samples))
    try:
        flat = np.array(list(chain.from_iterable(samples)) or np.empty(0, np.int64))
    except (ValueError, OverflowError):
        return _of_arrays(name, samples, kinds)
    if flat.ndim != 1 or flat.dtype.kind not in kinds:
        return _of_arrays(name, samples, kinds)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Ragged(flat, offsets)
