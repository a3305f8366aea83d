"""The CUDA backend: each operation as passes over device memory, the same scalar core as on the CPU.

Here is what the host calls. The kernels over cells are in `cuda_tokens`, those over rows in `cuda_rows`, and the one
for laws that look at whole samples in `cuda_samples`, with `cuda_units`, `cuda_order` and `cuda_spans`. Indices and
all that decides are unsigned and 64 bits wide; no float takes part, but those a caller supplies and the share of a
count. To the compiler arrays are raw pointers, so nothing is checked against bounds: an id out of range raises a flag
and indexes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fastmask.kernels import cuda_compact, cuda_core, cuda_quads, cuda_rows, cuda_samples, cuda_tokens, layout
from fastmask.kernels import cuda_launch as launch
from fastmask.kernels.cuda_launch import Array, Kernel, Queue, is_set, on_device, read_flag

__all__ = [
    "apply_supplied",
    "checked_boundaries",
    "checked_integers",
    "checked_shares",
    "compact",
    "is_set",
    "mask_batch",
    "rate_thresholds",
    "rates_and_weights",
    "read_flag",
    "real_runs",
    "sample_rates",
]

Allocate = Callable[[int, Any], Array]  # (size, dtype): a device array of unspecified content

KERNELS = (*cuda_quads.KERNELS, *cuda_tokens.KERNELS, *cuda_samples.KERNELS, *cuda_rows.KERNELS, *cuda_compact.KERNELS)
LONGEST_ROW = (1 << 31) - 1  # positions take 32 bits


def mask_batch(plan: Any, call: Any, out: Any, stream: int = 0, allocate: Allocate = launch.device_array) -> Array:
    """A flag that is not 0 where an id is out of range; `out` holds the masked batch.

    Both once the stream has come to it. The flag is a uint32 of device memory, (1,): `read_flag(flag, stream)`
    waits and looks. What `out` holds of a cell with such an id is unspecified. BAD_EPOCH and BAD_SAMPLE in the flag
    say that `epoch_at` or `first_sample_at` is out of range; `out` then holds the batch of another epoch or sample.

    Args:
        plan: Plan, of any law.
        call: Call, of device arrays, padded or packed. `ids` may be the memory of `out.input_ids`.
        out: Outputs, of device arrays, written as a whole; `decisions` and `num_masked` may be None.
        stream: the handle of a stream of the arrays' device; 0 is the default stream.
        allocate: for what is not given of starts, lengths, content ids and rates, and for the scratch of laws
            that look at whole samples: at most 9 bytes a token.

    Raises ValueError for rows of 2^31 cells and more.
    """
    if call.row_length > LONGEST_ROW and not plan.by_token:
        raise ValueError(f"rows have {call.row_length} cells, at most {LONGEST_ROW} are possible on a GPU")
    with on_device(call.ids, stream) as queue:
        flag = launch.new_flag(queue)
        if out.num_masked is not None and call.rows > 0:
            cuda_rows.CLEAR.launch(queue, launch.blocks_of(call.rows), [out.num_masked], [call.rows])
        if call.rows > 0 and call.ids.size > 0:
            known = _located(queue, plan, call, allocate)
            if plan.law == "diffusion" and known.thresholds is None:
                known.thresholds = _drawn_rates(queue, plan, known, allocate)
            if plan.by_token:
                (_launch_mask_quads if _in_quads(known, out) else _launch_mask_tokens)(queue, plan, known, out, flag)
            else:
                _launch_mask_samples(queue, plan, known, out, flag, allocate)
        return flag


def sample_rates(plan: Any, call: Any, stream: int = 0, allocate: Allocate = launch.device_array) -> Array:
    """The T of Diffusion, in units of 2^-24, for each sample of a call: uint32 (rows,), in [T_lo, 2^24].

    Args as of `mask_batch`; only sample ids that are not given are computed from the ids.
    """
    with on_device(call.ids, stream) as queue:
        if call.rows == 0:
            return allocate(0, np.uint32)
        return _drawn_rates(queue, plan, _located(queue, plan, call, allocate), allocate)


def _located(queue: Queue, plan: Any, call: Any, allocate: Allocate) -> Any:
    """The call with starts and lengths (None: 0, and full lengths) and sample ids, found where it gives none."""
    starts, lengths = call.starts, call.lengths
    if call.boundaries is None and lengths is None and plan.pad_id is not None:
        starts, lengths = allocate(call.rows, np.int64), allocate(call.rows, np.int64)
        scalars = [call.rows, call.row_length, plan.pad_id]
        cuda_rows.TRIM_ROWS.launch(queue, call.rows, [call.ids, starts, lengths], scalars)
    sample_ids = call.sample_ids
    if sample_ids is None and call.first_sample is None and call.first_sample_at is None:
        sample_ids = allocate(call.rows, np.uint64)
        given = _bits(STARTS=starts, LENGTHS=lengths, BOUNDARIES=call.boundaries)
        arrays = [call.ids, starts, lengths, call.boundaries, sample_ids]
        cuda_rows.SUM_CONTENT.launch(queue, call.rows, arrays, [given, call.rows, call.row_length])
    return replace(call, starts=starts, lengths=lengths, sample_ids=sample_ids)


def _drawn_rates(queue: Queue, plan: Any, call: Any, allocate: Allocate) -> Array:
    """The thresholds of Diffusion; the sample ids of the call are known."""
    thresholds = allocate(call.rows, np.uint32)
    given = _bits(STRATA=call.strata, **_named(call))
    scalars = [given, call.rows, call.first_sample or 0, call.epoch, plan.seed, call.step, plan.least_rate]
    arrays = [_sample_ids(call), call.epoch_at, call.strata, thresholds]
    cuda_rows.DRAW_RATES.launch(queue, launch.blocks_of(call.rows), arrays, scalars)
    return thresholds


def _bits(**optional: Array) -> int:
    """The bits of the arrays that are not None, by the names that they have in `cuda_core`."""
    return sum(int(getattr(cuda_core, name)) for name, array in optional.items() if array is not None)


def _given(call: Any, out: Any, **further: Array) -> int:
    """The bits of the arrays that a call and its outputs have."""
    return _bits(
        STARTS=call.starts, LENGTHS=call.lengths, BOUNDARIES=call.boundaries, OFFSETS=call.offsets,
        THRESHOLDS=call.thresholds, EXCLUDED=call.special_tokens_mask, DECISIONS=out.decisions,
        COUNTS=out.num_masked, **_named(call), **further,
    )  # fmt: skip


def _named(call: Any) -> dict[str, Array]:
    """What of a call's sample ids and epoch lies in device memory, by the names in `cuda_core`."""
    return {"SAMPLE_IDS": call.sample_ids, "FIRST_SAMPLE": call.first_sample_at, "EPOCH": call.epoch_at}


