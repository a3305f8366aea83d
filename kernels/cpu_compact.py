"""Compact targets on the CPU: the selected tokens of each row, side by side."""

import numpy as np

from fastmask.kernels import fate
from fastmask.kernels.bits import lowest_bit, not_zero_64
from fastmask.kernels.cpu_tile import inline

EMPTY, ONE, SIXTY_FOUR = np.uint64(0), np.uint64(1), np.uint64(64)
UNTOUCHED = np.uint8(fate.UNTOUCHED)
USED, UNUSED = np.float32(1), np.float32(0)


@inline
def collect_selected(decisions, labels, first, end, shift, positions, ids, weights, slot):
    """The selected cells of a row take the slots from the given one on, at positions less the shift. The next slot."""
    cell = np.uint64(first)
    while cell + SIXTY_FOUR <= np.uint64(end):
        bits = not_zero_64(decisions, cell)
        while bits != EMPTY:
            at = cell + lowest_bit(bits)
            positions[slot], ids[slot], weights[slot] = np.int64(at) - shift, labels[at], USED
            bits &= bits - ONE
            slot += 1
        cell += SIXTY_FOUR
    while cell < np.uint64(end):
        if decisions[cell] != UNTOUCHED:
            positions[slot], ids[slot], weights[slot] = np.int64(cell) - shift, labels[cell], USED
            slot += 1
        cell += ONE
    return slot


def compact_kernel(decisions, labels, rows, row_length, boundaries, width, ignore_index, positions, ids, weights):
    """Rows side by side (width < 0), or `width` slots a row. Packed positions count from the first cell of all."""
    slot = np.int64(0)
    for r in range(rows):
        first, end, shift = r * row_length, (r + 1) * row_length, r * row_length
        if boundaries.size > 0:
            first, end, shift = boundaries[r], boundaries[r + 1], np.int64(0)
        slot = collect_selected(decisions, labels, first, end, shift, positions, ids, weights, slot)
        while slot < (r + 1) * width:
            positions[slot], ids[slot], weights[slot] = np.int64(0), ignore_index, UNUSED
            slot += 1
