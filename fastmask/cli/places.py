"""Where a backend of the demo keeps its arrays: on the host, or on a GPU through CuPy or torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from fastmask.cli.errors import RefusedError

CACHE_TOKENS = 1 << 17  # a batch as data loaders make them: 256 rows of 512


@dataclass(frozen=True)
class Place:
    """How arrays come to a backend and back, how to wait for it, and the tokens of a batch (None: all)."""

    backend: str
    bring: Callable[[Any], Any]
    fetch: Callable[[Any], Any]
    wait: Callable[[], None]
    batch_tokens: int | None


def place_of(backend: str) -> Place:
    """The place of a backend that is available."""
    if backend != "cuda":
        return Place(backend, np.asarray, np.asarray, _nothing, CACHE_TOKENS)
    if find_spec("cupy") is not None:
        return _cupy()
    if find_spec("torch") is not None:
        return _torch()
    raise RefusedError("a GPU is here, but neither CuPy nor torch to hold its arrays: install one of them")


def _nothing() -> None:
    """Returns at once: the host has nothing to wait for."""


def _cupy() -> Place:
    import cupy

    return Place("cuda", cupy.asarray, cupy.asnumpy, cupy.cuda.Device().synchronize, None)


def _torch() -> Place:
    import torch

    def bring(array: Any) -> Any:
        return torch.from_numpy(np.asarray(array)).cuda()

    def fetch(array: Any) -> Any:
        return array.cpu().numpy()

    return Place("cuda", bring, fetch, torch.cuda.synchronize, None)
