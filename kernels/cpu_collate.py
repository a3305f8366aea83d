"""Samples that lie side by side, and the same in padded rows, on the CPU.

A batch is collated chunk by chunk: so many rows are laid out in memory that stays in the L2 cache, and masked from
there into the outputs, each of which is written once. Samples are read where they lie, once, and as int64.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fastmask.kernels import layout, philox
from fastmask.kernels.cpu_layout import lay_out, lay_out_ids, mark_real
from fastmask.kernels.cpu_range import Batch, Objective, Target, make_scratch, mask_range
from fastmask.kernels.cpu_rows import mask_rows
from fastmask.kernels.cpu_samples import Law, Samples, make_row_scratch
from fastmask.kernels.cpu_tile import fill

CHUNK = 4096  # cells of a chunk; more where one row has more
NO_WORD = np.int64(-1)


class Rows(NamedTuple):
    """The padded rows of a chunk; arrays that are not there are empty."""

    ids: Any
    marks: Any
    word_ids: Any
    firsts: Any  # the cells between which the real tokens of each row lie
    ends: Any


@njit
def make_rows(step, width, special_tokens_mask, word_ids):
    """Memory for so many rows."""
    cells = step * width
    return Rows(
        np.empty(cells, np.int64),
        np.empty(cells if special_tokens_mask.size > 0 else 0, np.uint8),
        np.empty(cells if word_ids.size > 0 else 0, np.int64),
        np.empty(step, np.int64),
        np.empty(step, np.int64),
    )


@njit
def fill_rows(rows, low, high, width, left, pad_id, addresses, itemsize, boundaries, special_tokens_mask, word_ids):
    """The samples low .. high - 1 in a chunk; that part of its memory which holds them."""
    lay_out_ids(addresses, itemsize, boundaries, low, high, width, left, pad_id, rows.ids)
    if rows.marks.size > 0:
        lay_out(special_tokens_mask, boundaries, low, high, width, left, np.uint8(1), rows.marks)
    if rows.word_ids.size > 0:
        lay_out(word_ids, boundaries, low, high, width, left, NO_WORD, rows.word_ids)
    for r in range(low, high):
        length = boundaries[r + 1] - boundaries[r]
        rows.firsts[r - low] = (r - low) * width + (width - length if left else np.int64(0))
        rows.ends[r - low] = rows.firsts[r - low] + length
    count, cells = high - low, (high - low) * width
    return Rows(rows.ids[:cells], rows.marks[:cells], rows.word_ids[:cells], rows.firsts[:count], rows.ends[:count])


@njit
def part_of(target, low, high, width, slot):
    """The rows low .. high - 1 of the arrays that are written, and the lists from a slot on."""
    cells = slice(low * width, high * width)
    return Target(
        target.input_ids[cells], target.labels[cells], target.decisions[cells], target.num_masked[low:high],
        target.selected_positions[slot:], target.selected_ids[slot:], False,
    )  # fmt: skip


def collate_batch_kernel(
    width, left, addresses, itemsize, boundaries, epoch, sample_ids, special_tokens_mask, offsets, thresholds, weights,
    plan, runs, pool, cumulative,
    attention_mask, input_ids, labels, decisions, num_masked, selected_positions, selected_ids,
):  # fmt: skip
    """The samples are masked and laid out in padded rows; False iff an id is out of range."""
    count = boundaries.size - 1
    step = min(max(CHUNK // width, 1), count)
    pad_id = np.int64(plan[layout.PAD_ID])
    counter3 = (epoch << philox.PURPOSE_BITS) | philox.PURPOSE_SELECT
    objective = Objective(plan, runs, pool, cumulative)
    target = Target(input_ids, labels, decisions, num_masked, selected_positions, selected_ids, False)
    no_words = np.empty(0, np.int64)
    memory = make_rows(step, width, special_tokens_mask, no_words)
    scratch = make_scratch(target, step)
    begun, lists = np.zeros((2, 2), np.int64)
    fill(num_masked, np.int64(0))
    in_range, slot = True, np.int64(0)
    for low in range(0, count, step):
        high = min(low + step, count)
        rows = fill_rows(
            memory, low, high, width, left, pad_id, addresses, itemsize, boundaries, special_tokens_mask, no_words
        )
        mark_real(boundaries, low, high, width, left, attention_mask[low * width : high * width])
        batch = Batch(
            rows.ids, rows.firsts, rows.ends, sample_ids[low:high], rows.marks, offsets[low:high], thresholds[low:high],
            weights, counter3, width,
        )  # fmt: skip
        part = part_of(target, low, high, width, slot)
        in_range &= mask_range(np.int64(0), rows.ids.size, batch, objective, part, scratch, begun, lists) >= 0
        slot += lists[1]
    return in_range


def collate_rows_kernel(
    width, left, addresses, itemsize, boundaries, epoch, sample_ids, special_tokens_mask, offsets, thresholds, weights,
    rates, word_ids, counts, plan, runs, pool, cumulative, length_sums, is_continuation,
    attention_mask, input_ids, labels, decisions, num_masked, selected_positions, selected_ids,
):  # fmt: skip
    """The samples are masked by a law that looks at whole rows, and laid out; False iff an id is out of range."""
    count = boundaries.size - 1
    step = min(max(CHUNK // width, 1), count)
    pad_id = np.int64(plan[layout.PAD_ID])
    law = Law(plan, runs, pool, cumulative, length_sums, is_continuation)
    target = Target(input_ids, labels, decisions, num_masked, selected_positions, selected_ids, False)
    memory = make_rows(step, width, special_tokens_mask, word_ids)
    scratch = make_row_scratch(width, input_ids, False, length_sums.size > 0)
    lists = np.zeros(2, np.int64)
    fill(num_masked, np.int64(0))
    in_range, slot = True, np.int64(0)
    for low in range(0, count, step):
        high = min(low + step, count)
        rows = fill_rows(
            memory, low, high, width, left, pad_id, addresses, itemsize, boundaries, special_tokens_mask, word_ids
        )
        mark_real(boundaries, low, high, width, left, attention_mask[low * width : high * width])
        samples = Samples(
            rows.ids, rows.firsts, rows.ends, sample_ids[low:high], rows.marks, offsets[low:high], thresholds[low:high],
            rates[low:high], weights, rows.word_ids, epoch, counts, width,
        )  # fmt: skip
        part = part_of(target, low, high, width, slot)
        in_range &= mask_rows(0, high - low, samples, law, part, scratch, lists) >= 0
        slot += lists[1]
    return in_range
