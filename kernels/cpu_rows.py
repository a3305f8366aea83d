"""A range of rows on the CPU, one after the other: for laws that look at the whole sample.

A row is read once, into its random words and sets of bits; a law chooses among them; then the row is written tile by
tile, from the same `draws` as in `cpu_tile`: here the second number of a selected token, NEVER elsewhere.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fastmask.kernels import fate, layout, philox
from fastmask.kernels.bits import count_bits, in_range_64, keep_64
from fastmask.kernels.cpu_choose import choose_prefix
from fastmask.kernels.cpu_range import content_id, line_aligned
from fastmask.kernels.cpu_sets import (
    EMPTY,
    LOW,
    NEAR,
    ONE,
    S32,
    SIXTY_FOUR,
    SIXTY_THREE,
    ZERO,
    Row,
)  # fmt: skip
from fastmask.kernels.cpu_spans import ATTEMPTS, choose_spans
from fastmask.kernels.cpu_tile import (
    CLASSES,
    GROUP,
    LANE,
    NEVER,
    TILE,
    apart,
    classify,
    copy_padding,
    copy_tile,
    escapes,
    fill,
    fill_words,
    find_random,
    inline,
    signed,
    write_decisions,
    write_random,
)  # fmt: skip

TWO = np.uint64(2)
GROUP_TOKENS = 4 * GROUP
UNMARKED, MARKED = np.uint32(0), np.uint32(1)
ALWAYS = np.int32(1 << 24)
UNTOUCHED = np.uint8(fate.UNTOUCHED)
BERNOULLI, SPAN = np.uint64(layout.BERNOULLI), np.uint64(layout.SPAN)
_draw_of = inline(fate.draw_of)
_extra_of = inline(fate.extra_of)
_mixed_of = inline(fate.mixed_of)
_nest = inline(fate.nest)


class Samples(NamedTuple):
    """The cells and samples of a batch; arrays that are not there are empty."""

    ids: Any
    firsts: Any  # the flat cells between which the real tokens of each row lie
    ends: Any
    sample_ids: Any
    special_tokens_mask: Any
    offsets: Any
    thresholds: Any
    rates: Any
    weights: Any  # content weights
    word_ids: Any
    epoch: Any
    counts: Any  # k for n = 0, 1, ...


class Law(NamedTuple):
    """The integers of a plan, for compiled code."""

    plan: Any
    runs: Any
    pool: Any
    cumulative: Any
    lengths: Any
    is_continuation: Any


class RowScratch(NamedTuple):
    """The working memory of one thread; sets have a word more than a row has chunks, which is empty."""

    pairs: Any  # the words of a row as uint64: two words each
    words: Any  # the same memory as uint32
    candidates: Any
    starts: Any  # of words
    rest: Any
    none: Any  # the empty set
    chosen: Any
    left: Any
    added: Any
    units: Any
    near: Any
    attempts: Any
    attempt_words: Any
    marks: Any
    seconds: Any  # the second numbers of a tile, as `pairs`
    second_words: Any
    draws: Any
    others: Any
    found: Any
    written: Any  # a tile of ids, where the target is the input itself
    end: Any  # one cell: where the piece of a tile ends
    shift: Any


@njit
def make_row_scratch(longest, ids, in_place, spans):
    """Memory for one row of so many tokens."""
    chunks = longest // 64 + 2
    cells = (chunks + 1) * 64
    pairs, attempts = line_aligned(cells // 2), line_aligned(2 * ATTEMPTS)
    seconds = line_aligned(TILE // 2 + 64)
    sets = np.zeros((7, chunks), np.uint64)
    places = np.zeros((2, 1), np.int64)
    tile, other_tile = line_aligned(TILE // 2), line_aligned(TILE // 2)
    units, written = np.empty(cells if spans else 0, np.uint32), np.empty(TILE if in_place else 0, ids.dtype)
    return RowScratch(
        pairs, pairs.view(np.uint32), sets[0], sets[1], sets[2], sets[3], sets[4], sets[5], sets[6], units,
        np.empty(NEAR, np.uint64), attempts, attempts.view(np.uint32), line_aligned(TILE // 2).view(np.uint32),
        seconds, seconds.view(np.uint32), tile.view(np.int32), other_tile.view(np.int32), np.empty(TILE, np.uint32),
        written, places[0], places[1],
    )  # fmt: skip


@inline
def _mark_special(marks, ids, runs, top, seen):
    """Marks become 1 where an id is special; negative iff `seen` is or an id lies outside [0, top]."""
    first0, length0, first1, length1 = runs[0, 0], runs[0, 1], runs[1, 0], runs[1, 1]
    for j in range(ids.size):
        token = ids[j]
        low = np.uint32(token)
        ordinary = (np.uint32(low - first0) >= length0) & (np.uint32(low - first1) >= length1)
        seen = escapes(seen, signed(token), top)
        marks[j] = UNMARKED if ordinary else MARKED
    for run in range(2, runs.shape[0]):
        first, length = runs[run, 0], runs[run, 1]
        for j in range(ids.size):
            marks[j] = MARKED if np.uint32(np.uint32(ids[j]) - first) < length else marks[j]
    return seen


@inline
def _add_marks(marks, given):
    """Marks become 1 where the caller's are not 0."""
    for j in range(given.size):
        marks[j] = marks[j] if given[j] == np.uint8(0) else MARKED


