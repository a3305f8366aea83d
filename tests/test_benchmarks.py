"""What fastmask is timed against does the job that it is timed for, and the gate before the timing notices when not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROWS = 32


@pytest.fixture(scope="module")
def cases() -> Any:
    """benchmarks.law_cases; importing it gives Numba an empty cache, which is taken back here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        patch.setenv("NUMBA_CACHE_DIR", "")
        module = importlib.import_module("benchmarks.law_cases")
    return module


def prepared(cases: Any, name: str, rows: int = ROWS) -> Any:
    """A case of that name, with few rows."""
    (case,) = (case for case in (*cases.LAWS, *cases.COMPACT) if case.name == name)
    return cases.PreparedLaw(replace(case, rows=rows))


def test_every_baseline_follows_its_law(cases: Any) -> None:
    for case in (*cases.LAWS, *cases.COMPACT):
        for convert in (cases.in_int32, lambda same: same):
            cases.PreparedLaw(convert(replace(case, rows=ROWS))).check_baselines()


def test_every_baseline_follows_its_law_in_one_long_row(cases: Any) -> None:
    for case in cases.BY_LENGTH:
        cases.PreparedLaw(cases.with_rows_of(replace(case, rows=ROWS), ROWS * 512)).check_baselines()


def test_exact_counts_hold_where_keys_are_equal_and_counts_differ(cases: Any) -> None:
    laws = importlib.import_module("benchmarks.baselines_laws")
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 5, (50, 20)).astype(np.float32)
    counts = rng.integers(0, 21, 50)
    chosen = laws.smallest(keys, counts)
    assert chosen.sum(axis=1).tolist() == counts.tolist()
    for row, taken in zip(keys, chosen, strict=True):
        assert not taken.any() or taken.all() or row[taken].max() <= row[~taken].min()


def test_rows_that_are_not_full_get_further_attempts(cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = importlib.import_module("benchmarks.baselines_spans")
    monkeypatch.setattr(spans, "ATTEMPTS", 0.3)
    prepared(cases, "Spans").check_baselines()


@pytest.mark.parametrize("rate", [0.12, 0.18])
def test_another_rate_is_noticed(cases: Any, rate: float) -> None:
    batch = prepared(cases, "Bernoulli", rows=256)
    batch._law_masker.p = rate
    with pytest.raises(AssertionError, match="targets"):
        batch.check_baselines()


def _one_more(batch: Any) -> None:
    ids, labels = batch.ids.reshape(-1), batch.out[1].reshape(-1)
    place = np.flatnonzero((labels == -100) & ~batch.special[ids])[0]
    labels[place] = ids[place]


def _part_of_a_word(batch: Any) -> None:
    chosen = batch.out[1] != -100
    within = chosen[:, 1:] & chosen[:, :-1] & (batch.word_ids[:, 1:] == batch.word_ids[:, :-1])
    row, column = np.argwhere(within)[0]
    batch.out[0][row, column], batch.out[1][row, column] = batch.ids[row, column], -100


def _special(batch: Any) -> None:
    batch.out[1][0, 0] = batch.ids[0, 0]


def _wrong_label(batch: Any) -> None:
    batch.out[1][batch.out[1] != -100] += 1


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("ExactCount", _one_more, "targets of rows"),
        ("Spans", _one_more, "targets of rows"),
        ("words, ExactCount", _part_of_a_word, "in part"),
        ("Bernoulli", _special, "special id"),
        ("Bernoulli", _wrong_label, "not the original"),
    ],
)
def test_a_fault_is_noticed(cases: Any, name: str, fault: Callable[..., None], message: str) -> None:
    batch = prepared(cases, name)
    sound = batch.numpy()

    def faulty() -> None:
        sound()
        fault(batch)

    batch.numpy = lambda: faulty
    with pytest.raises(AssertionError, match=message):
        batch.check_baselines()
