"""numba-cuda's simulator: kernels run as Python, on arrays of the host."""

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def add(counts, index, value):
    """counts[index] += value, atomically."""
    cuda.atomic.add(counts, index, value)


@cuda.jit(device=True)
def rounded_share(p, n):
    """floor(p * n + 0.5) in float64, with two roundings; n: uint64."""
    return np.uint64(p * np.float64(n) + 0.5)


create_stream = cuda.stream


def is_capturing(stream):
    """Whether what is queued on the stream becomes part of a graph: never."""
    return False
