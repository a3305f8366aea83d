"""Errors of construction and of calls: type, what the message names, and that nothing was written before."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import POISON, Array, every, on_host, same, small_ids, small_outputs

import fastmask as fm

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.9), seed=7)
NAN = float("nan")

Build = Callable[[], object]
untyped: Any = fm  # for calls that a type checker refuses


def replaced(*shares: float, **given: Any) -> fm.Masker:
    return fm.Masker(VOCAB, fm.Bernoulli(0.15), fm.Replace(*shares, **given))


def masker(**given: Any) -> fm.Masker:
    return fm.Masker(VOCAB, fm.Bernoulli(0.15), **given)


# Construction.

VALUE_AT_CONSTRUCTION: list[tuple[str, Build]] = [
    ("p must lie in [0, 1], got 1.5", lambda: fm.Bernoulli(1.5)),
    ("p must lie in [0, 1], got -0.5", lambda: fm.Bernoulli(-0.5)),
    ("p must lie in [0, 1], got nan", lambda: fm.Bernoulli(NAN)),
    ("p = 1e-09 is too small", lambda: fm.Bernoulli(1e-9)),
    ("mask + random must be at most 1, got 0.8 + 0.3", lambda: fm.Replace(0.8, 0.3)),
    ("mask + random must be at most 1", lambda: fm.Replace(0.5, 0.5 + 1e-8)),
    ("mask must lie in [0, 1], got 1.1", lambda: fm.Replace(1.1, 0)),
    ("random must lie in [0, 1], got -0.1", lambda: fm.Replace(0.8, -0.1)),
    ("mask must lie in [0, 1], got nan", lambda: fm.Replace(NAN, 0)),
    ("random must lie in [0, 1], got nan", lambda: fm.Replace(0, NAN)),
    ("mask = 1e-09 is too small", lambda: fm.Replace(1e-9, 0.1)),
    ("random = 1e-09 is too small", lambda: fm.Replace(0, 1e-9)),
    ('pool must be None, "vocab", a range', lambda: untyped.Replace(pool="all")),
    ("pool holds 0 ids: random = 0.1 needs at least 1", lambda: replaced(pool=[])),
    ("pool holds 30, outside the vocabulary [0, 30)", lambda: replaced(pool=[5, 30])),
    (f"pool holds {2**70}, outside", lambda: replaced(pool=[5, 2**70])),
    ("pool holds 9 more than once", lambda: replaced(pool=[9, 5, 9])),
    ("pool holds 1 ids: random = 0.1 needs at least 2", lambda: replaced(pool=[5], exclude_original=True)),
    (
        "pool holds 1 ids of non-zero width: random = 0.1 needs at least 2",
        lambda: replaced(pool=[5, 6], weights=[1, 0], exclude_original=True),
    ),
    ("weights[1] = -1.0", lambda: fm.Replace(weights=[1, -1])),
    ("weights[2] = nan", lambda: fm.Replace(weights=[1, 2, NAN])),
    ("weights[0] = inf", lambda: fm.Replace(weights=[float("inf")])),
    ("weights are all zero", lambda: fm.Replace(weights=[0, 0])),
    (
        "weights are all zero for the ids that are not special",
        lambda: replaced(weights=[1.0] * 5 + [0.0] * 25),
    ),
    ("weights holds 1 numbers for a pool of 2 ids", lambda: replaced(pool=[5, 6], weights=[1])),
    ("size must be in [1, 2^31), got 0", lambda: fm.Vocab(0, 0)),
    ("size must be in [1, 2^31), got 2147483648", lambda: fm.Vocab(2**31, 4)),
    ("mask_token_id holds 30", lambda: fm.Vocab(30, 30)),
    ("mask_token_id and pad_token_id are both 4", lambda: fm.Vocab(30, 4, 4)),
    ("pad_token_id holds -1", lambda: fm.Vocab(30, 4, -1)),
    ("special_token_ids holds 31", lambda: fm.Vocab(30, 4, 0, (1, 31))),
    ("seed must be in [0, 2^64), got -1", lambda: masker(seed=-1)),
    (f"seed must be in [0, 2^64), got {2**64}", lambda: masker(seed=2**64)),
    ("id_dtype must be int32 or int64", lambda: masker(id_dtype="int16")),
    ("id_dtype must be int32 or int64, got float64", lambda: masker(id_dtype=float)),
    ("label_dtype must be int32 or", lambda: masker(label_dtype="int16")),
]

TYPE_AT_CONSTRUCTION: list[tuple[str, Build]] = [
    ("p must be a number in [0, 1], got '0.15'", lambda: untyped.Bernoulli("0.15")),
    ("p must be a number in [0, 1], got True", lambda: untyped.Bernoulli(True)),
    ("p must be a number", lambda: untyped.Bernoulli(1j)),
    ("mask must be a number", lambda: untyped.Replace("all", 0)),
    ("exclude_original must be True or False, got 1", lambda: untyped.Replace(exclude_original=1)),
    ("got 5", lambda: untyped.Replace(pool=5)),
    ("pool must be an integer, got 5.0", lambda: untyped.Replace(pool=[5.0])),
    ("size must be an integer, got 30.0", lambda: untyped.Vocab(30.0, 4)),
    ("seed must be an integer, got 7.0", lambda: masker(seed=7.0)),
    ("seed must be an integer, got True", lambda: masker(seed=True)),
    ("ignore_index must be an integer", lambda: masker(ignore_index=-100.0)),
    ("vocab must be a Vocab, got 30", lambda: untyped.Masker(30, untyped.Bernoulli(0.1))),
    ("select must be a Bernoulli or ExactCount or Spans or Diffusion, got 0.15", lambda: untyped.Masker(VOCAB, 0.15)),
    ("replace must be a Replace or NoneType, got (0.8, 0.1)", lambda: masker(replace=(0.8, 0.1))),
]

OVERFLOW_AT_CONSTRUCTION: list[tuple[str, Build]] = [
    (
        "id_dtype = uint16 cannot hold 69999",
        lambda: fm.Masker(fm.Vocab(70_000, 4), fm.Bernoulli(0.1), id_dtype="uint16"),
    ),
    (
        "label_dtype = int32 cannot hold -2147483649",
        lambda: masker(label_dtype="int32", ignore_index=-(2**31) - 1),
    ),
    (f"cannot hold {2**63}", lambda: masker(ignore_index=2**63)),
]


@pytest.mark.parametrize(
    ("error", "message", "build"),
    every(value=VALUE_AT_CONSTRUCTION, type=TYPE_AT_CONSTRUCTION, overflow=OVERFLOW_AT_CONSTRUCTION),
)
def test_construction_refuses_and_names_argument_and_value(error: type[Exception], message: str, build: Build) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()


# Calls. Everything but the range of the ids is checked before the first byte is written.

ONES = np.ones((3, 4), np.int64)


def ones_but(value: Any, dtype: Any, row: int = 1, column: int = 2) -> Array:
    """An attention mask of ones in which one cell is something else."""
    array = np.ones((3, 4), dtype)
    array[row, column] = value
    return array


VALUE_AT_A_CALL: list[tuple[str, dict[str, Any]]] = [
    ("epoch must be in [0, 2^24), got -1", {"epoch": -1}),
    ("epoch must be in [0, 2^24), got 16777216", {"epoch": 2**24}),
    ("sample_ids must be >= 0, got -1 in row 2", {"sample_ids": [1, 2, -1]}),
    ("got -2 in row 1", {"sample_ids": [1, -2, -3]}),
    (f"[0, 2^64), got {2**64} in row 1", {"sample_ids": [1, 2**64, 3]}),
    ("sample_ids must be in [0, 2^64), got -1 in row 1", {"sample_ids": [2**63, -1, 3]}),
    (f"got {2**64 - 2} for the first of 3", {"sample_ids": 2**64 - 2}),
    ("sample_ids must be in [0, 2^64), got -1", {"sample_ids": -1}),
    ("sample_ids must hold one value for each of 3 rows", {"sample_ids": [1, 2]}),
    ("for each of 3 rows, got shape (3, 4)", {"sample_ids": ONES}),
    ("lengths must be in [0, 4], got 5 in row 2", {"lengths": [4, 4, 5]}),
    ("lengths must be in [0, 4], got -1 in row 1", {"lengths": [4, -1, 5]}),
    ("lengths must hold one value for each of 3 rows, got shape (1,)", {"lengths": [4]}),
    ("lengths must hold one value for each of 3 rows, got shape ()", {"lengths": 4}),
    ("lengths and attention_mask both", {"lengths": [4] * 3, "attention_mask": ONES}),
    ("attention_mask has shape (2, 4), but input_ids", {"attention_mask": ONES[:2]}),
    ("0 and 1 only, got 2 in row 1, column 2", {"attention_mask": ones_but(2, np.int64)}),
    ("0 and 1 only, got -1 in row 1, column 2", {"attention_mask": ones_but(-1, np.int64)}),
    ("only, got -1 in row 1, column 2", {"attention_mask": ones_but(-1, np.int8)}),
    ("only, got 0.5 in row 1, column 2", {"attention_mask": ones_but(0.5, float)}),
    ("0 and 1 only, got nan in row 1, column 2", {"attention_mask": ones_but(NAN, float)}),
    ("a second run begins in row 1, column 3", {"attention_mask": ones_but(0, np.int64)}),
    ("a second run begins in row 1, column 3", {"attention_mask": ones_but(False, bool)}),
    (
        "a second run begins in row 0, column 2",
        {"attention_mask": np.array([[1, 0, 1, 0], [1, 0.5, 0, 0], [1, 1, 1, 1]])},
    ),
    ("special_tokens_mask has shape (4, 3), but input_ids", {"special_tokens_mask": ONES.T}),
    ("1.5", {"rates": [0.1, 1.5, 2.0]}),
    ("rates must lie in [0, 1], got 1e+308 in row 2", {"rates": [0.1, 0.2, 1e308]}),
    ("rates must lie in [0, 1], got -0.5 in row 2", {"rates": [0.1, 0.2, -0.5]}),
    ("rates must lie in [0, 1], got nan in row 0", {"rates": [NAN, 0.2, 0.5]}),
    ("rates must lie in [0, 1], got inf in row 0", {"rates": [float("inf"), 0.2, 0.5]}),
    ("rates must not round to 0 in steps of 2^-24, got 1e-09 in row 1", {"rates": [0.1, 1e-9, 0.5]}),
    ("rates must hold one value for each of 3 rows, got shape (4,)", {"rates": [0.1] * 4}),
    ("position_offset must be >= 0", {"position_offset": -1}),
    ("got -7 in row 2", {"position_offset": [0, 0, -7]}),
    (f"below 2^34: got {2**34 - 3} in row 0", {"position_offset": 2**34 - 3}),
    ("position_offset must hold one value for each of 3", {"position_offset": [0] * 4}),
    ("backend must be one of numpy, cpu, cuda, got 'tpu'", {"backend": "tpu"}),
    ("got 'words'", {"returns": ["decisions", "words"]}),
]

TYPE_AT_A_CALL: list[tuple[str, dict[str, Any]]] = [
    ("epoch must be an integer, got 1.0", {"epoch": 1.0}),
    ("epoch must be an integer, got True", {"epoch": True}),
    ("epoch must be an integer, got None", {"epoch": None}),
    ("sample_ids must be integers, got float64", {"sample_ids": np.ones(3)}),
    ("sample_ids must be an integer, got 1.0", {"sample_ids": [1.0, 2, 3]}),
    ("lengths must be integers, got float64", {"lengths": np.full(3, 2.0)}),
    ("lengths must be integers, got bool", {"lengths": np.ones(3, bool)}),
    ("attention_mask must be bool, integers or", {"attention_mask": np.full((3, 4), "1")}),
    ("rates must be numbers, got bool", {"rates": np.ones(3, bool)}),
    ("rates must be numbers, got complex128", {"rates": np.ones(3, complex)}),
    ("position_offset must be an integer, got 1.5", {"position_offset": 1.5}),
    ("position_offset must be an integer, got True", {"position_offset": True}),
    ("cannot reach input_ids, a numpy.ndarray in host memory", {"backend": "cuda"}),
]


@on_host
@pytest.mark.parametrize(("error", "message", "given"), every(value=VALUE_AT_A_CALL, type=TYPE_AT_A_CALL))
def test_a_call_refuses_names_the_place_and_writes_nothing(
    backend: str, error: type[Exception], message: str, given: dict[str, Any]
) -> None:
    ids, out = small_ids(), small_outputs()
    call: dict[str, Any] = {"epoch": 0, "backend": backend, **given}
    with pytest.raises(error, match=re.escape(message)):
        MASKER(ids, out=out, **call)
    same(ids, small_ids())
    for array in out:
        same(array, np.full((3, 4), POISON))


@on_host
@pytest.mark.parametrize("dtype", [float, np.float32, bool, np.uint64, np.uint8, complex, object, "U1"])
def test_ids_of_other_dtypes_are_refused(backend: str, dtype: Any) -> None:
    ids, out = np.ones((3, 4), dtype), small_outputs()
    with pytest.raises(TypeError, match=f"input_ids must be .*, got {np.dtype(dtype)}"):
        MASKER(ids, epoch=0, out=out, backend=backend)
    same(out[0], np.full((3, 4), POISON))


@on_host
@pytest.mark.parametrize("value", [-1, 30, 2**31, 2**32 + 9, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("given", [{}, {"lengths": [1, 1, 1]}])  # on padding too
def test_the_first_id_out_of_range_is_named_and_the_input_unchanged(
    backend: str, value: int, given: dict[str, Any]
) -> None:
    ids = small_ids()
    ids[1, 2], ids[2, 0] = value, 99
    copy = ids.copy()
    with pytest.raises(ValueError, match=rf"input_ids must be in \[0, 30\), got {value} in row 1, column 2"):
        MASKER(ids, epoch=0, backend=backend, **given)
    same(ids, copy)


@on_host
def test_the_place_of_an_id_in_one_dimension_is_its_position(backend: str) -> None:
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 30\), got 30 at position 2"):
        MASKER(np.array([5, 6, 30]), epoch=0, backend=backend)


@pytest.mark.parametrize(("dtype", "value"), [("int16", -1), ("uint16", 65535), ("uint32", 2**32 - 1), (">i8", -1)])
def test_an_id_out_of_range_is_told_as_the_caller_wrote_it(dtype: str, value: int) -> None:
    ids = small_ids().astype(dtype).T  # the first in the order of rows, whatever the layout
    ids[2, 1] = value
    with pytest.raises(ValueError, match=rf"got {value} in row 2, column 1"):
        MASKER(ids, epoch=0, backend="numpy")


@on_host
@pytest.mark.parametrize("layout", ["contiguous", "strided", "Fortran"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_an_id_out_of_range_in_place_leaves_everything_unchanged(backend: str, layout: str, dtype: str) -> None:
    ids = small_ids().astype(dtype)
    ids[2, 3] = 30
    ids = {"contiguous": ids, "strided": np.repeat(ids, 2, 1)[:, ::2], "Fortran": np.asfortranarray(ids)}[layout]
    copy = ids.copy()
    with pytest.raises(ValueError, match="got 30 in row 2, column 3"):
        MASKER(ids, epoch=0, out=(ids, small_outputs()[1]), backend=backend)
    same(ids, copy)
