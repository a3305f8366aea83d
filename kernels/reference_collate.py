"""Samples that lie side by side, and the same in padded rows: each operation in plain NumPy, slow and obvious."""

from __future__ import annotations

import operator

import numpy as np


def padded_cells(boundaries, width, left):
    """The cell of a padded batch at which each value comes to lie, int64, in order."""
    lengths = np.diff(boundaries)
    firsts = np.arange(lengths.size) * width + (width - lengths if left else 0)
    return np.repeat(firsts - boundaries[:-1], lengths) + np.arange(boundaries[-1])


def pad_rows(values, boundaries, width, left, padding, out):
    """`out`, of rows * width cells, then holds sample after sample, each in a row, and padding elsewhere."""
    out[:] = padding
    out[padded_cells(boundaries, width, left)] = values


def count_positions(boundaries, out):
    """`out` then holds the position of each value in its sample."""
    out[:] = np.arange(out.size) - np.repeat(boundaries[:-1], np.diff(boundaries))


def read_lists(lists, boundaries, with_none, out):
    """`out`, int64, then holds the integers of lists, one list after the other; None, where it is allowed, as -1.

    Returns the first list that holds anything else, or -1 where none does. `boundaries` are those of the lists.
    """
    for row, values in enumerate(lists):
        try:
            numbers = [-1 if with_none and value is None else operator.index(value) for value in values]
            out[boundaries[row] : boundaries[row + 1]] = np.array(numbers, np.int64)
        except (TypeError, OverflowError):
            return row
    return -1


def find_arrays(arrays, most, boundaries, addresses):
    """The first of some arrays that is not read where it lies: all are joined, since plain NumPy reads no addresses."""
    return 0
