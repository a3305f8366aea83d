"""The laws over rows are what they say: counts exact, units equally likely, limits kept, rates uniform."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import Array, same
from support_laws import random_batch
from support_statistics import assert_count, assert_shares

import fastmask as fm
from fastmask.laws import Law

GEOMETRIC = fm.Geometric(0.2, 10)
sizes = pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)], ids=["small", "big"])


def selected(law: Law, ids: Array, seed: int = 7, **given: Any) -> Array:
    batch = fm.Masker(VOCAB, law, seed=seed)(ids, **{"epoch": 0, "sample_ids": 0} | given)
    return np.asarray(batch.labels != -100)


def counts_of(law: Law, bounds: Array, **given: Any) -> Array:
    """How many tokens are selected in each segment of ordinary tokens."""
    ids = np.full(int(bounds[-1]), 9)
    batch = fm.Masker(VOCAB, law, seed=7)(ids, epoch=0, cu_seqlens=bounds, returns="num_masked", **given)
    return np.asarray(batch.num_masked)


# Counts.


@pytest.mark.parametrize("p", [0.15, 0.5, 0.29])
def test_an_exact_count_is_the_rounded_share_for_every_length_up_to_8192(p: float) -> None:
    for lengths in np.array_split(np.arange(8193), 16):
        want = np.array([math.floor(p * n + 0.5) for n in lengths.tolist()])
        same(counts_of(fm.ExactCount(p), np.cumsum([0, *lengths])), want)


@pytest.mark.parametrize("p", [0.15, 0.5, 0.29, 1 / 3])
def test_every_law_of_counts_counts_alike(p: float) -> None:
    lengths = np.array([0, 1, 2, 3, 50, 99, 100, 180, 200, 340, 1001, 8191, 8192])
    bounds, want = np.cumsum([0, *lengths]), np.array([math.floor(p * n + 0.5) for n in lengths.tolist()])
    words = np.arange(bounds[-1])
    rates = np.full(lengths.size, p)
    for law in (fm.ExactCount(p), fm.ExactCount(p, count_of="sequence"), fm.Spans(p, GEOMETRIC)):
        same(counts_of(law, bounds), want)
        same(counts_of(type(law)(**{**vars(law), "p": 0.9}), bounds, rates=rates), want)
    for law in (
        fm.ExactCount(p, "word"),
        fm.ExactCount(p, "word", count_of="candidates"),
        fm.Spans(p, GEOMETRIC, "word"),
    ):
        same(counts_of(law, bounds, word_ids=words), want)


def test_half_a_token_is_rounded_up() -> None:
    lengths = np.arange(1, 2000, 2)
    same(counts_of(fm.ExactCount(0.5), np.cumsum([0, *lengths])), (lengths + 1) // 2)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_the_limits_hold_in_every_row(unit: Any) -> None:
    batch = random_batch(1, VOCAB, "left", range(0, 120, 1), specials=0.3)
    few: list[Law] = [fm.Bernoulli(0.02, unit, 4), fm.ExactCount(0.02, unit, 4), fm.Spans(0.02, GEOMETRIC, unit, 4)]
    many: list[Law] = [
        fm.Bernoulli(0.9, unit, 0, 7),
        fm.ExactCount(0.9, unit, 0, 7),
        fm.Spans(0.9, GEOMETRIC, unit, 0, 7),
    ]
    candidates = selected(fm.Bernoulli(1), batch.shaped, **batch.arguments).sum(1)
    for law in few:
        counts = selected(law, batch.shaped, **batch.arguments).sum(1)
        assert (counts >= np.minimum(candidates, 4)).all()
    for law in many:
        counts = selected(law, batch.shaped, **batch.arguments).sum(1)
        assert counts.max() == 7


# Units are equally likely.


def words_of_all_lengths(rows: int) -> tuple[Array, Array, Array]:
    """Rows of 24 words, four of each length from 1 to 6, in random order: ids, word ids, length of each word."""
    rng = np.random.default_rng(rows)
    lengths = rng.permuted(np.tile(np.repeat(np.arange(1, 7), 4), (rows, 1)), axis=1)
    words = np.stack([np.repeat(np.arange(24), row) for row in lengths])
    return np.full(words.shape, 9), words, lengths


@sizes
@pytest.mark.parametrize(
    ("law", "p"),
    [(fm.ExactCount(0.3, "word"), 7 / 24), (fm.Bernoulli(0.3, "word"), round(0.3 * 2**24) / 2**24)],
    ids=["ExactCount", "Bernoulli"],
)
def test_a_word_is_as_likely_as_any_other_whatever_its_length(law: Law, p: float, times: int) -> None:
    counts = np.zeros(7, np.int64)
    rows = 4000 * times
    ids, words, lengths = words_of_all_lengths(rows)
    taken = selected(law, ids, word_ids=words)
    firsts = np.cumsum(lengths, 1) - lengths
    whole = np.take_along_axis(taken, firsts, 1)
    same(
        np.add.reduceat(taken.reshape(-1), (firsts + np.arange(rows)[:, None] * 84).reshape(-1), dtype=np.int64),
        (whole * lengths).reshape(-1),
    )
    counts = np.bincount(lengths[whole], minlength=7)
    for length in range(1, 7):
        assert_count(int(counts[length]), 4 * rows, p)


@sizes
@pytest.mark.parametrize("law", [fm.ExactCount(0.5), fm.Bernoulli(0.5, min_masked=3, max_masked=3)])
def test_every_set_of_three_tokens_of_six_is_equally_likely(law: Law, times: int) -> None:
    taken = selected(law, np.tile(np.arange(5, 11), (40_000 * times, 1)))
    sets = Counter(map(tuple, np.nonzero(taken)[1].reshape(-1, 3).tolist()))
    assert_shares([sets[chosen] for chosen in combinations(range(6), 3)], np.ones(20))


@sizes
def test_every_pair_of_words_is_equally_likely(times: int) -> None:
    ids, words, lengths = words_of_all_lengths(20_000 * times)
    taken = np.take_along_axis(
        selected(fm.ExactCount(0.1, "word"), ids, word_ids=words), np.cumsum(lengths, 1) - lengths, 1
    )
    pairs = Counter(map(tuple, np.nonzero(taken)[1].reshape(-1, 2).tolist()))
    assert_shares([pairs[pair] for pair in combinations(range(24), 2)], np.ones(276))


# Diffusion.

DIFFUSION = fm.Masker(VOCAB, fm.Diffusion(1e-3), seed=7)
LEAST = 16777


def rates_of(rows: int, **given: Any) -> Array:
    """T of each of so many empty samples."""
    call: dict[str, Any] = {"epoch": 0, "sample_ids": 0, "returns": "rates", **given}
    batch = DIFFUSION(np.empty((rows, 0), int), **call)
    scaled = batch.rates.astype(np.float64) * 2**24
    same(scaled, np.round(scaled))
    same(batch.weights, (2**24 / scaled).astype(np.float32))
    return np.asarray(scaled.astype(np.int64))


@sizes
def test_rates_are_uniform_from_the_least_one_to_one(times: int) -> None:
    rates = rates_of(50_000 * times)
    assert LEAST <= rates.min() <= rates.max() < 2**24
    parts = (rates - LEAST) * 100 // (2**24 - LEAST)
    assert_shares(np.bincount(parts, minlength=100), np.ones(100))
    neighbours = np.histogram2d(parts[:-1] // 10, parts[1:] // 10, bins=10)[0]
    assert_shares(neighbours.reshape(-1), np.ones(100))


@sizes
def test_each_row_is_masked_at_its_rate(times: int) -> None:
    ids = np.full((300 * times, 2000), 9)
    batch = DIFFUSION(ids, epoch=0, sample_ids=0, returns=("rates", "num_masked"))
    for rate, count in zip(batch.rates.tolist(), batch.num_masked.tolist(), strict=True):
        assert_count(count, 2000, rate)
    same(batch.input_ids, np.where(batch.labels == 9, 4, 9))
    want = fm.Masker(VOCAB, fm.Bernoulli(0.5), fm.Replace(1, 0), seed=7)(
        ids, epoch=0, sample_ids=0, rates=batch.rates.astype(np.float64)
    )
    same(batch.labels, want.labels)


@pytest.mark.parametrize("total", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("step", [0, 1, (1 << 64) - 1])
def test_stratified_rates_are_spread_evenly_over_the_global_batch(total: int, step: int) -> None:
    rates = rates_of(total, stratify=(0, total, step))
    parts = np.sort((rates - LEAST) * total // (2**24 - LEAST))
    assert (np.abs(parts - np.arange(total)) <= 1).all()
    middle = (LEAST + 2**24) / 2
    assert abs(rates.mean() - middle) <= (2**24 - LEAST) / total / 2 + 1
    order = np.random.default_rng(0).permutation(total)
    for part in np.array_split(order, 3):  # ranks, each with its share
        same(rates_of(part.size, sample_ids=99, stratify=(part, total, step)), rates[part])


@sizes
def test_a_stratified_rate_is_uniform_too(times: int) -> None:
    rates = np.array([rates_of(1, stratify=(5, 8, step))[0] for step in range(2000 * times)])
    assert_shares(np.bincount((rates - LEAST) * 20 // (2**24 - LEAST), minlength=20), np.ones(20))
    assert np.unique(rates).size > 1990 * times


@pytest.mark.parametrize("law", [fm.Bernoulli, fm.ExactCount])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_selections_are_nested_in_p(law: Any, unit: str) -> None:
    batch = random_batch(2, VOCAB, "packed")
    before = np.zeros(batch.shape, np.bool_)
    for p in (0.0, 0.01, 0.15, 0.5, 0.99, 1.0):
        now = selected(law(p, unit), batch.ids, **batch.arguments, sample_ids=0)
        assert not (before & ~now).any()
        before = now


def test_what_diffusion_masks_is_nested_in_the_rate_of_its_sample() -> None:
    ids = np.full((1, 5000), 9)
    by_rate = []
    for index in range(16):
        batch = DIFFUSION(ids, epoch=0, sample_ids=3, stratify=(index, 16), returns="rates")
        by_rate.append((float(batch.rates[0]), batch.labels == 9))
    by_rate.sort(key=lambda pair: pair[0])
    for (_, fewer), (_, more) in pairwise(by_rate):
        assert not (fewer & ~more).any()
        assert fewer.sum() < more.sum()
