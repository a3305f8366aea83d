"""Spans on the CPU: attempts, 64 at a time, until the budget of a row is full."""

import numpy as np

from fastmask.kernels import fate, layout
from fastmask.kernels.bits import count_bits, lowest_bit
from fastmask.kernels.cpu_choose import count_of
from fastmask.kernels.cpu_sets import (
    EMPTY,
    FULL,
    ONE,
    RANK,
    S32,
    SIX,
    SIXTY_FOUR,
    SIXTY_THREE,
    ZERO,
    Row,
    find_cut,
    run_length,
    take_prefix,
    window,
)
from fastmask.kernels.cpu_tile import inline
from fastmask.kernels.cpu_words import GROUP, fill_words

ATTEMPTS = 64  # whose words are computed together: a whole number of groups
SPARE, PER_TOKEN = np.uint64(32), np.uint64(8)  # attempts are given up after 32 + 8 k
FOUR = np.uint64(4)
_count_not_above = inline(fate.count_not_above)


@inline
def choose_spans(batch, objective, index, row, counter3, sample, chosen, scratch):
    """chosen: tokens of spans, as many as the budget; single candidates fill it up where spans do not. Their number."""
    plan, pairs, words = objective.plan, scratch.attempts, scratch.attempt_words
    wanted = max(count_of(batch, index, row.tokens), plan[layout.MIN_MASKED])
    budget = min(row.tokens, min(plan[layout.MAX_MASKED], wanted))
    for chunk in range(row.chunks + ONE):
        chosen[chunk] = EMPTY
    _list_units(row, scratch.units)
    taken, attempt = ZERO, ZERO
    while taken < budget and attempt < SPARE + PER_TOKEN * budget:
        at = (attempt & SIXTY_THREE) * FOUR
        if at == ZERO:
            fill_words(pairs, attempt, ATTEMPTS // GROUP, sample, counter3, plan[layout.SEED], pairs)
        taken += _try_span(row, words[at], words[at + ONE], objective.lengths, budget - taken, chosen, scratch.units)
        attempt += ONE
    if taken < budget:
        _fill_up(row, budget - taken, chosen, scratch)
    return budget


@inline
def _list_units(row, units):
    """units[u]: the first position of unit u."""
    n = ZERO
    for chunk in range(row.chunks):
        bits, first = row.starts[chunk], np.uint64(chunk) * SIXTY_FOUR
        if bits == FULL:
            for i in range(SIXTY_FOUR):
                units[n + i] = np.uint32(first + i)
            n += SIXTY_FOUR
            continue
        while bits != EMPTY:
            units[n] = np.uint32(first + lowest_bit(bits))
            bits &= bits - ONE
            n += ONE


@inline
def _try_span(row, word0, word1, lengths, room, chosen, units):
    """One attempt; how many tokens it adds to the chosen ones, at most `room`."""
    length = min(ONE + _count_not_above(lengths, np.uint64(lengths.size), np.uint64(word0)), room)
    place = (np.uint64(word1) * (row.units + length - ONE)) >> S32  # of the span's end; its start may lie before 0
    first = place - (length - ONE) if place >= length - ONE else ZERO
    after = min(place + ONE, row.units)
    position = np.uint64(units[first])
    if (chosen[position >> SIX] >> (position & SIXTY_THREE)) & ONE:
        return ZERO
    border = np.uint64(units[after]) if after < row.units else row.chunks * SIXTY_FOUR
    end = min(border, position + run_length(row.candidates, position, border - position))
    return _take(position, end, room, chosen)


@inline
def _take(position, end, room, chosen):
    """The positions before the end that are not chosen yet are, in order, as long as there is room. Their number."""
    added = ZERO
    while position < end and added < room:
        fresh = ~window(chosen, position)
        if end - position < SIXTY_FOUR:
            fresh &= (ONE << (end - position)) - ONE
        fresh = _lowest(fresh, room - added)
        chunk, shift = position >> SIX, position & SIXTY_THREE
        chosen[chunk] |= fresh << shift
        if shift > ZERO:
            chosen[chunk + ONE] |= fresh >> (SIXTY_FOUR - shift)
        added += count_bits(fresh)
        position += SIXTY_FOUR
    return added


@inline
def _lowest(bits, n):
    """The n lowest bits of a set, or all where there are fewer."""
    surplus = count_bits(bits)
    if surplus <= n:
        return bits
    kept = EMPTY
    while n > ZERO:
        kept |= bits & (~bits + ONE)
        bits &= bits - ONE
        n -= ONE
    return kept


@inline
def _fill_up(row, missing, chosen, scratch):
    """So many more candidates are chosen, in the order of their words."""
    left = ZERO
    for chunk in range(row.chunks):
        scratch.left[chunk] = row.candidates[chunk] & ~chosen[chunk]
        scratch.none[chunk] = EMPTY
        left += count_bits(scratch.left[chunk])
    singles = Row(row.words, scratch.left, scratch.left, scratch.none, row.chunks, False, left, left)
    take_prefix(singles, find_cut(singles, missing, RANK, scratch.near), scratch.added)
    for chunk in range(row.chunks):
        chosen[chunk] |= scratch.added[chunk]
