"""The CUDA backend: each operation as one pass over device memory, the same loop body as on the CPU.

Here are the kernels over cells, and what the host calls; the kernels over rows are in `cuda_rows`. Indices
and all that decides are unsigned and 64 bits wide; no float takes part, but those a caller supplies. To the
compiler arrays are raw pointers, so nothing is checked against bounds: an id out of range raises a flag and
indexes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import cuda

from fastmask.kernels import cuda_launch as launch
from fastmask.kernels import cuda_rows, fate, layout, philox
from fastmask.kernels.cuda_launch import MAX_THREADS, Array, Kernel, Queue, device, is_set, on_device
from fastmask.kernels.cuda_rows import IDS, LENGTHS, STARTS

__all__ = ["apply_supplied", "checked_integers", "is_set", "mask_batch", "rate_thresholds", "real_runs"]

Allocate = Callable[[int, Any], Array]  # (size, dtype): a device array of unspecified content

ZERO, ONE, TWO, THREE, FOUR = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
LOW, HALF = philox.LOW, philox.HALF
RAISED = np.uint32(1)
UNTOUCHED, MASKED = np.uint8(fate.UNTOUCHED), np.uint8(fate.MASKED)
RANDOM, KEPT = np.uint8(fate.RANDOM), np.uint8(fate.KEPT)
SUPPLIED_IGNORE_INDEX = np.int64(-100)

# The places of words 0, 1, 2, 3 in shared memory are PITCH apart: no two threads of a warp meet in a bank.
PITCH, WORDS = np.uint64(MAX_THREADS + 8), 4 * (MAX_THREADS + 8)

# Further arrays that a call may leave out, as bits of the kernel's argument `given`.
OFFSETS, THRESHOLDS, EXCLUDED, DECISIONS, COUNTS = (np.uint64(1 << bit) for bit in range(2, 7))

_philox = device(philox.philox)
_draw_of = device(fate.draw_of)
_extra_of = device(fate.extra_of)
_mixed_of = device(fate.mixed_of)
_scattered = device(fate.pick_number)
_nest = device(fate.nest)
_pick = device(fate.pick_function(device(fate.count_not_above), device(fate.uniform)))


@device
def _one_of(a, b, c, d, index):
    """a, b, c or d for the index 0, 1, 2 or 3."""
    even = a if index == ZERO else c
    odd = b if index == ONE else d
    return even if index & ONE == ZERO else odd


@device
def _is_special(token, runs, run_count):
    """Whether the id lies in one of the runs (first id, length)."""
    found, run = False, ZERO
    while run < run_count:
        found |= token - np.uint64(runs[run * TWO]) < np.uint64(runs[run * TWO + ONE])
        run += ONE
    return found


@device
def _cell_of(position, first, start, row_length):
    """The cell of a position in the row that begins at cell `first`; those past its end are left padding."""
    column = start + position
    return first + (column - row_length if column >= row_length else column)


@device
def _token_at(ids, position, first, start, row_length, end):
    """The id at a position; 0 where there is none."""
    return np.uint64(ids[_cell_of(position, first, start, row_length)]) if position < end else ZERO


@device
def _fill_words(words, at, block, sample, counter3, seed):
    """The four words of a block, `at` the same place of four rows of shared memory."""
    w0, w1, w2, w3 = _philox(block, sample, sample >> HALF, counter3, seed, seed >> HALF)
    words[at] = np.uint32(w0 & LOW)
    words[at + PITCH] = np.uint32(w1 & LOW)
    words[at + PITCH * TWO] = np.uint32(w2 & LOW)
    words[at + PITCH * THREE] = np.uint32(w3 & LOW)


@device
def _word_of(words, slot):
    """The word of a slot: four slots to a block."""
    return np.uint64(words[(slot >> TWO) + PITCH * (slot & THREE)])


@device
def _pick_number(words, slot):
    """The x of the pick of a slot's token."""
    at = slot >> TWO
    w0, w1 = np.uint64(words[at]), np.uint64(words[at + PITCH])
    w2, w3 = np.uint64(words[at + PITCH * TWO]), np.uint64(words[at + PITCH * THREE])
    return _scattered(_mixed_of(_draw_of(_word_of(words, slot)), _extra_of(w0, w1, w2, w3, slot & THREE)))


