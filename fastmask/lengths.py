"""The laws of span lengths: weights over the lengths 1, 2, 3, ... in units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fastmask.thresholds import checked_weights, probability
from fastmask.vocab import integer

MAX_LENGTH = 1 << 16


class LengthLaw(Protocol):
    """What Spans draws lengths from."""

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of length 1, of length 2, and so on; they need not add up to 1."""


@dataclass(frozen=True)
class Geometric:
    """Length i + 1 has weight p * (1 - p)^i for i = 0 .. n - 1: a geometric law, renormalised on 1 .. n.

    Args:
        p: a number in (0, 1].
        n: the longest length, 1 <= n <= 65536.

    Raises:
        TypeError: p is not a number or n not an integer.
        ValueError: p or n out of range.

    Source: Joshi et al., "SpanBERT", 2020, section 3.1: Geometric(0.2, 10), of mean 3.8.

    >>> round(mean_length(Geometric(0.2, 10)), 3)
    3.797
    """

    p: float
    n: int

    def __post_init__(self) -> None:
        if not probability("p", self.p) > 0:
            raise ValueError(f"p must lie in (0, 1], got {self.p!r}")
        object.__setattr__(self, "p", float(self.p))
        object.__setattr__(self, "n", checked_length(self.n))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the lengths 1 .. n."""
        return tuple(self.p * (1 - self.p) ** i for i in range(self.n))


@dataclass(frozen=True)
class InverseLength:
    """Length i has weight 1 / i for i = 1 .. n.

    Args:
        n: the longest length, 1 <= n <= 65536.

    Raises:
        TypeError: n is not an integer.
        ValueError: n out of range.

    Source: Lan et al., "ALBERT", 2020, section 4.1: n-grams of at most 3.

    >>> [round(weight, 3) for weight in InverseLength(3).weights]
    [1.0, 0.5, 0.333]
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checked_length(self.n))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the lengths 1 .. n."""
        return tuple(1 / length for length in range(1, self.n + 1))


@dataclass(frozen=True)
class Fixed:
    """Every span is n units long, where borders and the budget leave room.

    Args:
        n: the length, 1 <= n <= 65536.

    Raises:
        TypeError: n is not an integer.
        ValueError: n out of range.

    >>> Fixed(3).weights
    (0.0, 0.0, 1.0)
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checked_length(self.n))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the lengths 1 .. n."""
        return (0.0,) * (self.n - 1) + (1.0,)


@dataclass(frozen=True)
class Weighted:
    """Length i has the weight weights[i - 1].

    Args:
        weights: finite numbers >= 0, at least one of them > 0, at most 65536.

    Raises:
        TypeError: a weight is not a number.
        ValueError: no weights, too many, negative, not finite, or all zero.

    >>> Weighted([1, 2, 1]).weights
    (1.0, 2.0, 1.0)
    """

    weights: tuple[float, ...]

    def __init__(self, weights: Iterable[float]) -> None:
        object.__setattr__(self, "weights", checked_weights("lengths", weights))
        checked_length(len(self.weights))


def checked_length(n: object) -> int:
    """The longest length as an int in [1, 65536]."""
    value = integer("n", n)
    if not 1 <= value <= MAX_LENGTH:
        raise ValueError(f"n must be in [1, {MAX_LENGTH}], got {value}")
    return value


def mean_length(law: LengthLaw) -> float:
    """The mean of a length law, in units.

    What a batch shows is shorter: spans are cut at borders and by the budget, and grow together where they touch.
    """
    weights = law.weights
    return math.fsum(weight * length for length, weight in enumerate(weights, 1)) / math.fsum(weights)
