"""The laws of the reference against worked examples and plain Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_laws import Sample, plain_sample
from support import Array, same
from support_laws import (
    Layout,
    call_of,
    fate,
    fates,
    left_aligned,
    packed,
    padded,
    plan_of,
    selected,
    some_samples,
    unnamed,
)
from support_reference import ROW

from fastmask.kernels import reference, reference_laws
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.lengths import Fixed, Geometric, InverseLength
from fastmask.replace import Replace

WORDS = [0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 9, 9, 10, 11, 12, 13]
EXAMPLE = Sample(ROW[:22], WORDS, given_id=9)
GEOMETRIC = Geometric(0.2, 10)
DEFAULT, BY_WORD, BY_SPAN = Replace(), Replace(0.4, 0.4, unit="word"), Replace(0.4, 0.4, unit="span")

# Each: law, replacement, seed, decisions, random ids by position.
WORKED: list[tuple[Law, Replace, int, list[int], dict[int, int]]] = [
    (Bernoulli(0.3), DEFAULT, 7, [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 3, 0, 1, 0, 0, 0], {}),
    (
        Bernoulli(0.05, min_masked=4),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {},
    ),
    (
        Bernoulli(0.5, max_masked=4),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {},
    ),
    (ExactCount(0.3), DEFAULT, 7, [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0], {}),
    (
        Bernoulli(0.3, unit="word"),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 2, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {5: 27},
    ),
    (
        ExactCount(0.3, unit="word"),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {5: 27},
    ),
    (
        ExactCount(0.3, unit="word"),
        BY_WORD,
        7,
        [0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0],
        {4: 14, 5: 27, 6: 27, 13: 29},
    ),
    (
        Spans(0.3, GEOMETRIC),
        DEFAULT,
        7,
        [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 2, 0],
        {20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC),
        BY_SPAN,
        7,
        [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 0, 2, 2, 0],
        {1: 9, 12: 12, 13: 29, 14: 5, 19: 21, 20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC, unit="word"),
        DEFAULT,
        7,
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 2, 0],
        {20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC),
        DEFAULT,
        8,
        [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 1, 1, 0, 0, 0, 0, 0, 0],
        {13: 15},
    ),
]


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

PROBABILITIES = (0.0, 1e-6, 0.05, 0.15, 0.3, 0.5, 0.85, 1.0)


@st.composite
def laws(draw: st.DrawFn) -> Law:
    p, unit = draw(st.sampled_from(PROBABILITIES)), draw(st.sampled_from(["token", "word"]))
    least = draw(st.sampled_from([0, 0, 1, 3, 8, 100]))
    most = draw(st.none() | st.integers(least, least + 6))
    limits: dict[str, Any] = {"unit": unit, "min_masked": least, "max_masked": most}
    match draw(st.integers(0, 3)):
        case 0:
            return Bernoulli(p, **limits)
        case 1:
            counts = ["candidates", "sequence", None] + ["words"] * (unit == "word")
            return ExactCount(p, **limits, count_of=draw(st.sampled_from(counts)))
        case 2:
            lengths: list[Any] = [GEOMETRIC, InverseLength(3), Fixed(1), Fixed(5), Fixed(40), [0.0, 3.0, 0.0, 1e-3]]
            return Spans(p, draw(st.sampled_from(lengths)), **limits)
        case _:
            return Diffusion(draw(st.sampled_from([0.0, 1e-3, 0.7, 1.0])))


@st.composite
def replacements(draw: st.DrawFn, law: Law) -> Replace:
    if isinstance(law, Diffusion):
        return Replace(1.0, 0.0)
    mask, random = draw(st.sampled_from([(0.8, 0.1), (0.3, 0.4), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]))
    unit: Any = draw(st.sampled_from(["token", "token", "word", "span"]))
    return Replace(mask, random, unit=unit, exclude_original=draw(st.booleans()))


@st.composite
def batches(draw: st.DrawFn, law: Law, replace: Replace) -> tuple[list[Sample], Layout, int]:
    """Samples, where they lie, and the id of the padding."""
    lengths = draw(st.lists(st.integers(0, 26), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    worded, marked, named, own_rates, moved = (draw(st.booleans()) for _ in range(5))
    moved = moved and not isinstance(law, ExactCount | Spans) and plan_of(law, replace).by_token
    specials = draw(st.sampled_from([0.0, 0.1, 0.9]))
    values = np.array(draw(st.sampled_from([[0, 1], [-1, 7, 2**62], [5]])))
    samples = []
    for length in lengths:
        tokens = np.where(rng.random(length) < specials, rng.integers(1, 5, length), rng.integers(5, 30, length))
        samples.append(
            Sample(
                tokens.tolist(),
                rng.choice(values, length).tolist() if worded else None,
                (rng.integers(0, 8, length) // 7 * 255).tolist() if marked else None,
                int(rng.integers(0, 2**64, dtype=np.uint64)) if named else None,
                float(rng.choice(PROBABILITIES)) if own_rates and not isinstance(law, Diffusion) else None,
                int(rng.integers(0, 2**34 - 26)) if moved else 0,
            )
        )
    lefts, right = [draw(st.integers(0, 5)) for _ in lengths], draw(st.integers(0, 5))
    match draw(st.integers(0, 3)):
        case 0:
            return samples, packed(lengths), 0
        case 1:
            return samples, padded(lengths, lefts, right), draw(st.integers(0, 29))
        case 2:
            return samples, left_aligned(lengths, right), draw(st.integers(0, 29))
        case _:
            return samples, unnamed(padded(lengths, lefts, right)), 0


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
