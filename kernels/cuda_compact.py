"""The CUDA kernels that list the selected tokens of a masked batch: per row, or one row after another."""

import numpy as np

from fastmask.kernels.cuda_block import block_sum, scan_sum
from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_core import BOUNDARIES, COUNTS, ONE, RAISED, UNTOUCHED, WRITTEN, ZERO, cells_of_row
from fastmask.kernels.cuda_launch import MAX_THREADS, Kernel, device

NO_POSITION, USED, UNUSED = np.int64(0), np.float32(1.0), np.float32(0.0)


@device
def _fill(positions, ids, weights, slot, stop, step, ignore_index):
    """The slots slot, slot + step, ... before `stop` are unused."""
    while slot < stop:
        positions[slot] = NO_POSITION
        ids[slot] = np.int64(ignore_index)
        weights[slot] = UNUSED
        slot += step


def list_in_rows(
    labels, input_ids, decisions, positions, ids, weights, num_masked, boundaries, flag, given, rows, row_length,
    width, ignore_index,
):  # fmt: skip
    """positions, ids, weights: `width` slots a row; what is selected beyond them is undone, and raises the flag."""
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row, me = np.uint64(cuda.blockIdx.x), np.uint64(cuda.threadIdx.x)
    while row < rows:
        first, span = cells_of_row(boundaries, given, row, row_length)
        begin = first if given & BOUNDARIES else ZERO  # the position of the row's first cell
        tile, listed = ZERO, ZERO
        while tile < span:  # all threads go round together
            column = tile + me
            selected = column < span and decisions[first + column] != UNTOUCHED
            before, total = scan_sum(ONE if selected else ZERO, cells)
            if selected:
                cell, slot = first + column, listed + before
                if slot < width:
                    positions[row * width + slot] = np.int64(begin + column)
                    ids[row * width + slot] = labels[cell]
                    weights[row * width + slot] = USED
                else:
                    flag[ZERO] = RAISED
                    input_ids[cell] = labels[cell]
                    labels[cell] = np.int64(ignore_index)
                    decisions[cell] = UNTOUCHED
            listed += total
            tile += np.uint64(cuda.blockDim.x)
        used = min(listed, width)
        _fill(
            positions, ids, weights, row * width + used + me, row * width + width, np.uint64(cuda.blockDim.x),
            ignore_index,
        )  # fmt: skip
        if given & COUNTS and me == ZERO:
            num_masked[row] = np.int64(used)
        row += np.uint64(cuda.gridDim.x)


def count_rows(decisions, boundaries, counts, given, rows, row_length):
    """counts: the selected tokens of each row."""
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row = np.uint64(cuda.blockIdx.x)
    while row < rows:
        first, span = cells_of_row(boundaries, given, row, row_length)
        count, column = ZERO, np.uint64(cuda.threadIdx.x)
        while column < span:
            if decisions[first + column] != UNTOUCHED:
                count += ONE
            column += np.uint64(cuda.blockDim.x)
        count = block_sum(count, cells)
        if np.uint64(cuda.threadIdx.x) == ZERO:
            counts[row] = np.int64(count)
        row += np.uint64(cuda.gridDim.x)


def add_up(counts, firsts, rows):
    """firsts: the sums of the counts before each row, and of all; a single block works."""
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    me = np.uint64(cuda.threadIdx.x)
    tile, total = ZERO, ZERO
    while tile < rows and cuda.blockIdx.x == 0:
        row = tile + me
        before, some = scan_sum(np.uint64(counts[row]) if row < rows else ZERO, cells)
        if row < rows:
            firsts[row] = np.int64(total + before)
        total += some
        tile += np.uint64(cuda.blockDim.x)
    if me == ZERO and cuda.blockIdx.x == 0:
        firsts[rows] = np.int64(total)


def list_flat(
    labels, decisions, positions, ids, weights, firsts, boundaries, given, rows, row_length, slots, ignore_index
):
    """positions, ids, weights: the selected tokens of all rows, each row's from slot firsts[row] on."""
    cells = cuda.shared.array(MAX_THREADS, np.uint64)
    row, me = np.uint64(cuda.blockIdx.x), np.uint64(cuda.threadIdx.x)
    while row < rows:
        first, span = cells_of_row(boundaries, given, row, row_length)
        begin = first if given & BOUNDARIES else ZERO
        tile, listed = ZERO, np.uint64(firsts[row])
        while tile < span:
            column = tile + me
            selected = column < span and decisions[first + column] != UNTOUCHED
            before, total = scan_sum(ONE if selected else ZERO, cells)
            slot = listed + before
            if selected and slot < slots:
                positions[slot] = np.int64(begin + column)
                ids[slot] = labels[first + column]
                weights[slot] = USED
            listed += total
            tile += np.uint64(cuda.blockDim.x)
        row += np.uint64(cuda.gridDim.x)
    unused = np.uint64(firsts[rows]) + np.uint64(cuda.grid(1))
    _fill(positions, ids, weights, unused, slots, np.uint64(cuda.gridsize(1)), ignore_index)


LIST_IN_ROWS = Kernel(
    list_in_rows,
    (None, None, "u1", "i8", None, "f4", "i8", "i8", "u4"),
    ("u8",) * 5,
    [(labels, ids, labels) for ids in WRITTEN for labels in WRITTEN],
)
COUNT_ROWS = Kernel(count_rows, ("u1", "i8", "i8"), ("u8",) * 3)
ADD_UP = Kernel(add_up, ("i8", "i8"), ("u8",))
LIST_FLAT = Kernel(
    list_flat,
    (None, "u1", "i8", None, "f4", "i8", "i8"),
    ("u8",) * 5,
    [(labels, labels) for labels in WRITTEN],
)
KERNELS = (LIST_IN_ROWS, COUNT_ROWS, ADD_UP, LIST_FLAT)