def mask_tokens(
    ids, out, labels, decisions, num_masked, flag, sample_ids, starts, lengths, special_tokens_mask, offsets,
    thresholds, runs, pool, cumulative, given, pieces, pieces_per_row, log_width, row_length, epoch, seed,
    size, mask_id, ignore_index, select, mask_share, random_share, run_count, pool_size, weighted,
    exclude_original,
):  # fmt: skip
    """Every cell of out, labels and decisions is written; an id out of range raises the flag.

    A piece of a row is `width` blocks of the random stream, and as many threads take it. Each computes one,
    then decides on four cells, `width` apart, so that neighbours write side by side; the words go from one to
    the other through shared memory. Position p is column (start + p) mod row_length. Positions from the row's
    length on are padding, wherever it lies: neither left padding nor an offset costs a second block.
    """
    words = cuda.shared.array(WORDS, np.uint32)
    me, width = np.uint64(cuda.threadIdx.x), ONE << log_width
    member, of_block = me & (width - ONE), np.uint64(cuda.blockDim.x) >> log_width
    counter3 = (epoch << philox.PURPOSE_BITS) | philox.PURPOSE_SELECT
    tile = np.uint64(cuda.blockIdx.x) * of_block
    while tile < pieces:  # all threads of a block go round together
        piece = tile + (me >> log_width)
        end = row_length if piece < pieces else ZERO
        piece = min(piece, pieces - ONE)
        row = piece // pieces_per_row
        start = np.uint64(starts[row]) if given & STARTS else ZERO
        length = np.uint64(lengths[row]) if given & LENGTHS else row_length
        offset = np.uint64(offsets[row]) if given & OFFSETS else ZERO
        sample = np.uint64(sample_ids[row])
        t_select = np.uint64(thresholds[row]) if given & THRESHOLDS else select
        t_mask, t_random = _nest(t_select, mask_share), _nest(t_select, random_share)

        first, shift = row * row_length, offset & THREE
        quad = (piece - row * pieces_per_row) << log_width  # the piece's first
        position = quad * FOUR + member - shift  # wraps below 0, and is then no position
        t0 = _token_at(ids, position, first, start, row_length, end)
        t1 = _token_at(ids, position + width, first, start, row_length, end)
        t2 = _token_at(ids, position + width * TWO, first, start, row_length, end)
        t3 = _token_at(ids, position + width * THREE, first, start, row_length, end)
        if (quad + member) * FOUR < length + shift:
            _fill_words(words, me, (offset >> TWO) + quad + member, sample, counter3, seed)
        cuda.syncthreads()

        slot = (me - member) * FOUR + member
        count = ZERO
        for i in range(4):
            if position < end:
                token = _one_of(t0, t1, t2, t3, np.uint64(i))
                draw = _draw_of(_word_of(words, slot))
                cell = _cell_of(position, first, start, row_length)
                new, label, decision = token, ignore_index, UNTOUCHED
                if token >= size:
                    flag[ZERO] = RAISED
                selected = position < length and draw < t_select and token < size
                selected = selected and not _is_special(token, runs, run_count)
                if selected and given & EXCLUDED:
                    selected = special_tokens_mask[cell] == UNTOUCHED
                if selected:
                    label, decision = token, KEPT
                    count += ONE
                    if draw < t_mask:
                        new, decision = mask_id, MASKED
                    elif draw < t_random:
                        x = _pick_number(words, slot)
                        new = _pick(x, token, pool, cumulative, pool_size, weighted, exclude_original)
                        decision = RANDOM
                out[cell] = np.int64(new)
                labels[cell] = np.int64(label)
                if given & DECISIONS:
                    decisions[cell] = decision
            position += width
            slot += width
        if given & COUNTS and count > ZERO:
            launch.add(num_masked, row, np.int64(count))
        cuda.syncthreads()  # all have read the words before the next piece
        tile += np.uint64(cuda.gridDim.x) * of_block


def apply_decisions(
    token_ids, mask_positions, replace_probs, random_tokens, masked_ids, labels, flag, cells, mask_token_id,
    first, second,
):  # fmt: skip
    """masked_ids, labels: what the decisions say; the flag is raised by a probability outside [0, 1]."""
    cell, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while cell < cells:
        token = new = token_ids[cell]
        probability = replace_probs[cell]
        label = SUPPLIED_IGNORE_INDEX
        if not (probability >= 0.0 and probability <= 1.0):
            flag[ZERO] = RAISED
        if mask_positions[cell]:
            label = token
            if probability < first:
                new = mask_token_id
            elif probability < second:
                new = random_tokens[cell]
        masked_ids[cell] = new
        labels[cell] = label
        cell += stride


