"""The kernels that mask a batch on the CPU, in ranges of tiles or of rows."""

import numpy as np
from numba import prange

from fastmask.kernels import layout, philox
from fastmask.kernels.cpu_range import (
    Batch,
    Objective,
    Target,
    first_row_ending_after,
    locate,
    make_scratch,
    mask_range,
)
from fastmask.kernels.cpu_rows import mask_rows
from fastmask.kernels.cpu_samples import Law, Samples, make_row_scratch
from fastmask.kernels.cpu_tile import TILE, fill

INT64_PER_LINE = 8  # what threads write lies a cache line apart


def mask_batch_kernel(
    ranges, ids, rows, row_length, boundaries, starts, lengths, epoch, sample_ids, special_tokens_mask, offsets,
    thresholds, weights, plan, runs, pool, cumulative, input_ids, labels, decisions, num_masked, in_place,
):  # fmt: skip
    """The batch is masked, in so many ranges of tiles; False iff an id is out of range."""
    firsts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    locate(ids, row_length, plan[layout.PAD_ID], boundaries, starts, lengths, firsts, ends)
    counter3 = (epoch << philox.PURPOSE_BITS) | philox.PURPOSE_SELECT
    batch = Batch(ids, firsts, ends, sample_ids, special_tokens_mask, offsets, thresholds, weights, counter3)
    objective = Objective(plan, runs, pool, cumulative)
    target = Target(input_ids, labels, decisions, num_masked, in_place)
    fill(num_masked, np.int64(0))
    begun = np.zeros((ranges, INT64_PER_LINE), np.int64)
    seen = np.zeros((ranges, INT64_PER_LINE), np.int64)
    step = (ids.size // TILE // ranges + 1) * TILE
    for k in prange(ranges):
        low, high = min(k * step, ids.size), min((k + 1) * step, ids.size)
        seen[k, 0] = mask_range(low, high, batch, objective, target, make_scratch(target, rows), begun[k])
    in_range = True
    for k in range(ranges):
        in_range &= seen[k, 0] >= 0
        if begun[k, 0] > 0:
            num_masked[first_row_ending_after(ends, k * step)] += begun[k, 0]
    return in_range


def mask_rows_kernel(
    ranges, ids, rows, row_length, boundaries, starts, lengths, epoch, sample_ids, special_tokens_mask, offsets,
    thresholds, weights, rates, word_ids, counts, plan, runs, pool, cumulative, length_sums, is_continuation,
    input_ids, labels, decisions, num_masked, in_place,
):  # fmt: skip
    """The batch is masked by a law that looks at whole rows, in so many ranges of them; False iff an id is bad."""
    firsts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    locate(ids, row_length, plan[layout.PAD_ID], boundaries, starts, lengths, firsts, ends)
    samples = Samples(
        ids, firsts, ends, sample_ids, special_tokens_mask, offsets, thresholds, rates, weights, word_ids, epoch, counts
    )
    law = Law(plan, runs, pool, cumulative, length_sums, is_continuation)
    target = Target(input_ids, labels, decisions, num_masked, in_place)
    fill(num_masked, np.int64(0))
    seen = np.zeros((ranges, INT64_PER_LINE), np.int64)
    step = ids.size // ranges + 1
    for k in prange(ranges):
        low = first_row_ending_after(ends, k * step) if k > 0 else 0
        high = first_row_ending_after(ends, (k + 1) * step) if k + 1 < ranges else rows
        scratch = make_row_scratch(row_length, input_ids, in_place, length_sums.size > 0)
        seen[k, 0] = mask_rows(low, high, samples, law, target, scratch)
    in_range = True
    for k in range(ranges):
        in_range &= seen[k, 0] >= 0
    return in_range
