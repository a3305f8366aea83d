"""Where samples that lie side by side come to lie in padded rows, on the CPU."""

import functools

import numpy as np
from numba import types

from fastmask.kernels.bits import pointer
from fastmask.kernels.cpu_compile import compile_kernel, read_array, write_array
from fastmask.kernels.cpu_tile import apart, copy_tile, fill, inline


@inline
def _read(row, values):
    """A row becomes what a pointer points at."""
    for j in range(row.size):
        row[j] = values[j]


@apart
def read_ids(row, address, itemsize):
    """A row becomes the integers at an address: int64, int32 or uint16, by their size in bytes."""
    if itemsize == np.int64(8):
        _read(row, pointer(address, types.int64))
    elif itemsize == np.int64(4):
        _read(row, pointer(address, types.int32))
    else:
        _read(row, pointer(address, types.uint16))


@apart
def lay_out(values, boundaries, low, high, width, left, padding, out):
    """The samples low .. high - 1 in the first rows of `out`, and padding elsewhere in these rows."""
    for r in range(low, high):
        first, end = boundaries[r], boundaries[r + 1]
        row = out[(r - low) * width : (r - low + 1) * width]
        start = width - (end - first) if left else np.int64(0)
        stop = start + end - first
        fill(row[:start], padding)
        copy_tile(row[start:stop], values[first:end])
        fill(row[stop:], padding)


@apart
def lay_out_ids(addresses, itemsize, boundaries, low, high, width, left, padding, out):
    """As `lay_out`, for samples that lie at addresses."""
    for r in range(low, high):
        length = boundaries[r + 1] - boundaries[r]
        row = out[(r - low) * width : (r - low + 1) * width]
        start = width - length if left else np.int64(0)
        fill(row[:start], padding)
        read_ids(row[start : start + length], addresses[r], itemsize)
        fill(row[start + length :], padding)


@apart
def mark_real(boundaries, low, high, width, left, out):
    """1 where one of the rows low .. high - 1 holds its sample, 0 where it is padded."""
    for r in range(low, high):
        length = boundaries[r + 1] - boundaries[r]
        row = out[(r - low) * width : (r - low + 1) * width]
        first = width - length if left else length
        fill(row[:first], np.int64(not left))
        fill(row[first:], np.int64(left))


def pad_rows_kernel(values, boundaries, width, left, padding, out):
    """Sample after sample, each in a row, and padding elsewhere."""
    lay_out(values, boundaries, np.int64(0), boundaries.size - 1, width, left, padding, out)


def count_positions_kernel(boundaries, out):
    """The position of each value in its sample."""
    for r in range(boundaries.size - 1):
        sample = out[boundaries[r] : boundaries[r + 1]]
        for j in range(sample.size):
            sample[j] = j


@functools.cache
def compiled_pad_rows(cache=True):
    """The kernel of `pad_rows`."""
    longs, integer = read_array(types.int64), types.int64
    signature = types.void(longs, longs, integer, types.boolean, integer, write_array(integer))
    return compile_kernel(pad_rows_kernel, signature, "int64", parallel=False, cache=cache)


@functools.cache
def compiled_count_positions(cache=True):
    """The kernel of `count_positions`."""
    signature = types.void(read_array(types.int64), write_array(types.int64))
    return compile_kernel(count_positions_kernel, signature, "int64", parallel=False, cache=cache)


def pad_rows(values, boundaries, width, left, padding, out):
    """Sample after sample, int64, each in a row of `out`, and padding elsewhere."""
    compiled_pad_rows()(values, boundaries, width, left, padding, out)


def count_positions(boundaries, out):
    """The position of each value in its sample."""
    compiled_count_positions()(boundaries, out)