WRITTEN = ("<i4", "<i8")  # the dtypes of outputs
MASK_TOKENS = Kernel(
    mask_tokens,
    (None, None, None, "u1", "i8", "u4", "u8", "i8", "i8", "u1", "u8", "u4", "u4", "u4", "u8"),
    ("u8",) * 17,
    [(ids, out, labels) for ids in IDS for out in WRITTEN for labels in WRITTEN],
)
SUPPLIED = ("i8", "u1", "f8", "i8", "i8", "i8", "u4")
APPLY_DECISIONS = Kernel(apply_decisions, SUPPLIED, ("u8", "i8", "f8", "f8"))
KERNELS = (MASK_TOKENS, APPLY_DECISIONS, *cuda_rows.KERNELS)


def mask_batch(plan: Any, call: Any, out: Any, stream: int = 0, allocate: Allocate = cuda.device_array) -> Array:
    """A flag that is not 0 where an id is out of range; `out` holds the masked batch.

    Both once the stream has come to it. The flag is a uint32 of device memory, (1,): `is_set(flag, stream)`
    waits and looks. What `out` holds of a cell with such an id is unspecified.

    Args:
        plan: Plan.
        call: Call, of device arrays. `ids` may be the memory of `out.input_ids`.
        out: Outputs, of device arrays, written as a whole; `decisions` and `num_masked` may be None.
        stream: the handle of a stream of the arrays' device; 0 is the default stream.
        allocate: for starts, lengths and content ids that are not given.
    """
    with on_device(call.ids, stream) as queue:
        flag = launch.new_flag(queue.device)
        if out.num_masked is not None and call.rows > 0:
            cuda_rows.CLEAR.launch(queue, launch.blocks_of(call.rows), [out.num_masked], [call.rows])
        if call.rows > 0 and call.row_length > 0:
            starts, lengths = _extents(queue, plan, call, allocate)
            sample_ids = _sample_ids(queue, call, starts, lengths, allocate)
            known = replace(call, starts=starts, lengths=lengths, sample_ids=sample_ids)
            _launch_mask_tokens(queue, plan, known, out, flag)
        return flag


def _extents(queue: Queue, plan: Any, call: Any, allocate: Allocate) -> tuple[Array, Array]:
    """(starts, lengths) of a call, found where it gives none; None for starts of 0 and for full lengths."""
    if call.lengths is not None or plan.pad_id is None:
        return call.starts, call.lengths
    starts, lengths = allocate(call.rows, np.int64), allocate(call.rows, np.int64)
    scalars = [call.rows, call.row_length, plan.pad_id]
    cuda_rows.TRIM_ROWS.launch(queue, call.rows, [call.ids, starts, lengths], scalars)
    return starts, lengths


def _sample_ids(queue: Queue, call: Any, starts: Array, lengths: Array, allocate: Allocate) -> Array:
    """The sample ids of a call, computed from the content where it gives none."""
    if call.sample_ids is not None:
        return call.sample_ids
    sample_ids = allocate(call.rows, np.uint64)
    scalars = [_bits((STARTS, starts), (LENGTHS, lengths)), call.rows, call.row_length]
    cuda_rows.SUM_CONTENT.launch(queue, call.rows, [call.ids, starts, lengths, sample_ids], scalars)
    return sample_ids


def _bits(*optional: tuple[Any, Array]) -> int:
    """The bits of the arrays that are not None, of pairs (bit, array)."""
    return sum(int(bit) for bit, array in optional if array is not None)


