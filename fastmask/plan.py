"""Plan: an objective as integers, made once and read by every kernel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastmask.kernels import layout
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.replace import UNITS, Replace, pool_of
from fastmask.thresholds import ALWAYS, integer_widths, nest
from fastmask.vocab import Vocab


@dataclass(frozen=True, eq=False)
class Plan:
    """The integers of an objective: thresholds in units of 2^-24, ids, and the pool of random tokens.

    `words` holds the scalars once more in the order of `kernels.layout`, for the compiled kernels.
    """

    seed: int
    size: int
    mask_id: int
    ignore_index: int
    pad_id: int | None
    special_ids: tuple[int, ...]
    special_runs: npt.NDArray[np.uint32]  # (number of runs, at least 2; 2): first id, length (0: none)
    select: int
    mask_share: int
    random_share: int
    pool: npt.NDArray[np.uint32]  # ascending
    cumulative: npt.NDArray[np.uint64]  # of the pool's widths, up to 2^32; empty where uniform
    exclude_original: bool
    law: str  # "bernoulli", "exact_count", "spans" or "diffusion"
    unit: str  # of the law: "token" or "word"
    replace_unit: str  # "token", "word" or "span"
    p: float  # of the counting laws
    count_of: str  # "candidates", "sequence" or "words"
    min_masked: int
    max_masked: int | None
    length_sums: npt.NDArray[np.uint64]  # of the widths of the span lengths 1, 2, ..., up to 2^32
    least_rate: int  # T_lo of Diffusion
    is_continuation: npt.NDArray[np.uint8] | None  # by id; None where the vocabulary does not tell
    words: npt.NDArray[np.uint64]

    needs_words: bool = field(init=False)  # words are the law's units, or share an outcome
    by_token: bool = field(init=False)  # a token's fate depends on no other: selection and replacement are one cut

    def __post_init__(self) -> None:
        by_draw = self.law in ("bernoulli", "diffusion") and self.unit == self.replace_unit == "token"
        object.__setattr__(self, "needs_words", "word" in (self.unit, self.replace_unit))
        object.__setattr__(self, "by_token", by_draw and self.min_masked == 0 and self.max_masked is None)

    def counts(self, longest: int) -> npt.NDArray[np.int64]:
        """floor(p * n + 0.5) in float64 for n = 0 .. longest (or more): what the CPU kernels read."""
        return count_table(self.p, 1 << max(longest, 511).bit_length())


@functools.lru_cache(maxsize=32)
def count_table(p: float, size: int) -> npt.NDArray[np.int64]:
    """floor(p * n + 0.5) for n = 0 .. size - 1, in float64 with two roundings.

    >>> count_table(0.15, 128)[100], count_table(0.5, 8)[5]
    (np.int64(15), np.int64(3))
    """
    counts: npt.NDArray[np.int64] = np.floor(p * np.arange(size) + 0.5).astype(np.int64)
    counts.flags.writeable = False
    return counts


LAWS = ("bernoulli", "exact_count", "spans", "diffusion")  # in the order of their numbers in `layout`
COUNTS_OF = ("candidates", "sequence", "words")


def _name_of(select: Law) -> str:
    kinds = (Bernoulli, ExactCount, Spans, Diffusion)
    return LAWS[next(number for number, kind in enumerate(kinds) if isinstance(select, kind))]


def make_plan(vocab: Vocab, select: Law, replace: Replace, seed: int, ignore_index: int) -> Plan:
    """The plan of an objective. Raises ValueError where the parts do not fit each other."""
    pool, cumulative = pool_of(replace, vocab)
    mask_share, random_share = replace.share_thresholds
    chosen = select.threshold if isinstance(select, Bernoulli) else ALWAYS
    law, unit = _name_of(select), getattr(select, "unit", "token")
    count_of = getattr(select, "count_of", "candidates")
    least, most = getattr(select, "min_masked", 0), getattr(select, "max_masked", None)
    least_rate = getattr(select, "least_rate", 0)
    length_sums = np.empty(0, np.uint64)
    if isinstance(select, Spans):
        length_sums = np.cumsum(integer_widths(select.lengths.weights), dtype=np.uint64)
    steps = steps_of(pool)
    words = np.zeros(layout.FIRST_STEP + steps.size, np.uint64)
    words[layout.FIRST_STEP :] = steps.reshape(-1)
    scalars = {
        layout.SEED: seed,
        layout.SIZE: vocab.size,
        layout.MASK_ID: vocab.mask_token_id,
        layout.IGNORE_INDEX: ignore_index % (1 << 64),
        layout.PAD_ID: layout.NO_PAD if vocab.pad_token_id is None else vocab.pad_token_id,
        layout.SELECT: chosen,
        layout.MASK: nest(chosen, mask_share),
        layout.RANDOM: nest(chosen, random_share),
        layout.MASK_SHARE: mask_share,
        layout.RANDOM_SHARE: random_share,
        layout.POOL_SIZE: pool.size,
        layout.WEIGHTED: int(cumulative.size > 0),
        layout.EXCLUDE_ORIGINAL: int(replace.exclude_original),
        layout.LAW: LAWS.index(law),
        layout.BY_WORD: int(unit == "word"),
        layout.REPLACE_UNIT: UNITS.index(replace.unit),
        layout.COUNT_OF: COUNTS_OF.index(count_of),
        layout.MIN_MASKED: min(least, layout.NO_LIMIT),
        layout.MAX_MASKED: layout.NO_LIMIT if most is None else min(most, layout.NO_LIMIT),
        layout.LEAST_RATE: least_rate,
        layout.STEPS: len(steps),
    }
    for index, value in scalars.items():
        words[index] = value
    for array in (words, pool, cumulative, length_sums):
        array.flags.writeable = False
    return Plan(
        seed=seed,
        size=vocab.size,
        mask_id=vocab.mask_token_id,
        ignore_index=ignore_index,
        pad_id=vocab.pad_token_id,
        special_ids=vocab.special_token_ids,
        special_runs=runs_of(vocab.special_token_ids),
        select=chosen,
        mask_share=mask_share,
        random_share=random_share,
        pool=pool,
        cumulative=cumulative,
        exclude_original=replace.exclude_original,
        law=law,
        unit=unit,
        replace_unit=replace.unit,
        p=getattr(select, "p", 0.0),
        count_of=count_of,
        min_masked=least,
        max_masked=most,
        length_sums=length_sums,
        least_rate=least_rate,
        is_continuation=vocab.continuation_table,
        words=words,
    )


def runs_of(ids: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Ascending distinct ids as runs (first id, length), at least two of them, if need be of length 0.

    >>> runs_of([0, 100, 101, 102, 103]).tolist()
    [[0, 1], [100, 4]]
    >>> runs_of([4]).tolist()
    [[4, 1], [0, 0]]
    """
    values = np.array(ids, np.uint32)
    first = np.flatnonzero(np.diff(values, prepend=values[:1] - np.uint32(2)) != 1)
    runs = np.zeros((max(first.size, 2), 2), np.uint32)  # kernels test two in one pass
    runs[: first.size, 0] = values[first]
    runs[: first.size, 1] = np.diff(first, append=values.size)
    runs.flags.writeable = False
    return runs


def steps_of(pool: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """The pool as steps (first rank, addend): its id of rank r is r plus the addends of all first ranks <= r.

    Most pools have few runs, and adding is quicker than a look into a table that has left the cache. No steps
    where there would be more than MOST_STEPS.

    >>> steps_of(np.array([1, 2, 3, 7, 8], np.uint32)).tolist()
    [[0, 1], [3, 3]]
    """
    addends = pool - np.arange(pool.size, dtype=np.uint32)
    first = np.flatnonzero(np.diff(addends, prepend=np.uint32(0)))
    if first.size > layout.MOST_STEPS:
        first = first[:0]
    return np.stack([first, np.diff(addends[first], prepend=np.uint32(0))], axis=1).astype(np.uint64)