@inline
def _collect(marks, n, into, chunk):
    """The positions without a mark, from a chunk on."""
    whole = (n + 63) & ~63
    fill(marks[n:whole], MARKED)
    for g in range(np.uint64(whole) >> np.uint64(6)):
        into[np.uint64(chunk) + g] = in_range_64(marks, np.uint64(g) * SIXTY_FOUR, UNMARKED, MARKED)


@inline
def _mark_breaks(marks, word_ids, first, n):
    """Marks are 1 where a cell's word is not that of the cell before it. first: the flat cell of marks[0], above 0."""
    here, before = word_ids[first : first + n], word_ids[first - 1 : first - 1 + n]
    for j in range(n):
        marks[j] = UNMARKED if here[j] == before[j] else MARKED


@inline
def _mark_beginnings(marks, ids, is_continuation, size):
    """Marks are 1 where an id does not continue a word."""
    for j in range(ids.size):
        token = np.uint64(ids[j])
        marks[j] = MARKED - np.uint32(is_continuation[token]) if token < size else MARKED


@apart
def _read_row(samples, law, first, end, scratch, with_words):
    """The candidates of a row, and its words' starts and rest; negative iff an id is out of range."""
    ids, marks = samples.ids, scratch.marks
    top = signed(ids.dtype.type(law.plan[layout.SIZE] - ONE))
    seen = signed(ids.dtype.type(0))
    for tile in range(first, end, TILE):
        n = min(TILE, end - tile)
        chunk = (tile - first) >> 6
        tokens = ids[tile : tile + n]
        seen = _mark_special(marks, tokens, law.runs, top, seen)
        if samples.special_tokens_mask.size > 0:
            _add_marks(marks, samples.special_tokens_mask[tile : tile + n])
        _collect(marks, n, scratch.candidates, chunk)
        if with_words:
            if samples.word_ids.size > 0:
                skip = 1 if tile == 0 else 0  # the first cell of all has none before it
                _mark_breaks(marks[skip:], samples.word_ids, tile + skip, n - skip)
                if skip:
                    marks[0] = MARKED
            else:
                _mark_beginnings(marks, tokens, law.is_continuation, law.plan[layout.SIZE])
            _collect(marks, n, scratch.rest, chunk)
    chunks = np.uint64(end - first + 63) >> np.uint64(6)
    scratch.candidates[chunks] = EMPTY
    if with_words:
        _split_words(scratch.candidates, scratch.starts, scratch.rest, chunks)
    return seen


@inline
def _split_words(candidates, starts, rest, chunks):
    """rest, at first what continues the cell before it: candidates that continue one; starts: the others."""
    carry = ZERO
    for chunk in range(chunks):
        all_of_them = candidates[chunk]
        further = all_of_them & rest[chunk] & ((all_of_them << ONE) | carry)
        carry = all_of_them >> SIXTY_THREE
        rest[chunk] = further
        starts[chunk] = all_of_them & ~further
    rest[chunks] = EMPTY
    starts[chunks] = EMPTY


@inline
def _size_of(bits, chunks):
    size = ZERO
    for chunk in range(chunks):
        size += count_bits(bits[chunk])
    return size


