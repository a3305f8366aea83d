"""The tokens of a row as sets: 64 positions to a word of bits, so that an operation takes a cycle for 64 tokens.

A row is cut into units, tokens or words. `starts` holds the first position of each, `rest` the others. A unit's key is
the random word of its first position; units are ordered by (key, position), as one number: key * 2^32 + position.
"""

from typing import Any, NamedTuple

import numpy as np

from fastmask.kernels.bits import count_bits, in_range_64, lowest_bit
from fastmask.kernels.cpu_tile import apart, inline

ZERO, ONE, S32, LOW = np.uint64(0), np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
SIX, SIXTY_THREE, SIXTY_FOUR = np.uint64(6), np.uint64(63), np.uint64(64)
EMPTY, FULL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
KEYS = np.uint64(1 << 32)  # above every key
EVERYTHING = FULL  # a cut above every unit
NEAR = np.uint64(16)  # so many units are sorted
AIM = np.uint64(5)  # a guess aims so far beyond the goal that the bracket closes around it
STEEP = np.uint64(1 << 30)
RANK, REACH, FIT = 0, 1, 2  # ways to stop, see `find_cut`


class Row(NamedTuple):
    """One sample: its random words and its units."""

    words: Any  # by position
    candidates: Any
    starts: Any
    rest: Any
    chunks: Any  # words of bits
    by_word: Any  # False: rest is empty
    tokens: Any  # the number of candidates
    units: Any


@inline
def keys_below(words, chunk, key):
    """The positions of a chunk whose word is below the key, a number up to 2^32."""
    return FULL if key >= KEYS else in_range_64(words, chunk * SIXTY_FOUR, np.uint32(0), np.uint32(key))


@inline
def whole_units(starts, rest, carry):
    """The tokens of the units that begin at the starts (and of one that goes on from the chunk before, if carry is 1).

    Adding the first further token of a unit to `rest` flips all of them: the carry runs along.
    """
    seeds = ((starts << ONE) | carry) & rest
    return starts | (rest & ~(rest + seeds))


@inline
def count_units(row, key):
    """How many units have a key below the given one."""
    units = ZERO
    for chunk in range(row.chunks):
        units += count_bits(keys_below(row.words, chunk, key) & row.starts[chunk])
    return units


@inline
def count_tokens(row, key):
    """How many units have a key below the given one, and how many tokens they have."""
    units, tokens, carry = ZERO, ZERO, ZERO
    for chunk in range(row.chunks):
        starts = keys_below(row.words, chunk, key) & row.starts[chunk]
        whole = whole_units(starts, row.rest[chunk], carry)
        carry = whole >> SIXTY_THREE
        units += count_bits(starts)
        tokens += count_bits(whole)
    return units, tokens


@inline
def window(bits, position):
    """The 64 positions from the given one on; the set has a word more than it has chunks."""
    chunk, shift = position >> SIX, position & SIXTY_THREE
    return bits[chunk] if shift == ZERO else (bits[chunk] >> shift) | (bits[chunk + ONE] << (SIXTY_FOUR - shift))


@inline
def run_length(bits, position, enough):
    """How many positions from the given one on are in the set, without a gap, counted no further than need be to know
    that there are enough; the last word of the set is empty.
    """
    length = ZERO
    run = lowest_bit(~window(bits, position))
    while run == SIXTY_FOUR and length + run < enough:
        length += run
        run = lowest_bit(~window(bits, position + length))
    return length + run


@apart
def take_prefix(row, cut, chosen):
    """chosen: the tokens of all units before the cut. Their number."""
    key, position = cut >> S32, cut & LOW
    tokens, carry = ZERO, ZERO
    for chunk in range(row.chunks):
        before = keys_below(row.words, chunk, key)
        if position > ZERO:  # units of the same key, the earlier ones
            same = keys_below(row.words, chunk, key + ONE) & ~before
            before |= same & _positions_below(chunk, position)
        whole = whole_units(before & row.starts[chunk], row.rest[chunk], carry)
        carry = whole >> SIXTY_THREE
        chosen[chunk] = whole
        tokens += count_bits(whole)
    return tokens


@inline
def _positions_below(chunk, position):
    """The positions of a chunk below the given one."""
    first = chunk * SIXTY_FOUR
    if position <= first:
        return EMPTY
    return FULL if position >= first + SIXTY_FOUR else (ONE << (position - first)) - ONE


@apart
def find_cut(row, limit, how, near):
    """Where the order of units is cut: before the first unit (as key * 2^32 + position) at which to stop.

    RANK: after `limit` units. FIT: before the unit that would make more than `limit` tokens. REACH: as soon as there
    are more than `limit` tokens. The bracket (low, high) of keys closes around the cut by interpolation, until the few
    units in it can be sorted.
    """
    by_tokens = how != RANK and row.by_word
    total = row.tokens if by_tokens else row.units
    if total <= limit:
        return EVERYTHING
    low, high, below, above = ZERO, KEYS, ZERO, total  # below, above: what is counted before low and high
    units_low, units_high = ZERO, row.units
    aim = limit
    while units_high - units_low > NEAR and high - low > ONE:
        key = _between(low, high, below, above, aim)
        units, count = count_tokens(row, key) if by_tokens else _same(count_units(row, key))
        if count <= limit:
            low, below, units_low, aim = key, count, units, limit + AIM
            if count == limit and how != REACH:
                return low << S32
        else:
            high, above, units_high, aim = key, count, units, limit - min(AIM, limit)
    return _walk(row, low, high, below, limit, how, near)


@inline
def _same(units):
    return units, units


@inline
def _between(low, high, below, above, aim):
    """A key inside the bracket, where the count would reach the aim if keys lay evenly."""
    span, part, whole = high - low, aim - min(aim, below), above - below
    if whole >= STEEP or part >= whole:
        return low + (span >> ONE)
    key = low + (span * ((part << ONE) + ONE)) // (whole << ONE)
    return min(max(key, low + ONE), high - ONE)


@inline
def _walk(row, low, high, count, limit, how, near):
    """The cut among the units with low <= key < high, of which there are few; `count` is what lies before them."""
    size = _gather(row, low, high, near)
    for i in range(size):
        unit = near[np.uint64(i)]
        length = ONE
        if row.by_word and how != RANK:
            length += run_length(row.rest, (unit & LOW) + ONE, row.chunks * SIXTY_FOUR)
        ahead = ZERO if how == REACH else length
        if count + ahead > limit:
            tied = i > 0 and near[np.uint64(i) - ONE] >> S32 == unit >> S32
            return unit if tied else (unit >> S32) << S32
        count += length
    return EVERYTHING if high == KEYS else high << S32


@inline
def _gather(row, low, high, near):
    """near[0:n]: the units with low <= key < high, in order; n. More than NEAR of one key are out of the question."""
    size = ZERO
    for chunk in range(row.chunks):
        bits = keys_below(row.words, chunk, high) & ~keys_below(row.words, chunk, low) & row.starts[chunk]
        while bits != EMPTY and size < NEAR:
            position = np.uint64(chunk) * SIXTY_FOUR + lowest_bit(bits)
            bits &= bits - ONE
            unit = (np.uint64(row.words[position]) << S32) | position
            place = size
            while place > ZERO and near[place - ONE] > unit:
                near[place] = near[place - ONE]
                place -= ONE
            near[place] = unit
            size += ONE
    return size
