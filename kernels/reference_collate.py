"""Samples that lie side by side, and the same in padded rows: each operation in plain NumPy, slow and obvious."""

from __future__ import annotations

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


def mark_real(boundaries, width, left, out):
    """`out`, of rows * width cells, is then 1 where a row holds its sample and 0 where it is padded."""
    pad_rows(1, boundaries, width, left, 0, out)


def count_positions(boundaries, out):
    """`out` then holds the position of each value in its sample."""
    out[:] = np.arange(out.size) - np.repeat(boundaries[:-1], np.diff(boundaries))
