"""Frozen batches: bits that change only together with STREAM_VERSION.

`python tests/test_golden.py` writes the file anew; a change in it is a change of the stream.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import on_every_backend
from support import tiny_launches as tiny_launches

import fastmask as fm

FILE = Path(__file__).parent / "golden" / f"stream_{fm.STREAM_VERSION}.npz"
PARTS = ("input_ids", "labels", "decisions", "num_masked")
BERT = fm.Vocab(30522, 103, 0, (0, 100, 101, 102, 103))
OBJECTIVES = {
    "bert": fm.Masker(BERT, fm.Bernoulli(0.15), seed=7),
    "all random, original excluded": fm.Masker(
        fm.Vocab(60, 4, None, (1, 8, 9, 30, 59)),
        fm.Bernoulli(0.9),
        fm.Replace(0, 1, exclude_original=True),
        seed=(1 << 64) - 1,
    ),
    "weighted": fm.Masker(
        fm.Vocab(30, 4, 0, (1, 2, 3)), fm.Bernoulli(1), fm.Replace(0.1, 0.8, weights=range(30)), seed=1 << 32
    ),
    "own rates": fm.Masker(BERT, fm.Bernoulli(0.5), fm.Replace(0.5, 0.25, pool=range(1000, 1100)), seed=0),
}


def ids_of(name: str) -> Any:
    """Ids from nothing but arithmetic, so that no library can change them."""
    size = OBJECTIVES[name].vocab.size
    cell = np.arange(3 * 700, dtype=np.uint64)
    return (cell * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)).astype(np.int64).reshape(3, 700) % size


def batch_of(name: str, backend: str) -> fm.MaskedBatch:
    given: dict[str, Any] = {"rates": [0.0, 0.25, 1.0]} if name == "own rates" else {}
    if name != "bert":
        given |= {"sample_ids": [0, 1 << 32, (1 << 64) - 1], "position_offset": 5, "lengths": [700, 333, 0]}
    ids, call = ids_of(name), {"epoch": (1 << 24) - 1, "backend": backend, "returns": PARTS[2:], **given}
    if backend != "cuda":
        return OBJECTIVES[name](ids, **call)
    from numba import cuda

    batch = OBJECTIVES[name](cuda.to_device(ids), **call).check()
    return dataclasses.replace(batch, **{part: getattr(batch, part).copy_to_host() for part in PARTS})


@on_every_backend
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_stream_is_what_it_was(name: str, backend: str) -> None:
    batch = batch_of(name, backend)
    with np.load(FILE, allow_pickle=False) as frozen:
        for part in PARTS:
            np.testing.assert_array_equal(getattr(batch, part), frozen[f"{name}/{part}"], strict=True)


if __name__ == "__main__":
    frozen = {f"{name}/{part}": getattr(batch_of(name, "numpy"), part) for name in OBJECTIVES for part in PARTS}
    np.savez_compressed(FILE, **frozen)
