"""A row is read once, tile by tile, into sets of positions: its candidates, and where its words begin and go on."""

import numpy as np

from fastmask.kernels import layout
from fastmask.kernels.bits import in_range_64
from fastmask.kernels.cpu_sets import EMPTY, ONE, SIXTY_FOUR, SIXTY_THREE, ZERO
from fastmask.kernels.cpu_tile import TILE, escapes, fill, inline, signed

UNMARKED, MARKED = np.uint32(0), np.uint32(1)


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


@inline
def read_row(samples, law, first, end, scratch, with_words):
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
