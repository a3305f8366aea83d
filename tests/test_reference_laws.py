"""The laws of the reference against worked examples and plain Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_laws import Sample, plain_sample
from support import Array, same
from support_cases import EXAMPLE, GEOMETRIC, WORKED, batches, laws, replacements
from support_laws import (
    call_of,
    fate,
    fates,
    left_aligned,
    packed,
    plan_of,
    selected,
    some_samples,
)
from support_reference import ROW

from fastmask.kernels import reference, reference_laws
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.lengths import InverseLength
from fastmask.replace import Replace


@pytest.mark.parametrize(("law", "replace", "seed", "decisions", "drawn"), WORKED)
def test_every_law_gives_its_worked_example(
    law: Law, replace: Replace, seed: int, decisions: list[int], drawn: dict[int, int]
) -> None:
    ids = [(token, 4, drawn.get(j, -1), token)[decisions[j]] for j, token in enumerate(ROW[:22])]
    labels = [token if decision else -100 for token, decision in zip(ROW[:22], decisions, strict=True)]
    layout = left_aligned([22], right=2)
    assert fates(plan_of(law, replace, seed), [EXAMPLE], layout) == [(ids, labels, decisions)]
    assert plain_sample(law, replace, EXAMPLE, seed) == (ids, labels, decisions)


def test_a_rate_of_diffusion_and_what_it_selects_is_the_worked_example() -> None:
    plan = plan_of(Diffusion(1e-3), Replace(1, 0))
    same(reference.sample_rates(plan, call_of([EXAMPLE], packed([22]))), np.array([10294807], np.uint32))
    ids, _, decisions = fate(plan, EXAMPLE)
    masks = [1, 4, 6, 7, 8, 10, 12, 13, 15, 16, 18, 19]
    assert decisions == [int(j in masks) for j in range(22)]
    assert ids == [4 if j in masks else token for j, token in enumerate(ROW[:22])]


def test_cumulative_sums_of_lengths_are_the_worked_examples() -> None:
    geometric = "962321997 1732179594 2348065672 2840774534 3234941624 3550275296 3802542234 4004355784 4165806624"
    want = np.array([*map(int, geometric.split()), 2**32], np.uint64)
    same(plan_of(Spans(0.3, GEOMETRIC)).length_sums, want)
    want = np.array([2342709434, 3514064151, 2**32], np.uint64)
    same(plan_of(Spans(0.3, InverseLength(3))).length_sums, want)


# The twin in plain integers.


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_law_on_any_batch_gives_what_plain_integers_give(data: st.DataObject) -> None:
    law = data.draw(laws())
    replace = data.draw(replacements(law))
    samples, layout, fill = data.draw(batches(law, replace))
    seed, epoch = data.draw(st.sampled_from([(7, 1), (0, 0), (2**64 - 1, 2**24 - 1), (2**32, 5)]))
    got = fates(plan_of(law, replace, seed), samples, layout, fill, epoch)
    assert got == [plain_sample(law, replace, sample, seed, epoch) for sample in samples]


# Counts.


def sizes(law: Law, samples: list[Sample]) -> list[int]:
    return [len(selected(row)) for row in fates(plan_of(law), samples, packed([len(s.tokens) for s in samples]))]


@pytest.mark.parametrize("p", [0.0, 0.01, 0.15, 0.5, 1.0])
def test_an_exact_count_is_the_rounded_share_of_what_it_counts(p: float) -> None:
    samples = some_samples(12, 60)
    candidates = [len(sample.candidates) for sample in samples]
    assert sizes(ExactCount(p), samples) == [int(p * n + 0.5) for n in candidates]
    want = [min(n, int(p * len(sample.tokens) + 0.5)) for n, sample in zip(candidates, samples, strict=True)]
    assert sizes(ExactCount(p, count_of="sequence"), samples) == want
    rows = fates(plan_of(ExactCount(p, unit="word")), samples, packed([len(s.tokens) for s in samples]))
    for sample, row in zip(samples, rows, strict=True):
        taken = [word for word in sample.words if word[0] in selected(row)]
        assert len(taken) == int(p * len(sample.words) + 0.5)
        assert sorted(j for word in taken for j in word) == selected(row)


@pytest.mark.parametrize(("n", "p", "k"), [(1, 0.5, 1), (3, 0.5, 2), (10, 0.35, 4), (50, 0.29, 14)])
def test_half_a_token_is_rounded_up_after_the_product_was_rounded(n: int, p: float, k: int) -> None:
    for law in (ExactCount(p), ExactCount(p, count_of="sequence"), Spans(p, GEOMETRIC)):
        assert sizes(law, [Sample([9] * n)]) == [k]


def test_the_limits_bound_every_count() -> None:
    samples = some_samples(20, 40)
    for n, sample in zip(sizes(Bernoulli(0.15, min_masked=5, max_masked=7), samples), samples, strict=True):
        assert min(5, len(sample.candidates)) <= n <= 7
    assert sizes(ExactCount(0.1, min_masked=4), samples) == [
        max(4, int(0.1 * len(s.candidates) + 0.5)) for s in samples
    ]
    assert sizes(Spans(0.5, GEOMETRIC, max_masked=6), samples) == [6] * 20


def test_a_minimum_beyond_the_candidates_selects_them_all() -> None:
    samples = some_samples(4, 30)
    for law in (Bernoulli(0, min_masked=99), ExactCount(0, min_masked=99), Spans(0, GEOMETRIC, min_masked=99)):
        assert sizes(law, samples) == [len(sample.candidates) for sample in samples]


def test_a_word_that_would_pass_the_maximum_ends_the_selection_below_the_minimum() -> None:
    sample = Sample([9] * 6, word_ids=[0, 0, 0, 1, 1, 1])
    for law in (
        Bernoulli(1, unit="word", min_masked=4, max_masked=5),
        ExactCount(1, unit="word", min_masked=4, max_masked=5),
    ):
        assert sizes(law, [sample]) == [3]
    assert sizes(Bernoulli(1, unit="word", min_masked=0, max_masked=2), [sample]) == [0]


@pytest.mark.parametrize("law", [Bernoulli, ExactCount])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_selections_are_nested_in_p(law: Any, unit: str) -> None:
    samples = some_samples(6, 60)
    before: list[set[int]] = [set()] * 6
    for p in (0.0, 0.05, 0.15, 0.5, 0.95, 1.0):
        rows = fates(plan_of(law(p, unit=unit)), samples, packed([len(s.tokens) for s in samples]))
        now = [set(selected(row)) for row in rows]
        assert all(small <= large for small, large in zip(before, now, strict=True))
        before = now
    assert before == [set(sample.candidates) for sample in samples]


@pytest.mark.parametrize("p", [0.0, 0.15, 1.0])
@pytest.mark.parametrize(
    "law", [Bernoulli, ExactCount, lambda p: Spans(p, GEOMETRIC), lambda p: ExactCount(p, unit="word")]
)
def test_a_rate_of_a_sample_is_that_of_a_law(law: Any, p: float) -> None:
    samples = some_samples(5, 50)
    layout = packed([len(sample.tokens) for sample in samples])
    own = [Sample(s.tokens, given_id=s.given_id, p=p) for s in samples]
    assert fates(plan_of(law(0.77)), own, layout) == fates(plan_of(law(p)), samples, layout)


# Equal words.


def forge_equal_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate has the word 2^30."""

    def forged(seed: int, epoch: int, sample: Any, positions: Array, purpose: int) -> Array:
        return np.full((4, *np.shape(positions)), 2**30, np.uint32)

    monkeypatch.setattr(reference, "words", forged)