def _sample_ids(call: Any) -> Array:
    """What kernels take as sample ids: one per row, the first one alone, or none."""
    if call.first_sample_at is None:
        return call.sample_ids
    return call.first_sample_at.view(np.dtype(np.uint64))


def _in_quads(call: Any, out: Any) -> bool:
    """Whether four tokens at a time are 16 bytes, or twice that, which begin where 16 bytes do."""
    whole = call.row_length % 4 == 0 and call.row_length > 4 and call.ids.size < 1 << 34
    plain = call.boundaries is None and call.starts is None and call.offsets is None
    same = np.dtype(call.ids.dtype) == np.dtype(out.input_ids.dtype)
    return whole and plain and same and all(map(launch.is_aligned, (call.ids, out.input_ids, out.labels)))


def _launch_mask_quads(queue: Queue, plan: Any, call: Any, out: Any, flag: Array) -> None:
    """The batch is queued for a token-level law; `_in_quads` holds of it."""
    tables = launch.tables_of(plan, queue.device)
    quads, quads_per_row = call.ids.size // 4, call.row_length // 4
    arrays = [
        call.ids, out.input_ids, out.labels, out.decisions, out.num_masked, flag, _sample_ids(call), call.epoch_at,
        call.lengths, call.special_tokens_mask, call.thresholds, tables.runs, tables.pool, tables.cumulative,
    ]  # fmt: skip
    scalars = [
        _given(call, out), quads, quads_per_row, -(-(1 << 64) // quads_per_row), call.first_sample or 0, call.epoch,
        *_rules(plan, tables),
    ]  # fmt: skip
    cuda_quads.MASK_QUADS.launch(queue, launch.blocks_of(quads), arrays, scalars)


def _rules(plan: Any, tables: launch.Tables) -> list[int]:
    """The scalars of a plan that kernels over cells take, in their order."""
    words = tables.words
    return [
        words[layout.SEED], words[layout.SIZE], words[layout.MASK_ID], words[layout.IGNORE_INDEX],
        words[layout.SELECT], words[layout.MASK_SHARE], words[layout.RANDOM_SHARE], len(plan.special_runs),
        words[layout.POOL_SIZE], words[layout.WEIGHTED], words[layout.EXCLUDE_ORIGINAL],
    ]  # fmt: skip


def _launch_mask_tokens(queue: Queue, plan: Any, call: Any, out: Any, flag: Array) -> None:
    """The batch is queued for a token-level law; what can be found of its rows is known."""
    tables = launch.tables_of(plan, queue.device)
    longest_shift = 0 if call.offsets is None else 3
    if call.boundaries is None:
        width, pieces_per_row = launch.pieces_of((call.row_length + longest_shift + 3) // 4)
        pieces = call.rows * pieces_per_row
    else:
        width, _ = launch.pieces_of(call.ids.size // (4 * call.rows) + 1)
        pieces_per_row = 1 if call.offsets is None else 2  # beside those that fit into the rows before
        pieces = call.ids.size // (4 * width) + call.rows * pieces_per_row
    arrays = [
        call.ids, out.input_ids, out.labels, out.decisions, out.num_masked, flag, _sample_ids(call),
        call.epoch_at, call.starts, call.lengths, call.boundaries, call.special_tokens_mask, call.offsets,
        call.thresholds, tables.runs, tables.pool, tables.cumulative,
    ]  # fmt: skip
    scalars = [
        _given(call, out), call.rows, pieces, pieces_per_row, width.bit_length() - 1, call.row_length,
        call.first_sample or 0, call.epoch, *_rules(plan, tables),
    ]  # fmt: skip
    cuda_tokens.MASK_TOKENS.launch(queue, launch.blocks_of(pieces * width), arrays, scalars)


def _launch_mask_samples(queue: Queue, plan: Any, call: Any, out: Any, flag: Array, allocate: Allocate) -> None:
    """The batch is queued for any other law; what can be found of its rows is known."""
    tables = launch.tables_of(plan, queue.device)
    slots = 4 * (call.ids.size // 4 + 2 * call.rows)
    words, kinds, firsts = allocate(slots, np.uint32), allocate(slots, np.uint8), None
    if plan.needs_words or plan.replace_unit == "span" or plan.law == "spans":
        firsts = allocate(slots, np.uint32)
    word_ids, word_step = None, 1
    if plan.needs_words and call.word_ids is not None:
        word_step = np.dtype(call.word_ids.dtype).itemsize // 4
        word_ids = call.word_ids.view(np.dtype(np.uint32))
    table = plan.is_continuation if plan.needs_words and word_ids is None else None
    given = _given(call, out, RATES=call.rates, WORD_IDS=word_ids, CONTINUES=table)
    arrays = [
        call.ids, out.input_ids, out.labels, out.decisions, out.num_masked, flag, _sample_ids(call),
        call.epoch_at, call.starts, call.lengths, call.boundaries, call.special_tokens_mask, call.offsets,
        call.thresholds, call.rates, word_ids, tables.scalars, tables.runs, tables.pool, tables.cumulative,
        tables.length_sums, tables.is_continuation, words, kinds, firsts,
    ]  # fmt: skip
    scalars = [
        given, call.rows, call.row_length, call.first_sample or 0, call.epoch, plan.p, len(plan.special_runs),
        plan.length_sums.size, word_step,
    ]  # fmt: skip
    cuda_samples.MASK_SAMPLES.launch(queue, call.rows, arrays, scalars)


def compact(
    plan: Any, call: Any, out: Any, compact: Any, stream: int = 0, allocate: Allocate = launch.device_array
) -> Array:
    """A flag that is not 0 where a row has more selected tokens than `compact.width`; `compact` is written as a whole.

    A position is the column in a padded batch and the cell in a packed one. An unused slot holds position 0, the
    plan's ignore_index and weight 0. Of a row with too many, those that come first stay; the others become what they
    were before: in `out` their ids, labels and decisions, and num_masked is lowered.

    Args:
        plan: Plan.
        call: Call; its ids are not read.
        out: Outputs of `mask_batch` for them, with decisions; `num_masked` may be None.
        compact: Compact, of device arrays: flat, at least a slot per selected token, or with a width.
        stream: as of `mask_batch`.
        allocate: likewise, for the counts of the rows.
    """
    with on_device(out.labels, stream) as queue:
        flag = launch.new_flag(queue)
        slots = int(compact.positions.size)
        given = _bits(BOUNDARIES=call.boundaries, COUNTS=out.num_masked)
        ignore_index = plan.ignore_index % (1 << 64)
        lists = [out.decisions, compact.positions, compact.ids, compact.weights]
        if slots == 0 and compact.width is None:
            return flag
        if compact.width is not None:
            if call.rows > 0:
                arrays = [out.labels, out.input_ids, *lists, out.num_masked, call.boundaries, flag]
                scalars = [given, call.rows, call.row_length, compact.width, ignore_index]
                cuda_compact.LIST_IN_ROWS.launch(queue, call.rows, arrays, scalars)
            return flag
        counts, firsts = allocate(call.rows, np.int64), allocate(call.rows + 1, np.int64)
        if call.rows > 0:
            arrays = [out.decisions, call.boundaries, counts]
            cuda_compact.COUNT_ROWS.launch(queue, call.rows, arrays, [given, call.rows, call.row_length])
        cuda_compact.ADD_UP.launch(queue, 1, [counts, firsts], [call.rows])
        arrays = [out.labels, *lists, firsts, call.boundaries]
        scalars = [given, call.rows, call.row_length, slots, ignore_index]
        blocks = max(call.rows, launch.blocks_of(slots), 1)
        cuda_compact.LIST_FLAT.launch(queue, blocks, arrays, scalars)
        return flag


ONES = {"f2": 0x3C00, "f4": 0x3F800000, "f8": 0x3FF0000000000000}  # the bit patterns of 1.0


def real_runs(
    attention_mask: Array, rows: int, row_length: int, stream: int = 0, allocate: Allocate = launch.device_array
) -> tuple[Array, Array, Array]:
    """(starts, lengths, flag): each row's run of ones, int64 (rows,); an empty row has start 0.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where a row has a hole or any value but 0
    and 1; starts and lengths then mean nothing, but lie within the row. `attention_mask` is a device array of
    bool, integers or floats, (rows * row_length,).
    """
    with on_device(attention_mask, stream) as queue:
        flag = launch.new_flag(queue)
        starts, lengths = allocate(rows, np.int64), allocate(rows, np.int64)
        if rows > 0:
            dtype = np.dtype(attention_mask.dtype)
            bits = attention_mask.view(np.dtype(f"u{dtype.itemsize}"))
            sign = int(dtype.kind == "f")  # minus zero is zero
            scalars = [rows, row_length, ONES.get(dtype.str[1:], 1), (1 << 8 * dtype.itemsize - sign) - 1]
            cuda_rows.FIND_RUNS.launch(queue, rows, [bits, starts, lengths, flag], scalars)
        return starts, lengths, flag


def rate_thresholds(rates: Array, stream: int = 0, allocate: Allocate = launch.device_array) -> tuple[Array, Array]:
    """(thresholds, flag): floor(rate * 2^24 + 0.5) of each rate, uint32, the shape of `rates`.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where a rate is NaN, outside [0, 1], or
    above 0 and rounds to 0; its threshold is then 0. `rates` is a device array of float64, (rows,).
    """
    return _each(cuda_rows.CUT_RATES, rates, np.uint32, [], stream, allocate)


def checked_integers(
    values: Array, limit: int, stream: int = 0, allocate: Allocate = launch.device_array
) -> tuple[Array, Array]:
    """(checked, flag): the values, int64, with those outside [0, limit] moved to its nearer end.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where there is such a value. `values` is
    a device array of int64, 1-D, and is not changed; 0 <= limit < 2^63.
    """
    return _each(cuda_rows.CLAMP_INTEGERS, values, np.int64, [limit], stream, allocate)


def checked_shares(rates: Array, stream: int = 0, allocate: Allocate = launch.device_array) -> tuple[Array, Array]:
    """(checked, flag): the rates of a counting law, float64, with 0 in place of NaN and of those outside [0, 1].

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where there is such a rate. `rates` is a
    device array of float64, (rows,).
    """
    return _each(cuda_rows.CLAMP_SHARES, rates, np.float64, [], stream, allocate)


def checked_boundaries(
    boundaries: Array, cells: int, stream: int = 0, allocate: Allocate = launch.device_array
) -> tuple[Array, Array]:
    """(checked, flag): the boundaries of a packed batch, int64; first 0, last the number of cells, never falling.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where those given are not so; then they are
    moved. `boundaries` is a device array of int32 or int64, 1-D, not empty.
    """
    with on_device(boundaries, stream) as queue:
        flag, size = launch.new_flag(queue), int(boundaries.size)
        checked = allocate(size, np.int64)
        cuda_rows.CHECK_BOUNDARIES.launch(queue, 1, [boundaries, checked, flag], [size, cells])
        return checked, flag


def rates_and_weights(thresholds: Array, rates: Array, weights: Array, stream: int = 0) -> None:
    """`rates` then holds T / 2^24, `weights` 2^24 / T, for each of the thresholds of Diffusion; both float32."""
    with on_device(thresholds, stream) as queue:
        size = int(thresholds.size)
        if size > 0:
            cuda_rows.WEIGH_RATES.launch(queue, launch.blocks_of(size), [thresholds, rates, weights], [size])


def _each(
    kernel: Kernel, values: Array, dtype: Any, scalars: list[Any], stream: int, allocate: Allocate
) -> tuple[Array, Array]:
    """What the kernel makes of each of the values, in a new array, and the flag that it may raise."""
    with on_device(values, stream) as queue:
        flag = launch.new_flag(queue)
        size = int(values.size)
        made = allocate(size, dtype)
        if size > 0:
            kernel.launch(queue, launch.blocks_of(size), [values, made, flag], [size, *scalars])
        return made, flag


def apply_supplied(
    token_ids: Array,
    mask_positions: Array,
    replace_probs: Array,
    random_tokens: Array,
    mask_token_id: int,
    borders: tuple[float, float],
    masked_ids: Array,
    labels: Array,
    stream: int = 0,
) -> Array:
    """A flag that is not 0 where a probability is outside [0, 1]; masked_ids and labels hold the result.

    Flag and stream are as in `mask_batch`, the rest as in `reference.apply_supplied`, in device memory.
    """
    with on_device(token_ids, stream) as queue:
        flag = launch.new_flag(queue)
        cells = token_ids.size
        arrays = [token_ids, mask_positions, replace_probs, random_tokens, masked_ids, labels, flag]
        if cells > 0:
            cuda_tokens.APPLY_DECISIONS.launch(queue, launch.blocks_of(cells), arrays, [cells, mask_token_id, *borders])
        return flag
