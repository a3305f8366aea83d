"""Counts that a law makes lie within 5 sigma of what it says: binomial, and by chi-square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SIGMAS = 5.0


def assert_count(count: int, of: int, p: float) -> None:
    """A binomial count lies within 5 sigma of its mean."""
    assert abs(count - of * p) <= SIGMAS * math.sqrt(of * p * (1 - p)), (count, of, p)


def assert_chi_square(observed: Any, expected: Any, freedom: int) -> None:
    """Counts lie about what is expected of them as chance has it."""
    chi_square = float(((np.asarray(observed) - expected) ** 2 / expected).sum())
    assert chi_square <= freedom + SIGMAS * math.sqrt(2 * freedom), (chi_square, freedom)


def assert_shares(counts: Any, shares: Any) -> None:
    """Counts of things that exclude each other follow their shares, by chi-square; nothing without a share occurs."""
    counts, shares = np.asarray(counts, np.float64), np.asarray(shares, np.float64)
    possible = shares > 0
    assert not counts[~possible].any()
    expected = counts.sum() * shares[possible] / shares.sum()
    assert expected.min() > 20
    assert_chi_square(counts[possible], expected, int(possible.sum()) - 1)
