"""Every law in plain Python integers, one sample and one token at a time: the twin that the reference is held to."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import accumulate

from plain import IGNORED, plain_content_id, plain_draw_from, plain_numbers, plain_philox, plain_widths

from fastmask.laws import Bernoulli, Diffusion, Law, Spans
from fastmask.replace import Replace
from fastmask.vocab import Vocab

CONTINUES = (3, *range(18, 30))  # the ids that continue the word before them
VOCAB = Vocab(30, 4, 0, (1, 2, 3), is_continuation=[token in CONTINUES for token in range(30)])
POOL: dict[int, float | None] = dict.fromkeys(range(5, 30))

Row = tuple[list[int], list[int], list[int]]  # input_ids, labels, decisions


@dataclass(frozen=True)
class Sample:
    """One sample of the small vocabulary, and what a call says of it."""

    tokens: list[int]
    word_ids: list[int] | None = None  # None: CONTINUES tells
    marks: list[int] | None = None  # other than 0: never selected
    given_id: int | None = None  # None: that of the content
    p: float | None = None  # None: the law's
    offset: int = 0

    @property
    def id(self) -> int:
        return plain_content_id(self.tokens) if self.given_id is None else self.given_id

    @property
    def candidates(self) -> list[int]:
        marks = self.marks or [0] * len(self.tokens)
        return [j for j, token in enumerate(self.tokens) if token > 4 and marks[j] == 0]

    @property
    def words(self) -> list[list[int]]:
        """The positions of each word."""
        words: list[list[int]] = []
        for j in self.candidates:
            same = self.tokens[j] in CONTINUES if self.word_ids is None else self.word_ids[j] == self.word_ids[j - 1]
            if words and words[-1][-1] == j - 1 and same:
                words[-1].append(j)
            else:
                words.append([j])
        return words


def plain_threshold(p: float) -> int:
    return math.floor(p * 2**24 + 0.5)


def plain_rate(
    law: Diffusion, sample: int, epoch: int = 1, seed: int = 7, stratum: int | None = None, step: int = 0
) -> int:
    """T of Diffusion; `stratum` is floor(index * 2^32 / total)."""
    key = [seed % 2**32, seed // 2**32]
    w = plain_philox([0, sample % 2**32, sample // 2**32, epoch * 256 + 1], key)[0]
    if stratum is not None:
        w = (plain_philox([0, step % 2**32, step // 2**32, epoch * 256 + 7], key)[0] + stratum) % 2**32
    least = max(1, plain_threshold(law.eps))
    return least + (w * (2**24 - least) >> 32)


def plain_selection(law: Law, sample: Sample, words: dict[int, int], seed: int, epoch: int) -> list[int]:
    """The selected positions; `words` holds the select word of each candidate."""
    if isinstance(law, Diffusion):
        return [j for j, word in words.items() if word >> 8 < plain_rate(law, sample.id, epoch, seed)]
    p = law.p if sample.p is None else sample.p
    units = sample.words if law.unit == "word" else [[j] for j in sample.candidates]
    if isinstance(law, Spans):
        k = max(math.floor(p * len(words) + 0.5), law.min_masked)
        k = min(k, len(words), len(words) if law.max_masked is None else law.max_masked)
        return plain_spans(law, units, words, k, sample.id, seed, epoch)
    selected: list[int] = []
    sizes = {"candidates": len(words), "sequence": len(sample.tokens), "words": len(units)}
    for taken, unit in enumerate(sorted(units, key=lambda unit: (words[unit[0]], unit[0]))):
        if isinstance(law, Bernoulli):
            wanted = words[unit[0]] >> 8 < plain_threshold(p)
        else:
            so_far = taken if law.count_of == "words" else len(selected)
            wanted = so_far < math.floor(p * sizes[str(law.count_of)] + 0.5)
        if law.max_masked is not None and len(selected) + len(unit) > law.max_masked:
            break
        if not wanted and len(selected) >= law.min_masked:
            break
        selected += unit
    return selected


@functools.cache
def plain_sums(weights: tuple[float, ...]) -> list[int]:
    return list(accumulate(plain_widths(list(weights))))


def plain_spans(
    law: Spans, units: list[list[int]], words: dict[int, int], k: int, sample: int, seed: int, epoch: int
) -> list[int]:
    selected: list[int] = []
    for attempt in range(32 + 8 * k):
        if len(selected) == k:
            break
        counter = [attempt, sample % 2**32, sample // 2**32, epoch * 256 + 2]
        w0, w1, _, _ = plain_philox(counter, [seed % 2**32, seed // 2**32])
        length = min(1 + sum(c <= w0 for c in plain_sums(law.lengths.weights)), k - len(selected))
        start = (w1 * (len(units) + length - 1) >> 32) - (length - 1)
        covered: list[int] = []
        for unit in units[max(start, 0) : start + length]:
            if covered and unit[0] != covered[-1] + 1:
                break
            covered += unit
        if covered[0] not in selected:
            selected += [j for j in covered if j not in selected][: k - len(selected)]
    rest = sorted((word, j) for j, word in words.items() if j not in selected)
    return selected + [j for _, j in rest[: k - len(selected)]]


def plain_decider(unit: str, sample: Sample, selected: list[int], j: int) -> int:
    """The position that decides for the selected position j."""
    if unit == "word":
        return next(word[0] for word in sample.words if j in word)
    while unit == "span" and j - 1 in selected:
        j -= 1
    return j


def plain_sample(law: Law, replace: Replace, sample: Sample, seed: int = 7, epoch: int = 1) -> Row:
    """What a sample becomes with the default pool; every index is a position."""
    numbers = {j: plain_numbers(seed, epoch, sample.id, j + sample.offset) for j in sample.candidates}
    selected = plain_selection(law, sample, {j: word for j, (word, _, _) in numbers.items()}, seed, epoch)
    masks = plain_threshold(replace.mask)
    randoms = min(2**24, plain_threshold(replace.mask + replace.random))

    drawn: list[int] = []  # the positions chosen by their own draw
    select = 0
    if isinstance(law, Bernoulli) and law.unit == replace.unit == "token":
        select = plain_threshold(law.p if sample.p is None else sample.p)
        drawn = [j for j, (_, draw, _) in numbers.items() if draw < select]
    if not set(drawn) <= set(selected):
        drawn = []

    ids, labels, decisions = list(sample.tokens), [IGNORED] * len(sample.tokens), [0] * len(sample.tokens)
    for j in selected:
        u, whole = numbers[plain_decider(replace.unit, sample, selected, j)][2] >> 8, 2**24
        if j in drawn:
            u, whole = numbers[j][1], select
        labels[j] = ids[j]
        if u < (whole * masks + 2**23) >> 24:
            ids[j], decisions[j] = VOCAB.mask_token_id, 1
        elif u < (whole * randoms + 2**23) >> 24:
            ids[j], decisions[j] = plain_draw_from(POOL, replace.exclude_original, ids[j], numbers[j][2]), 2
        else:
            decisions[j] = 3
    return ids, labels, decisions
