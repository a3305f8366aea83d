"""What the CUDA kernels share: the scalar core, compiled, the places of tokens, and which arrays a call has.

A row is `row_length` cells from cell `first` on, padded or a sample of a packed batch. Position p is its column
(start + p) mod row_length; positions from the row's length on are padding, wherever that lies.
"""

import numpy as np

from fastmask.kernels import fate, philox
from fastmask.kernels.cuda_launch import device

IDS = ("<u2", "<i4", "<i8")  # the dtypes of ids
WRITTEN = ("<i4", "<i8")  # the dtypes of outputs

ZERO, ONE, TWO, THREE, FOUR = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
LOW, HALF = philox.LOW, philox.HALF
ALWAYS = np.uint64(1 << 24)  # the threshold of probability 1
RAISED, BAD_EPOCH, BAD_SAMPLE = np.uint32(1), np.uint32(2), np.uint32(3)  # what a flag says
UNTOUCHED, MASKED = np.uint8(fate.UNTOUCHED), np.uint8(fate.MASKED)
RANDOM, KEPT = np.uint8(fate.RANDOM), np.uint8(fate.KEPT)

# The arrays that a call may leave out, as bits of the kernels' argument `given`.
(
    STARTS, LENGTHS, OFFSETS, THRESHOLDS, EXCLUDED, DECISIONS, COUNTS, BOUNDARIES, RATES, STRATA, WORD_IDS, CONTINUES,
    SAMPLE_IDS, FIRST_SAMPLE, EPOCH,
) = (np.uint64(1 << bit) for bit in range(15))  # fmt: skip
LAST_EPOCH, SIGN_BIT = np.uint64((1 << 24) - 1), np.uint64(63)

philox_block = device(philox.philox)
draw_of = device(fate.draw_of)
extra_of = device(fate.extra_of)
mixed_of = device(fate.mixed_of)
scattered = device(fate.pick_number)
nest = device(fate.nest)
count_not_above = device(fate.count_not_above)
pick = device(fate.pick_function(count_not_above, device(fate.uniform)))


@device
def is_special(token, runs, run_count):
    """Whether the id lies in one of the runs (first id, length)."""
    found, run = False, ZERO
    while run < run_count:
        found |= token - np.uint64(runs[run * TWO]) < np.uint64(runs[run * TWO + ONE])
        run += ONE
    return found


@device
def decision_of(draw, t_mask, t_random):
    """What becomes of a candidate whose draw selects it."""
    return MASKED if draw < t_mask else RANDOM if draw < t_random else KEPT


@device
def sample_of(sample_ids, given, row, first_sample):
    """The id of a row's sample: its own, or as many after the first as there are rows before."""
    if given & SAMPLE_IDS:
        return np.uint64(sample_ids[row])
    return row + (np.uint64(sample_ids[ZERO]) if given & FIRST_SAMPLE else first_sample)


@device
def epoch_of(epoch_at, given, epoch):
    """The epoch, perhaps of device memory; what is out of range there becomes some other epoch."""
    return np.uint64(epoch_at[ZERO]) & LAST_EPOCH if given & EPOCH else epoch


@device
def check_scalars(epoch_at, sample_ids, given, flag):
    """The flag is raised by an epoch, or a first sample id, of device memory that is out of range."""
    if given & EPOCH and np.uint64(epoch_at[ZERO]) > LAST_EPOCH:
        flag[ZERO] = BAD_EPOCH
    if given & FIRST_SAMPLE and np.uint64(sample_ids[ZERO]) >> SIGN_BIT != ZERO:
        flag[ZERO] = BAD_SAMPLE


@device
def cells_of_row(boundaries, given, row, row_length):
    """(first, row_length): the first cell of a row, and how many it has."""
    if given & BOUNDARIES:
        first = np.uint64(boundaries[row])
        return first, np.uint64(boundaries[row + ONE]) - first
    return row * row_length, row_length


@device
def cell_of(position, first, start, row_length):
    """The cell of a position; those past the row's end are left padding."""
    column = start + position
    return first + (column - row_length if column >= row_length else column)
