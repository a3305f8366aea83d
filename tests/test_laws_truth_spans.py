"""Spans are what they say: lengths of their law, starts uniform, their union the budget, no border crossed."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import Array, same
from support_laws import random_batch
from support_statistics import assert_count, assert_shares

import fastmask as fm
from fastmask.kernels import reference
from fastmask.lengths import LengthLaw
from fastmask.plan import make_plan

GEOMETRIC = fm.Geometric(0.2, 10)
sizes = pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)], ids=["small", "big"])


def selected(law: fm.Spans, ids: Array, seed: int = 7, **given: Any) -> Array:
    batch = fm.Masker(VOCAB, law, seed=seed)(ids, **{"epoch": 0, "sample_ids": 0} | given)
    return np.asarray(batch.labels != -100)


def runs_of(chosen: Array) -> tuple[Array, Array, Array]:
    """The rows, starts and lengths of the runs of selected tokens."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1] - starts


LENGTHS: dict[str, LengthLaw] = {
    "geometric": GEOMETRIC,
    "inverse": fm.InverseLength(3),
    "explicit": fm.Spans(0, [1, 0, 2, 0, 0, 1]).lengths,
}


@sizes
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_follow_their_law_renormalised(name: str, times: int) -> None:
    """The number of the first attempts, and what is seen in rows so long that few spans touch."""
    weights = np.array(LENGTHS[name].weights)
    sums = make_plan(VOCAB, fm.Spans(0.15, LENGTHS[name]), fm.Replace(), 7, -100).length_sums
    samples = np.arange(50_000 * times)
    w0 = reference.words(7, 0, samples, 0, 2)[0]
    counts = np.bincount(np.searchsorted(sums, w0, side="right"), minlength=weights.size)
    assert_shares(counts[: weights.size], weights)

    law = fm.Spans(0.004, LENGTHS[name])
    seen = np.concatenate([runs_of(selected(law, np.full((4, 1 << 17), 9), seed))[2] for seed in range(4)])
    seen = seen[seen <= weights.size]
    possible = np.flatnonzero(weights) + 1
    seen = seen[np.isin(seen, possible)]  # others are two that touch, or the last one of a row
    assert_shares(np.bincount(seen, minlength=weights.size + 1)[1:], weights)


def test_fixed_spans_are_of_that_length_but_for_what_touches_and_the_last() -> None:
    lengths = runs_of(selected(fm.Spans(0.01, fm.Fixed(7)), np.full((4, 1 << 15), 9)))[2]
    assert np.count_nonzero(lengths == 7) > 0.85 * lengths.size


@sizes
@pytest.mark.parametrize("length", [1, 5])
def test_starts_are_uniform_over_the_row(length: int, times: int) -> None:
    rows, tokens = 20_000 * times, 150
    chosen = selected(fm.Spans(0, fm.Fixed(length), "token", length), np.full((rows, tokens), 9))
    same(chosen.sum(1), np.full(rows, length))
    which, starts, lengths = runs_of(chosen)
    assert np.unique(which[lengths == length]).size >= rows * (1 - 2 * length / tokens)
    starts = starts[lengths == length]
    inside = (starts >= 2 * length) & (starts <= tokens - 3 * length) if length > 1 else starts >= 0
    counts = np.bincount(starts[inside], minlength=tokens)
    assert_shares(counts[counts.nonzero()[0][0] : counts.nonzero()[0][-1] + 1], np.ones(np.unique(starts[inside]).size))


@sizes
def test_borders_are_covered_as_often_as_the_middle_by_first_attempts(times: int) -> None:
    """A span may begin before the first unit: without that the ends of a row would be masked less."""
    rows = 20_000 * times
    chosen = selected(fm.Spans(0, fm.Fixed(4), "token", 4), np.full((rows, 40), 9))
    cover = chosen.sum(0)
    for column in (0, 39):  # first attempts alone: 4 of 43 starts, and the fill-up of those cut at a border
        assert cover[column] > rows * 4 / 43 - 5 * np.sqrt(rows * 4 / 43)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("lengths", [GEOMETRIC, fm.Fixed(3), fm.Fixed(100), [1.0]])
