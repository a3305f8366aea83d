"""The laws of selection: which candidates become prediction targets."""

from __future__ import annotations

from dataclasses import dataclass

from fastmask.thresholds import probability, threshold


@dataclass(frozen=True)
class Bernoulli:
    """Every candidate is selected on its own with probability T / 2^24, T = floor(p * 2^24 + 0.5).

    p = 0 selects none and p = 1 all. For one (seed, epoch, sample) the selected sets are nested in p. A call may give
    each sample a probability of its own (`rates=`), which then replaces p.

    Args:
        p: a number in [0, 1].

    Raises:
        TypeError: p is not a number.
        ValueError: p outside [0, 1], NaN, or so small that T is 0.

    Source: Devlin et al., "BERT", 2019, section 3.1 (p = 0.15), as dynamic masking: Liu et al., "RoBERTa", 2019.

    >>> Bernoulli(0.15).threshold
    2516582
    """

    p: float

    def __post_init__(self) -> None:
        threshold("p", self.p)
        object.__setattr__(self, "p", probability("p", self.p))

    @property
    def threshold(self) -> int:
        """T: a candidate is selected iff its draw is below it."""
        return threshold("p", self.p)
