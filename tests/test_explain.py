"""Explanations tell what happened, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import SMALL

import fastmask as fm

ROW = [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 7, 10, 13, 16, 19, 22, 25, 28, 6, 9, 12, 3, 0, 0]
WORDS = [0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 9, 9, 10, 11, 12, 13, 14, 14]
GIVEN: dict[str, Any] = {"epoch": 1, "sample_ids": 9, "lengths": [22]}
LAWS = [
    fm.Bernoulli(0.3),
    fm.Bernoulli(0.05, min_masked=4),
    fm.Bernoulli(0.5, max_masked=4),
    fm.Bernoulli(0.3, unit="word"),
    fm.ExactCount(0.3),
    fm.ExactCount(0.3, unit="word"),
    fm.Spans(0.3, fm.Geometric(0.2, 10)),
    fm.Spans(0.3, fm.Geometric(0.2, 10), unit="word"),
    fm.Diffusion(),
]
NAMES = ["untouched", "MASK", "random", "kept"]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_an_explanation_tells_what_the_batch_shows(law: Any, unit: Any) -> None:
    if isinstance(law, fm.Diffusion) and unit != "token":
        pytest.skip("Diffusion takes no other replacement")
    how = fm.Replace(1, 0) if isinstance(law, fm.Diffusion) else fm.Replace(0.4, 0.4, unit=unit)
    masker = fm.Masker(SMALL, law, how, seed=7)
    batch = masker(np.array(ROW), returns=("decisions", "num_masked"), word_ids=WORDS, **GIVEN)
    for column in range(24):
        told = masker.explain(ROW, 0, column, word_ids=WORDS, **GIVEN)
        assert told.new_token == batch.input_ids[column]
        assert told.decision == NAMES[batch.decisions[column]]
        assert (told.selected, told.candidates) == (batch.num_masked[0], 20)
        assert (told.token, told.sample_id, str(told)) == (ROW[column], 9, told.reason)
        assert told.position == (column if column < 22 else None)
        assert (told.unit is None) == (told.rank is None) == (column in (0, 21, 22, 23))


def test_numbers_are_those_of_the_stream() -> None:
    told = fm.Masker(SMALL, fm.Bernoulli(0.3), seed=1).explain(
        np.full((5, 8), 9), 3, 4, epoch=2, sample_ids=[0, 1, 2, 3, 4]
    )
    assert (told.word, told.draw, told.mixed) == (0x36EC1DE0, 3599389, 0x24D21AED)
    assert told.threshold == 5033165


def test_a_word_is_the_unit_of_all_its_tokens() -> None:
    masker = fm.Masker(SMALL, fm.ExactCount(0.3, unit="word"), seed=7)
    told = [masker.explain(ROW, 0, column, word_ids=WORDS, **GIVEN) for column in (4, 5, 6)]
    assert {one.unit for one in told} == {(4, 6)}
    assert {one.rank for one in told} == {2}
    assert "word 3 of 12" in told[0].reason


def test_reasons_name_what_a_limit_did() -> None:
    clipped = fm.Masker(SMALL, fm.Bernoulli(0.5, max_masked=4), seed=7).explain(ROW, 0, 8, **GIVEN)
    added = fm.Masker(SMALL, fm.Bernoulli(0.05, min_masked=4), seed=7).explain(ROW, 0, 4, **GIVEN)
    assert "max_masked leaves it out" in clipped.reason
    assert "min_masked adds it" in added.reason
    own = fm.Masker(SMALL, fm.Bernoulli(0.05, min_masked=4), seed=7).explain(ROW, 0, 10, **GIVEN)
    assert "the draw itself" in own.reason
    assert "the second number" in added.reason
    of_a_clipped_row = fm.Masker(SMALL, fm.Bernoulli(0.5, max_masked=4), seed=7).explain(ROW, 0, 4, **GIVEN)
    assert "the second number" in of_a_clipped_row.reason


def test_packed_ids_are_explained_by_segment_and_place() -> None:
    masker = fm.Masker(SMALL, fm.ExactCount(0.3), seed=7)
    packed = np.array(ROW[:22] * 2)
    alone = masker.explain(ROW[:22], 0, 4, epoch=1, sample_ids=10)
    told = masker.explain(packed, 1, 26, epoch=1, sample_ids=9, cu_seqlens=[0, 22, 44])
    assert (told.new_token, told.rank, told.sample_id) == (alone.new_token, alone.rank, 10)
    assert told.unit == (26, 26)
    with pytest.raises(IndexError, match=r"column must be in \[22, 44\), got 4"):
        masker.explain(packed, 1, 4, epoch=1, cu_seqlens=[0, 22, 44])


@pytest.mark.parametrize(("row", "column", "message"), [(1, 0, "row must be in"), (0, 24, "column must be in")])
def test_a_place_outside_the_batch_is_an_index_error(row: int, column: int, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        fm.Masker(SMALL, fm.Bernoulli(0.3)).explain(ROW, row, column, epoch=0)


def test_what_is_never_touched_says_why() -> None:
    masker = fm.Masker(SMALL, fm.Bernoulli(1), seed=7)
    marks = np.arange(24) == 5
    reasons = [masker.explain(ROW, 0, c, special_tokens_mask=marks, **GIVEN).reason for c in (0, 5, 23)]
    assert reasons == [
        "a special id: never touched",
        "special_tokens_mask is not 0 here: never touched",
        "padding: never touched",
    ]
