"""Which candidates of one sample a law selects: those of the units of a prefix, or those that spans cover."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastmask.kernels.reference_rows import adjoining
from fastmask.kernels.reference_stream import SPAN, words


class Sample(NamedTuple):
    """One sample. The arrays but the last hold one element per candidate, in order of position."""

    seed: int
    epoch: int
    id: int
    length: int  # in real tokens
    p: float  # of the counting laws
    words: np.ndarray  # uint32, the key by which candidates are ranked
    below: np.ndarray  # bool, whether the draw is below the sample's threshold
    adjoins: np.ndarray  # bool, whether the position is that of the candidate before it plus 1
    firsts: np.ndarray  # int64, the index of the first candidate of each unit of the law

    @property
    def ends(self):
        """The index behind each unit's last candidate."""
        return np.append(self.firsts, self.words.size)[1:]


def samples_of(plan, call, tokens, ranks, below, begins_word, sample_ids, lengths):
    """The Samples of a batch, one per row, each with its part of the candidates.

    Args:
        plan: Plan.
        call: Call.
        tokens: Tokens, the candidates of the batch.
        ranks: uint32 per candidate, its word.
        below: bool per candidate, whether its draw is below its sample's threshold.
        begins_word: bool per candidate; read where the law's unit is the word.
        sample_ids: (rows,) uint64.
        lengths: (rows,) int64, of real tokens.
    """
    adjoins = adjoining(tokens)
    begins = begins_word if plan.unit == "word" else np.ones(ranks.size, np.bool_)
    bounds = np.searchsorted(tokens.rows, np.arange(call.rows + 1))
    for row in range(call.rows):
        part = slice(bounds[row], bounds[row + 1])
        p = plan.p if call.rates is None else float(call.rates[row])
        arrays = (array[part] for array in (ranks, below, adjoins))
        firsts = np.flatnonzero(begins[part])
        yield Sample(plan.seed, call.epoch, int(sample_ids[row]), int(lengths[row]), p, *arrays, firsts)


def selection(plan, sample):
    """Which candidates of a sample are selected, bool per candidate."""
    return by_spans(plan, sample) if plan.law == "spans" else by_prefix(plan, sample)


def share(p, n):
    """floor(p * n + 0.5) in float64, with two roundings."""
    return math.floor(p * n + 0.5)


def by_prefix(plan, sample):
    """The candidates of the units that a law takes in the order of (word, position) of their first positions."""
    firsts, ends = sample.firsts, sample.ends
    counted = {"candidates": sample.words.size, "sequence": sample.length, "words": firsts.size}[plan.count_of]
    k = share(sample.p, counted)
    selected = np.zeros(sample.words.size, np.bool_)
    tokens = 0
    for units, unit in enumerate(np.argsort(sample.words[firsts], kind="stable")):  # equal words: by position
        begin, end = int(firsts[unit]), int(ends[unit])
        if plan.law == "exact_count":
            wanted = (units if plan.count_of == "words" else tokens) < k
        else:
            wanted = sample.below[begin]
        if plan.max_masked is not None and tokens + end - begin > plan.max_masked:
            break
        if not (wanted or tokens < plan.min_masked):
            break
        selected[begin:end] = True
        tokens += end - begin
    return selected


def by_spans(plan, sample):
    """The candidates that spans cover, as many as the budget: where the attempts run out, single ones fill it up."""
    n = sample.words.size
    budget = min(n, max(share(sample.p, n), plan.min_masked))
    if plan.max_masked is not None:
        budget = min(budget, plan.max_masked)
    selected = np.zeros(n, np.bool_)
    attempts = np.arange(32 + 8 * budget)
    w0, w1, _, _ = words(sample.seed, sample.epoch, sample.id, 4 * attempts, SPAN)
    longest = 1 + np.searchsorted(plan.length_sums, w0, side="right")
    ends, missing = sample.ends, budget
    for length, w in zip(longest.tolist(), w1.tolist(), strict=True):
        if missing == 0:
            break
        first, stop = span(sample, min(length, missing), w)
        begin, end = sample.firsts[first], ends[stop - 1]
        if not selected[begin]:
            fresh = begin + np.flatnonzero(~selected[begin:end])[:missing]
            selected[fresh] = True
            missing -= fresh.size
    left = np.flatnonzero(~selected)
    selected[left[np.argsort(sample.words[left], kind="stable")][:missing]] = True
    return selected


def span(sample, length, w):
    """(first, stop): a span covers the units first .. stop - 1, `length` of them, or fewer at a border.

    It starts at one of the sample's units or up to length - 1 before the first, as the 32-bit number w tells.
    """
    units = sample.firsts.size
    start = (w * (units + length - 1) >> 32) - (length - 1)
    first, stop = max(start, 0), min(start + length, units)
    gaps = np.flatnonzero(~sample.adjoins[sample.firsts[first + 1 : stop]])
    return first, first + 1 + int(gaps[0]) if gaps.size else stop
