"""Compact targets on the CPU: the selected tokens of each row, side by side."""

import numpy as np

from fastmask.kernels import fate
from fastmask.kernels.bits import not_zero_64
from fastmask.kernels.cpu_tile import TILE, inline, note_bits

EMPTY, ONE, SIXTY_FOUR = np.uint64(0), np.uint64(1), np.uint64(64)
UNTOUCHED = np.uint8(fate.UNTOUCHED)
USED, UNUSED = np.float32(1), np.float32(0)
LIKELY = 12  # selected cells of 64, see `note_bits`


@inline
def find_selected(found, decisions):
    """found[0:n] are the cells that are selected, ascending, of at most TILE decisions; n. found has LIKELY more."""
    n, first = EMPTY, EMPTY
    while first + SIXTY_FOUR <= np.uint64(decisions.size):
        n = note_bits(found, n, first, not_zero_64(decisions, first), LIKELY)
        first += SIXTY_FOUR
    while first < np.uint64(decisions.size):
        if decisions[first] != UNTOUCHED:
            found[n] = np.uint32(first)
            n += ONE
        first += ONE
    return np.int64(n)


@inline
def copy_found(found, labels, at, positions, ids, weights):
    """The found cells, of which the first has the position `at`, with their labels."""
    for i in range(positions.size):
        positions[i] = at + np.int64(found[i])
    for i in range(positions.size):
        ids[i] = labels[np.uint64(found[i])]
    for i in range(positions.size):
        weights[i] = USED


def compact_kernel(decisions, labels, rows, row_length, boundaries, width, ignore_index, positions, ids, weights):
    """Rows side by side (width < 0), or `width` slots a row. Packed positions count from the first cell of all."""
    found = np.empty(TILE + LIKELY, np.uint32)
    slot = np.int64(0)
    for r in range(rows):
        first, end, shift = r * row_length, (r + 1) * row_length, r * row_length
        if boundaries.size > 0:
            first, end, shift = boundaries[r], boundaries[r + 1], np.int64(0)
        for tile in range(first, end, TILE):
            cells = slice(tile, min(tile + TILE, end))
            after = slot + find_selected(found, decisions[cells])
            slots = slice(slot, after)
            copy_found(found, labels[cells], tile - shift, positions[slots], ids[slots], weights[slots])
            slot = after
        while slot < (r + 1) * width:
            positions[slot], ids[slot], weights[slot] = np.int64(0), ignore_index, UNUSED
            slot += 1
