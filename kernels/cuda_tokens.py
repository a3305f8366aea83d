"""The CUDA kernels over cells: token-level laws, where no token's fate depends on another, and supplied decisions."""

import numpy as np

from fastmask.kernels.cuda_compiler import add, cuda
from fastmask.kernels.cuda_core import (
    ALWAYS,
    BOUNDARIES,
    COUNTS,
    DECISIONS,
    EXCLUDED,
    FOUR,
    HALF,
    IDS,
    LENGTHS,
    LOW,
    MASKED,
    OFFSETS,
    ONE,
    RAISED,
    RANDOM,
    STARTS,
    THREE,
    THRESHOLDS,
    TWO,
    UNTOUCHED,
    WRITTEN,
    ZERO,
    cell_of,
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
from fastmask.kernels.cuda_launch import MAX_THREADS, Kernel, device
from fastmask.kernels.philox import PURPOSE_BITS, PURPOSE_SELECT

SUPPLIED_IGNORE_INDEX = np.int64(-100)

# The places of words 0, 1, 2, 3 in shared memory are PITCH apart: no two threads of a warp meet in a bank.
PITCH, WORDS = np.uint64(MAX_THREADS + 8), 4 * (MAX_THREADS + 8)


@device
def _one_of(a, b, c, d, index):
    """a, b, c or d for the index 0, 1, 2 or 3."""
    even = a if index == ZERO else c
    odd = b if index == ONE else d
    return even if index & ONE == ZERO else odd


@device
def _token_at(ids, position, first, start, row_length, end):
    """The id at a position; 0 where there is none."""
    return np.uint64(ids[cell_of(position, first, start, row_length)]) if position < end else ZERO


@device
def _fill_words(words, at, block, sample, counter3, seed):
    """The four words of a block, `at` the same place of four rows of shared memory."""
    w0, w1, w2, w3 = philox_block(block, sample, sample >> HALF, counter3, seed, seed >> HALF)
    words[at] = np.uint32(w0 & LOW)
    words[at + PITCH] = np.uint32(w1 & LOW)
    words[at + PITCH * TWO] = np.uint32(w2 & LOW)
    words[at + PITCH * THREE] = np.uint32(w3 & LOW)


@device
def _word_of(words, slot):
    """The word of a slot: four slots to a block."""
    return np.uint64(words[(slot >> TWO) + PITCH * (slot & THREE)])


@device
def _pick_number(words, slot):
    """The x of the pick of a slot's token."""
    at = slot >> TWO
    w0, w1 = np.uint64(words[at]), np.uint64(words[at + PITCH])
    w2, w3 = np.uint64(words[at + PITCH * TWO]), np.uint64(words[at + PITCH * THREE])
    return scattered(mixed_of(draw_of(_word_of(words, slot)), extra_of(w0, w1, w2, w3, slot & THREE)))


@device
def _first_piece(first, row, given, pieces_per_row, log_width):
    """The first piece of the row that begins with cell `first`."""
    before = first >> (log_width + TWO) if given & BOUNDARIES else ZERO
    return before + row * pieces_per_row


@device
def _row_of(piece, boundaries, given, rows, pieces_per_row, log_width, row_length):
    """(row, first, span): the row that a piece belongs to, its first cell and how many it has."""
    if given & BOUNDARIES:
        low, high = ZERO, rows  # the first piece of row low is not behind this one, that of row high is
        while high - low > ONE:
            middle = (low + high) >> ONE
            if _first_piece(np.uint64(boundaries[middle]), middle, given, pieces_per_row, log_width) <= piece:
                low = middle
            else:
                high = middle
        first = np.uint64(boundaries[low])
        return low, first, np.uint64(boundaries[low + ONE]) - first
    row = piece // pieces_per_row
    return row, row * row_length, row_length


def mask_tokens(
    ids, out, labels, decisions, num_masked, flag, sample_ids, epoch_at, starts, lengths, boundaries,
    special_tokens_mask, offsets, thresholds, runs, pool, cumulative, given, rows, pieces, pieces_per_row, log_width,
    row_length, first_sample, epoch, seed, size, mask_id, ignore_index, select, mask_share, random_share, run_count,
    pool_size, weighted, exclude_original,
):  # fmt: skip
    """Every cell of out, labels and decisions is written; an id out of range raises the flag.

    A piece of a row is `width` blocks of the random stream, and as many threads take it. Each computes one,
    then decides on four cells, `width` apart, so that neighbours write side by side; the words go from one to
    the other through shared memory. Neither left padding nor an offset costs a second block.

    The pieces of row r begin with piece r * pieces_per_row; in a packed batch as many more go before them as
    pieces fit into the rows before, so that each row has enough, and its place is found without a table.
    """
    words = cuda.shared.array(WORDS, np.uint32)
    me, width = np.uint64(cuda.threadIdx.x), ONE << log_width
    member, of_block = me & (width - ONE), np.uint64(cuda.blockDim.x) >> log_width
    counter3 = (epoch_of(epoch_at, given, epoch) << PURPOSE_BITS) | PURPOSE_SELECT
    check_scalars(epoch_at, sample_ids, given, flag)
    tile = np.uint64(cuda.blockIdx.x) * of_block
    while tile < pieces:  # all threads of a block go round together
        piece = tile + (me >> log_width)
        idle = piece >= pieces
        piece = min(piece, pieces - ONE)
        row, first, span = _row_of(piece, boundaries, given, rows, pieces_per_row, log_width, row_length)
        end = ZERO if idle else span
        start = np.uint64(starts[row]) if given & STARTS else ZERO
        length = np.uint64(lengths[row]) if given & LENGTHS else span
        offset = np.uint64(offsets[row]) if given & OFFSETS else ZERO
        sample = sample_of(sample_ids, given, row, first_sample)
        t_select = np.uint64(thresholds[row]) if given & THRESHOLDS else select
        t_mask, t_random = nest(t_select, mask_share), nest(t_select, random_share)

        shift = offset & THREE
        quad = (piece - _first_piece(first, row, given, pieces_per_row, log_width)) << log_width  # the piece's first
        position = quad * FOUR + member - shift  # wraps below 0, and is then no position
        t0 = _token_at(ids, position, first, start, span, end)
        t1 = _token_at(ids, position + width, first, start, span, end)
        t2 = _token_at(ids, position + width * TWO, first, start, span, end)
        t3 = _token_at(ids, position + width * THREE, first, start, span, end)
        if (quad + member) * FOUR < length + shift:
            _fill_words(words, me, (offset >> TWO) + quad + member, sample, counter3, seed)
        cuda.syncthreads()

        slot = (me - member) * FOUR + member
        count = ZERO
        for i in range(4):
            if position < end:
                token = _one_of(t0, t1, t2, t3, np.uint64(i))
                draw = draw_of(_word_of(words, slot)) if position < length else ALWAYS  # padding may have no word
                cell = cell_of(position, first, start, span)
                new, label, decision = token, ignore_index, UNTOUCHED
                if token >= size:
                    flag[ZERO] = RAISED
                selected = draw < t_select and token < size
                selected = selected and not is_special(token, runs, run_count)
                if selected and given & EXCLUDED:
                    selected = special_tokens_mask[cell] == UNTOUCHED
                if selected:
                    label, decision = token, decision_of(draw, t_mask, t_random)
                    count += ONE
                    if decision == MASKED:
                        new = mask_id
                    elif decision == RANDOM:
                        x = _pick_number(words, slot)
                        new = pick(x, token, pool, cumulative, pool_size, weighted, exclude_original)
                out[cell] = np.int64(new)
                labels[cell] = np.int64(label)
                if given & DECISIONS:
                    decisions[cell] = decision
            position += width
            slot += width
        if given & COUNTS and count > ZERO:
            add(num_masked, row, np.int64(count))
        cuda.syncthreads()  # all have read the words before the next piece
        tile += np.uint64(cuda.gridDim.x) * of_block


def apply_decisions(
    token_ids, mask_positions, replace_probs, random_tokens, masked_ids, labels, flag, cells, mask_token_id,
    first, second,
):  # fmt: skip
    """masked_ids, labels: what the decisions say; the flag is raised by a probability outside [0, 1]."""
    cell, stride = np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while cell < cells:
        token = new = token_ids[cell]
        probability = replace_probs[cell]
        label = SUPPLIED_IGNORE_INDEX
        if not (probability >= 0.0 and probability <= 1.0):
            flag[ZERO] = RAISED
        if mask_positions[cell]:
            label = token
            if probability < first:
                new = mask_token_id
            elif probability < second:
                new = random_tokens[cell]
        masked_ids[cell] = new
        labels[cell] = label
        cell += stride


MASK_TOKENS = Kernel(
    mask_tokens,
    (None, None, None, "u1", "i8", "u4", "u8", "i8", "i8", "i8", "i8", "u1", "u8", "u4", "u4", "u4", "u8"),
    ("u8",) * 19,
    [(ids, out, labels) for ids in IDS for out in WRITTEN for labels in WRITTEN],
)
APPLY_DECISIONS = Kernel(apply_decisions, ("i8", "u1", "f8", "i8", "i8", "i8", "u4"), ("u8", "i8", "f8", "f8"))
KERNELS = (MASK_TOKENS, APPLY_DECISIONS)
