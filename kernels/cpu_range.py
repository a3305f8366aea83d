"""A range of flat cells on the CPU, tile by tile: which samples meet the tile, their words, their fates."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fastmask.kernels import fate, layout
from fastmask.kernels.cpu_compact import list_selected
from fastmask.kernels.cpu_tile import (
    CLASSES,
    LANE,
    NEVER,
    RUNS_IN_ONE_PASS,
    TILE,
    classify,
    copy_padding,
    copy_tile,
    count_below,
    fill,
    find_random,
    inline,
    mark_run,
    mask_piece,
    restore,
    signed,
    write_decisions,
    write_random,
)
from fastmask.kernels.cpu_words import GROUP, fill_words

ONE, TWO = np.uint64(1), np.uint64(2)
NO_PAD = np.uint64(layout.NO_PAD)
GROUP_TOKENS = 4 * GROUP
_mix = inline(fate.mix)
_spread = inline(fate.spread)
_nest = inline(fate.nest)


@inline
def content_weight(position):
    """The factor of the token at a position in the content id."""
    return _mix(_spread(position))


@njit
def content_id(tokens, weights):
    """The content id of a sample; weights holds the first content weights, further ones are computed."""
    total = np.uint64(0)
    known = min(tokens.size, weights.size)
    for j in range(known):
        total += (np.uint64(tokens[j]) + ONE) * weights[j]
    for j in range(known, tokens.size):
        total += (np.uint64(tokens[j]) + ONE) * content_weight(np.uint64(j))
    return _mix(total)


@njit
def locate(ids, row_length, pad_id, boundaries, starts, lengths, firsts, ends):
    """firsts[r], ends[r]: the flat cells between which the real tokens of row r lie."""
    if boundaries.size > 0:
        for r in range(firsts.size):
            firsts[r], ends[r] = boundaries[r], boundaries[r + 1]
        return
    for r in range(firsts.size):
        first = np.int64(r) * row_length
        end = first + row_length
        if lengths.size > 0:
            first += starts[r] if starts.size > 0 else np.int64(0)
            end = first + lengths[r]
        elif pad_id != NO_PAD:
            while end > first and np.uint64(ids[end - 1]) == pad_id:
                end -= 1
            while first < end and np.uint64(ids[first]) == pad_id:
                first += 1
        firsts[r] = first
        ends[r] = end


@njit
def first_row_ending_after(ends, cell):
    """The first row whose real tokens end after the flat cell (ends ascend)."""
    low, high = 0, ends.size
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > cell:
            high = middle
        else:
            low = middle + 1
    return low


class Batch(NamedTuple):
    """The cells and samples of a batch; arrays that are not there are empty."""

    ids: Any
    firsts: Any  # the flat cells between which the real tokens of each row lie
    ends: Any
    sample_ids: Any
    special_tokens_mask: Any
    offsets: Any
    thresholds: Any
    weights: Any  # content weights
    counter3: Any
    stride: Any  # cells from one row to the next; 0 in a packed batch, where positions are cells


class Objective(NamedTuple):
    """The integers of a plan, for compiled code."""

    plan: Any
    runs: Any
    pool: Any
    cumulative: Any


class Target(NamedTuple):
    """The arrays that are written; those not asked for are empty."""

    input_ids: Any
    labels: Any
    decisions: Any
    num_masked: Any
    selected_positions: Any
    selected_ids: Any
    in_place: Any


class Scratch(NamedTuple):
    """The working memory of one thread."""

    pairs: Any  # words as uint64: two words each
    words: Any  # the same memory as uint32
    draws: Any
    found: Any
    marks: Any
    written: Any  # a tile of ids, where the target is the input itself
    piece_ends: Any
    piece_shifts: Any
    piece_rows: Any


@njit
def line_aligned(size):
    """`size` uint64 that start on a cache line."""
    raw = np.empty(size + 8, np.uint64)
    skip = ((64 - (raw.ctypes.data & 63)) & 63) // 8
    return raw[skip : skip + size]


@njit
def make_scratch(target, rows):
    """Memory for one tile. Each sample in it may begin in the midst of a group of blocks and end in that of another."""
    most = min(rows, TILE)  # pieces of a tile
    pairs = line_aligned(2 * GROUP * (2 * most + TILE // GROUP_TOKENS))
    pieces = np.empty((3, most), np.int64)
    return Scratch(
        pairs=pairs,
        words=pairs.view(np.uint32),
        draws=line_aligned(TILE // 2 + 32).view(np.int32),  # `list_selected` reads a group of 64 beyond the tile
        found=np.empty(TILE, np.uint32),
        marks=np.empty(TILE, np.uint8),
        written=np.empty(TILE if target.in_place else 0, target.input_ids.dtype),
        piece_ends=pieces[0],
        piece_shifts=pieces[1],
        piece_rows=pieces[2],
    )


@inline
def _thresholds(batch, plan, row):
    """t_mask, t_random and t_select of a row."""
    if batch.thresholds.size > 0:
        select = np.uint64(batch.thresholds[row])
        t_mask, t_random = _nest(select, plan[layout.MASK_SHARE]), _nest(select, plan[layout.RANDOM_SHARE])
    else:
        select, t_mask, t_random = plan[layout.SELECT], plan[layout.MASK], plan[layout.RANDOM]
    return np.int32(t_mask), np.int32(t_random), np.int32(select)


@inline
def _sample_id(batch, row):
    if batch.sample_ids.size > 0:
        return batch.sample_ids[row]
    return content_id(batch.ids[batch.firsts[row] : batch.ends[row]], batch.weights)


@inline
def _note_selected(target, begun, low, tile, stride, firsts, draws, labels, t_select, pieces, slot, scratch):
    """The selected tokens of a tile's pieces are added to their rows' counts and, where asked for, listed from the
    slot on; the slot after them.
    """
    first = np.int64(0)
    for piece in range(pieces):
        row, end = scratch.piece_rows[piece], scratch.piece_ends[piece]
        if target.selected_ids.size > 0:
            after = list_selected(target, slot, draws, labels, first, end, tile - row * stride, t_select)
            count = np.int64(after - slot)
            slot = after
        else:
            count = count_below(draws[first:end], t_select)
        first = end
        if firsts[row] < low:
            begun[0] += count
        else:
            target.num_masked[row] += count
    return slot


@inline
def _exclude(batch, runs, marks, tile, out, labels, draws, source, ignore_index):
    """Cells of a tile become untouched where the caller marked them, or where a further run holds their id."""
    if batch.special_tokens_mask.size > 0:
        copy_tile(marks, batch.special_tokens_mask[tile : tile + marks.size])
    else:
        fill(marks, np.uint8(0))
    for run in range(RUNS_IN_ONE_PASS, runs.shape[0]):
        mark_run(marks, source, runs[run, 0], runs[run, 1])
    restore(out, labels, draws, source, marks, ignore_index)


@inline
def _finish_tile(target, objective, scratch, tile, n, out, t_mask, t_random, t_select):
    """The random tokens of a tile of n cells are drawn, and what is not yet in the target is brought there."""
    draws = scratch.draws
    if t_random > t_mask:
        whole = (n + 63) & ~63  # `find_random` reads whole groups
        fill(draws[n:whole], NEVER)
        count = find_random(scratch.found, draws[:whole], t_mask, t_random)
        write_random(out, scratch.found, count, scratch.words, scratch.piece_ends, scratch.piece_shifts, objective)
    if target.in_place:
        copy_tile(target.input_ids[tile : tile + n], out)
    if target.decisions.size > 0:
        write_decisions(target.decisions[tile : tile + n], draws[:n], t_mask, t_random, t_select)


@njit(_nrt=False)  # see `inline`; so nothing can be allocated in here
def mask_range(low, high, batch, objective, target, scratch, begun, lists):
    """The flat cells low .. high - 1 of the target are written; negative iff one holds an id out of range.

    num_masked gets the counts of the rows that begin in the range, begun[0] that of a row that began before it. The
    selected tokens are listed in the slots lists[0] .. lists[1] - 1.
    """
    ids, firsts, ends, plan, runs = batch.ids, batch.firsts, batch.ends, objective.plan, objective.runs
    draws, words = scratch.draws, scratch.words
    top = signed(ids.dtype.type(plan[layout.SIZE] - ONE))
    mask_id = target.input_ids.dtype.type(plan[layout.MASK_ID])
    ignore_index = target.labels.dtype.type(plan[layout.IGNORE_INDEX])
    own_rates = batch.thresholds.size > 0
    marked = batch.special_tokens_mask.size > 0 or runs.shape[0] > RUNS_IN_ONE_PASS
    t_mask, t_random, t_select = _thresholds(batch, plan, 0)

    seen = signed(ids.dtype.type(0))
    row = first_row_ending_after(ends, low)
    known, sample, listed = np.int64(-1), np.uint64(0), np.uint64(low)
    for tile in range(low, high, TILE):
        n = min(TILE, high - tile)
        source = ids[tile : tile + n]
        out = scratch.written[:n] if target.in_place else target.input_ids[tile : tile + n]
        labels = target.labels[tile : tile + n]
        cell, slot, pieces = np.int64(0), np.int64(0), 0  # cells done, words used
        while row < firsts.size and firsts[row] < tile + n:
            a, b = max(firsts[row] - tile, 0), min(ends[row] - tile, n)
            if b > a:
                if a > cell:
                    seen |= copy_padding(out[cell:a], labels[cell:a], draws[cell:a], source[cell:a], top, ignore_index)
                if row != known:
                    known, sample = row, _sample_id(batch, row)
                position = np.uint64(tile + a - firsts[row])
                if batch.offsets.size > 0:
                    position += batch.offsets[row]
                lane = np.int64(position & LANE)
                groups = (lane + b - a + GROUP_TOKENS - 1) // GROUP_TOKENS
                fill_words(
                    scratch.pairs[slot // 2 :],
                    position >> TWO,
                    groups,
                    sample,
                    batch.counter3,
                    plan[layout.SEED],
                    source[a:b],
                )
                if own_rates:
                    t_mask, t_random, t_select = _thresholds(batch, plan, row)
                seen |= mask_piece(
                    out[a:b], labels[a:b], draws[a:b], source[a:b], words[slot + lane : slot + lane + b - a],
                    runs, top, t_mask, t_select, mask_id, ignore_index,
                )  # fmt: skip
                if own_rates:
                    classify(draws[a:b], t_mask, t_random, t_select)
                scratch.piece_ends[pieces], scratch.piece_rows[pieces] = b, row
                scratch.piece_shifts[pieces] = slot + lane - a
                pieces += 1
                slot += groups * GROUP_TOKENS
                cell = b
            if ends[row] > tile + n:
                break
            row += 1
        if cell < n:
            seen |= copy_padding(out[cell:], labels[cell:], draws[cell:n], source[cell:], top, ignore_index)
        if marked:
            _exclude(batch, runs, scratch.marks[:n], tile, out, labels, draws[:n], source, ignore_index)
        if own_rates:
            t_mask, t_random, t_select = CLASSES
        _finish_tile(target, objective, scratch, tile, n, out, t_mask, t_random, t_select)
        if target.num_masked.size > 0:
            listed = _note_selected(
                target, begun, low, tile, batch.stride, firsts, draws, labels, t_select, pieces, listed, scratch
            )
    lists[0], lists[1] = low, np.int64(listed)
    return seen
