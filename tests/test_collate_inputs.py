"""Ragged samples: every kind that is taken gives the same batch and is left as it was; what is refused is named."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, every, on_host, same
from support_collate import (
    KINDS,
    MASKERS,
    Rows,
    arrays,
    every_kind,
    flat,
    marks_of,
    masked_by_hand,
    offsets,
    same_as,
    some_rows,
    tensors,
    types_of,
    words_of,
)
from support_collate import poisoned_buffers as poisoned_buffers

import fastmask as fm

MASKER, WORDS = MASKERS["Bernoulli"], MASKERS["Bernoulli words"]
ROWS = some_rows((5, 0, 130, 1, 64, 0, 9))


@on_host
@every_kind
@pytest.mark.parametrize("most", [None, 60])
def test_every_kind_of_samples_gives_the_same_batch(kind: str, most: int | None, backend: str) -> None:
    cut = [row[:most] for row in ROWS]
    got = fm.collate(MASKER, KINDS[kind](ROWS), epoch=1, max_length=most, backend=backend)
    same_as(got, masked_by_hand(MASKER, cut, most or 130, epoch=1))


@on_host
@every_kind
def test_what_goes_along_may_be_of_every_kind(kind: str, backend: str) -> None:
    said: dict[str, Any] = {"special_tokens_mask": marks_of(ROWS), "token_type_ids": types_of(ROWS)}
    words = [[99 if word is None else word for word in row] for row in words_of(ROWS)]
    want = fm.collate(WORDS, ROWS, epoch=1, word_ids=words, backend=backend, **said)
    given: dict[str, Any] = {name: KINDS[kind](rows) for name, rows in said.items()}
    got = fm.collate(WORDS, ROWS, epoch=1, word_ids=KINDS[kind](words), backend=backend, **given)
    for name in ("input_ids", "labels", "token_type_ids", "special_tokens_mask"):
        same(getattr(got, name), getattr(want, name))


@on_host
@pytest.mark.parametrize("kind", ["lists", "arrays of objects", "large words"])
def test_words_may_be_none_and_as_large_as_64_bits(kind: str, backend: str) -> None:
    words = words_of(ROWS)
    want = masked_by_hand(WORDS, ROWS, 130, epoch=1, word_ids=words)
    made: dict[str, Any] = {
        "lists": words,
        "arrays of objects": [np.array(row, object) for row in words],
        "large words": [[None if word is None else word + 2**63 for word in row] for row in words],
    }
    same(fm.collate(WORDS, ROWS, epoch=1, word_ids=made[kind], backend=backend).labels, want.labels)


@on_host
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64])
def test_masks_and_types_may_be_any_integers_or_bool(dtype: Any, backend: str) -> None:
    given: dict[str, Any] = {"special_tokens_mask": marks_of(ROWS), "token_type_ids": types_of(ROWS)}
    want = fm.collate(MASKER, ROWS, epoch=1, **given)
    typed: dict[str, Any] = {name: arrays(rows, dtype) for name, rows in given.items()}
    got = fm.collate(MASKER, ROWS, epoch=1, backend=backend, **typed)
    for name in ("labels", *given):
        same(getattr(got, name), getattr(want, name))


@on_host
def test_marks_come_back_as_they_were_whatever_their_value(backend: str) -> None:
    marks = [[0, 256, -1, 1]]
    got = fm.collate(fm.Masker(MASKER.vocab, fm.Bernoulli(1)), [[5, 6, 7, 8]], epoch=0, special_tokens_mask=marks)
    same(got.special_tokens_mask, np.array(marks))
    same(got.labels, np.array([[5, -100, -100, -100]]))


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


@on_host
def test_read_only_samples_are_taken(backend: str) -> None:
    want = masked_by_hand(MASKER, ROWS, 130, epoch=1)
    pair = frozen(flat(ROWS)), frozen(np.array(offsets(ROWS)))
    for rows in (pair, [frozen(array) for array in arrays(ROWS)]):
        same_as(fm.collate(MASKER, rows, epoch=1, backend=backend), want)


@on_host
def test_memory_mapped_samples_are_taken_and_never_written(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, flat(ROWS, np.uint16))
    before = path.read_bytes()
    want = masked_by_hand(MASKER, ROWS, 130, epoch=1)
    for mode in ("r", "r+", "c"):
        mapped = np.load(path, mmap_mode=mode)  # type: ignore[call-overload]
        bounds = offsets(ROWS)
        parts = [mapped[first:end] for first, end in pairwise(bounds)]
        for rows in ((mapped, bounds), parts):
            got = fm.collate(MASKER, rows, epoch=1, backend=backend)
            same_as(got, want)
            assert not np.shares_memory(got.input_ids, mapped)
        del mapped, parts
    assert path.read_bytes() == before


@on_host
@pytest.mark.parametrize("rows", [ROWS, some_rows((20, 20))], ids=["ragged", "of one length"])
def test_no_input_is_changed_and_no_output_shares_its_memory(rows: Rows, backend: str) -> None:
    values, bounds = flat(rows), np.array(offsets(rows))
    given: dict[str, Any] = {"token_type_ids": (values, bounds), "special_tokens_mask": (values, bounds)}
    before = values.copy(), bounds.copy()
    got = fm.collate(MASKER, (values, bounds), epoch=1, backend=backend, **given)
    (part,) = fm.pack(MASKER, (values, bounds), epoch=1, max_tokens=10_000, backend=backend, **given)
    for batch in (got, part):
        names = ("input_ids", "labels", "token_type_ids", "special_tokens_mask")
        for array in (getattr(batch, name) for name in names):
            assert not np.shares_memory(array, values)
            array[...] = 5
    same(values, before[0])
    same(bounds, before[1])


@on_host
def test_lists_keep_what_they_hold_and_nobody_else_does(backend: str) -> None:
    token = 10**15  # an object of its own
    rows: list[list[Any]] = [[5, 6], [token]]
    counts = [sys.getrefcount(x) for x in (token, rows, rows[1])]
    for _ in range(5):
        with pytest.raises(ValueError, match="in sample 1, position 0"):
            fm.collate(MASKER, rows, epoch=1, backend=backend)
    gc.collect()
    assert [sys.getrefcount(x) for x in (token, rows, rows[1])] == counts
    assert rows == [[5, 6], [10**15]]


class Index:
    """An integer by its __index__ alone."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Shrinks(Index):
    """Empties a list when it is read."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(5)
        self.rows = rows

    def __index__(self) -> int:
        self.rows.clear()
        return self.value


@on_host
def test_items_of_lists_may_be_anything_that_is_an_integer(backend: str) -> None:
    rows = [[np.int32(7), Index(8), np.uint16(9)], [np.array(5), 6]]
    got = fm.collate(MASKER, rows, epoch=1, backend=backend)
    same_as(got, masked_by_hand(MASKER, [[7, 8, 9], [5, 6]], 3, epoch=1))


@on_host
def test_a_list_that_changes_while_it_is_read_raises_and_crashes_nothing(backend: str) -> None:
    row: list[Any] = [7]
    row += [Shrinks(row), 8, 9]
    with pytest.raises((ValueError, TypeError)):
        fm.collate(MASKER, [[5, 6], row], epoch=1, backend=backend)


# What is refused, and what the message names.

VOCAB = MASKER.vocab
NO_PAD = fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.3))
GOOD = [[5, 6, 7], [8, 9], [10]]


def collate(rows: Any = GOOD, masker: fm.Masker = MASKER, **given: Any) -> Callable[[str], object]:
    return lambda backend: fm.collate(masker, rows, **{"epoch": 0, "backend": backend, **given})


def pair(values: Any, bounds: Any) -> tuple[Array, Array]:
    return np.array(values), np.array(bounds)


REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "value": [
        ("rows must hold at least one sample, got none", collate([])),
        ("rows must hold at least one sample, got none", collate(pair([5], [0]))),
        ("padding needs a vocabulary with pad_token_id", collate(masker=NO_PAD)),
        ("padding_side must be 'right' or 'left', got 'up'", collate(padding_side="up")),
        ("pad_to_multiple_of must be at least 1, got 0", collate(pad_to_multiple_of=0)),
        ("max_length must be at least 1, got 0", collate(max_length=0)),
        ("max_length must be at least 1, got -3", collate(max_length=-3)),
        ("epoch must be in [0, 2^24), got -1", collate(epoch=-1)),
        ("input_ids must be in [0, 30), got 30 in sample 1, position 1", collate([[5], [6, 30, 99]])),
        ("input_ids must be in [0, 30), got -1 in sample 2, position 0", collate([[5], [], [-1]])),
        ("input_ids must be in [0, 30), got -1 in sample 1, position 0", collate([[5], [-1]])),
        ("input_ids must be in [0, 30), got 77 in sample 0, position 1", collate(pair([1, 5, 77], [1, 3]))),
        (f"input_ids must fit into 64 bits, got {2**70} in sample 1, position 1", collate([[5], [6, 2**70]])),
        ("input_ids of sample 1 must have 1 dimension, got shape (1, 2)", collate([[5], [[6, 7]]])),
        ("input_ids of sample 1 must have 1 dimension, got shape (2, 1)", collate([[5], [[6], [7]]])),
        ("input_ids of sample 0 must have 1 dimension, got shape (1, 3)", collate([np.array([[5, 6, 7]])])),
        ("input_ids of sample 1 must be an array or nested lists", collate([[5], [[6], [7, 8]]])),
        ("the offsets of input_ids must not fall, got 1 after 2 at sample 1", collate(pair([5, 6, 7], [0, 2, 1]))),
        ("the offsets of input_ids must lie in [0, 3], got 0 to 4", collate(pair([5, 6, 7], [0, 4]))),
        ("the offsets of input_ids must lie in [0, 3], got -1 to 2", collate(pair([5, 6, 7], [-1, 2]))),
        ("input_ids must be 1-D values and offsets, got shapes (1, 2) and (2,)", collate(pair([[5, 6]], [0, 2]))),
        ("input_ids must be 1-D values and offsets, got shapes (2,) and (0,)", collate(pair([5, 6], []))),
        (
            "token_type_ids of sample 1 has 1 values, but the sample has 2 tokens",
            collate(token_type_ids=[[0, 0, 0], [0], [0]]),
        ),
        (
            "special_tokens_mask of sample 2 has 2 values, but the sample has 1 tokens",
            collate(special_tokens_mask=[[0, 0, 0], [0, 0], [0, 0]]),
        ),
        (
            "word_ids of sample 0 has 0 values, but the sample has 3 tokens",
            collate(word_ids=pair([0] * 3, [0, 0, 2, 3])),
        ),
        ("word_ids holds 2 samples, but rows hold 3", collate(word_ids=[[0, 0, 0], [0, 0]])),
        ("sample_ids must be >= 0, got -1 in row 2", collate(sample_ids=[1, 2, -1])),
        ("sample_ids must hold one value for each of 3 rows", collate(sample_ids=[1, 2])),
        ("rates must lie in [0, 1], got 1.5 in row 1", collate(rates=[0, 1.5, 0])),
        ("max_predictions = 1 is too small", collate(
            masker=fm.Masker(VOCAB, fm.Bernoulli(1)), returns="compact", max_predictions=1
        )),
        ("max_predictions goes with", collate(max_predictions=1)),
        ("returns may hold", collate(returns="attention")),
        ("stratify spreads the rates of Diffusion", collate(stratify=(0, 3))),
        ("backend must be one of", collate(backend="gpu")),
    ],
    "type": [
        ("input_ids must be a list of samples", collate("567")),
        ("input_ids must be a list of samples", collate({"input_ids": GOOD})),
        ("input_ids must be a list of samples", collate(5)),
        ("input_ids as a tuple must be (values, offsets), got 3 items", collate(([5], [6], [7]))),
        ("input_ids of sample 1 must be a list or a 1-D array, got 7", collate([[5, 6], 7])),
        ("input_ids of sample 0 must be a list or a 1-D array, got ", collate(np.array([5, 6]))),
        ("input_ids of sample 1 must be integers, got float64", collate([np.array([5]), np.array([6.0])])),
        ("input_ids of sample 0 must be integers, got bool", collate([np.array([True]), np.array([6])])),
        ("input_ids must be integers, got 6.0 in sample 1, position 1", collate([[5], [5, 6.0]])),
        ("input_ids must be integers, got None in sample 0, position 1", collate([[5, None]])),
        ("input_ids must be integers, got '5' in sample 0, position 0", collate([["5"], [7]])),
        ("input_ids must be integers, got float64", collate(pair([5.0], [0, 1]))),
        ("the offsets of input_ids must be integers, got float64", collate(pair([5], [0.0, 1.0]))),
        ("input_ids must be int64, int32, uint16, uint32 or int16, got uint8", collate([np.array([5], np.uint8)])),
        ("samples of dtypes that no dtype of integers holds", collate([np.array([5]), np.array([5], np.uint64)])),
        ("word_ids must be integers, got 1.5 in sample 0, position 2", collate(word_ids=[[0, None, 1.5], [0, 0], [0]])),
        ("token_type_ids must be integers, got None in sample 1", collate(token_type_ids=[[0, 0, 0], [0, None], [0]])),
        ("pad_to_multiple_of must be an integer", collate(pad_to_multiple_of=8.0)),
        ("backend='cuda' cannot reach rows", collate(backend="cuda")),
    ],
    "overflow": [
        ("too narrow", collate([np.array([5], np.int16)], fm.Masker(fm.Vocab(40000, 4, 0), fm.Bernoulli(0.1)))),
    ],
}  # fmt: skip


@on_host
@pytest.mark.parametrize(("error", "message", "call"), every(**REFUSED))
def test_what_is_refused_is_named(
    error: type[Exception], message: str, call: Callable[[str], object], backend: str
) -> None:
    with pytest.raises(error) as caught:
        call(backend)
    assert message in str(caught.value)


@on_host
def test_nulls_of_arrow_are_refused_by_the_name_of_the_sample(backend: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    for rows, message in (
        ([[5], None, [6]], "input_ids must have no nulls, but sample 1 is null"),
        ([[5], [6], [7, None]], "input_ids must have no nulls, but there is one in sample 2, position 1"),
    ):
        for cut in (0, 1):
            whole = pa.array([[None]] * cut + rows)[cut:]
            with pytest.raises(ValueError, match=message):
                fm.collate(MASKER, whole, epoch=0, backend=backend)
    good = pa.array([[None], [5, 6], None])[1:2]
    same(fm.collate(MASKER, good, epoch=0, backend=backend).lengths, np.array([2]))


@on_host
def test_arrow_arrays_that_hold_no_lists_are_refused(backend: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    for rows in (pa.array([5, 6]), pa.chunked_array([[5, 6]]), pa.array(["a"])):
        with pytest.raises(TypeError, match="input_ids must be an Arrow array of lists"):
            fm.collate(MASKER, rows, epoch=0, backend=backend)
    with pytest.raises(TypeError, match="input_ids must be integers, got float64"):
        fm.collate(MASKER, pa.array([[0.5]]), epoch=0, backend=backend)


@on_host
def test_tensors_of_floats_are_refused_by_the_name_of_the_sample(backend: str) -> None:
    rows = tensors([[5], [6]])
    with pytest.raises(TypeError, match="input_ids of sample 1 must be integers, got float32"):
        fm.collate(MASKER, [rows[0], rows[1].float()], epoch=0, backend=backend)
