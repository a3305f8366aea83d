"""numba-cuda: what of it kernels and launches need beyond what its successor has under the same name."""

import importlib

import numpy as np


def _load_array_functions():
    """numba-cuda 0.30 takes hold of np.row_stack when it first compiles; NumPy 2.5 has it no more."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        if missing:
            del np.row_stack


_load_array_functions()

from numba import cuda  # noqa: E402
from numba.cuda import libdevice  # noqa: E402
from numba.cuda.cudadrv.driver import binding, driver  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402


@intrinsic
def add(typing_context, counts, index, value):
    """counts[index] += value, atomically; numba.cuda.atomic takes no raw pointers."""

    def generate(context, builder, signature, arguments):
        pointer, index, value = arguments
        builder.atomic_rmw("add", builder.gep(pointer, [index]), value, "monotonic")
        return context.get_dummy_value()

    return cuda.types.void(counts, index, counts.dtype), generate


@cuda.jit(device=True)
def rounded_share(p, n):
    """floor(p * n + 0.5) in float64; two roundings, since the product and the sum are not contracted to an FMA."""
    return np.uint64(libdevice.dadd_rn(libdevice.dmul_rn(p, np.float64(n)), 0.5))


def create_stream():
    """A stream of the current device that waits for no other, the default stream included."""
    handle = driver.cuStreamCreate(binding.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    return cuda.external_stream(int(handle))


def is_capturing(stream):
    """Whether what is queued on the stream becomes part of a graph."""
    return int(driver.cuStreamIsCapturing(int(stream))) != 0
