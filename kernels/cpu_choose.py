"""The laws that take a prefix of the units of a row, in the order of their random words: Bernoulli and ExactCount."""

import numpy as np

from fastmask.kernels import layout
from fastmask.kernels.cpu_sets import EVERYTHING, FIT, ONE, RANK, REACH, S32, ZERO, find_cut, take_prefix
from fastmask.kernels.cpu_tile import inline

S8 = np.uint64(8)
ALWAYS = np.uint64(1 << 24)
LAW_OF_COUNT, BY_WORD = np.uint64(layout.EXACT_COUNT), ONE
SEQUENCE, WORDS = np.uint64(layout.SEQUENCE), np.uint64(layout.WORDS)


@inline
def cut_of(threshold):
    """The cut before the first unit whose draw is not below the threshold."""
    return EVERYTHING if threshold >= ALWAYS else threshold << S8 << S32


@inline
def count_of(batch, index, n):
    """floor(p * n + 0.5) in float64, with the p of the sample where there is one."""
    if batch.rates.size > 0:
        return np.uint64(np.floor(batch.rates[index] * np.float64(n) + 0.5))
    return np.uint64(batch.counts[n])


@inline
def _wanted(batch, plan, index, row, length, threshold, near):
    """The cut that the law alone makes."""
    if plan[layout.LAW] != LAW_OF_COUNT:
        return cut_of(threshold)
    by_words = plan[layout.COUNT_OF] == WORDS
    n = row.units if by_words else (length if plan[layout.COUNT_OF] == SEQUENCE else row.tokens)
    k = count_of(batch, index, n)
    if k == ZERO:
        return ZERO
    if row.by_word and not by_words:
        return find_cut(row, k - ONE, REACH, near)
    return find_cut(row, k, RANK, near)


@inline
def choose_prefix(batch, plan, index, row, length, threshold, chosen, near):
    """chosen: the selected tokens. Their number, and whether max_masked left out a unit that the law had chosen."""
    least, most = plan[layout.MIN_MASKED], plan[layout.MAX_MASKED]
    cut = _wanted(batch, plan, index, row, length, threshold, near)
    tokens = take_prefix(row, cut, chosen)
    clipped = tokens > most
    if tokens < least:
        tokens = take_prefix(row, find_cut(row, least - ONE, REACH, near), chosen)
    if tokens > most:
        tokens = take_prefix(row, find_cut(row, most, FIT, near), chosen)
    return tokens, clipped