@pytest.mark.parametrize("p", [0.01, 0.15, 0.5, 0.9, 1.0])
def test_the_union_of_all_spans_is_the_budget(unit: Any, lengths: Any, p: float) -> None:
    for layout in ("left", "packed"):
        batch = random_batch(3, VOCAB, layout, specials=0.2)
        candidates = fm.Masker(VOCAB, fm.Bernoulli(1))(
            batch.shaped, epoch=0, returns="num_masked", **batch.arguments
        ).num_masked
        masker = fm.Masker(VOCAB, fm.Spans(p, lengths, unit))
        counts = masker(batch.shaped, epoch=0, returns="num_masked", **batch.arguments).num_masked
        same(counts, np.array([int(p * n + 0.5) for n in candidates.tolist()]))


@sizes
def test_a_span_never_crosses_a_special_token_by_the_law_of_all_pairs(times: int) -> None:
    """CLS a b SEP c d SEP, spans of two, a budget of two.

    The first attempt is {a}, {a, b}, {b}, {c, d} or {d}, and one that was cut is followed by one of the other three.
    """
    rows = 20_000 * times
    shares = dict.fromkeys(combinations("abcd", 2), 0.0)
    for first in ("a", "ab", "b", "cd", "d"):
        others = "" if len(first) == 2 else "abcd".replace(first, "")
        for pair in [tuple(first)] if len(first) == 2 else [tuple(sorted(first + other)) for other in others]:
            shares[pair] += 1 / 5 / (len(others) or 1)  # type: ignore[index]
    padded = selected(fm.Spans(0.5, fm.Fixed(2)), np.tile([[2, 7, 8, 3, 9, 10, 3]], (rows, 1)))[:, [1, 2, 4, 5]]
    counts = [int((padded[:, i] & padded[:, j]).sum()) for i, j in combinations(range(4), 2)]
    assert sum(counts) == rows
    assert_shares(counts, list(shares.values()))


@sizes
@pytest.mark.parametrize("law", [fm.Bernoulli(0.5, "word"), fm.Spans(0.5, fm.Fixed(1), "word")])
def test_a_word_never_crosses_a_special_token_or_the_end_of_a_segment(law: Any, times: int) -> None:
    """Two halves of one word id with a special token between them, in segments that touch: none knows the others."""
    rows = 20_000 * times
    ids = np.tile([7, 8, 3, 9, 10], rows)
    chosen = selected(law, ids, word_ids=np.zeros(ids.size, int), cu_seqlens=np.arange(0, ids.size + 1, 5))
    chosen = chosen.reshape(rows, 5)
    same(chosen[:, 0], chosen[:, 1])
    same(chosen[:, 3], chosen[:, 4])
    halves = chosen[:, [0, 3]]
    one = int((halves[:, 0] & halves[:, 1]).sum())
    if isinstance(law, fm.Bernoulli):
        assert_count(one, rows, 0.25)
    else:
        assert one == 0  # the budget is one half
    assert_count(int((chosen[:-1, 4] & chosen[1:, 0]).sum()), rows - 1, 0.25)


def test_what_a_span_takes_of_a_word_begins_with_its_first_token() -> None:
    """The last word may be cut, by the budget alone: then it is all but the beginning that is missing."""
    words = np.repeat(np.arange(300), 3)[None]
    cut = 0
    for seed in range(200):
        chosen = selected(fm.Spans(91 / 900, GEOMETRIC, "word"), np.full((1, 900), 9), seed, word_ids=words)
        parts = chosen.reshape(300, 3)
        same(np.sort(parts, axis=1)[:, ::-1], parts)
        cut += int((parts.any(1) & ~parts.all(1)).sum())
    assert cut == 200


@pytest.mark.parametrize("unit", ["token", "word"])
def test_spans_longer_than_the_row_select_what_the_budget_says(unit: Any) -> None:
    bounds = [0, *np.cumsum(np.arange(1, 60))]
    ids = np.full(bounds[-1], 9)
    given: dict[str, Any] = {"cu_seqlens": bounds, "word_ids": np.arange(ids.size) // 2}
    chosen = selected(fm.Spans(1, fm.Fixed(1000), unit), ids, **given)
    assert chosen.all()
    half = selected(fm.Spans(0.5, fm.Fixed(1000), unit), ids, **given)
    for first, end in pairwise(bounds):
        assert half[first:end].sum() == (end - first + 1) // 2
