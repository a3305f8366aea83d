"""Validation of a call on host arrays: what the public call was given becomes a Call, or a clear error.

Everything but the range of the ids is checked here, before the first byte is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.arrays import to_host
from fastmask.call import Arguments, Call
from fastmask.plan import Plan
from fastmask.thresholds import ALWAYS
from fastmask.validate_numbers import integers, per_cell, per_row, place
from fastmask.validate_samples import (
    check_law,
    check_offset,
    checked_boundaries,
    checked_count_rates,
    checked_strata,
    checked_word_ids,
)
from fastmask.vocab import integer

MAX_EPOCH = 1 << 24
MAX_POSITION = 1 << 34
KERNEL_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {  # what an id dtype is read as: the kernels know three
    np.dtype(np.uint16): np.dtype(np.uint16),
    np.dtype(np.int16): np.dtype(np.uint16),
    np.dtype(np.int32): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int32),
    np.dtype(np.int64): np.dtype(np.int64),
}
ID_DTYPES = "int64, int32, uint16, uint32 or int16"  # in messages
OUT_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
UINT64, INT64 = np.dtype(np.uint64), np.dtype(np.int64)
SUPPLIED_DTYPES = {
    "token_ids": np.dtype(np.int64),
    "mask_positions": np.dtype(np.bool_),
    "replace_probs": np.dtype(np.float64),
    "random_tokens": np.dtype(np.int64),
}
Ids = npt.NDArray[Any]


def ids_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and row length of a batch: a 1-D batch is one row. ValueError for other numbers of dimensions."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) == 1:
        return 1, shape[0]
    raise ValueError(f"input_ids must have 1 or 2 dimensions, got shape {tuple(shape)}")


def checked_ids(input_ids: Any) -> Ids:
    """The ids as a NumPy array of integers. TypeError for floats and other dtypes."""
    ids = to_host("input_ids", input_ids)
    if ids.size == 0 and not isinstance(input_ids, np.ndarray) and ids.dtype == np.float64:
        ids = ids.astype(np.int64)  # an empty list has no dtype of its own
    if ids.dtype not in KERNEL_DTYPES and ids.dtype.newbyteorder("=") not in KERNEL_DTYPES:
        raise TypeError(f"input_ids must be {ID_DTYPES}, got {ids.dtype}")
    return ids


def flat_ids(ids: Ids, size: int) -> Ids:
    """The ids flat, contiguous and native, as a dtype that kernels read. OverflowError for a dtype too narrow."""
    dtype = ids.dtype
    if dtype is INT64 and ids.flags.c_contiguous:
        return ids.ravel()  # the usual case, of which nothing else need be asked
    refuse_narrow(dtype, size)
    if not dtype.isnative:
        ids = ids.astype(dtype.newbyteorder("="))
    if not ids.flags.c_contiguous:
        ids = np.ascontiguousarray(ids)
    ids = ids.reshape(-1)
    wanted: np.dtype[Any] = KERNEL_DTYPES[ids.dtype]
    return ids if wanted is ids.dtype else ids.view(wanted)


def output_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that corrupted ids get where none is asked for: int32 and int64 stay, others become int64."""
    if dtype in OUT_DTYPES:
        return dtype
    native = dtype.newbyteorder("=")
    return native if native in OUT_DTYPES else OUT_DTYPES[1]


def refuse_narrow(dtype: np.dtype[Any], size: int) -> None:
    """OverflowError for a dtype of ids that cannot hold the vocabulary: some would have wrapped without a word."""
    if dtype.itemsize == 2 and size > np.iinfo(dtype).max + 1:
        raise OverflowError(f"input_ids is {dtype}, too narrow for a vocabulary of {size} ids")


def checked_epoch(epoch: Any) -> int:
    """The epoch as an int in [0, 2^24)."""
    value = integer("epoch", epoch)
    if not 0 <= value < MAX_EPOCH:
        raise ValueError(f"epoch must be in [0, 2^24), got {value}")
    return value