def _launch_mask_tokens(queue: Queue, plan: Any, call: Any, out: Any, flag: Array) -> None:
    """The batch is queued for masking; starts, lengths and sample ids of the call are known."""
    words, runs, pool, cumulative = launch.tables_of(plan, queue.device)
    longest_shift = 0 if call.offsets is None else 3
    width, pieces_per_row = launch.pieces_of((call.row_length + longest_shift + 3) // 4)
    pieces = call.rows * pieces_per_row
    given = _bits(
        (STARTS, call.starts), (LENGTHS, call.lengths), (OFFSETS, call.offsets),
        (THRESHOLDS, call.thresholds), (EXCLUDED, call.special_tokens_mask), (DECISIONS, out.decisions),
        (COUNTS, out.num_masked),
    )  # fmt: skip
    arrays = [
        call.ids, out.input_ids, out.labels, out.decisions, out.num_masked, flag, call.sample_ids,
        call.starts, call.lengths, call.special_tokens_mask, call.offsets, call.thresholds,
        runs, pool, cumulative,
    ]  # fmt: skip
    scalars = [
        given, pieces, pieces_per_row, width.bit_length() - 1, call.row_length, call.epoch,
        words[layout.SEED], words[layout.SIZE], words[layout.MASK_ID], words[layout.IGNORE_INDEX],
        words[layout.SELECT], words[layout.MASK_SHARE], words[layout.RANDOM_SHARE], len(plan.special_runs),
        words[layout.POOL_SIZE], words[layout.WEIGHTED], words[layout.EXCLUDE_ORIGINAL],
    ]  # fmt: skip
    MASK_TOKENS.launch(queue, launch.blocks_of(pieces * width), arrays, scalars)


ONES = {"f2": 0x3C00, "f4": 0x3F800000, "f8": 0x3FF0000000000000}  # the bit patterns of 1.0


def real_runs(
    attention_mask: Array, rows: int, row_length: int, stream: int = 0, allocate: Allocate = cuda.device_array
) -> tuple[Array, Array, Array]:
    """(starts, lengths, flag): each row's run of ones, int64 (rows,); an empty row has start 0.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where a row has a hole or any value but 0
    and 1; starts and lengths then mean nothing, but lie within the row. `attention_mask` is a device array of
    bool, integers or floats, (rows * row_length,).
    """
    with on_device(attention_mask, stream) as queue:
        flag = launch.new_flag(queue.device)
        starts, lengths = allocate(rows, np.int64), allocate(rows, np.int64)
        if rows > 0:
            dtype = np.dtype(attention_mask.dtype)
            bits = attention_mask.view(np.dtype(f"u{dtype.itemsize}"))
            sign = int(dtype.kind == "f")  # minus zero is zero
            scalars = [rows, row_length, ONES.get(dtype.str[1:], 1), (1 << 8 * dtype.itemsize - sign) - 1]
            cuda_rows.FIND_RUNS.launch(queue, rows, [bits, starts, lengths, flag], scalars)
        return starts, lengths, flag


def rate_thresholds(rates: Array, stream: int = 0, allocate: Allocate = cuda.device_array) -> tuple[Array, Array]:
    """(thresholds, flag): floor(rate * 2^24 + 0.5) of each rate, uint32, the shape of `rates`.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where a rate is NaN, outside [0, 1], or
    above 0 and rounds to 0; its threshold is then 0. `rates` is a device array of float64, (rows,).
    """
    return _each(cuda_rows.CUT_RATES, rates, np.uint32, [], stream, allocate)


def checked_integers(
    values: Array, limit: int, stream: int = 0, allocate: Allocate = cuda.device_array
) -> tuple[Array, Array]:
    """(checked, flag): the values, int64, with those outside [0, limit] moved to its nearer end.

    The flag (as in `mask_batch`, like stream and allocate) is not 0 where there is such a value. `values` is
    a device array of int64, 1-D, and is not changed; 0 <= limit < 2^63.
    """
    return _each(cuda_rows.CLAMP_INTEGERS, values, np.int64, [limit], stream, allocate)


def _each(
    kernel: Kernel, values: Array, dtype: Any, scalars: list[Any], stream: int, allocate: Allocate
) -> tuple[Array, Array]:
    """What the kernel makes of each of the values, in a new array, and the flag that it may raise."""
    with on_device(values, stream) as queue:
        flag = launch.new_flag(queue.device)
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
        flag = launch.new_flag(queue.device)
        cells = token_ids.size
        arrays = [token_ids, mask_positions, replace_probs, random_tokens, masked_ids, labels, flag]
        if cells > 0:
            APPLY_DECISIONS.launch(queue, launch.blocks_of(cells), arrays, [cells, mask_token_id, *borders])
        return flag
