"""What tests of the reference share: batches, what came of them, and exact comparison."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from plain import IGNORED, VOCAB
from support import Array, same

from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

ROW = [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 7, 10, 13, 16, 19, 22, 25, 28, 6, 9, 12, 3, 0, 0]
POISONS = (0x55, 0xAA)  # bytes that no output keeps


class Masked(NamedTuple):
    """What a batch became: (rows, row_length) arrays, and a count per row."""

    input_ids: Array
    labels: Array
    decisions: Array
    num_masked: Array


def plan_of(p: float, replace: Replace | None = None, seed: int = 7, vocab: Vocab = VOCAB) -> Plan:
    return make_plan(vocab, Bernoulli(p), replace or Replace(), seed, IGNORED)


def poisoned(size: int, dtype: Any, poison: int) -> Array:
    return np.full(size * np.dtype(dtype).itemsize, poison, np.uint8).view(dtype)


def mask(plan: Plan, ids: Any, id_dtype: Any = np.int64, label_dtype: Any = np.int64, **given: Any) -> Masked:
    """What 2-D ids (or one row) become in epoch 1; every output was written, and no input was."""
    ids = np.atleast_2d(ids)
    flat = ids.reshape(-1).copy()
    flat.flags.writeable = False
    call = Call(flat, *ids.shape, **{"epoch": 1, **given})
    runs = []
    for poison in POISONS:
        out = Masked(
            input_ids=poisoned(ids.size, id_dtype, poison),
            labels=poisoned(ids.size, label_dtype, poison),
            decisions=poisoned(ids.size, np.uint8, poison),
            num_masked=poisoned(len(ids), np.int64, poison),
        )
        assert reference.mask_batch(plan, call, Outputs(**out._asdict())) is True
        cells = {name: getattr(out, name).reshape(ids.shape) for name in ("input_ids", "labels", "decisions")}
        runs.append(out._replace(**cells))
    equal(*runs)
    return runs[0]


def equal(got: Masked, want: Masked) -> None:
    for one, other in zip(got, want, strict=True):
        same(one, other)


def part(out: Masked, row: int, start: int, stop: int) -> Masked:
    cells = slice(row, row + 1), slice(start, stop)
    return Masked(out.input_ids[cells], out.labels[cells], out.decisions[cells], out.num_masked[row : row + 1])


def sample_of(*ids: int) -> Array:
    return np.array(ids, np.uint64)


def lengths_of(*lengths: int) -> Array:
    return np.array(lengths, np.int64)


def some_rows(rows: int, row_length: int, seed: int = 0) -> Array:
    """Ids of the small vocabulary, special ones among them, but no pad id at the ends of a row."""
    ids = np.random.default_rng(seed).integers(0, VOCAB.size, (rows, row_length))
    ids[:, [0, -1]] = 2
    return ids
