"""Replace: what a selected token becomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastmask.thresholds import checked_weights, integer_widths, probability, rounded, threshold
from fastmask.vocab import Vocab, integer

Pool = Literal["vocab"] | range | tuple[int, ...] | None
UNITS = ("token", "word", "span")


@dataclass(frozen=True)
class Replace:
    """A selected token becomes MASK with share `mask`, random with share `random`, and stays as it is otherwise.

    The shares are unconditional: (0.8, 0.1) is 80 % MASK, 10 % random, 10 % kept. One draw decides, so the three
    outcomes exclude each other. Kept tokens are labelled too.

    Args:
        mask: share in [0, 1].
        random: share in [0, 1]; mask + random <= 1.
        pool: the distinct ids that random tokens are drawn from: None for all that are not special, "vocab" for every
            id (the recipe of the BERT paper read literally), a range, or a list of ids.
        weights: one finite weight >= 0 per pool id, in the order given (with pool None: one per id of the vocabulary;
            those of special ids count as 0). None draws uniformly.
        exclude_original: True never draws the token that is being replaced (BERT's recipe may).
        unit: what shares one outcome: "token"; "word", whose first position decides for all its selected tokens; or
            "span", a run of consecutive selected tokens, whose first decides. Random ids are picked per token.

    Raises:
        TypeError: a share or an id of the wrong type.
        ValueError: an unknown unit; shares outside [0, 1] or adding up to more than 1; an empty pool or one with
            repeated ids; weights that are negative, not finite or all zero.

    Source: Devlin et al., "BERT", 2019, section 3.1. Weights: fairseq's frequency-weighted replacement.

    >>> Replace().kept
    0.1
    """

    mask: float = 0.8
    random: float = 0.1
    pool: Pool = None
    weights: tuple[float, ...] | None = None
    exclude_original: bool = False
    unit: Literal["token", "word", "span"] = "token"

    def __init__(
        self,
        mask: float = 0.8,
        random: float = 0.1,
        *,
        pool: Literal["vocab"] | range | Iterable[int] | None = None,
        weights: Iterable[float] | None = None,
        exclude_original: bool = False,
        unit: Literal["token", "word", "span"] = "token",
    ) -> None:
        threshold("mask", mask)
        if probability("mask", mask) + probability("random", random) > 1 + 1e-9:
            raise ValueError(f"mask + random must be at most 1, got {mask!r} + {random!r}")
        if random and rounded(mask + random) == 0:
            raise ValueError(f"random = {random!r} is too small: mask + random rounds to 0 in steps of 2^-24")
        if not isinstance(exclude_original, (bool, np.bool_)):
            raise TypeError(f"exclude_original must be True or False, got {exclude_original!r}")
        if unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
        object.__setattr__(self, "mask", float(mask))
        object.__setattr__(self, "random", float(random))
        object.__setattr__(self, "pool", _checked_pool(pool))
        object.__setattr__(self, "weights", None if weights is None else checked_weights("weights", weights))
        object.__setattr__(self, "exclude_original", bool(exclude_original))
        object.__setattr__(self, "unit", unit)

    @property
    def kept(self) -> float:
        """The share of selected tokens that stay as they are, rounded to 12 digits."""
        return max(0.0, round(1 - self.mask - self.random, 12))

    @property
    def share_thresholds(self) -> tuple[int, int]:
        """M = T(mask) and R = T(mask + random), in units of 2^-24."""
        return threshold("mask", self.mask), rounded(self.mask + self.random)


def _checked_pool(pool: object) -> Pool:
    if pool is None or isinstance(pool, range):
        return pool
    if isinstance(pool, str):
        if pool != "vocab":
            raise ValueError(f'pool must be None, "vocab", a range or a list of ids, got {pool!r}')
        return "vocab"
    if not isinstance(pool, Iterable):
        raise TypeError(f'pool must be None, "vocab", a range or a list of ids, got {pool!r}')
    return tuple(integer("pool", token) for token in pool)


def pool_of(replace: Replace, vocab: Vocab) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """The pool as ascending ids, and the cumulative widths of its weights (empty where the draw is uniform).

    Raises ValueError for ids outside the vocabulary, repeated ids, weights of another number than the pool, and for
    a pool too small to draw from while `random` > 0.
    """
    ids = _ids(replace, vocab)
    order = np.argsort(ids, kind="stable")
    pool = ids[order]
    if (repeated := np.flatnonzero(pool[1:] == pool[:-1])).size:
        raise ValueError(f"pool holds {pool[repeated[0]]} more than once")
    if replace.weights is None:
        _require_choice(replace, pool.size, "ids")
        return pool.astype(np.uint32), np.empty(0, np.uint64)
    widths = integer_widths(_weights(replace.weights, replace, vocab, ids))[order]
    _require_choice(replace, int(np.count_nonzero(widths)), "ids of non-zero width")
    return pool.astype(np.uint32), np.cumsum(widths, dtype=np.uint64)


def _ids(replace: Replace, vocab: Vocab) -> npt.NDArray[np.int64]:
    everything = np.arange(vocab.size, dtype=np.int64)
    if replace.pool == "vocab" or (replace.pool is None and replace.weights is not None):
        return everything
    if replace.pool is None:
        return np.delete(everything, list(vocab.special_token_ids))
    for token in replace.pool:
        if not 0 <= token < vocab.size:
            raise ValueError(f"pool holds {token}, outside the vocabulary [0, {vocab.size})")
    return np.array(replace.pool, np.int64)


def _weights(weights: Sequence[float], replace: Replace, vocab: Vocab, ids: npt.NDArray[np.int64]) -> Sequence[float]:
    if len(weights) != ids.size:
        raise ValueError(f"weights holds {len(weights)} numbers for a pool of {ids.size} ids")
    if replace.pool is not None:
        return weights
    counted = np.array(weights)
    counted[list(vocab.special_token_ids)] = 0.0
    if not counted.any():
        raise ValueError("weights are all zero for the ids that are not special: there is nothing to draw")
    return list(counted)


def _require_choice(replace: Replace, choices: int, what: str) -> None:
    least = 2 if replace.exclude_original else 1
    if replace.random > 0 and choices < least:
        raise ValueError(f"pool holds {choices} {what}: random = {replace.random!r} needs at least {least}")