def test_among_equal_words_the_first_positions_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    forge_equal_words(monkeypatch)
    sample = Sample([2, *[9] * 4, 1, *[9] * 40], word_ids=[0, 1, 1, 2, 2, 2, *range(2, 42)])
    assert selected(fate(plan_of(ExactCount(0.1)), sample)) == [1, 2, 3, 4]
    assert selected(fate(plan_of(Bernoulli(0, min_masked=5)), sample)) == [1, 2, 3, 4, 6]
    assert selected(fate(plan_of(Bernoulli(1, max_masked=3)), sample)) == [1, 2, 3]
    assert selected(fate(plan_of(ExactCount(0.07, unit="word")), sample)) == [1, 2, 3, 4, 6]
    assert selected(fate(plan_of(Bernoulli(0, unit="word", min_masked=3)), sample)) == [1, 2, 3, 4]


def test_among_equal_words_of_a_long_sample_the_first_positions_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    forge_equal_words(monkeypatch)
    monkeypatch.setattr(reference_laws, "words", lambda *numbers: np.zeros((4, numbers[3].size), np.uint32))
    sample = Sample([2, *[9] * 999])
    for law in (ExactCount(0.3), Bernoulli(0, min_masked=300), Spans(0.3, GEOMETRIC)):
        assert selected(fate(plan_of(law), sample)) == [*range(1, 301)]
