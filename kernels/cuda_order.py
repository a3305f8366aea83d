"""Prefixes of the units of a row in the order of (word of the first position, that position).

A prefix is a cut (key, limit): the units with a word below `key`, and those with this very word that begin before
position `limit`, which lies inside no unit. Nothing is sorted: how much lies below a key is counted by all threads of
the block, and the key is found by interpolation. That needs only to come near: the last units are taken one by one.

A row is (words, kinds, firsts, cells, origin, length); sums are tokens + units * 2^32. Candidates that are selected
already are passed over.
"""

import numpy as np

from fastmask.kernels.cuda_block import block_largest, block_sum, larger, smaller
from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_core import HALF, LOW, ONE, TWO, ZERO
from fastmask.kernels.cuda_launch import device
from fastmask.kernels.cuda_units import CANDIDATE, OPEN, SELECTED, UNIT, begins_unit

EVERY_KEY = np.uint64(1 << 32)  # above all words


@device
def _key_of(row, position, by_word):
    """The word of the first position of a candidate's unit."""
    words, _, firsts, _, origin, _ = row
    if by_word:
        position = np.uint64(firsts[origin + position]) - ONE
    return np.uint64(words[origin + position])


@device
def count_below(row, key, by_word):
    """How many tokens and units lie below a key."""
    _, kinds, _, cells, origin, length = row
    count, position = ZERO, np.uint64(cuda.threadIdx.x)
    while position < length:
        kind = np.uint64(kinds[origin + position])
        if kind & OPEN == CANDIDATE and _key_of(row, position, by_word) < key:
            count += ONE
            if begins_unit(kind, by_word):
                count += UNIT
        position += np.uint64(cuda.blockDim.x)
    return block_sum(count, cells)


@device
def _part(count, part):
    """The tokens of a sum, for part 0, or its units, for part 32."""
    return (count >> part) & LOW


@device
def _find_key(row, goal, part, everything, by_word):
    """(key, count): a key with at most `goal` tokens (or units) below it, and what lies below it.

    Two units more would be too many, or there are no more. `everything` is the sum over all units.
    """
    if _part(everything, part) <= goal:
        return EVERY_KEY, everything
    low, high = ZERO, EVERY_KEY
    below_low, below_high = ZERO, everything
    halve = False
    while (
        high - low > ONE
        and _part(below_low, part) < goal
        and (below_high >> HALF) - (below_low >> HALF) > TWO
    ):  # fmt: skip
        width, missing = high - low, goal - _part(below_low, part)
        step = width >> ONE
        if not halve:
            step = width * missing // (_part(below_high, part) - _part(below_low, part))
        middle = low + smaller(larger(step, ONE), width - ONE)
        below = count_below(row, middle, by_word)
        if _part(below, part) <= goal:
            low, below_low = middle, below
        else:
            high, below_high = middle, below
        halve = not halve and (high - low) > width >> ONE
    return low, below_low


@device
def _next_unit(row, key, limit, by_word):
    """(word << 32) | position of the first unit behind a cut; all bits where there is none."""
    _, kinds, _, cells, origin, length = row
    best, position = ZERO, np.uint64(cuda.threadIdx.x)
    while position < length:
        kind = np.uint64(kinds[origin + position])
        if kind & OPEN == CANDIDATE and begins_unit(kind, by_word):
            word = _key_of(row, position, by_word)
            if word > key or (word == key and position >= limit):
                best = larger(best, ~(word << HALF | position))
        position += np.uint64(cuda.blockDim.x)
    return ~block_largest(best, cells)


@device
def _size_of(row, first, by_word):
    """The tokens of the unit that begins at a position."""
    _, kinds, firsts, cells, origin, length = row
    if not by_word:
        return ONE
    size, position = ZERO, np.uint64(cuda.threadIdx.x)
    while position < length:
        kind = np.uint64(kinds[origin + position])
        if kind & OPEN == CANDIDATE and np.uint64(firsts[origin + position]) == first + ONE:
            size += ONE
        position += np.uint64(cuda.blockDim.x)
    return block_sum(size, cells)


@device
def take_prefix(row, below, least, most, units_wanted, everything, by_word):
    """(key, limit, tokens, cut_short): the cut of the units that are taken, and how many tokens these have.

    Units are taken in order up to the first that would pass `most` tokens, or that has no word below `below` and
    comes when `least` tokens and `units_wanted` units are taken. cut_short: `most` left out a unit with such a word.
    """
    key, count = ZERO, ZERO  # what lies below the key is taken for certain
    if below > ZERO:
        key, count = below, count_below(row, below, by_word)
    elif units_wanted > ZERO:
        key, count = _find_key(row, units_wanted, HALF, everything, by_word)
    cut_short = below > ZERO and count & LOW > most
    least = smaller(least, most)
    if count & LOW < least or count & LOW > most:
        goal = least if count & LOW < least else most
        key, count = _find_key(row, goal, ZERO, everything, by_word)
    limit, tokens, units = ZERO, count & LOW, count >> HALF
    going = tokens < most and (key < below or tokens < least or units < units_wanted)
    while going:  # the same in all threads
        unit = _next_unit(row, key, limit, by_word)
        going = ~unit != ZERO
        if going:
            size = _size_of(row, unit & LOW, by_word)
            wanted = unit >> HALF < below or tokens < least or units < units_wanted
            going = wanted and tokens + size <= most
            if going:
                key, limit = unit >> HALF, (unit & LOW) + size
                tokens += size
                units += ONE
                going = tokens < most and (key < below or tokens < least or units < units_wanted)
    return key, limit, tokens, cut_short


@device
def select_prefix(row, key, limit, by_word):
    """kinds: the units before the cut are selected."""
    _, kinds, _, _, origin, length = row
    position = np.uint64(cuda.threadIdx.x)
    while position < length:
        kind = np.uint64(kinds[origin + position])
        if kind & CANDIDATE:
            word = _key_of(row, position, by_word)
            if word < key or (word == key and position < limit):
                kinds[origin + position] = np.uint8(kind | SELECTED)
        position += np.uint64(cuda.blockDim.x)
