"""How time is taken, and on what: interleaved calls, a warm heap, aligned arrays, a word on the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.cli.machine import cores, package_version, processor

ROOT = Path(__file__).resolve().parent.parent
UNTIMED = 2  # after a contestant that filled the caches, one call was not enough: the next was 20 % slower
ALIGNMENT = 64  # bytes: a cache line, and the widest vector store

Seconds = dict[str, list[float]]


def interleave(thunks: Mapping[str, Callable[[], object]], rounds: int, number: int = 1) -> Seconds:
    """Seconds per call of each thunk, one figure per round.

    Every round runs every thunk, first twice untimed (caches are then its own), then `number` times under one
    pair of clock readings. Whatever disturbs the machine for a while disturbs all thunks alike.
    """
    seconds: Seconds = {name: [] for name in thunks}
    for _ in range(rounds):
        for name, thunk in thunks.items():
            for _ in range(UNTIMED):
                thunk()
            start = perf_counter()
            for _ in range(number):
                thunk()
            seconds[name].append((perf_counter() - start) / number)
    return seconds


def ratio(seconds: Seconds, slow: str, fast: str) -> float:
    """How many times longer `slow` takes than `fast`: the median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def warm_malloc() -> None:
    """Frees arrays of 8 MB, after which malloc keeps such sizes instead of returning each to the system.

    Without it, NumPy code that makes temporaries is timed with a page fault per 4 KB: 2 to 3 times slower,
    and the ratios to it would flatter fastmask.
    """
    for _ in range(3):
        arrays = [np.ones(1 << 20) for _ in range(6)]
        del arrays


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array whose first byte has an address divisible by 64."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array: npt.NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return array


def machine(threads: int) -> list[str]:
    """Lines that say what the figures were measured on."""
    versions = ", ".join(
        f"{name} {package_version(name) or 'not installed'}" for name in ("numpy", "numba", "transformers")
    )
    code = os.environ.get("NUMBA_CPU_NAME") or f"{_llvm_name()} (this CPU)"
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return [
        f"CPU: {processor()}, {cores()} cores, load {load} at the start",
        f"Code compiled for: {code}",
        f"Threads: {threads} at most",
        f"Python {platform.python_version()}, {versions}",
        f"{platform.system()} {platform.release()}, fastmask at commit {commit()}, {date.today().isoformat()}",
    ]


def _llvm_name() -> str:
    import llvmlite.binding

    return str(llvmlite.binding.get_host_cpu_name())


def commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "fastmask", "kernels", "benchmarks")
        return git("rev-parse", "--short=12", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
