"""The CUDA kernel for laws that look at whole samples: a block takes a row, in scratch that is as long as the rows."""

import numpy as np

from fastmask.kernels import layout
from fastmask.kernels.cuda_compiler import cuda, rounded_share
from fastmask.kernels.cuda_core import (
    ALWAYS,
    COUNTS,
    DECISIONS,
    HALF,
    KEPT,
    LENGTHS,
    LOW,
    MASKED,
    OFFSETS,
    ONE,
    RAISED,
    RANDOM,
    RATES,
    STARTS,
    THREE,
    THRESHOLDS,
    TWO,
    UNTOUCHED,
    ZERO,
    cell_of,
    cells_of_row,
    check_scalars,
    draw_of,
    epoch_of,
    extra_of,
    mixed_of,
    nest,
    pick,
    sample_of,
    scattered,
)
from fastmask.kernels.cuda_launch import MAX_THREADS, Kernel, device
from fastmask.kernels.cuda_order import EVERY_KEY, count_below, select_prefix, take_prefix
from fastmask.kernels.cuda_spans import cover_spans
from fastmask.kernels.cuda_units import SELECTED, classify, draw_words, find_firsts, list_units, slots_of
from fastmask.kernels.philox import PURPOSE_BITS, PURPOSE_SELECT

DRAW_BITS = np.uint64(8)  # of a word, below its draw
NO_LIMIT = np.uint64(layout.NO_LIMIT)
BERNOULLI, EXACT_COUNT, SPANS = (np.uint64(n) for n in (layout.BERNOULLI, layout.EXACT_COUNT, layout.SPANS))
BY_TOKEN, BY_WORD, BY_SPAN = (np.uint64(unit) for unit in (layout.TOKEN, layout.WORD, layout.SPAN))
OF_SEQUENCE, OF_WORDS = np.uint64(layout.SEQUENCE), np.uint64(layout.WORDS)


@device
def _mixed_at(words, slot):
    """The second number of the position in a slot."""
    lane = slot & THREE
    block = slot - lane
    w0, w1 = np.uint64(words[block]), np.uint64(words[block + ONE])
    w2, w3 = np.uint64(words[block + TWO]), np.uint64(words[block + THREE])
    return mixed_of(draw_of(np.uint64(words[slot])), extra_of(w0, w1, w2, w3, lane))


@device
def _select_spans(row, plan, longest, starts, length_sums, sum_count, p, sample, epoch, seed):
    """How many positions are selected: those that spans cover, and single ones where the attempts run out."""
    by_word = plan[layout.BY_WORD] != ZERO
    everything = list_units(row, by_word)
    cuda.syncthreads()
    candidates = everything & LOW
    budget = max(rounded_share(p, candidates), plan[layout.MIN_MASKED])
    budget = min(min(budget, candidates), plan[layout.MAX_MASKED])
    covered = cover_spans(
        row, longest, starts, length_sums, sum_count, everything >> HALF, budget, sample, epoch, seed, by_word
    )
    if covered < budget:
        left = count_below(row, EVERY_KEY, False)
        key, limit, filled, _ = take_prefix(row, ZERO, budget - covered, NO_LIMIT, ZERO, left, False)
        select_prefix(row, key, limit, False)
        covered += filled
    return covered


@device
def _select_prefix(row, plan, below, p, by_word):
    """(number, cut_short): how many positions are selected; whether a limit left out one that its draw had chosen."""
    length = row[5]
    everything = count_below(row, EVERY_KEY, by_word)
    least, units = plan[layout.MIN_MASKED], ZERO
    if plan[layout.LAW] == EXACT_COUNT:
        counted = everything & LOW
        if plan[layout.COUNT_OF] == OF_SEQUENCE:
            counted = length
        elif plan[layout.COUNT_OF] == OF_WORDS:
            counted = everything >> HALF
        wanted = rounded_share(p, counted)
        if plan[layout.COUNT_OF] == OF_WORDS:
            units = wanted
        else:
            least = max(least, wanted)
    key, limit, tokens, cut_short = take_prefix(row, below, least, plan[layout.MAX_MASKED], units, everything, by_word)
    select_prefix(row, key, limit, by_word)
    return tokens, cut_short


