"""Dispatch: which backend masks an array, and why."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

from fastmask.arrays import describe, kind_of
from fastmask.threads import load_cpu_kernels, plan_ranges

NAMES = ("numpy", "cpu", "cuda")
COMPILERS = ("numba_cuda", "numba_cuda_mlir")  # of device code; one of them is needed


@dataclass(frozen=True)
class Backend:
    """Whether a backend can run here, and why (not)."""

    name: str
    available: bool
    reason: str


def backends() -> dict[str, Backend]:
    """Each backend by name, with what is here, what is not, and why. The driver's
    library is loaded and nothing in it called, so that forking stays safe.

    >>> backends()["cpu"].available
    True
    """
    return {
        "numpy": Backend("numpy", True, "the reference, plain NumPy"),
        "cpu": Backend("cpu", True, "Numba kernels for this processor"),
        "cuda": _cuda(),
    }


def _cuda() -> Backend:
    if not any(map(importlib.util.find_spec, COMPILERS)):
        return Backend("cuda", False, "numba-cuda is not installed: pip install 'fastmask-kernels[cu13]' (or [cu12])")
    if _simulated():
        return Backend("cuda", True, "Numba's CUDA simulator (NUMBA_ENABLE_CUDASIM=1)")
    if not _driver_present():
        return Backend("cuda", False, "no NVIDIA driver: libcuda.so.1 cannot be loaded")
    return Backend("cuda", True, "numba-cuda and an NVIDIA driver are here")


def _simulated() -> bool:
    """True where Numba was, or will be, imported with its CUDA simulator switched on."""
    numba = sys.modules.get("numba")
    if numba is not None:
        return bool(numba.config.ENABLE_CUDASIM)
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@functools.cache
def _driver_present() -> bool:
    """True where the driver's library loads; it is not initialised, so that forking stays safe."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def choose(x: Any, backend: str | None, name: str = "input_ids") -> str:
    """The backend for an array: "cuda" where it lives in device memory, "cpu" elsewhere, unless `backend` says else.

    Raises:
        ValueError: an unknown backend.
        TypeError: a backend that cannot reach the array's memory.
        RuntimeError: the backend is not here; the message says what is missing.
    """
    if backend is not None and backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, got {backend!r}")
    on_device = kind_of(x) == "cuda"
    if backend is None:
        backend = "cuda" if on_device else "cpu"
    elif on_device != (backend == "cuda"):
        memory = "device" if on_device else "host"
        raise TypeError(
            f"backend={backend!r} cannot reach {name}, a {describe(x)} in {memory} memory; arrays are not moved unasked"
        )
    if backend == "cuda" and not (state := _cuda()).available:
        raise RuntimeError(f"backend 'cuda' is not here: {state.reason}")
    return backend


def explain_choice(x: Any, backend: str | None, cells: int) -> str:
    """Which backend masks x, and why, in words."""
    chosen = choose(x, backend)
    why = "asked for" if backend is not None else f"input_ids is a {describe(x)}"
    if chosen != "cpu":
        return f"{chosen}: {why}"
    ranges, reason = plan_ranges(cells)
    return f"cpu: {why}; {'serial' if ranges == 1 else f'parallel in {ranges} ranges'}: {reason}"


@functools.cache
def host_kernels(backend: str) -> Any:
    """The module of a host backend, imported at first use."""
    if backend == "numpy":
        from fastmask.kernels import reference

        return reference
    load_cpu_kernels()
    from fastmask.kernels import cpu

    return cpu
