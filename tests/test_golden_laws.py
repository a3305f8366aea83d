"""Frozen batches of the laws over rows: bits that change only together with STREAM_VERSION.

`python tests/test_golden_laws.py` writes the file anew; a change in it is a change of the stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import on_host

import fastmask as fm
from fastmask.laws import Law

FILE = Path(__file__).parent / "golden" / f"laws_{fm.STREAM_VERSION}.npz"
PARTS = ("input_ids", "labels", "decisions", "num_masked")
GEOMETRIC = fm.Geometric(0.2, 10)
MIXED, BY_WORD, BY_SPAN = (fm.Replace(0.4, 0.4, unit=unit) for unit in ("token", "word", "span"))
ALL_MASK = fm.Replace(1, 0)
BOUNDS = [0, 0, 65, 300, 300, 812, 899, 900]
ROWS = 7

# Each: law, replacement, whether the batch is packed.
OBJECTIVES: dict[str, tuple[Law, fm.Replace, bool]] = {
    "bernoulli, limits": (fm.Bernoulli(0.1, min_masked=3, max_masked=20), MIXED, False),
    "bernoulli by span": (fm.Bernoulli(0.4), BY_SPAN, True),
    "bernoulli words": (fm.Bernoulli(0.2, "word"), MIXED, True),
    "exact count": (fm.ExactCount(0.15), MIXED, False),
    "exact count of the sequence, by word": (fm.ExactCount(0.3, count_of="sequence"), BY_WORD, True),
    "exact count words": (fm.ExactCount(0.3, "word"), BY_WORD, False),
    "exact count words by tokens, limits": (fm.ExactCount(0.3, "word", 2, 60, "candidates"), BY_SPAN, True),
    "spans": (fm.Spans(0.15, GEOMETRIC), BY_SPAN, False),
    "spans of words": (fm.Spans(0.3, fm.InverseLength(3), "word"), BY_WORD, True),
    "long spans": (fm.Spans(0.6, fm.Fixed(70), "token", 5, 100), MIXED, True),
    "explicit spans": (fm.Spans(0.5, [0, 1, 0, 2]), ALL_MASK, False),
    "diffusion": (fm.Diffusion(), ALL_MASK, True),
    "diffusion, strata": (fm.Diffusion(0.01), ALL_MASK, False),
}
OWN_RATES = ("bernoulli words", "exact count", "spans of words")
BY_TABLE = ("bernoulli words", "exact count words", "spans of words")


def spread(size: int, modulus: int) -> Any:
    """Numbers from nothing but arithmetic, so that no library can change them."""
    cell = np.arange(size, dtype=np.uint64)
    return (cell * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)).astype(np.int64) % modulus


def masker_of(name: str) -> fm.Masker:
    vocab = fm.Vocab(60, 4, None, (1, 8, 9, 30, 59), is_continuation=np.arange(60) % 5 > 1)
    return fm.Masker(vocab, *OBJECTIVES[name][:2], seed=(1 << 63) + len(name))


def batch_of(name: str, backend: str) -> fm.MaskedBatch:
    law, _, packed = OBJECTIVES[name]
    shape = (BOUNDS[-1],) if packed else (ROWS, 130)
    size = int(np.prod(shape))
    given: dict[str, Any] = {"cu_seqlens": BOUNDS} if packed else {"lengths": [0, 1, 63, 64, 65, 128, 130]}
    if name not in BY_TABLE:
        given["word_ids"] = (np.cumsum(spread(size, 7) < 3) % 1000).reshape(shape)
    if name in OWN_RATES:
        given["rates"] = [0.0, 0.1, 0.15, 0.3, 0.5, 0.9, 1.0]
    if isinstance(law, fm.Bernoulli | fm.ExactCount):
        given["position_offset"] = [0, 1, 2, 3, 1 << 20, 5, 6]
    if "strata" in name:
        given["stratify"] = (3, 10, 77)
    if len(name) % 2:
        given["sample_ids"] = (1 << 64) - ROWS
    if len(name) % 3 == 0:
        given["special_tokens_mask"] = (spread(size, 11) == 0).reshape(shape)
    returns = (*PARTS[2:], "rates") if isinstance(law, fm.Diffusion) else PARTS[2:]
    ids = spread(size, 60).reshape(shape)
    return masker_of(name)(ids, epoch=(1 << 24) - 2, returns=returns, backend=backend, **given)


def parts_of(name: str, backend: str) -> dict[str, Any]:
    batch = batch_of(name, backend)
    names = PARTS + ("rates", "weights") * (batch.rates is not None)
    return {f"{name}/{part}": np.asarray(getattr(batch, part)) for part in names}


@on_host
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_laws_select_what_they_did(name: str, backend: str) -> None:
    with np.load(FILE, allow_pickle=False) as frozen:
        parts = parts_of(name, backend)
        assert set(parts) == {key for key in frozen.files if key.startswith(f"{name}/")}
        for key, part in parts.items():
            np.testing.assert_array_equal(part, frozen[key], strict=True)


if __name__ == "__main__":
    np.savez_compressed(FILE, **{key: part for name in OBJECTIVES for key, part in parts_of(name, "numpy").items()})
