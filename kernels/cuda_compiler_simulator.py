"""numba-cuda's simulator: kernels run as Python, on arrays of the host."""

import operator

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def add(counts, index, value):
    """counts[index] += value, atomically."""
    cuda.atomic.add(counts, index, value)


@cuda.jit(device=True)
def load_quad(array, index):
    """Four elements from an index on, as uint64."""
    return tuple(np.uint64(array[index + np.uint64(i)]) for i in range(4))


@cuda.jit(device=True)
def store_quad(array, index, a, b, c, d):
    """Four uint64 become elements from an index on."""
    for i, value in enumerate((a, b, c, d)):
        array[index + np.uint64(i)] = np.int64(value)


multiply, plus = operator.mul, operator.add
