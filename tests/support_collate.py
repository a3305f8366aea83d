"""What tests of collate and pack share: laws, ragged samples in every kind that is taken, and padding by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import Array, all_same, same

import fastmask as fm
from fastmask import buffers
from fastmask.laws import Law

IGNORED = -100
Rows = Sequence[Sequence[Any]]
GEOMETRIC = fm.Geometric(0.2, 10)
LAWS: dict[str, tuple[Law, fm.Replace]] = {
    "Bernoulli": (fm.Bernoulli(0.3), fm.Replace(0.4, 0.4)),
    "Bernoulli, limits": (fm.Bernoulli(0.3, min_masked=3, max_masked=40), fm.Replace(0.4, 0.4, exclude_original=True)),
    "Bernoulli words": (fm.Bernoulli(0.3, "word"), fm.Replace(0.4, 0.4, unit="word")),
    "ExactCount": (fm.ExactCount(0.15), fm.Replace(0.4, 0.4, pool="vocab")),
    "ExactCount words": (fm.ExactCount(0.3, "word"), fm.Replace(0.4, 0.4)),
    "Spans": (fm.Spans(0.3, GEOMETRIC), fm.Replace(0.4, 0.4, unit="span")),
    "Spans words": (fm.Spans(0.15, fm.InverseLength(3), "word"), fm.Replace(0.4, 0.4)),
    "Diffusion": (fm.Diffusion(1e-3), fm.Replace(1, 0)),
}
MASKERS = {name: fm.Masker(VOCAB, *parts, seed=7) for name, parts in LAWS.items()}
LENGTHS = (0, 1, 63, 64, 65, 511, 513, 1100, 2, 0)  # rows of 1100 cells: more than one chunk of them


@pytest.fixture(autouse=True)
def poisoned_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is full of a value that no output keeps, and nothing is recycled."""

    def empty(size: int, dtype: Any) -> Array:
        return np.full(size * np.dtype(dtype).itemsize, 0x5A, np.uint8).view(dtype)

    monkeypatch.setattr(buffers, "empty", empty)


def some_rows(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[list[int]]:
    """Samples of these lengths, in which every id of the small vocabulary occurs, pad and MASK too."""
    rng = np.random.default_rng(seed)
    return [np.where(rng.random(n) < 0.1, rng.integers(0, 5, n), rng.integers(5, 30, n)).tolist() for n in lengths]


def words_of(rows: Rows) -> list[list[int | None]]:
    """Word ids: three tokens a word or fewer, and None for the first token."""
    return [[None, *(j // 3 for j in range(1, len(row)))][: len(row)] for row in rows]


def marks_of(rows: Rows) -> list[list[int]]:
    return [[int(j % 7 == 2) for j in range(len(row))] for row in rows]


def types_of(rows: Rows) -> list[list[int]]:
    return [[int(2 * j >= len(row)) for j in range(len(row))] for row in rows]


def by_hand(rows: Rows, width: int, left: bool, padding: int) -> Array:
    """The samples in padded rows, int64."""
    out = np.full((len(rows), width), padding)
    for row, values in enumerate(rows):
        for j, value in enumerate(values):
            out[row, (width - len(values) if left else 0) + j] = -1 if value is None else value
    return out


def width_of(rows: Rows, multiple: int | None = None) -> int:
    width = max(map(len, rows))
    return width + -width % (multiple or 1)


def masked_by_hand(masker: fm.Masker, rows: Rows, width: int, left: bool = False, **said: Any) -> fm.MaskedBatch:
    """What the reference makes of the padded samples; word_ids and special_tokens_mask are ragged."""
    for name in ("word_ids", "special_tokens_mask"):
        if name in said:
            said[name] = by_hand(said[name], width, left, 0)
    real = by_hand([[1] * len(row) for row in rows], width, left, 0)
    padded = by_hand(rows, width, left, int(masker.vocab.pad_token_id or 0))
    return masker(padded, attention_mask=real, backend="numpy", **said)


def same_as(got: fm.CollatedBatch | fm.PackedBatch, want: fm.MaskedBatch) -> None:
    """Everything that a masker returns is equal in two batches."""
    for name in ("input_ids", "labels", "decisions", "num_masked", "rates", "weights"):
        same(np.asarray(getattr(got, name)), np.asarray(getattr(want, name)))
    assert (got.compact is None) == (want.compact is None)
    if got.compact is not None and want.compact is not None:
        all_same(tuple(got.compact), tuple(want.compact))


def returns_of(masker: fm.Masker) -> tuple[str, ...]:
    return ("decisions", "num_masked", "compact") + ("rates",) * isinstance(masker.select, fm.Diffusion)


# The kinds of ragged samples.


def flat(rows: Rows, dtype: Any = np.int64) -> Array:
    return np.array(list(chain.from_iterable(rows)), dtype)


def offsets(rows: Rows) -> list[int]:
    return list(accumulate(map(len, rows), initial=0))


def arrays(rows: Rows, dtype: Any = np.int64) -> list[Array]:
    return [np.array(row, dtype) for row in rows]


def tensors(rows: Rows) -> list[Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    return [torch.tensor(row, dtype=torch.int64) for row in rows]


def slice_of_pair(rows: Rows) -> tuple[Array, Array]:
    return flat([[7, 7, 7], *rows, [7]]), np.array(offsets(rows), np.int32) + np.int32(3)


def arrow(rows: Rows, large: bool = False) -> Any:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    return pa.array(rows, (pa.large_list if large else pa.list_)(pa.int64()))


def chunked(rows: Rows) -> Any:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    return pa.chunked_array([arrow([[9], *rows[:2]])[1:], arrow([]), arrow(rows[2:])])


KINDS: dict[str, Callable[[Rows], Any]] = {
    "lists": lambda rows: [list(row) for row in rows],
    "tuples": lambda rows: [tuple(row) for row in rows],
    "arrays": arrays,
    "arrays of several dtypes": lambda rows: [
        np.array(row, ["int64", "int32", "uint16", ">i4"][i % 4]) for i, row in enumerate(rows)
    ],
    "strided arrays": lambda rows: [np.repeat(row, 2)[::2] for row in arrays(rows)],
    "an array of objects": lambda rows: np.array([*arrays(rows), None], object)[:-1],
    "lists and arrays": lambda rows: [list(row) if i % 2 else np.array(row, int) for i, row in enumerate(rows)],
    "tensors": tensors,
    "a pair": lambda rows: (flat(rows), offsets(rows)),
    "a slice of a pair": slice_of_pair,
    "Arrow": arrow,
    "large Arrow": lambda rows: arrow(rows, large=True),
    "sliced Arrow": lambda rows: arrow([[5, 6], *rows, [8]])[1:-1],
    "chunks of Arrow": chunked,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