@device
def _write_row(
    row, ids, out, labels, decisions, flag, plan, pool, cumulative, given, first, start, row_length, select, by_draw
):
    """out, labels, decisions: the cells of a row; by_draw: selected draws below `select` tell what becomes of it."""
    words, kinds, firsts, _, origin, length = row
    by_token = plan[layout.REPLACE_UNIT] == BY_TOKEN
    mask_share, random_share = plan[layout.MASK_SHARE], plan[layout.RANDOM_SHARE]
    position = np.uint64(cuda.threadIdx.x)
    while position < row_length:
        cell = cell_of(position, first, start, row_length)
        token = np.uint64(ids[cell])
        new, label, decision = token, plan[layout.IGNORE_INDEX], UNTOUCHED
        if token >= plan[layout.SIZE]:
            flag[ZERO] = RAISED
        slot = origin + position
        if position < length and np.uint64(kinds[slot]) & SELECTED != ZERO:
            label, decision = token, KEPT
            decider = slot if by_token else origin + np.uint64(firsts[slot]) - ONE
            number, whole = _mixed_at(words, decider) >> DRAW_BITS, ALWAYS
            draw = draw_of(np.uint64(words[slot]))
            if by_draw and draw < select:
                number, whole = draw, select
            if number < nest(whole, mask_share):
                new, decision = plan[layout.MASK_ID], MASKED
            elif number < nest(whole, random_share):
                x, exclude = scattered(_mixed_at(words, slot)), plan[layout.EXCLUDE_ORIGINAL]
                new = pick(x, token, pool, cumulative, plan[layout.POOL_SIZE], plan[layout.WEIGHTED], exclude)
                decision = RANDOM
        out[cell] = np.int64(new)
        labels[cell] = np.int64(label)
        if given & DECISIONS:
            decisions[cell] = decision
        position += np.uint64(cuda.blockDim.x)


def mask_samples(
    ids, out, labels, decisions, num_masked, flag, sample_ids, epoch_at, starts, lengths, boundaries,
    special_tokens_mask, offsets, thresholds, rates, word_ids, plan, runs, pool, cumulative, length_sums,
    is_continuation, words, kinds, firsts, given, rows, row_length, first_sample, epoch, p, run_count,
    sum_count, word_step,
):  # fmt: skip
    """Every cell of out, labels and decisions is written, and num_masked; an id out of range raises the flag.

    words, kinds, firsts: scratch, a slot per cell and eight more per row. plan: the integers of a plan, as in
    `layout`. word_ids: of 32 bits, or each of two such.
    """
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    longest = cuda.shared.array(MAX_THREADS, np.uint32)
    span_starts = cuda.shared.array(MAX_THREADS, np.uint32)  # on a line of its own: the simulator tells arrays by lines
    row, seed, law = np.uint64(cuda.blockIdx.x), plan[layout.SEED], plan[layout.LAW]
    by_word, replace_unit = plan[layout.BY_WORD] != ZERO, plan[layout.REPLACE_UNIT]
    epoch = epoch_of(epoch_at, given, epoch)
    counter3 = (epoch << PURPOSE_BITS) | PURPOSE_SELECT
    check_scalars(epoch_at, sample_ids, given, flag)
    while row < rows:
        first, span = cells_of_row(boundaries, given, row, row_length)
        start = np.uint64(starts[row]) if given & STARTS else ZERO
        length = np.uint64(lengths[row]) if given & LENGTHS else span
        offset = np.uint64(offsets[row]) if given & OFFSETS else ZERO
        select = np.uint64(thresholds[row]) if given & THRESHOLDS else plan[layout.SELECT]
        rate = rates[row] if given & RATES else p
        sample = sample_of(sample_ids, given, row, first_sample)
        base = slots_of(first, row)
        origin = base + (offset & THREE)
        draw_words(words, base, length, offset, sample, counter3, seed)
        classify(
            ids, special_tokens_mask, word_ids, is_continuation, runs, run_count, kinds, given, plan[layout.SIZE],
            word_step, first, start, span, length, origin,
        )  # fmt: skip
        cuda.syncthreads()
        part = words, kinds, firsts, cells, origin, length
        if law == SPANS:
            number = _select_spans(
                part, plan, longest, span_starts, length_sums, sum_count, rate, sample, epoch, seed
            )  # fmt: skip
            cut_short = False
        else:
            if by_word or replace_unit == BY_WORD:
                find_firsts(part, False)
                cuda.syncthreads()
            below = select << DRAW_BITS if law == BERNOULLI else ZERO
            number, cut_short = _select_prefix(part, plan, below, rate, by_word)
        cuda.syncthreads()
        if replace_unit == BY_SPAN or (replace_unit == BY_WORD and law == SPANS):
            find_firsts(part, replace_unit == BY_SPAN)
            cuda.syncthreads()
        by_draw = law == BERNOULLI and not by_word and replace_unit == BY_TOKEN and not cut_short
        _write_row(
            part, ids, out, labels, decisions, flag, plan, pool, cumulative, given, first, start, span, select, by_draw
        )
        if given & COUNTS and np.uint64(cuda.threadIdx.x) == ZERO:
            num_masked[row] = np.int64(number)
        row += np.uint64(cuda.gridDim.x)


MASK_SAMPLES = Kernel(
    mask_samples,
    (
        None, None, None, "u1", "i8", "u4", "u8", "i8", "i8", "i8", "i8", "u1", "u8", "u4", "f8", "u4", "u8", "u4",
        "u4", "u8", "u8", "u1", "u4", "u1", "u4",
    ),
    ("u8", "u8", "u8", "u8", "u8", "f8", "u8", "u8", "u8"),
    [("<u2", "<i4", "<i4"), ("<i8", "<i8", "<i8")],
)  # fmt: skip
KERNELS = (MASK_SAMPLES,)
