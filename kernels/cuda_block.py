"""What the threads of a block find out together, through shared memory.

All threads of a block call these functions; `cells` is a uint64 of shared memory per thread.
"""

import numpy as np

from fastmask.kernels.cuda_compiler import cuda
from fastmask.kernels.cuda_launch import device

ZERO, ONE = np.uint64(0), np.uint64(1)


@device
def larger(a, b):
    """The larger of two uint64."""
    return a if a > b else b


@device
def smaller(a, b):
    """The smaller of two uint64."""
    return a if a < b else b


@device
def _sum(a, b):
    return a + b


def _reduction(combine):
    """A device function: `combine` over the values of all threads of a block, the same in each of them."""

    @device
    def reduce(value, cells):
        me = np.uint64(cuda.threadIdx.x)
        cells[me] = value
        cuda.syncthreads()
        half = np.uint64(cuda.blockDim.x) >> ONE
        while half > ZERO:
            if me < half:
                cells[me] = combine(cells[me], cells[me + half])
            cuda.syncthreads()
            half = half >> ONE
        total = cells[ZERO]
        cuda.syncthreads()  # all have read it before the next reduction writes
        return total

    return reduce


def _scan(combine):
    """A device function: (`combine` over the values of the threads before this one, over those of all threads).

    0 changes nothing in `combine`, and is what lies before the first thread.
    """

    @device
    def scan(value, cells):
        me, size = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x)
        cells[me] = value
        cuda.syncthreads()
        step = ONE
        while step < size:
            earlier = cells[me - step] if me >= step else ZERO
            cuda.syncthreads()
            cells[me] = combine(earlier, cells[me])
            cuda.syncthreads()
            step = step << ONE
        before = cells[me - ONE] if me > ZERO else ZERO
        total = cells[size - ONE]
        cuda.syncthreads()
        return before, total

    return scan


block_sum = _reduction(_sum)
block_largest = _reduction(larger)
scan_sum = _scan(_sum)
scan_largest = _scan(larger)