def checked_sample_ids(sample_ids: Any, rows: int) -> npt.NDArray[np.uint64]:
    """One uint64 per row; a single integer is the id of the first row, the others count up."""
    if type(sample_ids) is np.ndarray and sample_ids.dtype is UINT64 and sample_ids.shape == (rows,):
        return np.ascontiguousarray(sample_ids)
    if is_single(sample_ids):
        return np.arange(rows, dtype=np.uint64) + np.uint64(checked_first_sample(sample_ids, rows))
    values = integers("sample_ids", sample_ids, rows)
    if values.dtype.kind == "i" and rows and values[values.argmin()] < 0:  # argmin costs a third of (values < 0).any()
        row = int((values < 0).argmax())
        raise ValueError(f"sample_ids must be >= 0, got {values[row]} in row {row}")
    return np.ascontiguousarray(values, np.uint64)


def is_single(x: Any) -> bool:
    """True for an integer, or an array of no dimensions that holds one."""
    return (isinstance(x, int) and not isinstance(x, bool)) or getattr(x, "ndim", None) == 0


def checked_first_sample(sample_ids: Any, rows: int) -> int:
    """The id of the first row; those of the others, which count up, are below 2^64 like it."""
    first = integer("sample_ids", sample_ids)
    if first < 0 or first + max(rows, 1) > 1 << 64:
        raise ValueError(f"sample_ids must be in [0, 2^64), got {first} for the first of {rows} rows")
    return first


def checked_lengths(lengths: Any, rows: int, row_length: int) -> npt.NDArray[np.int64]:
    """One int64 per row, each in [0, row_length]."""
    values = integers("lengths", lengths, rows)
    if rows and (outside := (values < 0) | (values > row_length)).any():
        row = int(outside.argmax())
        raise ValueError(f"lengths must be in [0, {row_length}], got {values[row]} in row {row}")
    return np.ascontiguousarray(values, np.int64)


def checked_offsets(position_offset: Any, rows: int, lengths: Any) -> npt.NDArray[np.uint64] | None:
    """One uint64 per row, or None where all are 0; position + offset < 2^34. lengths: one per row, or one for all."""
    if type(position_offset) is int and position_offset == 0:
        return None
    if np.ndim(position_offset) == 0:
        position_offset = [integer("position_offset", position_offset)] * rows
    values = integers("position_offset", position_offset, rows)
    room = MAX_POSITION - np.asarray(lengths, np.int64)
    if rows and (outside := (values < 0) | (values > room)).any():
        row = int(outside.argmax())
        raise ValueError(f"position_offset must be >= 0, and positions below 2^34: got {values[row]} in row {row}")
    return np.ascontiguousarray(values, np.uint64)


def checked_rates(rates: Any, rows: int) -> npt.NDArray[np.uint32]:
    """The select threshold of each row: floor(rate * 2^24 + 0.5) in float64."""
    values = to_host("rates", rates)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"rates must be numbers, got {values.dtype}")
    values = per_row("rates", values, rows).astype(np.float64)
    inside = (values >= 0) & (values <= 1)
    thresholds = np.floor(np.where(inside, values, 0.0) * ALWAYS + 0.5)
    good = inside & ((thresholds > 0) | (values == 0))
    if not good.all():
        row = int(good.argmin())
        must = "not round to 0 in steps of 2^-24" if inside[row] else "lie in [0, 1]"
        raise ValueError(f"rates must {must}, got {float(values[row])!r} in row {row}")
    return thresholds.astype(np.uint32)


