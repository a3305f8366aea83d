"""Spans of the reference: borders, attempts, budgets; and which number decides what a selected token becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import plain_numbers
from plain_laws import Sample
from support import Array
from support_laws import fate, plan_of, selected, some_samples

from fastmask.kernels import reference_laws
from fastmask.laws import Bernoulli, ExactCount, Spans
from fastmask.lengths import Fixed, Geometric
from fastmask.replace import Replace

GEOMETRIC = Geometric(0.2, 10)
UNITS: tuple[Any, ...] = ("token", "word")


def forge_attempts(monkeypatch: pytest.MonkeyPatch, *pairs: tuple[int, int]) -> None:
    """Attempt a has the words pairs[a]; after the last pair all attempts have its words."""

    def forged(seed: int, epoch: int, sample: Any, positions: Array, purpose: int) -> Array:
        assert purpose == 2
        rows = [pairs[min(place // 4, len(pairs) - 1)] for place in positions.tolist()]
        w0, w1 = np.array(rows, np.uint32).reshape(-1, 2).T
        return np.stack([w0, w1, w0, w1])

    monkeypatch.setattr(reference_laws, "words", forged)


def start_at(start: int, units: int, length: int) -> int:
    """The least w1 that lets a span of so many units begin at a unit, or before the first."""
    return -(-((start + length - 1) << 32) // (units + length - 1))


def by_word(sample: Sample) -> list[int]:
    """The candidates of a sample with a given id in the order of their select words."""
    assert sample.given_id is not None
    return sorted(sample.candidates, key=lambda j: (plain_numbers(7, 1, sample.id, j)[0], j))


@pytest.mark.parametrize(
    ("start", "want"),
    [(-3, [1]), (-1, [1, 2, 3]), (0, [1, 2, 3, 4]), (2, [3, 4, 5, 6]), (6, [7, 8, 9, 10]), (9, [10])],
)
def test_a_span_begins_anywhere_from_before_the_first_unit_to_the_last(
    monkeypatch: pytest.MonkeyPatch, start: int, want: list[int]
) -> None:
    sample = Sample([2, *[9] * 10, 3], given_id=5)
    forge_attempts(monkeypatch, (0, start_at(start, 10, 4)))  # the same span again is dropped
    chosen = selected(fate(plan_of(Spans(0.4, Fixed(4))), sample))
    rest = [j for j in by_word(sample) if j not in want]
    assert chosen == sorted(want + rest[: 4 - len(want)])


def test_every_start_of_a_span_has_an_equal_part_of_the_numbers() -> None:
    everything = np.ones(10, np.bool_)
    sample = reference_laws.Sample(7, 1, 5, 10, 0.4, np.arange(10), everything, everything, np.arange(10))
    for start in range(-3, 10):
        first, stop = max(start, 0), min(start + 4, 10)
        assert reference_laws.span(sample, 4, start_at(start, 10, 4)) == (first, stop)
        assert reference_laws.span(sample, 4, start_at(start + 1, 10, 4) - 1) == (first, stop)


def test_a_span_ends_before_what_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [2, 9, 9, 9, 3, 9, 9, 9, 9]
    forge_attempts(monkeypatch, (0, start_at(1, 7, 4)), (0, start_at(3, 7, 2)))
    for sample in (
        Sample(tokens, given_id=5),
        Sample([9 if t == 3 else t for t in tokens], marks=[0, 0, 0, 0, 1, 0, 0, 0, 0], given_id=5),
    ):
        assert selected(fate(plan_of(Spans(0.6, Fixed(4))), sample)) == [2, 3, 5, 6]


def test_a_span_takes_whole_words_until_the_budget_cuts_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample([9] * 8, word_ids=[0, 0, 1, 1, 1, 1, 2, 2])
    plan = plan_of(Spans(0.5, Fixed(2), unit="word"))
    forge_attempts(monkeypatch, (0, start_at(0, 3, 2)))
    assert selected(fate(plan, sample)) == [0, 1, 2, 3]
    forge_attempts(monkeypatch, (0, start_at(2, 3, 2)), (0, start_at(1, 3, 2)))
    assert selected(fate(plan, sample)) == [2, 3, 6, 7]


def test_a_span_steps_over_what_is_selected_already(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(Spans(0.5, [1, 1, 1]))
    one, three = 0, 2**32 - 1
    forge_attempts(
        monkeypatch, (one, start_at(4, 10, 1)), (three, start_at(3, 10, 3)), (one, start_at(9, 10, 1)), (0, 0)
    )
    assert selected(fate(plan, Sample([9] * 10))) == [0, 3, 4, 5, 9]


def test_a_span_is_no_longer_than_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    forge_attempts(monkeypatch, (0, start_at(5, 10, 3)))
    assert selected(fate(plan_of(Spans(0.3, Fixed(8))), Sample([9] * 10))) == [5, 6, 7]


def test_a_length_is_one_more_than_the_sums_that_its_number_has_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(Spans(1.0, [1, 0, 1, 2]))
    for w0, length in ((0, 1), (2**30 - 1, 1), (2**30, 3), (2**31 - 1, 3), (2**31, 4), (2**32 - 1, 4)):
        assert 1 + int(np.searchsorted(plan.length_sums, w0, side="right")) == length
        forge_attempts(monkeypatch, (w0, start_at(2, 4, length) - 1), (0, 2**32 - 1), (0, 2**32 - 1))
        assert selected(fate(plan, Sample([9] * 4))) == [0, 1, 2, 3]


@pytest.mark.parametrize(("last", "counts"), [(55, True), (56, False)])
def test_the_attempts_end_after_32_and_8_for_each_token_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, last: int, counts: bool
) -> None:
    sample = Sample([9] * 30, given_id=1)
    taken = by_word(sample)
    late = taken[-1]  # the last that would fill up
    forge_attempts(monkeypatch, *[(0, start_at(taken[0], 30, 1))] * last, (0, start_at(late, 30, 1)))
    want = [taken[0], late, taken[1]] if counts else taken[:3]
    assert selected(fate(plan_of(Spans(0.1, Fixed(1))), sample)) == sorted(want)


def test_where_the_attempts_end_single_candidates_fill_the_budget_in_the_order_of_their_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forge_attempts(monkeypatch, (0, 0))  # the first unit alone, again and again
    for sample in some_samples(6, 40):
        first = sample.candidates[0]
        rest = [j for j in by_word(sample) if j != first]
        budget = int(0.4 * len(sample.candidates) + 0.5)
        assert selected(fate(plan_of(Spans(0.4, GEOMETRIC)), sample)) == sorted([first, *rest[: budget - 1]])


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("lengths", [GEOMETRIC, Fixed(1), Fixed(50), (0.0, 0.0, 1.0)])
def test_all_spans_together_are_the_budget(unit: Any, lengths: Any) -> None:
    for p in (0.1, 0.5, 0.9, 1.0):
        for sample in some_samples(6, 50):
            chosen = selected(fate(plan_of(Spans(p, lengths, unit=unit)), sample))
            assert len(chosen) == int(p * len(sample.candidates) + 0.5)
            assert set(chosen) <= set(sample.candidates)


# The number that decides.


def first_rule(sample: Sample, j: int, p: float) -> int:
    """The decision where selection and replacement (0.8, 0.1) are one cut."""
    select = int(p * 2**24 + 0.5)
    draw = plain_numbers(7, 1, sample.id, j)[1]
    masks, randoms = ((select * int(share * 2**24 + 0.5) + 2**23) >> 24 for share in (0.8, 0.9))
    return 1 if draw < masks else 2 if draw < randoms else 3


def second_rule(sample: Sample, j: int) -> int:
    u = plain_numbers(7, 1, sample.id, j)[2] >> 8
    return 1 if u < int(0.8 * 2**24 + 0.5) else 2 if u < int(0.9 * 2**24 + 0.5) else 3


def test_what_a_minimum_adds_is_decided_by_the_second_number_and_all_else_by_the_draw() -> None:
    for sample in some_samples(12, 40):
        alone, more = (fate(plan_of(Bernoulli(0.15, min_masked=n)), sample) for n in (0, 12))
        drawn = selected(alone)
        for j in selected(more):
            assert more[2][j] == (first_rule(sample, j, 0.15) if j in drawn else second_rule(sample, j))


def test_where_a_maximum_leaves_a_chosen_token_out_all_of_its_row_is_decided_by_the_second_number() -> None:
    cut = 0
    for sample in some_samples(20, 40):
        alone, less = (fate(plan_of(Bernoulli(0.15, max_masked=n)), sample) for n in (99, 5))
        if len(selected(alone)) <= 5:
            assert less == alone
            assert all(alone[2][j] == first_rule(sample, j, 0.15) for j in selected(alone))
        else:
            cut += 1
            assert selected(less) == [j for j in sorted(by_word(sample)[:5])]
            assert all(less[2][j] == second_rule(sample, j) for j in selected(less))
    assert 0 < cut < 20


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_one_cut_selects_and_replaces_single_tokens_only(p: float) -> None:
    for sample in some_samples(6, 40):
        alone = Sample(sample.tokens, word_ids=[*range(len(sample.tokens))], given_id=sample.given_id)
        token, word = (fate(plan_of(Bernoulli(p, unit=unit)), alone)[2] for unit in UNITS)
        for j, (one, other) in enumerate(zip(token, word, strict=True)):
            assert (one != 0) == (other != 0)
            assert one == 0 or (one, other) == (first_rule(sample, j, p), second_rule(sample, j))


def test_the_first_position_of_a_word_decides_though_it_is_not_selected() -> None:
    replace = Replace(0.4, 0.3, unit="word")
    outside = 0
    for sample in some_samples(10, 60):
        whole, part = fate(plan_of(ExactCount(1.0), replace), sample), fate(plan_of(ExactCount(0.3), replace), sample)
        for word in sample.words:
            assert len({whole[2][j] for j in word}) == 1
            assert all(part[2][j] in (0, whole[2][j]) for j in word)
            outside += part[2][word[0]] == 0 and any(part[2][j] for j in word)
    assert outside > 0


def test_a_run_of_selected_tokens_shares_the_decision_of_its_first() -> None:
    replace = Replace(0.4, 0.3, unit="span")
    for law in (Bernoulli(0.5), Bernoulli(0.4, unit="word"), ExactCount(0.5), Spans(0.5, GEOMETRIC)):
        for sample in some_samples(6, 60):
            one, own = (
                fate(plan_of(law, replace), sample)[2],
                fate(plan_of(ExactCount(1.0), Replace(0.4, 0.3)), sample)[2],
            )
            for j, decision in enumerate(one):
                if decision and (j == 0 or not one[j - 1]):
                    assert decision == own[j]
                elif decision:
                    assert decision == one[j - 1]


def test_random_tokens_of_one_decision_are_each_their_own() -> None:
    tokens = [9] * 30
    for unit in ("word", "span"):
        replace: Any = Replace(0.0, 1.0, unit=unit)
        ids = fate(plan_of(Bernoulli(1.0), replace), Sample(tokens, word_ids=[0] * 30))[0]
        assert len(set(ids)) > 10
        assert ids == fate(plan_of(ExactCount(1.0), Replace(0.0, 1.0)), Sample(tokens))[0]
