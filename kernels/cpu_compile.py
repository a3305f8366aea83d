"""How CPU kernels are compiled: one explicit signature per function, serial and parallel twins, a safe disk cache."""

import functools
import hashlib
import pickle
import types as python_types
from pathlib import Path

from numba import njit

SOURCES = ("philox.py", "fate.py", "layout.py", "bits.py", "cpu.py", "cpu_compile.py", "cpu_range.py", "cpu_tile.py")


@functools.cache
def source_digest():
    """A digest of the kernel sources.

    It is part of each cached name: Numba looks at the file of a function alone, and would keep code that was compiled
    from an older version of what the function calls.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]


def compile_kernel(function, signature, tag, *, parallel, cache=True):
    """The function compiled for exactly this signature, under a name (and so a cache file) of its own.

    Numba numbers the cached signatures of one function; processes that compile different ones at the same time would
    overwrite each other's files. With one signature per name they write the same thing.
    """
    name = f"{function.__name__}_{tag}_{'parallel' if parallel else 'serial'}_{source_digest()}"
    renamed = python_types.FunctionType(function.__code__, function.__globals__, name)
    renamed.__qualname__ = name
    renamed.__module__ = function.__module__
    options = {"nogil": True, "parallel": parallel}
    if not cache:
        return _only(njit(**options)(renamed), signature)
    try:
        kernel = njit(cache=True, **options)(renamed)
    except RuntimeError:  # no writable place for the cache: run uncached
        return _only(njit(**options)(renamed), signature)
    try:
        return _only(kernel, signature)
    except (EOFError, pickle.UnpicklingError, IndexError):  # a truncated cache file: forget it and compile again
        kernel._cache.flush()
        return _only(kernel, signature)


def _only(kernel, signature):
    kernel.compile(signature)
    kernel.disable_compile()
    return kernel
