"""What several tests need: random calls on kernels, poisoned outputs, exact comparison of batches."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

SEEDS = (0, 1, 1 << 32, (1 << 64) - 1)
EPOCHS = (0, (1 << 24) - 1)
PROBABILITIES = (0, 2.0**-24, 0.15, 1)
SIZES = (0, 1, 3, 4, 5, 255, 256, 257, 513, 8191)
ID_DTYPES = ("uint16", "int32", "int64")
OUT_DTYPES = ("int32", "int64")
BERT = Vocab(30522, 103, 0, (0, 100, 101, 102, 103))
SMALL = Vocab(30, 4, 0, (0, 1, 2, 3, 4))
SCATTERED = Vocab(60, 4, None, (1, 8, 9, 30, 59))  # five runs of special ids


def plan_of(
    vocab: Vocab = BERT, p: float = 0.15, how: Replace | None = None, seed: int = 7, ignore_index: int = -100
) -> Plan:
    """A plan with defaults."""
    return make_plan(vocab, Bernoulli(p), how or Replace(), seed, ignore_index)


def poisoned(call: Call, id_dtype: str = "int64", label_dtype: str = "int64", poison: int = -7) -> Outputs:
    """Outputs full of a value that no kernel leaves."""
    cells = call.rows * call.row_length
    return Outputs(
        np.full(cells, poison, id_dtype),
        np.full(cells, poison, label_dtype),
        np.full(cells, poison & 0xFF, np.uint8),
        np.full(call.rows, poison, np.int64),
    )


def expected(plan: Plan, call: Call, id_dtype: str = "int64", label_dtype: str = "int64") -> Outputs:
    """What the reference says."""
    out = poisoned(call, id_dtype, label_dtype)
    assert reference.mask_batch(plan, call, out)
    return out


def assert_same(got: Outputs, want: Outputs) -> None:
    """Every output is equal, bit for bit, dtype and shape included."""
    for name in (field.name for field in fields(Outputs)):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), strict=True, err_msg=name)


def random_ids(rng: np.random.Generator, vocab: Vocab, shape: Any, dtype: str = "int64") -> npt.NDArray[Any]:
    """Ids of which a good part are special, and rows that may be padded on both sides."""
    ids = rng.integers(0, vocab.size, shape)
    specials = np.array(vocab.special_token_ids)
    ids = np.where(rng.random(shape) < 0.1, rng.choice(specials, shape), ids)
    if vocab.pad_token_id is not None and ids.ndim == 2 and ids.shape[1]:
        columns = np.arange(ids.shape[1])
        left, right = rng.integers(0, ids.shape[1] + 1, (2, ids.shape[0], 1)) // 3
        ids[(columns < left) | (columns >= ids.shape[1] - right)] = vocab.pad_token_id
    typed: npt.NDArray[Any] = ids.astype(dtype)
    return typed


def in_place(call: Call, out: Outputs) -> Call:
    """The call with its ids in the memory of the outputs."""
    out.input_ids[:] = call.ids
    return replace(call, ids=out.input_ids, in_place=True)
