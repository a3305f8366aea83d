"""`fastmask info`: what a bug report needs, without importing a framework or starting a thread."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastmask as fm
from fastmask.cli.machine import cores, package_version, processor
from fastmask.threads import threading_layer

PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "tbb",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "tokenizers",
    "transformers",
    "typer",
    "rich",
)
SETTINGS = ("FASTMASK_", "NUMBA_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
DRIVER = Path("/proc/driver/nvidia")

Report = dict[str, Any]


def collect() -> Report:
    """Everything, as plain values."""
    return {
        "fastmask": fm.__version__,
        "stream version": fm.STREAM_VERSION,
        "backends": {name: _backend(backend) for name, backend in fm.backends().items()},
        "threads": fm.get_num_threads(),
        "cores": cores(),
        "threading layer": threading_layer() or "none",
        "kernel cache": cache_folder(),
        "devices": devices(),
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "platform": f"{platform.platform()} {processor()}",
        "packages": {name: found for name in PACKAGES if (found := package_version(name)) is not None},
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


def show(report: Report, *, as_json: bool) -> None:
    """Prints the report: JSON, or one fact a line."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for name, value in _lines(report):
        print(f"{name:24} {value}")


def _lines(report: Mapping[str, Any], indent: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for name, value in report.items():
        if isinstance(value, dict):
            lines.append((f"{indent}{name}", "" if value else "none"))
            lines.extend(_lines(value, indent + "  "))
        else:
            written = ", ".join(value) or "none" if isinstance(value, list) else value
            lines.append((f"{indent}{name}", written))
    return lines


def _backend(backend: fm.Backend) -> str:
    return "available" if backend.available else f"not available: {backend.reason}"


def cache_folder() -> str:
    """Where compiled kernels are kept between processes, or why nowhere."""
    from numba import njit

    philox = importlib.import_module("fastmask.kernels.philox")
    try:
        return str(njit(cache=True)(philox.philox).stats.cache_path)  # decorated, not compiled
    except RuntimeError as error:
        return f"none: {error}"


def devices() -> list[str]:
    """The GPUs that the driver names, and its version; empty without a driver."""
    models = [
        line.split(":", 1)[1].strip()
        for file in sorted(DRIVER.glob("gpus/*/information"))
        for line in file.read_text().splitlines()
        if line.startswith("Model")
    ]
    driver = DRIVER / "version"
    if driver.is_file():
        models.append(driver.read_text().splitlines()[0])
    return models
