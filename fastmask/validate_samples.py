"""Validation of what a call says of its samples: where they begin, what their words are, their rates and strata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.arrays import to_host
from fastmask.call import Arguments
from fastmask.plan import Plan
from fastmask.validate_numbers import integers, per_row, place
from fastmask.vocab import integer

MAX_TOTAL = 1 << 31
MAX_STEP = 1 << 64


def check_law(plan: Plan, given: Arguments) -> None:
    """ValueError for an argument that the law of the plan does not take, or for one that it needs."""
    if given.rates is not None and plan.law == "diffusion":
        raise ValueError("rates are drawn by Diffusion, not given")
    if given.stratify is not None and plan.law != "diffusion":
        raise ValueError("stratify spreads the rates of Diffusion; this law has none")
    if plan.needs_words and given.word_ids is None and plan.is_continuation is None:
        raise ValueError("word_ids must be given: the vocabulary has no table is_continuation to tell words")


def check_offset(plan: Plan) -> None:
    """ValueError for a law that takes no position offset but 0."""
    if plan.law == "spans":
        raise ValueError("position_offset must be 0 for Spans: a span does not know where a chunk was cut")


def checked_boundaries(cu_seqlens: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """int64 from 0 to the number of cells, not falling."""
    if len(shape) != 1:
        raise ValueError(f"cu_seqlens go with input_ids of 1 dimension, got shape {tuple(shape)}")
    values = to_host("cu_seqlens", cu_seqlens)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"cu_seqlens must be 1-D, from 0 to {shape[0]}, got shape {values.shape}")
    if values.dtype.kind not in "iu":
        raise TypeError(f"cu_seqlens must be integers, got {values.dtype}")
    if values[0] != 0:
        raise ValueError(f"cu_seqlens must begin with 0, got {values[0]}")
    if (falls := values[1:] < values[:-1]).any():
        at = int(falls.argmax()) + 1
        raise ValueError(f"cu_seqlens must not fall, got {values[at]} after {values[at - 1]} at index {at}")
    if values[-1] != shape[0]:
        raise ValueError(f"cu_seqlens must end with {shape[0]}, the size of input_ids, got {values[-1]}")
    return np.ascontiguousarray(values, np.int64)


def checked_word_ids(word_ids: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """One int64 per cell, flat, equal where the words are; None reads as -1."""
    values = to_host("word_ids", word_ids)
    if values.shape != tuple(shape):
        raise ValueError(f"word_ids has shape {values.shape}, but input_ids has shape {tuple(shape)}")
    if values.dtype.kind == "O" or (values.size == 0 and values.dtype.kind == "f"):
        values = _without_none(values)
    if values.dtype.kind not in "iu":
        raise TypeError(f"word_ids must be integers or None, got {values.dtype}")
    if values.dtype == np.uint64:
        values = values.view(np.int64)  # compared for equality only
    return np.ascontiguousarray(values, np.int64).reshape(-1)


def _without_none(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Objects as integers; TypeError for the first that is neither an integer nor None, ValueError for too large."""
    numbers = np.empty(values.size, np.int64)
    for cell, value in enumerate(values.reshape(-1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise TypeError(f"word_ids must be integers or None, got {value!r} {place(cell, values.shape)}")
        number = -1 if value is None else int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise ValueError(f"word_ids must fit into 64 bits, got {number} {place(cell, values.shape)}")
        numbers[cell] = number - (1 << 64) if number >= 1 << 63 else number
    return numbers.reshape(values.shape)


def checked_count_rates(rates: Any, rows: int) -> npt.NDArray[np.float64]:
    """One float64 per row in [0, 1]: the p of a counting law."""
    values = to_host("rates", rates)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"rates must be numbers, got {values.dtype}")
    values = np.ascontiguousarray(per_row("rates", values, rows), np.float64)
    inside = (values >= 0) & (values <= 1)
    if not inside.all():
        row = int(inside.argmin())
        raise ValueError(f"rates must lie in [0, 1], got {float(values[row])!r} in row {row}")
    return values


def checked_strata(stratify: Any, rows: int) -> tuple[npt.NDArray[np.uint32], int]:
    """(floor(index * 2^32 / total) per row, step), of (index, total) or (index, total, step)."""
    parts = tuple(stratify) if isinstance(stratify, Iterable) else ()
    if len(parts) not in (2, 3):
        raise TypeError(f"stratify must be (index, total) or (index, total, step), got {stratify!r}")
    total = integer("stratify's total", parts[1])
    if not 1 <= total < MAX_TOTAL:
        raise ValueError(f"stratify's total must be in [1, 2^31), got {total}")
    step = integer("stratify's step", parts[2]) if len(parts) == 3 else 0
    if not 0 <= step < MAX_STEP:
        raise ValueError(f"stratify's step must be in [0, 2^64), got {step}")
    first = parts[0]
    if np.ndim(first) == 0:
        first = integer("stratify's index", first)
        if rows and not 0 <= first < total:
            raise ValueError(f"stratify's index must be in [0, {total}), got {first} in row 0")
        first = np.arange(rows) + (first if rows else 0)
    index = integers("stratify's index", first, rows)
    if rows and (outside := (index < 0) | (index >= total)).any():
        row = int(outside.argmax())
        raise ValueError(f"stratify's index must be in [0, {total}), got {index[row]} in row {row}")
    return ((index.astype(np.uint64) << np.uint64(32)) // np.uint64(total)).astype(np.uint32), step
