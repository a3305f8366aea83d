"""The CUDA kernels over rows: what a call says of each of its samples, checked, or read off the tokens.

A kernel gives each row a block, or each a thread; rows that are left are taken in strides of the grid.
"""

import numpy as np

from fastmask.kernels import fate
from fastmask.kernels.cuda_block import block_largest, block_sum, larger, scan_largest, smaller
from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_core import (
    HALF,
    IDS,
    LENGTHS,
    LOW,
    ONE,
    RAISED,
    STARTS,
    STRATA,
    ZERO,
    cells_of_row,
    epoch_of,
    philox_block,
    sample_of,
)
from fastmask.kernels.cuda_launch import MAX_THREADS, Kernel, device
from fastmask.kernels.philox import PURPOSE_BITS, PURPOSE_RATE, PURPOSE_STRATA

NEVER, UNITS_OF_RATE = np.uint32(0), np.float64(1 << 24)  # the threshold of probability 0; of 1, as a float

_mix = device(fate.mix)
_spread = device(fate.spread)
_rate_of = device(fate.rate_of)


def clear(values, size):
    """values[0:size] are 0."""
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < size:
        values[i] = np.int64(0)
        i += stride


def trim_rows(ids, starts, lengths, rows, row_length, pad_id):
    """starts, lengths: each row less its leading and trailing runs of the pad id; 0, 0 where nothing is left.

    A block takes a row and looks from both ends, one id per thread at a time, so it reads little but padding.
    """
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row, me = np.uint64(cuda.blockIdx.x), np.uint64(cuda.threadIdx.x)
    while row < rows:
        first = row * row_length
        rest, base = ZERO, ZERO  # rest: columns from the first real token on
        while base < row_length and rest == ZERO:
            column = base + me
            real = column < row_length and np.uint64(ids[first + column]) != pad_id
            rest = block_largest(row_length - column if real else ZERO, cells)
            base += np.uint64(cuda.blockDim.x)
        end, base = ZERO, ZERO  # end: the column after the last real token
        while base < rest and end == ZERO:
            below = base + me
            real = below < rest and np.uint64(ids[first + (row_length - ONE - below)]) != pad_id
            end = block_largest(row_length - below if real else ZERO, cells)
            base += np.uint64(cuda.blockDim.x)
        if me == ZERO:
            starts[row] = np.int64(row_length - rest if rest > ZERO else ZERO)
            lengths[row] = np.int64(end - (row_length - rest) if rest > ZERO else ZERO)
        row += np.uint64(cuda.gridDim.x)


def find_runs(attention_mask, starts, lengths, flag, rows, row_length, one, magnitude):
    """starts, lengths: each row's run of ones; the flag is raised by a hole and by any value but 0 and 1.

    Values are taken as bits: `one` is the pattern of 1, and a pattern without `magnitude` bits is 0.
    """
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row, me = np.uint64(cuda.blockIdx.x), np.uint64(cuda.threadIdx.x)
    while row < rows:
        ones, rest, end, column = ZERO, ZERO, ZERO, me
        while column < row_length:
            value = np.uint64(attention_mask[row * row_length + column])
            if value == one:
                ones += ONE
                rest = larger(rest, row_length - column)
                end = column + ONE
            elif value & magnitude:
                flag[ZERO] = RAISED
            column += np.uint64(cuda.blockDim.x)
        ones, rest, end = block_sum(ones, cells), block_largest(rest, cells), block_largest(end, cells)
        if me == ZERO:
            start = row_length - rest if ones > ZERO else ZERO
            starts[row] = np.int64(start)
            lengths[row] = np.int64(ones)
            if end - start != ones:
                flag[ZERO] = RAISED
        row += np.uint64(cuda.gridDim.x)


def sum_content(ids, starts, lengths, boundaries, sample_ids, given, rows, row_length):
    """sample_ids: the content id of each row, a sum over its real tokens mod 2^64, spread once more."""
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row, me = np.uint64(cuda.blockIdx.x), np.uint64(cuda.threadIdx.x)
    while row < rows:
        first, length = cells_of_row(boundaries, given, row, row_length)
        if given & STARTS:
            first += np.uint64(starts[row])
        if given & LENGTHS:
            length = np.uint64(lengths[row])
        total, position = ZERO, me
        while position < length:
            total += (np.uint64(ids[first + position]) + ONE) * _mix(_spread(position))
            position += np.uint64(cuda.blockDim.x)
        total = block_sum(total, cells)
        if me == ZERO:
            sample_ids[row] = _mix(total)
        row += np.uint64(cuda.gridDim.x)


def clamp_integers(values, checked, flag, size, limit):
    """checked: the values, moved into [0, limit]; the flag is raised where one lies outside."""
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < size:
        value = values[i]
        if value < 0 or value > limit:
            flag[ZERO] = RAISED
            value = np.int64(0) if value < 0 else limit
        checked[i] = value
        i += stride


