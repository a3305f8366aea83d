"""A range of rows on the CPU, one after the other: for laws that look at the whole sample.

A row is read once, into its random words and sets of bits; a law chooses among them; then the row is written tile by
tile, from the same `draws` as in `cpu_tile`: here the second number of a selected token, NEVER elsewhere.
"""

import numpy as np
from numba import njit

from fastmask.kernels import fate, layout, philox
from fastmask.kernels.bits import count_bits, keep_64, mix_64
from fastmask.kernels.cpu_choose import choose_prefix
from fastmask.kernels.cpu_compact import list_selected
from fastmask.kernels.cpu_range import content_id
from fastmask.kernels.cpu_read import read_row
from fastmask.kernels.cpu_sets import (
    ONE,
    SIXTY_FOUR,
    SIXTY_THREE,
    ZERO,
    Row,
)
from fastmask.kernels.cpu_spans import choose_spans
from fastmask.kernels.cpu_tile import (
    CLASSES,
    LANE,
    NEVER,
    TILE,
    apart,
    classify,
    copy_padding,
    copy_tile,
    fill,
    find_random,
    inline,
    signed,
    write_decisions,
    write_random,
)
from fastmask.kernels.cpu_words import GROUP, fill_words

TWO = np.uint64(2)
GROUP_TOKENS = 4 * GROUP
ALWAYS = np.int32(1 << 24)
UNTOUCHED = np.uint8(fate.UNTOUCHED)
BERNOULLI, SPAN = np.uint64(layout.BERNOULLI), np.uint64(layout.SPAN)
_nest = inline(fate.nest)


@inline
def _size_of(bits, chunks):
    size = ZERO
    for chunk in range(chunks):
        size += count_bits(bits[chunk])
    return size


@inline
def _fill_seconds(seconds, words, size):
    """The second numbers of so many words, in whole groups of 64."""
    for g in range(np.uint64(size + 63) >> np.uint64(6)):
        mix_64(seconds, words, np.uint64(g) * SIXTY_FOUR)


@inline
def _keep(draws, numbers, lane, chosen, chunk, chunks):
    """draws: the upper 24 bits of the chosen positions' numbers, NEVER elsewhere."""
    for g in range(np.uint64(chunks)):
        at = np.uint64(g) * SIXTY_FOUR
        keep_64(draws, at, numbers, at + np.uint64(lane), chosen[np.uint64(chunk) + g])


@inline
def _spread(numbers, lane, leaders, chunk, n, last):
    """Each number becomes that of the last leader at or before it. The last one of all."""
    for j in range(np.uint64(n)):
        if (leaders[np.uint64(chunk) + (j >> np.uint64(6))] >> (j & SIXTY_THREE)) & ONE:
            last = numbers[j + np.uint64(lane)]
        numbers[j + np.uint64(lane)] = last
    return last


@inline
def _mark_leaders(leaders, plan, starts, chosen, chunks):
    """leaders: the positions that decide for others, first ones of words or of runs of chosen tokens."""
    of_runs = plan[layout.REPLACE_UNIT] == SPAN
    carry = ZERO
    for chunk in range(chunks):
        runs = chosen[chunk] & ~((chosen[chunk] << ONE) | carry)
        carry = chosen[chunk] >> SIXTY_THREE
        leaders[chunk] = runs if of_runs else starts[chunk]


@inline
def _apply(out, labels, draws, ids, t_mask, t_select, mask_id, ignore_index):
    """MASK below t_mask, labels below t_select."""
    for j in range(ids.size):
        token, draw = ids[j], draws[j]
        labels[j] = token if draw < t_select else ignore_index
        out[j] = mask_id if draw < t_mask else token


@apart
def _copy_gap(samples, target, law, low, high, scratch, seen):
    """Padding between rows comes back as it was."""
    ids = samples.ids
    top = signed(ids.dtype.type(law.plan[layout.SIZE] - ONE))
    ignore_index = target.labels.dtype.type(law.plan[layout.IGNORE_INDEX])
    for tile in range(low, high, TILE):
        n = min(TILE, high - tile)
        out = scratch.written[:n] if target.in_place else target.input_ids[tile : tile + n]
        seen |= copy_padding(
            out, target.labels[tile : tile + n], scratch.draws[:n], ids[tile : tile + n], top, ignore_index
        )
        if target.decisions.size > 0:
            fill(target.decisions[tile : tile + n], UNTOUCHED)
    return seen


@inline
def _classify_own(draws, others, words, lane, chosen, chunk, chunks, threshold, plan):
    """Draws as classes: by the first number where it chose the token, by the second elsewhere."""
    own = np.int32(threshold)
    t_mask, t_random = _nest(threshold, plan[layout.MASK_SHARE]), _nest(threshold, plan[layout.RANDOM_SHARE])
    n = np.int64(chunks) * 64
    _keep(others, words, lane, chosen, chunk, chunks)
    for j in range(n):
        draws[j] = draws[j] if others[j] >= own else NEVER
    classify(draws[:n], np.int32(plan[layout.MASK_SHARE]), np.int32(plan[layout.RANDOM_SHARE]), ALWAYS)
    classify(others[:n], np.int32(t_mask), np.int32(t_random), own)
    for j in range(n):
        draws[j] = min(draws[j], others[j])