def checked_marks(special_tokens_mask: Any, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """One uint8 per cell, flat; not 0 where the token is never touched."""
    marks = per_cell("special_tokens_mask", special_tokens_mask, shape)
    if marks.dtype.itemsize != 1 or marks.dtype.kind not in "biu":
        marks = marks != 0
    return np.ascontiguousarray(marks).reshape(-1).view(np.uint8)


def readable_mask(mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An attention mask, contiguous, as unsigned integers: 0 and 1 stay so, and no other value becomes one of them."""
    if mask.dtype.kind == "f":
        mask = np.where(mask == 0, 0, np.where(mask == 1, 1, 2)).astype(np.uint8)
    elif mask.dtype.kind not in "biu":
        raise TypeError(f"attention_mask must be bool, integers or floats of 0 and 1, got {mask.dtype}")
    mask = np.ascontiguousarray(mask, mask.dtype.newbyteorder("="))
    return mask.view(f"u{mask.dtype.itemsize}")


def mask_error(mask: npt.NDArray[Any], cell: int) -> ValueError:
    """The error for the first cell of an attention mask that is not in its row's run of ones."""
    value = mask.reshape(-1)[cell]
    where = place(cell, mask.shape)
    if value != 1:
        return ValueError(f"attention_mask must hold 0 and 1 only, got {value} {where}")
    return ValueError(f"attention_mask must be one run of ones per row, but a second run begins {where}")


def id_error(ids: Ids, size: int) -> ValueError:
    """The error for the first id that is out of range."""
    cell = int(((ids < 0) | (ids >= size)).argmax())
    return ValueError(f"input_ids must be in [0, {size}), got {ids.reshape(-1)[cell]} {place(cell, ids.shape)}")


def ids_in_range(ids: Ids, size: int) -> bool:
    """True iff every id is in [0, size)."""
    return ids.size == 0 or bool(ids.min() >= 0 and ids.max() < size)


def check_supplied(arrays: dict[str, Any]) -> None:
    """TypeError for a supplied array of another dtype, ValueError for shapes that differ."""
    shape = tuple(arrays["token_ids"].shape)
    for name, x in arrays.items():
        if x.dtype.newbyteorder("=") != SUPPLIED_DTYPES[name]:
            raise TypeError(f"{name} must be {SUPPLIED_DTYPES[name]}, got {x.dtype}")
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, but token_ids has shape {shape}")


def check_probabilities(name: str, values: npt.NDArray[Any]) -> None:
    """ValueError for the first value that is NaN or outside [0, 1]."""
    good = (values >= 0) & (values <= 1)
    if not good.all():
        cell = int(good.argmin())
        value = float(values.reshape(-1)[cell])
        raise ValueError(f"{name} must lie in [0, 1], got {value} {place(cell, values.shape)}")


def host_call(plan: Plan, ids: Ids, real_runs: Any, given: Arguments) -> Call:
    """The Call of a public call on host arrays. real_runs: the backend's operation, for attention masks."""
    rows, row_length = ids_shape(ids.shape)
    call = Call(flat_ids(ids, plan.size), rows, row_length, checked_epoch(given.epoch))
    if given.cu_seqlens is not None:
        call.boundaries = checked_boundaries(given.cu_seqlens, ids.shape)
        lengths = np.diff(call.boundaries)
        call.rows, call.row_length = lengths.size, int(lengths.max(initial=0))
    if given.lengths is not None:
        call.lengths = checked_lengths(given.lengths, rows, row_length)
    if given.attention_mask is not None:
        mask = per_cell("attention_mask", given.attention_mask, ids.shape)
        call.starts, call.lengths, wrong = real_runs(readable_mask(mask).reshape(rows, row_length))
        if wrong >= 0:
            raise mask_error(mask, int(wrong))
    return _said_of_samples(call, plan, given, ids.shape)


def ragged_call(plan: Plan, ids: Ids, boundaries: Any, addresses: Any, given: Arguments) -> Call:
    """The Call of samples side by side, or of samples that lie at addresses (ids then tell the dtype alone)."""
    row_length = int((boundaries[1:] - boundaries[:-1]).max())
    flat, epoch = flat_ids(checked_ids(ids), plan.size), checked_epoch(given.epoch)
    call = Call(flat, boundaries.size - 1, row_length, epoch, boundaries=boundaries, addresses=addresses)
    return _said_of_samples(call, plan, given, (int(boundaries[-1]),))


def _said_of_samples(call: Call, plan: Plan, given: Arguments, shape: tuple[int, ...]) -> Call:
    """The call itself, with what is said of its samples and cells beside where they lie."""
    rows = call.rows
    if plan.needs_words or given.rates is not None or given.stratify is not None:
        check_law(plan, given)
    if given.sample_ids is not None:
        call.sample_ids = checked_sample_ids(given.sample_ids, rows)
    if given.special_tokens_mask is not None:
        call.special_tokens_mask = checked_marks(given.special_tokens_mask, shape)
    if given.rates is not None:
        if plan.law == "bernoulli":
            call.thresholds = checked_rates(given.rates, rows)
        else:
            call.rates = checked_count_rates(given.rates, rows)
    if given.word_ids is not None:
        call.word_ids = checked_word_ids(given.word_ids, shape)
    if given.stratify is not None:
        call.strata, call.step = checked_strata(given.stratify, rows)
    longest = call.row_length if call.lengths is None else call.lengths
    call.offsets = checked_offsets(given.position_offset, rows, longest)
    if call.offsets is not None:
        check_offset(plan)
    return call