@inline
def _fill_seconds(seconds, pairs):
    """The second numbers of whole blocks, as their words are given: two to a uint64."""
    for b in range(np.uint64(pairs.size) >> ONE):
        low, high = pairs[TWO * b], pairs[TWO * b + ONE]
        w0, w1, w2, w3 = low & LOW, low >> S32, high & LOW, high >> S32
        m0 = _mixed_of(_draw_of(w0), _extra_of(w0, w1, w2, w3, ZERO))
        m1 = _mixed_of(_draw_of(w1), _extra_of(w0, w1, w2, w3, ONE))
        m2 = _mixed_of(_draw_of(w2), _extra_of(w0, w1, w2, w3, TWO))
        m3 = _mixed_of(_draw_of(w3), _extra_of(w0, w1, w2, w3, LANE))
        seconds[TWO * b] = m0 | (m1 << S32)
        seconds[TWO * b + ONE] = m2 | (m3 << S32)


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
def _classify_own(draws, others, words, lane, seconds_lane, scratch, chunk, chunks, threshold, plan):
    """Draws as classes: by the first number where it chose the token, by the second elsewhere."""
    own = np.int32(threshold)
    t_mask, t_random = _nest(threshold, plan[layout.MASK_SHARE]), _nest(threshold, plan[layout.RANDOM_SHARE])
    n = np.int64(chunks) * 64
    _keep(others, words, lane, scratch.chosen, chunk, chunks)
    for j in range(n):
        draws[j] = draws[j] if others[j] >= own else NEVER
    classify(draws[:n], np.int32(plan[layout.MASK_SHARE]), np.int32(plan[layout.RANDOM_SHARE]), ALWAYS)
    classify(others[:n], np.int32(t_mask), np.int32(t_random), own)
    for j in range(n):
        draws[j] = min(draws[j], others[j])


@apart
def _write_row(samples, law, target, first, end, lane, scratch, own_threshold):
    """The cells of a row are written. own_threshold: tokens below it are decided by their first number."""
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
        blocks = (n + lane + 3) >> 2
        _fill_seconds(scratch.seconds, scratch.pairs[begin >> 1 : (begin >> 1) + 2 * blocks])
        t_mask, t_random, t_select = np.int32(plan[layout.MASK_SHARE]), np.int32(plan[layout.RANDOM_SHARE]), ALWAYS
        if shared:
            last = _spread(scratch.second_words, lane, scratch.left, chunk, n, last)
        _keep(draws, scratch.second_words, lane, scratch.chosen, chunk, chunks)
        if own_threshold > ZERO:
            _classify_own(
                draws, scratch.others, scratch.words[begin:], lane, lane, scratch, chunk, chunks, own_threshold, plan
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
def mask_rows(low, high, samples, law, target, scratch):
    """The rows low .. high - 1 of the target are written, and the padding before each; negative iff an id is out of
    range. The last row's range takes what padding follows it.
    """
    plan, firsts, ends = law.plan, samples.firsts, samples.ends
    by_word = plan[layout.BY_WORD] != ZERO
    with_words = by_word or plan[layout.REPLACE_UNIT] == ONE
    counter3 = (samples.epoch << philox.PURPOSE_BITS) | philox.PURPOSE_SELECT
    seen = signed(samples.ids.dtype.type(0))
    cell = ends[low - 1] if low > 0 else np.int64(0)
    for index in range(low, high):
        first, end = firsts[index], ends[index]
        seen = _copy_gap(samples, target, law, cell, first, scratch, seen)
        cell = end
        if end == first:
            continue
        length = np.uint64(end - first)
        chunks = (length + SIXTY_THREE) >> np.uint64(6)
        seen |= _read_row(samples, law, first, end, scratch, with_words)
        offset = samples.offsets[index] if samples.offsets.size > 0 else ZERO
        lane = np.int64(offset & LANE)
        if samples.sample_ids.size > 0:
            sample = samples.sample_ids[index]
        else:
            sample = content_id(samples.ids[first:end], samples.weights)
        groups = (lane + np.int64(length) + GROUP_TOKENS - 1) // GROUP_TOKENS
        fill_words(scratch.pairs, offset >> TWO, groups, sample, counter3, plan[layout.SEED])
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
        _write_row(samples, law, target, first, end, lane, scratch, own_threshold)
    after = samples.ids.size if high == firsts.size else cell
    return _copy_gap(samples, target, law, cell, after, scratch, seen)