@inline
def _write_row(samples, law, target, first, end, column, slot, lane, scratch, own_threshold):
    """The cells of a row are written; the slot after the last selected token that was listed.

    own_threshold: tokens below it are decided by their first number. column: the position of the first cell in lists.
    """
    plan, ids, draws = law.plan, samples.ids, scratch.draws
    mask_id = target.input_ids.dtype.type(plan[layout.MASK_ID])
    ignore_index = target.labels.dtype.type(plan[layout.IGNORE_INDEX])
    shared = plan[layout.REPLACE_UNIT] != ZERO
    if shared:
        chunks = np.uint64(end - first + 63) >> np.uint64(6)
        _mark_leaders(scratch.left, plan, scratch.starts, scratch.chosen, chunks)
    last = np.uint32(0)
    for tile in range(first, end, TILE):
        n = min(TILE, end - tile)
        begin = tile - first
        chunk, chunks = begin >> 6, (n + 63) >> 6
        _fill_seconds(scratch.seconds, scratch.words[begin:], n + lane)
        t_mask, t_random, t_select = np.int32(plan[layout.MASK_SHARE]), np.int32(plan[layout.RANDOM_SHARE]), ALWAYS
        if shared:
            last = _spread(scratch.seconds, lane, scratch.left, chunk, n, last)
        _keep(draws, scratch.seconds, lane, scratch.chosen, chunk, chunks)
        if own_threshold > ZERO:
            _classify_own(
                draws, scratch.others, scratch.words[begin:], lane, scratch.chosen, chunk, chunks, own_threshold, plan
            )
            t_mask, t_random, t_select = CLASSES
        out = scratch.written[:n] if target.in_place else target.input_ids[tile : tile + n]
        _apply(
            out, target.labels[tile : tile + n], draws[:n], ids[tile : tile + n], t_mask, t_select, mask_id,
            ignore_index,
        )  # fmt: skip
        if t_random > t_mask:
            count = find_random(scratch.found, draws[: chunks * 64], t_mask, t_random)
            scratch.end[0], scratch.shift[0] = n, begin + lane
            write_random(out, scratch.found, count, scratch.words, scratch.end, scratch.shift, law)
        if target.in_place:
            copy_tile(target.input_ids[tile : tile + n], out)
        if target.decisions.size > 0:
            write_decisions(target.decisions[tile : tile + n], draws[:n], t_mask, t_random, t_select)
        if target.selected_ids.size > 0:
            labels = target.labels[tile : tile + n]
            slot = list_selected(target, slot, draws, labels, 0, n, column + begin, t_select)
    return slot


@inline
def _choose(samples, law, index, row, length, counter3, sample, threshold, scratch):
    """The chosen tokens of a row; their number, and the threshold below which a token's first number decides."""
    plan = law.plan
    if law.lengths.size > 0:
        span = counter3 | philox.PURPOSE_SPAN
        return choose_spans(samples, law, index, row, span, sample, scratch.chosen, scratch), ZERO
    tokens, clipped = choose_prefix(samples, plan, index, row, length, threshold, scratch.chosen, scratch.near)
    by_token = plan[layout.LAW] == BERNOULLI and not row.by_word and plan[layout.REPLACE_UNIT] == ZERO
    return tokens, threshold if by_token and not clipped else ZERO


@njit(_nrt=False)
def mask_rows(low, high, samples, law, target, scratch, lists):
    """The rows low .. high - 1 of the target are written, and the padding before each; negative iff an id is out of
    range. The last row's range takes what padding follows it.

    The selected tokens are listed in the slots lists[0] .. lists[1] - 1.
    """
    plan, firsts, ends = law.plan, samples.firsts, samples.ends
    by_word = plan[layout.BY_WORD] != ZERO
    with_words = by_word or plan[layout.REPLACE_UNIT] == ONE
    counter3 = (samples.epoch << philox.PURPOSE_BITS) | philox.PURPOSE_SELECT
    seen = signed(samples.ids.dtype.type(0))
    cell = ends[low - 1] if low > 0 else np.int64(0)
    slot = np.uint64(cell)
    for index in range(low, high):
        first, end = firsts[index], ends[index]
        if first > cell:
            seen = _copy_gap(samples, target, law, cell, first, scratch, seen)
        cell = end
        if end == first:
            continue
        length = np.uint64(end - first)
        chunks = (length + SIXTY_THREE) >> np.uint64(6)
        seen |= read_row(samples, law, first, end, scratch, with_words)
        offset = samples.offsets[index] if samples.offsets.size > 0 else ZERO
        lane = np.int64(offset & LANE)
        if samples.sample_ids.size > 0:
            sample = samples.sample_ids[index]
        else:
            sample = content_id(samples.ids[first:end], samples.weights)
        groups = (lane + np.int64(length) + GROUP_TOKENS - 1) // GROUP_TOKENS
        fill_words(scratch.pairs, offset >> TWO, groups, sample, counter3, plan[layout.SEED], samples.ids[first:end])
        threshold = np.uint64(samples.thresholds[index]) if samples.thresholds.size > 0 else plan[layout.SELECT]
        tokens = _size_of(scratch.candidates, chunks)
        row = Row(
            scratch.words[lane:], scratch.candidates, scratch.starts if by_word else scratch.candidates,
            scratch.rest if by_word else scratch.none, chunks, by_word, tokens,
            _size_of(scratch.starts, chunks) if by_word else tokens,
        )  # fmt: skip
        selected, own_threshold = _choose(samples, law, index, row, length, counter3, sample, threshold, scratch)
        if target.num_masked.size > 0:
            target.num_masked[index] = np.int64(selected)
        column = first - np.int64(index) * samples.stride
        slot = _write_row(samples, law, target, first, end, column, slot, lane, scratch, own_threshold)
    lists[0], lists[1] = ends[low - 1] if low > 0 else np.int64(0), np.int64(slot)
    after = samples.ids.size if high == firsts.size else cell
    return _copy_gap(samples, target, law, cell, after, scratch, seen)
