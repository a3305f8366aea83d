"""Compact targets on the CPU: the selected tokens side by side, listed tile by tile while they are written."""

import numpy as np

from fastmask.kernels.bits import in_range_64, lowest_bit
from fastmask.kernels.cpu_tile import copy_tile, fill, inline

EMPTY, ONE, SIXTY_FOUR = np.uint64(0), np.uint64(1), np.uint64(64)
USED, UNUSED = np.float32(1), np.float32(0)


@inline
def list_selected(target, slot, draws, labels, first, end, position, t_select):
    """The selected cells first .. end - 1 of a tile stand in the target's lists from the slot on; the slot after them.

    position: of cell 0. Draws are read in groups of 64, the last of which may reach beyond the end.
    """
    positions, ids, bits = target.selected_positions, target.selected_ids, draws.view(np.uint32)
    cell, last = np.uint64(first), np.uint64(end)
    while cell < last:
        selected = in_range_64(bits, cell, np.uint32(0), np.uint32(t_select))
        if last - cell < SIXTY_FOUR:
            selected &= (ONE << (last - cell)) - ONE
        while selected != EMPTY:
            found = cell + lowest_bit(selected)
            positions[slot], ids[slot] = position + np.int64(found), labels[found]
            selected &= selected - ONE
            slot += ONE
        cell += SIXTY_FOUR
    return slot


@inline
def join_lists(target, lists):
    """The lists of several ranges, in slots lists[k, 0] .. lists[k, 1] - 1, become one that starts at 0."""
    slot = lists[0, 1]
    for k in range(1, lists.shape[0]):
        for i in range(lists[k, 0], lists[k, 1]):
            target.selected_positions[slot] = target.selected_positions[i]
            target.selected_ids[slot] = target.selected_ids[i]
            slot += 1


@inline
def spread_row(slots, values, filler):
    """The values, and the filler in the slots that are left."""
    copy_tile(slots, values)
    fill(slots[values.size :], filler)


def spread_kernel(selected_positions, selected_ids, counts, width, ignore_index, positions, ids, weights):
    """The lists of selected tokens in `width` slots a row."""
    first = np.int64(0)
    for r in range(counts.size):
        slots, listed = slice(r * width, (r + 1) * width), slice(first, first + counts[r])
        spread_row(positions[slots], selected_positions[listed], np.int64(0))
        spread_row(ids[slots], selected_ids[listed], ignore_index)
        row_weights = weights[slots]
        fill(row_weights[: counts[r]], USED)
        fill(row_weights[counts[r] :], UNUSED)
        first += counts[r]
