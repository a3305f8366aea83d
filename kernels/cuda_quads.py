"""The CUDA kernel for token-level laws on aligned batches: a thread takes a block of the random stream, and the four
tokens that it decides on, in accesses of 16 bytes.
"""

import numpy as np

from fastmask.kernels.cuda_compiler import add, cuda, load_quad, store_quad
from fastmask.kernels.cuda_core import (
    COUNTS,
    DECISIONS,
    EXCLUDED,
    FOUR,
    HALF,
    LENGTHS,
    LOW,
    MASKED,
    ONE,
    RAISED,
    RANDOM,
    THREE,
    THRESHOLDS,
    TWO,
    UNTOUCHED,
    WRITTEN,
    ZERO,
    check_scalars,
    decision_of,
    draw_of,
    epoch_of,
    extra_of,
    is_special,
    mixed_of,
    nest,
    philox_block,
    pick,
    sample_of,
    scattered,
)
from fastmask.kernels.cuda_launch import Kernel, device
from fastmask.kernels.philox import PURPOSE_BITS, PURPOSE_SELECT


@device
def _quotient(n, reciprocal):
    """N // d for n < 2^32 and 1 < d < 2^32; reciprocal: 2^64 / d, rounded up."""
    return (n * (reciprocal >> HALF) + ((n * (reciprocal & LOW)) >> HALF)) >> HALF


@device
def _decision(token, word, cell, open_to_all, special_tokens_mask, given, runs, run_count, size, cuts):
    """What becomes of a token; `open_to_all`: whether it is real."""
    draw = draw_of(word)
    t_select, t_mask, t_random = cuts
    candidate = open_to_all and draw < t_select and token < size and not is_special(token, runs, run_count)
    if candidate and given & EXCLUDED:
        candidate = special_tokens_mask[cell] == UNTOUCHED
    return decision_of(draw, t_mask, t_random) if candidate else UNTOUCHED


@device
def _written(token, decision, words, lane, pool, cumulative, rules):
    """(new, label) of a token."""
    mask_id, ignore_index, pool_size, weighted, exclude_original = rules
    new = mask_id if decision == MASKED else token
    if decision == RANDOM:
        w0, w1, w2, w3 = words
        word = w0 if lane == ZERO else w1 if lane == ONE else w2 if lane == TWO else w3
        x = scattered(mixed_of(draw_of(word), extra_of(w0, w1, w2, w3, lane)))
        new = pick(x, token, pool, cumulative, pool_size, weighted, exclude_original)
    return new, ignore_index if decision == UNTOUCHED else token


@device
def _selected(decision):
    """1 for a token that is selected, 0 for any other."""
    return ZERO if decision == UNTOUCHED else ONE


def mask_quads(
    ids, out, labels, decisions, num_masked, flag, sample_ids, epoch_at, lengths, special_tokens_mask, thresholds,
    runs, pool, cumulative, given, quads, quads_per_row, reciprocal, first_sample, epoch, seed, size, mask_id,
    ignore_index, select, mask_share, random_share, run_count, pool_size, weighted, exclude_original,
):  # fmt: skip
    """Every cell of out, labels and decisions is written; an id out of range raises the flag.

    ids, out and labels begin where 16 bytes do, and rows are whole quads, from 2 on and less than 2^32 in all.
    reciprocal: 2^64 / quads_per_row, rounded up.
    """
    quad, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    counter3 = (epoch_of(epoch_at, given, epoch) << PURPOSE_BITS) | PURPOSE_SELECT
    check_scalars(epoch_at, sample_ids, given, flag)
    rules = mask_id, ignore_index, pool_size, weighted, exclude_original
    while quad < quads:
        row, cell = _quotient(quad, reciprocal), quad * FOUR
        block = quad - row * quads_per_row
        length = np.uint64(lengths[row]) if given & LENGTHS else quads_per_row * FOUR
        sample = sample_of(sample_ids, given, row, first_sample)
        t_select = np.uint64(thresholds[row]) if given & THRESHOLDS else select
        cuts = t_select, nest(t_select, mask_share), nest(t_select, random_share)

        t0, t1, t2, t3 = load_quad(ids, cell)
        if t0 >= size or t1 >= size or t2 >= size or t3 >= size:
            flag[ZERO] = RAISED
        w0, w1, w2, w3 = philox_block(block, sample, sample >> HALF, counter3, seed, seed >> HALF)
        words = w0 & LOW, w1 & LOW, w2 & LOW, w3 & LOW
        real = length - min(length, block * FOUR)  # of the tokens from this quad on
        d0 = _decision(t0, w0, cell, real > ZERO, special_tokens_mask, given, runs, run_count, size, cuts)
        d1 = _decision(t1, w1, cell + ONE, real > ONE, special_tokens_mask, given, runs, run_count, size, cuts)
        d2 = _decision(t2, w2, cell + TWO, real > TWO, special_tokens_mask, given, runs, run_count, size, cuts)
        d3 = _decision(t3, w3, cell + THREE, real > THREE, special_tokens_mask, given, runs, run_count, size, cuts)
        n0, l0 = _written(t0, d0, words, ZERO, pool, cumulative, rules)
        n1, l1 = _written(t1, d1, words, ONE, pool, cumulative, rules)
        n2, l2 = _written(t2, d2, words, TWO, pool, cumulative, rules)
        n3, l3 = _written(t3, d3, words, THREE, pool, cumulative, rules)
        store_quad(out, cell, n0, n1, n2, n3)
        store_quad(labels, cell, l0, l1, l2, l3)
        if given & DECISIONS:
            decisions[cell], decisions[cell + ONE] = d0, d1
            decisions[cell + TWO], decisions[cell + THREE] = d2, d3
        if given & COUNTS:
            count = _selected(d0) + _selected(d1) + _selected(d2) + _selected(d3)
            if count > ZERO:
                add(num_masked, row, np.int64(count))
        quad += stride


MASK_QUADS = Kernel(
    mask_quads,
    (None, None, None, "u1", "i8", "u4", "u8", "i8", "i8", "u1", "u4", "u4", "u4", "u8"),
    ("u8",) * 17,
    [(ids, ids, labels) for ids in WRITTEN for labels in WRITTEN],
)
KERNELS = (MASK_QUADS,)
