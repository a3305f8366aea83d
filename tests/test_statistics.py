"""The law is the law: rates and shares within 5 sigma, random ids uniform, neighbours of every kind uncorrelated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support_statistics import assert_chi_square, assert_count, assert_shares

import fastmask as fm
from fastmask.thresholds import threshold

VOCAB = fm.Vocab(30, 4, 0, (1, 2, 3))
P, MASK, RANDOM = 0.15, 0.8, 0.1
ROWS, COLUMNS = 2048, 1024
TOKENS = ROWS * COLUMNS
Selected = npt.NDArray[np.bool_]

sizes = pytest.mark.parametrize(
    "chunks",
    [2, pytest.param(48, marks=pytest.mark.slow)],
    ids=["4 million tokens", "100 million tokens"],
)


def masker(seed: int = 7, replace: fm.Replace | None = None) -> fm.Masker:
    return fm.Masker(VOCAB, fm.Bernoulli(P), replace or fm.Replace(MASK, RANDOM), seed=seed)


def ids_of(chunk: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(chunk).integers(5, 30, (ROWS, COLUMNS))


def selected(chunk: int, seed: int = 7, epoch: int = 0, shift: int = 0) -> Selected:
    batch = masker(seed)(ids_of(chunk), epoch=epoch, sample_ids=chunk * ROWS + shift, lengths=[COLUMNS] * ROWS)
    return np.asarray(batch.labels != -100)


@sizes
def test_rate_and_shares_are_as_asked(chunks: int) -> None:
    counts = np.zeros(4, np.int64)
    for chunk in range(chunks):
        batch = masker()(ids_of(chunk), epoch=0, sample_ids=chunk * ROWS, returns="decisions")
        counts += np.bincount(batch.decisions.reshape(-1), minlength=4)
    p = threshold("p", P) / 2**24
    assert_count(int(counts[1:].sum()), chunks * TOKENS, p)
    for decision, share in ((1, MASK), (2, RANDOM), (3, 1 - MASK - RANDOM)):
        assert_count(int(counts[decision]), chunks * TOKENS, p * share)


@sizes
@pytest.mark.parametrize("weights", [None, [float(i % 7) for i in range(30)]], ids=["uniform", "weighted"])
def test_random_ids_follow_the_pool_by_chi_square(chunks: int, weights: list[float] | None) -> None:
    replace = fm.Replace(0, 1, weights=weights)
    counts = np.zeros(30, np.int64)
    for chunk in range(chunks):
        batch = masker(replace=replace)(ids_of(chunk), epoch=0, sample_ids=chunk * ROWS)
        counts += np.bincount(batch.input_ids[batch.labels != -100], minlength=30)
    widths = np.array([0.0] * 5 + (weights or [1.0] * 30)[5:])
    assert_shares(counts, widths)


PAIRS: dict[str, Callable[[int], tuple[Selected, Selected]]] = {
    "neighbouring tokens": lambda chunk: (selected(chunk)[:, :-1], selected(chunk)[:, 1:]),
    "tokens four apart": lambda chunk: (selected(chunk)[:, :-4], selected(chunk)[:, 4:]),
    "neighbouring samples": lambda chunk: (selected(chunk), selected(chunk, shift=1)),
    "samples 2^32 apart": lambda chunk: (selected(chunk), selected(chunk, shift=1 << 32)),
    "neighbouring epochs": lambda chunk: (selected(chunk), selected(chunk, epoch=1)),
    "neighbouring seeds": lambda chunk: (selected(chunk), selected(chunk, seed=8)),
    "seeds 2^32 apart": lambda chunk: (selected(chunk), selected(chunk, seed=7 + (1 << 32))),
}


@sizes
@pytest.mark.parametrize("pair", PAIRS)
def test_neighbours_are_uncorrelated(pair: str, chunks: int) -> None:
    both = total = 0
    for chunk in range(chunks):
        a, b = PAIRS[pair](chunk)
        both += int(np.count_nonzero(a & b))
        total += a.size
    assert_count(both, total, (threshold("p", P) / 2**24) ** 2)


@sizes
def test_the_second_number_of_a_token_knows_nothing_of_the_first(chunks: int) -> None:
    """Random ids by the interval of the draw they come from: the table of counts has independent margins."""
    replace = fm.Replace(0, 1)
    table = np.zeros((2, 30), np.int64)
    for chunk in range(chunks):
        maskers = (fm.Masker(VOCAB, fm.Bernoulli(p), replace, seed=7) for p in (0.1, 0.2))
        low, high = (masker(ids_of(chunk), epoch=0, sample_ids=chunk * ROWS) for masker in maskers)
        few = low.labels != -100
        more = (high.labels != -100) & ~few
        for row, chosen in enumerate((few, more)):
            table[row] += np.bincount(high.input_ids[chosen], minlength=30)
    observed = table[:, 5:].astype(float)
    expected: Any = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    assert_chi_square(observed, expected, 24)
