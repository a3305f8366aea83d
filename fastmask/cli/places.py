"""Where a backend of the demo keeps its arrays: on the host, or on a GPU through CuPy or torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fastmask as fm
from fastmask.threads import plan_ranges

CACHE_TOKENS = 1 << 17  # a batch as data loaders make them: 256 rows of 512


@dataclass(frozen=True)
class Place:
    """A backend, how arrays come to it and back, how to wait for it, and the tokens of a batch or None."""

    label: str
    backend: str
    batch_tokens: int | None
    bring: Callable[[Any], Any] = np.asarray
    fetch: Callable[[Any], Any] = np.asarray
    wait: Callable[[], None] = lambda: None


def places(cells: int) -> tuple[list[Place], dict[str, str]]:
    """The places to mask an array of so many cells in, the reference first, and why other backends have none.

    The CPU has two where it masks all cells in parallel: batches of a data loader's size, and everything at once.
    """
    here = [Place("numpy (reference)", "numpy", CACHE_TOKENS), Place("cpu", "cpu", CACHE_TOKENS)]
    threads, _ = plan_ranges(cells)
    if threads > 1:
        here.append(Place(f"cpu, {threads} threads", "cpu", None))
    absent = {name: backend.reason for name, backend in fm.backends().items() if not backend.available}
    if "cuda" not in absent:
        place = _of("cupy", _cupy) or _of("torch", _torch)
        if place is None:
            absent["cuda"] = "neither CuPy nor torch is here with a GPU that it can use"
        else:
            here.append(place)
    return here, absent


def _of(module: str, place: Callable[[Any], Place]) -> Place | None:
    """The place that a framework offers, or None where it is not installed or reaches no GPU."""
    try:
        framework = importlib.import_module(module)
    except ImportError:
        return None
    return place(framework) if framework.cuda.is_available() else None


def _cupy(cupy: Any) -> Place:
    wait = cupy.cuda.get_current_stream().synchronize
    return Place("cuda (CuPy)", "cuda", None, cupy.asarray, cupy.asnumpy, wait)


def _torch(torch: Any) -> Place:
    def bring(array: Any) -> Any:
        return torch.from_numpy(np.asarray(array)).cuda()

    def fetch(array: Any) -> Any:
        return array.cpu().numpy()

    return Place("cuda (torch)", "cuda", None, bring, fetch, torch.cuda.synchronize)
