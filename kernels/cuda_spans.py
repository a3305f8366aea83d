"""Spans: attempts one after another, since each depends on what those before it have covered.

The random numbers of as many attempts as a block has threads are computed at once; its first thread then makes them.
"""

import numpy as np

from fastmask.kernels.cuda_block import smaller
from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_core import HALF, LOW, ONE, ZERO, count_not_above, philox_block
from fastmask.kernels.cuda_launch import device
from fastmask.kernels.cuda_units import CANDIDATE, SELECTED, begins_unit
from fastmask.kernels.philox import PURPOSE_BITS, PURPOSE_SPAN

FEWEST_ATTEMPTS, ATTEMPTS_EACH = np.uint64(32), np.uint64(8)  # 32 + 8 * budget


@device
def _cover(row, units, word, longest, budget, by_word):
    """The positions of one span that are then selected for the first time, at most `budget` of them.

    It covers `longest` units, or fewer at a border, beginning at one of the row's `units` or up to longest - 1 before
    the first, as the word tells; none where its first position is selected already.
    """
    _, kinds, firsts, _, origin, length = row
    longest = smaller(longest, budget)
    start = (word * (units + longest - ONE)) >> HALF  # of longest - 1 more units on the left
    first = start - (longest - ONE) if start >= longest - ONE else ZERO
    left = start + ONE - first  # or more than there are: the walk ends at the row's last candidate
    begin = np.uint64(firsts[origin + first])
    position, covered = begin, ZERO
    going = np.uint64(kinds[origin + begin]) & SELECTED == ZERO
    while going:
        kind = np.uint64(kinds[origin + position])
        if position > begin and begins_unit(kind, by_word):
            left -= ONE
        going = kind & CANDIDATE != ZERO and left > ZERO
        if going:
            if kind & SELECTED == ZERO:
                kinds[origin + position] = np.uint8(kind | SELECTED)
                covered += ONE
            position += ONE
            going = position < length and covered < budget
    return covered


@device
def cover_spans(row, longest, starts, length_sums, sum_count, units, budget, sample, epoch, seed, by_word):
    """The number of positions that spans have covered, up to the budget; kinds: they are selected.

    longest, starts: a uint32 of shared memory per thread. `firsts` holds the position of each unit.
    """
    cells = row[3]
    me, at_once = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x)
    counter3 = (epoch << PURPOSE_BITS) | PURPOSE_SPAN
    attempt, last, covered = ZERO, FEWEST_ATTEMPTS + ATTEMPTS_EACH * budget, ZERO
    while attempt < last and covered < budget:  # all threads go round together
        w0, w1, _, _ = philox_block(attempt + me, sample, sample >> HALF, counter3, seed, seed >> HALF)
        longest[me] = np.uint32(ONE + count_not_above(length_sums, sum_count, w0 & LOW))
        starts[me] = np.uint32(w1 & LOW)
        cuda.syncthreads()
        if me == ZERO:
            i = ZERO
            while i < smaller(at_once, last - attempt) and covered < budget:
                word, length = np.uint64(starts[i]), np.uint64(longest[i])
                covered += _cover(row, units, word, length, budget - covered, by_word)
                i += ONE
            cells[ZERO] = covered
        cuda.syncthreads()
        covered = cells[ZERO]
        cuda.syncthreads()
        attempt += at_once
    return covered
