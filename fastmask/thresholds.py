"""Probabilities become integers on the host, once, when an objective is built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real

import numpy as np
import numpy.typing as npt

ALWAYS = 1 << 24  # the threshold of probability 1


def probability(name: str, value: object) -> float:
    """The value as a float in [0, 1]; TypeError or ValueError that name the argument otherwise."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number in [0, 1], got {value!r}")
    p = float(value)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return p


def threshold(name: str, value: object) -> int:
    """T(p) = floor(p * 2^24 + 0.5): an event with this threshold happens iff draw < T, so with T / 2^24 exactly.

    Raises ValueError for p outside [0, 1], for NaN, and for p > 0 that rounds to 0 (it would never happen).

    >>> threshold("p", 0.15), threshold("p", 0), threshold("p", 1)
    (2516582, 0, 16777216)
    """
    p = probability(name, value)
    t = rounded(p)
    if p > 0 and t == 0:
        raise ValueError(f"{name} = {p!r} is too small: it rounds to 0 in steps of 2^-24")
    return t


def rounded(p: float) -> int:
    """floor(p * 2^24 + 0.5) in float64, at most 2^24."""
    return min(ALWAYS, math.floor(p * ALWAYS + 0.5))


def nest(select: int, share: int) -> int:
    """The threshold of a share within a select threshold, rounded."""
    return (select * share + (ALWAYS >> 1)) >> 24


def checked_weights(name: str, weights: object) -> tuple[float, ...]:
    """The weights as floats. TypeError for what is no number; ValueError for negative, not finite or all zero."""
    if isinstance(weights, str) or not isinstance(weights, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, got {weights!r}")
    values = tuple(_number(f"{name}[{i}]", weight) for i, weight in enumerate(weights))
    for i, weight in enumerate(values):
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{name}[{i}] = {weight!r}: weights must be finite and >= 0")
    if not any(values):
        raise ValueError(f"{name} are all zero: there is nothing to draw")
    return values


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None


def integer_widths(weights: Sequence[float]) -> npt.NDArray[np.uint64]:
    """The weights as integer widths that add up to 2^32, by largest remainder (ties: lower index), without rounding.

    >>> integer_widths([1.0, 1.0, 1.0]).tolist()
    [1431655766, 1431655765, 1431655765]
    """
    ratios = [float(w).as_integer_ratio() for w in weights]
    scale = max(denominator for _, denominator in ratios)  # powers of two: the largest is the common one
    numerators = [n * (scale // d) for n, d in ratios]
    total = sum(numerators)
    shares = [divmod(n << 32, total) for n in numerators]
    widths = np.array([quotient for quotient, _ in shares], np.uint64)
    missing = (1 << 32) - sum(quotient for quotient, _ in shares)
    by_remainder = sorted(range(len(shares)), key=lambda i: (-shares[i][1], i))
    widths[by_remainder[:missing]] += np.uint64(1)
    return widths
