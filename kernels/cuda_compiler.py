"""What device code is compiled with: numba-cuda, its successor numba-cuda-mlir, or numba-cuda's simulator.

FASTMASK_CUDA_COMPILER names one of the first two; otherwise numba-cuda is taken where it is installed. Each has a
module of its own, and these hold all that kernels and launches need to know of the differences.
"""

import importlib
import importlib.util
import os

import numba
import numpy as np

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
MODULES = {"numba-cuda": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir"}  # by the names of the packages


def chosen_compiler() -> str | None:
    """The package that compiles device code here; None where neither is installed.

    Raises ValueError for a name that is not one of the two.
    """
    name = os.environ.get("FASTMASK_CUDA_COMPILER")
    if name and name not in MODULES:
        raise ValueError(f"FASTMASK_CUDA_COMPILER must be {' or '.join(MODULES)}, got {name!r}")
    for package in (name,) if name else MODULES:
        if importlib.util.find_spec(MODULES[package]) is not None:
            return package
    return None


def _load():
    if SIMULATED:
        return importlib.import_module("fastmask.kernels.cuda_compiler_simulator")
    if chosen_compiler() == "numba-cuda-mlir":
        return importlib.import_module("fastmask.kernels.cuda_compiler_mlir")
    return importlib.import_module("fastmask.kernels.cuda_compiler_numba")


_compiler = _load()

cuda = _compiler.cuda  # what kernels see as numba.cuda
add, load_quad, store_quad = _compiler.add, _compiler.load_quad, _compiler.store_quad
_multiply, _plus = _compiler.multiply, _compiler.plus


@cuda.jit(device=True)
def rounded_share(p, n):
    """floor(p * n + 0.5) in float64; two roundings, since the product and the sum are not contracted to an FMA."""
    return np.uint64(_plus(_multiply(p, np.float64(n)), 0.5))


def create_stream():
    """A stream of the current device that waits for no other, the default stream included."""
    if SIMULATED:
        return cuda.stream()
    handle = _compiler.driver.cuStreamCreate(_compiler.binding.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    return cuda.external_stream(int(handle))


def is_capturing(stream):
    """Whether what is queued on the stream becomes part of a graph; in the simulator nothing does."""
    return not SIMULATED and int(_compiler.driver.cuStreamIsCapturing(int(stream))) != 0
