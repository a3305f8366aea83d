"""Errors of the laws and of what a call says of samples: type, what the message names, and that nothing was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import POISON, Array, every, on_host, same, small_ids, small_outputs

import fastmask as fm
from fastmask.laws import Law

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
NAN, INF = float("nan"), float("inf")
GEOMETRIC = fm.Geometric(0.2, 10)
BERNOULLI, WORDS, COUNT = fm.Bernoulli(0.5), fm.Bernoulli(0.5, "word"), fm.ExactCount(0.5)
SPANS, DIFFUSION = fm.Spans(0.5, GEOMETRIC), fm.Diffusion()
untyped: Any = fm  # for calls that a type checker refuses

Build = Callable[[], object]

# Construction.

LIMITED: list[Callable[..., Any]] = [
    lambda **given: untyped.Bernoulli(0.5, **given),
    lambda **given: untyped.ExactCount(0.5, **given),
    lambda **given: untyped.Spans(0.5, GEOMETRIC, **given),
]


@pytest.mark.parametrize("law", LIMITED, ids=["Bernoulli", "ExactCount", "Spans"])
@pytest.mark.parametrize(
    ("error", "message", "given"),
    every(
        value=[
            ('unit must be "token" or "word", got \'span\'', {"unit": "span"}),
            ('unit must be "token" or "word", got None', {"unit": None}),
            ("min_masked must be >= 0, got -1", {"min_masked": -1}),
            ("max_masked must be at least min_masked = 3, got 2", {"min_masked": 3, "max_masked": 2}),
            ("max_masked must be at least min_masked = 0, got -1", {"max_masked": -1}),
        ],
        type=[
            ("min_masked must be an integer, got 1.0", {"min_masked": 1.0}),
            ("min_masked must be an integer, got True", {"min_masked": True}),
            ("min_masked must be an integer, got None", {"min_masked": None}),
            ("max_masked must be an integer, got 2.5", {"max_masked": 2.5}),
        ],
    ),
)
def test_units_and_limits_of_a_law_are_refused_by_name_and_value(
    law: Callable[..., Any], error: type[Exception], message: str, given: dict[str, Any]
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        law(**given)


def lengths(weights: Any) -> object:
    return untyped.Spans(0.5, weights)


VALUE_AT_CONSTRUCTION: list[tuple[str, Build]] = [
    *(
        (f"p must lie in [0, 1], got {p}", lambda law=law, p=p: law(p))  # type: ignore[misc]
        for p in (1.5, -0.1, NAN, INF)
        for law in (fm.ExactCount, lambda p: fm.Spans(p, GEOMETRIC))
    ),
    (
        "count_of must be one of candidates, sequence for unit='token': 'words'",
        lambda: fm.ExactCount(0.5, count_of="words"),
    ),
    ("count_of must be one of candidates, sequence, words", lambda: untyped.ExactCount(0.5, "word", count_of="all")),
    ("lengths are all zero", lambda: lengths([])),
    ("lengths are all zero", lambda: lengths([0, 0.0])),
    ("lengths[1] = nan: weights must be finite and >= 0", lambda: lengths([1, NAN])),
    ("lengths[0] = inf: weights must be finite and >= 0", lambda: lengths([INF])),
    ("lengths[0] = inf: weights must be finite and >= 0", lambda: lengths([10**400])),
    ("lengths[2] = -1.0: weights must be finite and >= 0", lambda: lengths([1, 2, -1])),
    ("n must be in [1, 65536], got 65537", lambda: lengths(np.ones(65537))),
    ("n must be in [1, 65536], got 0", lambda: fm.Fixed(0)),
    ("n must be in [1, 65536], got 65537", lambda: fm.InverseLength(65537)),
    ("n must be in [1, 65536], got -1", lambda: fm.Geometric(0.2, -1)),
    ("p must lie in (0, 1], got 0", lambda: fm.Geometric(0, 10)),
    ("p must lie in [0, 1], got nan", lambda: fm.Geometric(NAN, 10)),
    ("eps must lie in [0, 1], got 1.5", lambda: fm.Diffusion(1.5)),
    ("eps must lie in [0, 1], got -0.1", lambda: fm.Diffusion(-0.1)),
    ("eps must lie in [0, 1], got nan", lambda: fm.Diffusion(NAN)),
    ("unit must be one of token, word, span, got 'row'", lambda: untyped.Replace(unit="row")),
    ("replace must be Replace(1, 0) for Diffusion", lambda: fm.Masker(VOCAB, DIFFUSION, fm.Replace(0.8, 0.1))),
    ("replace must be Replace(1, 0) for Diffusion", lambda: fm.Masker(VOCAB, DIFFUSION, fm.Replace(1, 0, unit="word"))),
    (
        "is_continuation must hold one value for each of 30 ids, got shape (29,)",
        lambda: fm.Vocab(30, 4, None, (), [0] * 29),
    ),
    (
        "is_continuation must hold 0 and 1 only, got 2 for id 3",
        lambda: fm.Vocab(30, 4, None, (), [0, 1, 0, 2] + [0] * 26),
    ),
]

TYPE_AT_CONSTRUCTION: list[tuple[str, Build]] = [
    ("p must be a number in [0, 1], got '0.5'", lambda: untyped.ExactCount("0.5")),
    ("p must be a number in [0, 1], got True", lambda: untyped.Spans(True, GEOMETRIC)),
    ("lengths must be a sequence of numbers, got 3", lambda: lengths(3)),
    ("lengths must be a sequence of numbers, got 'abc'", lambda: lengths("abc")),
    ("lengths[1] must be a number, got None", lambda: lengths([1, None])),
    ("n must be an integer, got 2.0", lambda: untyped.Fixed(2.0)),
    ("n must be an integer, got True", lambda: untyped.InverseLength(True)),
    ("eps must be a number in [0, 1], got None", lambda: untyped.Diffusion(None)),
    ("is_continuation must be bools, got float64", lambda: fm.Vocab(30, 4, None, (), np.zeros(30))),
]


@pytest.mark.parametrize(("error", "message", "build"), every(value=VALUE_AT_CONSTRUCTION, type=TYPE_AT_CONSTRUCTION))
def test_construction_refuses_and_names_argument_and_value(error: type[Exception], message: str, build: Build) -> None:
    with pytest.raises(error, match=re.escape(message)):
        build()


def test_diffusion_eps_may_round_to_nothing() -> None:
    assert fm.Diffusion(1e-12).least_rate == fm.Diffusion(0).least_rate == 1


# Calls.

ONES = np.ones((3, 4), np.int64)

VALUE_AT_A_CALL: list[tuple[str, Law, dict[str, Any]]] = [
    ("word_ids has shape (4, 3), but input_ids has shape (3, 4)", WORDS, {"word_ids": ONES.T}),
    ("word_ids has shape (3,), but input_ids has shape (3, 4)", WORDS, {"word_ids": [1, 2, 3]}),
    (f"word_ids must fit into 64 bits, got {2**64} in row 0, column 1", WORDS, {"word_ids": [[0, 2**64, None, 0]] * 3}),
    ("word_ids must be given: the vocabulary has no table is_continuation", WORDS, {}),
    ("word_ids must be given", fm.Spans(0.5, GEOMETRIC, "word"), {}),
    ("word_ids must be given", fm.ExactCount(0.5, "word"), {}),
    ("cu_seqlens go with input_ids of 1 dimension, got shape (3, 4)", COUNT, {"cu_seqlens": [0, 12]}),
    ("lengths and cu_seqlens both say what is real", COUNT, {"cu_seqlens": [0, 12], "lengths": [4] * 3}),
    ("attention_mask and cu_seqlens both say", COUNT, {"cu_seqlens": [0, 12], "attention_mask": ONES}),
    *(
        (message, law, {"rates": rates})
        for law in (BERNOULLI, COUNT, SPANS)
        for message, rates in (
            ("rates must lie in [0, 1], got 1.5 in row 1", [0.1, 1.5, 2.0]),
            ("rates must lie in [0, 1], got -0.5 in row 2", [0.1, 0.2, -0.5]),
            ("rates must lie in [0, 1], got nan in row 0", [NAN, 0.2, 0.5]),
            ("rates must hold one value for each of 3 rows, got shape (2,)", [0.1, 0.2]),
        )
    ),
    ("rates are drawn by Diffusion, not given", DIFFUSION, {"rates": [0.1] * 3}),
    ("position_offset must be 0 for Spans", SPANS, {"position_offset": 1}),
    ("position_offset must be 0 for Spans", SPANS, {"position_offset": [0, 1, 0]}),
    ("stratify spreads the rates of Diffusion; this law has none", BERNOULLI, {"stratify": (0, 3)}),
    ("stratify's index must be in [0, 2), got 2 in row 2", DIFFUSION, {"stratify": (0, 2)}),
    (f"stratify's index must be in [0, 8), got {2**70} in row 0", DIFFUSION, {"stratify": (2**70, 8)}),
    ("stratify's index must be in [0, 8), got -1 in row 0", DIFFUSION, {"stratify": (-1, 8)}),
    ("stratify's index must be in [0, 8), got -1 in row 1", DIFFUSION, {"stratify": ([0, -1, 2], 8)}),
    ("stratify's index must be in [0, 8), got 8 in row 0", DIFFUSION, {"stratify": ([8, 1, 2], 8)}),
    ("stratify's index must hold one value for each of 3 rows", DIFFUSION, {"stratify": ([0, 1], 8)}),
    ("stratify's total must be in [1, 2^31), got 0", DIFFUSION, {"stratify": (0, 0)}),
    ("stratify's total must be in [1, 2^31), got 2147483648", DIFFUSION, {"stratify": (0, 2**31)}),
    ("stratify's step must be in [0, 2^64), got -1", DIFFUSION, {"stratify": (0, 3, -1)}),
    (f"stratify's step must be in [0, 2^64), got {2**64}", DIFFUSION, {"stratify": (0, 3, 2**64)}),
    ('returns="rates" goes with Diffusion: other laws draw no rates', COUNT, {"returns": "rates"}),
    ("returns may hold decisions, num_masked, compact, rates, got 'words'", COUNT, {"returns": "words"}),
    ('max_predictions goes with returns="compact"', COUNT, {"max_predictions": 3}),
    ('max_predictions goes with returns="compact"', COUNT, {"max_predictions": 3, "returns": "num_masked"}),
    ("max_predictions must be in [0, 2^31), got -1", COUNT, {"max_predictions": -1, "returns": "compact"}),
]

TYPE_AT_A_CALL: list[tuple[str, Law, dict[str, Any]]] = [
    ("word_ids must be integers or None, got float64", WORDS, {"word_ids": np.ones((3, 4))}),
    ("word_ids must be integers or None, got bool", WORDS, {"word_ids": ONES > 0}),
    (
        "word_ids must be integers or None, got 1.5 in row 1, column 2",
        WORDS,
        {"word_ids": [[None] * 4, [0, None, 1.5, 2], [0] * 4]},
    ),
    ("rates must be numbers, got bool", COUNT, {"rates": np.ones(3, bool)}),
    ("rates must be numbers, got <U1", SPANS, {"rates": ["a", "b", "c"]}),
    ("stratify must be (index, total) or (index, total, step), got 3", DIFFUSION, {"stratify": 3}),
    ("stratify must be (index, total) or (index, total, step), got (3,)", DIFFUSION, {"stratify": (3,)}),
    ("stratify must be (index, total) or (index, total, step)", DIFFUSION, {"stratify": (0, 3, 0, 0)}),
    ("stratify's total must be an integer, got 3.0", DIFFUSION, {"stratify": (0, 3.0)}),
    ("stratify's index must be an integer, got 0.5", DIFFUSION, {"stratify": (0.5, 3)}),
    ("stratify's index must be integers, got float64", DIFFUSION, {"stratify": (np.ones(3), 3)}),
    ("stratify's step must be an integer, got None", DIFFUSION, {"stratify": (0, 3, None)}),
    ("max_predictions must be an integer, got 2.0", COUNT, {"max_predictions": 2.0, "returns": "compact"}),
]


def refused(
    backend: str, law: Law, error: type[Exception], message: str, ids: Array, given: dict[str, Any], replace: Any = None
) -> None:
    """The call raises, says so, and neither `out` nor any array that was given has changed."""
    out = np.full(ids.shape, POISON), np.full(ids.shape, POISON)
    copies = {name: x.copy() for name, x in given.items() if isinstance(x, np.ndarray)}
    before = ids.copy()
    with pytest.raises(error, match=re.escape(message)):
        fm.Masker(VOCAB, law, replace)(ids, out=out, **{"epoch": 0, "backend": backend, **given})
    same(ids, before)
    for array in out:
        same(array, np.full(ids.shape, POISON))
    for name, copy in copies.items():
        same(given[name], copy)


@on_host
@pytest.mark.parametrize(("error", "message", "law", "given"), every(value=VALUE_AT_A_CALL, type=TYPE_AT_A_CALL))
def test_a_call_refuses_names_the_place_and_writes_nothing(
    backend: str, error: type[Exception], message: str, law: Law, given: dict[str, Any]
) -> None:
    refused(backend, law, error, message, small_ids(), given)


@on_host
def test_a_replacement_by_words_needs_words_too(backend: str) -> None:
    replace = fm.Replace(unit="word")
    refused(backend, BERNOULLI, ValueError, "word_ids must be given", small_ids(), {}, replace)
    batch = fm.Masker(VOCAB, BERNOULLI, replace)(small_ids(), epoch=0, word_ids=ONES, backend=backend)
    assert batch.input_ids.shape == (3, 4)


@on_host
@pytest.mark.parametrize(
    ("error", "message", "bounds"),
    every(
        value=[
            ("cu_seqlens must begin with 0, got 1", [1, 12]),
            ("cu_seqlens must not fall, got 3 after 5 at index 2", [0, 5, 3, 12]),
            ("cu_seqlens must not fall, got 3 after 5 at index 2", np.array([0, 5, 3, 12], np.uint32)),
            ("cu_seqlens must end with 12, the size of input_ids, got 11", [0, 5, 11]),
            ("cu_seqlens must end with 12, the size of input_ids, got 13", [0, 13]),
            ("cu_seqlens must end with 12, the size of input_ids, got 0", [0]),
            ("cu_seqlens must be 1-D, from 0 to 12, got shape (0,)", np.empty(0, np.int64)),
            ("cu_seqlens must be 1-D, from 0 to 12, got shape (1, 2)", [[0, 12]]),
            ("cu_seqlens must be 1-D, from 0 to 12, got shape ()", 12),
        ],
        type=[
            ("cu_seqlens must be integers, got float64", np.array([0.0, 12.0])),
            ("cu_seqlens must be integers, got bool", np.array([False, True])),
        ],
    ),
)
@pytest.mark.parametrize("law", [BERNOULLI, SPANS])
def test_boundaries_rise_from_0_to_the_size(
    backend: str, law: Law, error: type[Exception], message: str, bounds: Any
) -> None:
    refused(backend, law, error, message, small_ids().reshape(-1), {"cu_seqlens": bounds})


@on_host
def test_what_is_said_of_rows_is_said_of_segments_in_a_packed_batch(backend: str) -> None:
    ids, bounds = small_ids().reshape(-1), [0, 5, 5, 12]
    for name, law in (("sample_ids", SPANS), ("rates", COUNT), ("position_offset", BERNOULLI)):
        message = f"{name} must hold one value for each of 3 rows"
        refused(backend, law, ValueError, message, ids, {"cu_seqlens": bounds, name: [1, 1]})
        given: dict[str, Any] = {"cu_seqlens": bounds, name: [1, 1, 1]}
        fm.Masker(VOCAB, law)(ids, epoch=0, backend=backend, **given)


@on_host
@pytest.mark.parametrize("packed", [False, True])
def test_more_targets_than_slots_are_refused_with_row_and_number(backend: str, packed: bool) -> None:
    masker = fm.Masker(VOCAB, fm.ExactCount(1))
    ids = np.array([[2, 7, 0, 0], [7, 8, 9, 2], [2, 2, 2, 7]])
    given: dict[str, Any] = {"cu_seqlens": [0, 4, 8, 12]} if packed else {}
    call: dict[str, Any] = {"epoch": 0, "returns": "compact", "backend": backend, **given}
    shaped = ids.reshape(-1) if packed else ids
    before = shaped.copy()
    with pytest.raises(ValueError, match="max_predictions = 2 is too small: 3 tokens are selected in row 1"):
        masker(shaped, max_predictions=2, **call)
    same(shaped, before)
    compact = masker(shaped, max_predictions=3, **call).compact
    assert compact is not None
    assert compact.ids.shape == (3, 3)


@on_host
def test_none_in_lists_of_word_ids_reads_as_minus_1(backend: str) -> None:
    masker = fm.Masker(VOCAB, fm.ExactCount(0.5, "word"), seed=7)
    ids = np.full((2, 5), 9)
    words = [[None, 0, 0, None, None], [1, 1, None, 2, 3]]
    got = masker(ids, epoch=0, sample_ids=0, word_ids=words, backend=backend)
    want = masker(ids, epoch=0, sample_ids=0, word_ids=[[-1, 0, 0, -1, -1], [1, 1, -1, 2, 3]], backend=backend)
    same(got.labels, want.labels)


@on_host
def test_small_outputs_of_another_shape_are_refused_for_packed_ids(backend: str) -> None:
    out = small_outputs()
    with pytest.raises(ValueError, match=re.escape("out's input_ids has shape (3, 4), but input_ids has shape (12,)")):
        fm.Masker(VOCAB, SPANS)(small_ids().reshape(-1), epoch=0, cu_seqlens=[0, 12], out=out, backend=backend)
    for array in out:
        same(array, np.full((3, 4), POISON))


@on_host
@pytest.mark.parametrize("law", LIMITED, ids=["Bernoulli", "ExactCount", "Spans"])
@pytest.mark.parametrize("huge", [2**63, 2**64, 2**70])
def test_limits_beyond_64_bits_are_limits_that_no_row_reaches(backend: str, law: Callable[..., Any], huge: int) -> None:
    batch = fm.Masker(VOCAB, law(min_masked=huge, max_masked=huge))(
        small_ids(), epoch=0, returns="num_masked", backend=backend
    )
    same(batch.num_masked, np.full(3, 4))


@on_host
def test_word_ids_up_to_64_bits_are_told_apart(backend: str) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0, "word", 1))
    words = [[2**63, 2**63, None, None], [None, None, 2**64 - 2, 2**64 - 2], [2**63, 2**63 + 1, 1, None]]
    batch = masker(small_ids(), epoch=0, word_ids=words, backend=backend, returns="num_masked")
    same(batch.num_masked, np.array([2, 2, 1]))
