"""The positions of a row and the units they make, for the kernel that gives a row a block of threads.

What is known of a row's positions lies in scratch of global memory, a slot per position: slot origin + p holds
position p. Its first slot is a multiple of 4 from where the stream's blocks begin, so that the four words of a block
stand side by side whatever the offset.
"""

import numpy as np

from fastmask.kernels.cuda_block import larger, scan_largest, scan_sum
from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_core import (
    CONTINUES,
    EXCLUDED,
    FOUR,
    HALF,
    LOW,
    ONE,
    THREE,
    TWO,
    UNTOUCHED,
    WORD_IDS,
    ZERO,
    cell_of,
    is_special,
    philox_block,
)
from fastmask.kernels.cuda_launch import device

# What is known of a position, bits of its kind. Without words every candidate begins one.
CANDIDATE, BEGINS, SELECTED = np.uint64(1), np.uint64(2), np.uint64(4)
OPEN = CANDIDATE | SELECTED  # a candidate that is not selected yet has the first of these bits alone
UNIT = np.uint64(1 << 32)  # a unit in a sum of tokens + units * 2^32
AT_ONCE = 4  # neighbours that a thread takes at once in a scan


@device
def slots_of(first, row):
    """The slot where the words of a row begin that begins with cell `first`.

    Two blocks more than fit into the rows before: an offset may push a row over the borders of both its ends.
    """
    return ((first >> TWO) + row * TWO) * FOUR


@device
def draw_words(words, base, length, offset, sample, counter3, seed):
    """words: those of each block that holds a position of the row, from slot `base` on."""
    block = np.uint64(cuda.threadIdx.x)
    blocks = (length + (offset & THREE) + THREE) >> TWO
    while block < blocks:
        w0, w1, w2, w3 = philox_block((offset >> TWO) + block, sample, sample >> HALF, counter3, seed, seed >> HALF)
        at = base + block * FOUR
        words[at] = np.uint32(w0 & LOW)
        words[at + ONE] = np.uint32(w1 & LOW)
        words[at + TWO] = np.uint32(w2 & LOW)
        words[at + THREE] = np.uint32(w3 & LOW)
        block += np.uint64(cuda.blockDim.x)


@device
def _is_candidate(ids, special_tokens_mask, runs, run_count, given, size, cell):
    """Whether a real token may be selected."""
    token = np.uint64(ids[cell])
    allowed = token < size and not is_special(token, runs, run_count)
    if allowed and given & EXCLUDED:
        allowed = special_tokens_mask[cell] == UNTOUCHED
    return allowed


@device
def _same_word(ids, word_ids, is_continuation, given, word_step, cell, before):
    """Whether a candidate belongs to the word of the candidate in the cell before; word ids count `word_step` words."""
    if given & WORD_IDS:
        same = word_ids[cell * word_step] == word_ids[before * word_step]
        if word_step > ONE:
            same = same and word_ids[cell * TWO + ONE] == word_ids[before * TWO + ONE]
        return same
    return is_continuation[np.uint64(ids[cell])] != UNTOUCHED


@device
def classify(
    ids, special_tokens_mask, word_ids, is_continuation, runs, run_count, kinds, given, size, word_step, first, start,
    row_length, length, origin,
):  # fmt: skip
    """kinds: which positions are candidates, and which of these begin a word."""
    position = np.uint64(cuda.threadIdx.x)
    while position < length:
        cell = cell_of(position, first, start, row_length)
        kind = ZERO
        if _is_candidate(ids, special_tokens_mask, runs, run_count, given, size, cell):
            kind = CANDIDATE | BEGINS
            if given & (WORD_IDS | CONTINUES) and position > ZERO:
                before = cell_of(position - ONE, first, start, row_length)
                if _is_candidate(
                    ids, special_tokens_mask, runs, run_count, given, size, before
                ) and _same_word(ids, word_ids, is_continuation, given, word_step, cell, before):  # fmt: skip
                    kind = CANDIDATE
        kinds[origin + position] = np.uint8(kind)
        position += np.uint64(cuda.blockDim.x)


@device
def _begins(kinds, origin, length, position, by_run):
    """Whether a word begins at the position, or by_run: a run of selected positions."""
    if position >= length:
        return False
    kind = np.uint64(kinds[origin + position])
    if by_run:
        goes_on = position > ZERO and np.uint64(kinds[origin + position - ONE]) & SELECTED != ZERO
        return kind & SELECTED != ZERO and not goes_on
    return kind & BEGINS != ZERO


@device
def find_firsts(row, by_run):
    """firsts: the first position of each one's word, or by_run: of its run of selected positions; plus 1.

    It is the last beginning at the position or before. Where there is none it is 0, and never read.
    """
    _, kinds, firsts, cells, origin, length = row
    tile, carried = ZERO, ZERO
    while tile < length:  # all threads go round together
        position = tile + np.uint64(cuda.threadIdx.x) * FOUR
        last = ZERO
        for i in range(AT_ONCE):
            if _begins(kinds, origin, length, position + np.uint64(i), by_run):
                last = position + np.uint64(i) + ONE
        before, total = scan_largest(last, cells)
        last = larger(carried, before)
        for _ in range(AT_ONCE):
            if _begins(kinds, origin, length, position, by_run):
                last = position + ONE
            if position < length:
                firsts[origin + position] = np.uint32(last)
            position += ONE
        carried = larger(carried, total)
        tile += np.uint64(cuda.blockDim.x) * FOUR


@device
def begins_unit(kind, by_word):
    """Whether a candidate begins a unit: words, or tokens each."""
    return not by_word or kind & BEGINS != ZERO


@device
def list_units(row, by_word):
    """How many candidates and units a row has, tokens + units * 2^32; firsts: the position of unit u in slot u."""
    _, kinds, firsts, cells, origin, length = row
    tile, listed = ZERO, ZERO
    while tile < length:
        position = tile + np.uint64(cuda.threadIdx.x) * FOUR
        mine = ZERO
        for i in range(AT_ONCE):
            if position + np.uint64(i) < length:
                kind = np.uint64(kinds[origin + position + np.uint64(i)])
                if kind & CANDIDATE:
                    mine += ONE + (UNIT if begins_unit(kind, by_word) else ZERO)
        before, total = scan_sum(mine, cells)
        unit = (listed + before) >> HALF
        for _ in range(AT_ONCE):
            if position < length:
                kind = np.uint64(kinds[origin + position])
                if kind & CANDIDATE and begins_unit(kind, by_word):
                    firsts[origin + unit] = np.uint32(position)
                    unit += ONE
            position += ONE
        listed += total
        tile += np.uint64(cuda.blockDim.x) * FOUR
    return listed