def cut_rates(rates, thresholds, flag, size):
    """thresholds: floor(rate * 2^24 + 0.5) in float64, where the sum alone is rounded.

    A rate that is NaN, outside [0, 1], or above 0 with a threshold of 0 gives 0 and raises the flag.
    """
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < size:
        rate, threshold = rates[i], NEVER
        if rate >= 0.0 and rate <= 1.0:
            threshold = np.uint32(rate * UNITS_OF_RATE + 0.5)
        if threshold == NEVER and rate != 0.0:
            flag[ZERO] = RAISED
        thresholds[i] = threshold
        i += stride


def check_boundaries(boundaries, checked, flag, size, cells):
    """checked: the boundaries, 0 first, `cells` last, and none below one before it; where that is not so already the
    flag is raised. A single block works.
    """
    shared = cuda.shared.array(MAX_THREADS, np.uint64)
    tile, carried = ZERO, ZERO
    while tile < size and cuda.blockIdx.x == 0:  # all threads of the block go round together
        i = tile + np.uint64(cuda.threadIdx.x)
        given = np.int64(boundaries[i]) if i < size else np.int64(0)
        value = cells if i + ONE == size else np.uint64(max(given, np.int64(0)))
        value = ZERO if i == ZERO and size > ONE else smaller(value, cells)
        before, total = scan_largest(value, shared)
        if i < size:
            value = larger(larger(carried, before), value)
            checked[i] = np.int64(value)
            if given != np.int64(value):
                flag[ZERO] = RAISED
        carried = larger(carried, total)
        tile += np.uint64(cuda.blockDim.x)


def weigh_rates(thresholds, rates, weights, size):
    """rates: T / 2^24, exact; weights: 2^24 / T in float64; then float32. T > 0."""
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < size:
        threshold = np.float64(thresholds[i])
        rates[i] = np.float32(threshold / UNITS_OF_RATE)
        weights[i] = np.float32(UNITS_OF_RATE / threshold)
        i += stride


def clamp_shares(rates, checked, flag, size):
    """checked: the rates; 0 in place of one that is NaN or outside [0, 1], which raises the flag."""
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < size:
        rate = rates[i]
        if not (rate >= 0.0 and rate <= 1.0):
            flag[ZERO] = RAISED
            rate = np.float64(0.0)
        checked[i] = rate
        i += stride


def draw_rates(sample_ids, epoch_at, strata, thresholds, given, rows, first_sample, epoch, seed, step, least):
    """thresholds: the T of Diffusion for each sample, in [least, 2^24].

    A word of the sample decides, or with strata the one word of the step, shifted by the sample's stratum.
    """
    i, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    epoch = epoch_of(epoch_at, given, epoch)
    while i < rows:
        purpose, sample, stratum = PURPOSE_STRATA, step, ZERO
        if given & STRATA:
            stratum = np.uint64(strata[i])
        else:
            purpose, sample = PURPOSE_RATE, sample_of(sample_ids, given, i, first_sample)
        counter3 = (epoch << PURPOSE_BITS) | purpose
        w0, _, _, _ = philox_block(ZERO, sample, sample >> HALF, counter3, seed, seed >> HALF)
        thresholds[i] = np.uint32(_rate_of((w0 + stratum) & LOW, least))
        i += stride


CLEAR = Kernel(clear, ("i8",), ("u8",))
TRIM_ROWS = Kernel(trim_rows, (None, "i8", "i8"), ("u8",) * 3, [(ids,) for ids in IDS])
BITS = ("|u1", "<u2", "<u4", "<u8")
FIND_RUNS = Kernel(find_runs, (None, "i8", "i8", "u4"), ("u8",) * 4, [(bits,) for bits in BITS])
SUM_CONTENT = Kernel(sum_content, (None, "i8", "i8", "i8", "u8"), ("u8",) * 3, [(ids,) for ids in IDS])
CLAMP_INTEGERS = Kernel(clamp_integers, ("i8", "i8", "u4"), ("u8", "i8"))
CUT_RATES = Kernel(cut_rates, ("f8", "u4", "u4"), ("u8",))
CLAMP_SHARES = Kernel(clamp_shares, ("f8", "f8", "u4"), ("u8",))
DRAW_RATES = Kernel(draw_rates, ("u8", "i8", "u4", "u4"), ("u8",) * 7)
CHECK_BOUNDARIES = Kernel(check_boundaries, (None, "i8", "u4"), ("u8", "u8"), [("<i4",), ("<i8",)])
WEIGH_RATES = Kernel(weigh_rates, ("u4", "f4", "f4"), ("u8",))
KERNELS = (
    CLEAR,
    TRIM_ROWS,
    FIND_RUNS,
    SUM_CONTENT,
    CLAMP_INTEGERS,
    CUT_RATES,
    CLAMP_SHARES,
    DRAW_RATES,
    CHECK_BOUNDARIES,
    WEIGH_RATES,
)
