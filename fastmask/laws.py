"""The laws of selection: which candidates become prediction targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fastmask.lengths import LengthLaw, Weighted
from fastmask.thresholds import checked_weights, probability, rounded, threshold
from fastmask.vocab import integer

Unit = Literal["token", "word"]
CountOf = Literal["candidates", "sequence", "words"]


@dataclass(frozen=True)
class Bernoulli:
    """Every unit is selected on its own with probability T / 2^24, T = floor(p * 2^24 + 0.5).

    p = 0 selects none and p = 1 all. For one (seed, epoch, sample) the selected sets are nested in p. A call may give
    each sample a probability of its own (`rates=`), which then replaces p.

    Args:
        p: a number in [0, 1].
        unit: "token", or "word": the tokens of a word are selected together, by the draw of its first position.
        min_masked: units are added, in the order of their draws, until a sample has so many selected tokens.
        max_masked: no sample has more selected tokens; the units with the smallest draws stay. A unit that would pass
            it ends the selection, even below min_masked.

    Raises:
        TypeError: p is not a number, or a count not an integer.
        ValueError: p outside [0, 1], NaN, or so small that T is 0; an unknown unit; a negative count, or
            max_masked < min_masked.

    Source: Devlin et al., "BERT", 2019, section 3.1 (p = 0.15), as dynamic masking: Liu et al., "RoBERTa", 2019.

    >>> Bernoulli(0.15).threshold
    2516582
    """

    p: float
    unit: Unit = "token"
    min_masked: int = 0
    max_masked: int | None = None

    def __post_init__(self) -> None:
        threshold("p", self.p)
        object.__setattr__(self, "p", probability("p", self.p))
        _check_unit_and_limits(self)

    @property
    def threshold(self) -> int:
        """T: a candidate is selected iff its draw is below it."""
        return threshold("p", self.p)


@dataclass(frozen=True)
class ExactCount:
    """In every sample the k units with the smallest draws are selected, k = floor(p * n + 0.5) in float64.

    Every set of k tokens (or words) is equally likely. For one (seed, epoch, sample) the selected sets are nested in p.
    A call may give each sample a p of its own (`rates=`).

    Args:
        p: a number in [0, 1].
        unit: "token" or "word".
        min_masked: at least so many tokens are selected, where a sample has them.
        max_masked: at most so many tokens are selected. A unit that would pass it ends the selection.
        count_of: what n counts: "candidates", all real tokens ("sequence", as in the original BERT code) or, by default
            for unit="word", "words". With words counted k of them are selected, so each has the same chance whatever
            its length; with tokens counted, words are taken until k tokens are reached or passed.

    Raises:
        TypeError: p is not a number, or a count not an integer.
        ValueError: p outside [0, 1] or NaN; an unknown unit or count_of; a negative count, or max_masked < min_masked.

    Source: Devlin et al., "BERT", 2019, create_pretraining_data.py (there n includes special tokens: "sequence").

    >>> ExactCount(0.15, unit="word").count_of
    'words'
    """

    p: float
    unit: Unit = "token"
    min_masked: int = 0
    max_masked: int | None = None
    count_of: CountOf | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", probability("p", self.p))
        _check_unit_and_limits(self)
        if self.count_of is None:
            object.__setattr__(self, "count_of", "words" if self.unit == "word" else "candidates")
        allowed = ("candidates", "sequence", "words") if self.unit == "word" else ("candidates", "sequence")
        if self.count_of not in allowed:
            raise ValueError(f"count_of must be one of {', '.join(allowed)} for unit={self.unit!r}: {self.count_of!r}")


@dataclass(frozen=True)
class Spans:
    """Spans of units are selected until their tokens fill the budget of k = floor(p * candidates + 0.5) tokens.

    A span begins at any unit with equal chance, or before the first, so that every unit is as likely to be covered as
    borders allow; spans may touch and overlap, and what two of them cover counts once. The union of all spans is the
    budget exactly; the last span, and a word in it, may be cut. A span never crosses a special token or the end of a
    sample. So the realised mean length differs from that of the length law.

    Args:
        p: a number in [0, 1].
        lengths: the law of the lengths in units: Geometric, InverseLength, Fixed, or weights of the lengths 1, 2, ...
        unit: "token" or "word".
        min_masked: the least budget, where a sample has so many candidates.
        max_masked: the largest budget.

    Raises:
        TypeError: p or a weight is not a number, or a count not an integer.
        ValueError: p outside [0, 1] or NaN; an unknown unit; weights that are negative, not finite or all zero; a
            negative count, or max_masked < min_masked.

    Source: Joshi et al., "SpanBERT", 2020, section 3.1.

    >>> Spans(0.15, [0, 1]).lengths
    Weighted(weights=(0.0, 1.0))
    """

    p: float
    lengths: LengthLaw
    unit: Unit = "token"
    min_masked: int = 0
    max_masked: int | None = None

    def __init__(
        self,
        p: float,
        lengths: LengthLaw | Iterable[float],
        unit: Unit = "token",
        min_masked: int = 0,
        max_masked: int | None = None,
    ) -> None:
        object.__setattr__(self, "p", probability("p", p))
        law = lengths if hasattr(lengths, "weights") else Weighted(lengths)
        checked_weights("lengths", law.weights)
        object.__setattr__(self, "lengths", law)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "min_masked", min_masked)
        object.__setattr__(self, "max_masked", max_masked)
        _check_unit_and_limits(self)


@dataclass(frozen=True)
class Diffusion:
    """Every sample draws a rate t, uniform in [eps, 1); each candidate becomes MASK with probability t.

    In integers: T = T_lo + (w * (2^24 - T_lo) >> 32) for one random word w of the sample, T_lo = max(1, T(eps)); a
    candidate is masked iff its draw is below T. The batch returns rate = T / 2^24 and weight = 2^24 / T per sample.

    With `stratify=(index, total)` the rates of a global batch of `total` samples are spread evenly: in place of w
    stands (u + floor(index * 2^32 / total)) mod 2^32, u one random word per (seed, epoch, step): word 0 of block 0 of
    sample id `step` and purpose 7.

    Args:
        eps: the smallest rate, in [0, 1].

    Raises:
        TypeError: eps is not a number.
        ValueError: eps outside [0, 1] or NaN.

    Source: Nie et al., "LLaDA", 2025, algorithm 1; Sahoo et al., "MDLM", 2024 (log-linear schedule, stratified rates).

    >>> Diffusion(1e-3).least_rate
    16777
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", probability("eps", self.eps))

    @property
    def least_rate(self) -> int:
        """T_lo, in units of 2^-24."""
        return max(1, rounded(self.eps))


Law = Bernoulli | ExactCount | Spans | Diffusion


def _check_unit_and_limits(law: Any) -> None:
    """The unit is known and the limits are integers that leave room for each other."""
    if law.unit not in ("token", "word"):
        raise ValueError(f'unit must be "token" or "word", got {law.unit!r}')
    least = integer("min_masked", law.min_masked)
    if least < 0:
        raise ValueError(f"min_masked must be >= 0, got {least}")
    object.__setattr__(law, "min_masked", least)
    if law.max_masked is not None:
        most = integer("max_masked", law.max_masked)
        if most < least:
            raise ValueError(f"max_masked must be at least min_masked = {least}, got {most}")
        object.__setattr__(law, "max_masked", most)
