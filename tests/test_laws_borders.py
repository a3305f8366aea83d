"""Laws over rows at their borders: equal words, draws that equal a threshold, limits just reached, the last attempt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import same
from support_devices import Agree
from support_laws import Batch, packed

import fastmask as fm
from fastmask.kernels import reference
from fastmask.laws import Law

EPOCH, SEED = 3, 7
LONG = 1 << 17  # so long that a row has two pairs of equal words


def row_of(length: int, sample: int, words: Any = None, **rows: Any) -> Batch:
    """One sample of ordinary tokens; each a word, unless said."""
    cells = {} if words is None else {"word_ids": words}
    ids = np.random.default_rng(length).integers(5, 30, length)
    given = {name: np.array([value]) for name, value in rows.items()}
    return Batch(packed([length]), ids, cells, {"sample_ids": np.array([sample], np.uint64), **given})


def words_of(length: int, sample: int) -> Any:
    """The select word of each position."""
    positions = np.arange(length)
    return reference.word(reference.words(SEED, EPOCH, sample, positions, reference.SELECT), positions)


@pytest.mark.parametrize(
    ("sample", "rank", "first", "second"),
    [
        (13, 97131, 89494, 102464),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(1, 5000, 51667, 93280), (29, 20996, 36608, 111216), (71, 31301, 79232, 91877)]
        ),
    ],
)
def test_among_equal_words_the_earlier_position_is_taken(
    sample: int, rank: int, first: int, second: int, agree_at_length: Agree
) -> None:
    """So many units lie before two of equal words, and some cuts go between these two."""
    ranked = words_of(LONG, sample)
    assert ranked[first] == ranked[second]
    assert np.count_nonzero(ranked < ranked[first]) == rank
    laws: dict[str, Law] = {
        "count": fm.ExactCount((rank + 1) / LONG),
        "words": fm.ExactCount((rank + 1) / LONG, "word"),
        "reach": fm.Bernoulli(0, "token", rank + 1),
        "reach words": fm.Bernoulli(0, "word", rank + 1),
        "fit": fm.Bernoulli(1, "token", 0, rank + 1),
        "fit words": fm.ExactCount(1, "word", 0, rank + 1),
    }
    for name, law in laws.items():
        words = np.arange(LONG) if "words" in name else None
        batch = agree_at_length(fm.Masker(VOCAB, law, seed=SEED), row_of(LONG, sample, words), EPOCH)
        chosen = batch.labels != -100
        assert chosen.sum() == rank + 1
        assert chosen[first]
        assert not chosen[second]


@pytest.mark.parametrize("least", [0, 1, 40])
def test_a_draw_at_a_threshold_is_not_below_it(least: int, agree: Agree) -> None:
    """What a minimum adds is decided by the second number, though its draw be the threshold."""
    for draw in (words_of(40, 5) >> np.uint32(8)).tolist():
        for replace in (fm.Replace(0.4, 0.4), fm.Replace(0, 0), fm.Replace(0, 1)):
            law = fm.Bernoulli(draw / 2**24, min_masked=least, max_masked=40)
            assert law.threshold == draw
            agree(fm.Masker(VOCAB, law, replace, seed=SEED), row_of(40, 5), EPOCH)
            agree(fm.Masker(VOCAB, fm.Bernoulli(0.3, "word"), replace, seed=SEED), row_of(40, 5, rates=law.p), EPOCH)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_maximum_that_leaves_nothing_out_changes_nothing(unit: Any, agree: Agree) -> None:
    """And one that leaves out a unit has all tokens of the row decided by their second numbers."""
    words = np.arange(60) // 2 if unit == "word" else np.arange(60)
    for sample in range(20):
        batch = row_of(60, sample, words)
        free = agree(fm.Masker(VOCAB, fm.Bernoulli(0.4, unit), seed=SEED), batch, EPOCH)
        count = int((free.labels != -100).sum())
        for most in (count - 1, count, count + 1):
            law = fm.Bernoulli(0.4, unit, 0, max(most, 0))
            got = agree(fm.Masker(VOCAB, law, seed=SEED), batch, EPOCH)
            if most >= count:
                same(got.input_ids, free.input_ids)
                same(got.decisions, free.decisions)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 33, 64, 65, 129])
def test_every_cut_of_a_short_row_is_where_the_reference_has_it(count: int, agree: Agree) -> None:
    words = np.cumsum(np.random.default_rng(count).random(count) < 0.5)
    for k in range(0, count + 1, 1 if count < 20 else 5):
        for law in (
            fm.ExactCount(k / count),
            fm.ExactCount(k / count, "word", count_of="candidates"),
            fm.Bernoulli(0.5, "word", k),
            fm.Bernoulli(0.5, "word", 0, k),
        ):
            agree(fm.Masker(VOCAB, law, seed=SEED), row_of(count, k, words), EPOCH)


@pytest.mark.parametrize("sample", [431, 13957])
def test_attempts_end_after_32_and_8_for_each_token_of_the_budget(sample: int, agree: Agree) -> None:
    """One token of 3000 is left out: the last attempt, and the one that is not made any more, would tell which."""
    law = fm.Spans(2999 / 3000, fm.Fixed(1))
    agree(fm.Masker(VOCAB, law, seed=SEED), row_of(3000, sample), EPOCH)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("before", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("law", [fm.ExactCount(0.5, "word"), fm.Spans(0.4, fm.Fixed(2), "word")])
def test_words_of_any_length_begin_anywhere_in_a_chunk(law: Law, before: int, length: int, agree: Agree) -> None:
    words = np.concatenate([np.arange(before), np.repeat([1000, 1001, 1002], length), np.arange(2000, 2070)])
    for sample in range(4):
        for unit in ("word", "span"):
            masker = fm.Masker(VOCAB, law, fm.Replace(0.4, 0.4, unit=unit), seed=SEED)
            agree(masker, row_of(words.size, sample, words), EPOCH)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_spans_of_any_length_begin_anywhere_in_a_chunk(length: int, p: float, agree: Agree) -> None:
    for sample in range(6):
        agree(fm.Masker(VOCAB, fm.Spans(p, fm.Fixed(length)), seed=SEED), row_of(520, sample), EPOCH)


def test_rates_multiply_in_float64(agree: Agree) -> None:
    lengths = np.arange(1, 201)
    for p in (0.15, 0.35, 0.29, np.nextafter(0.5, 0)):
        batch = Batch(packed(lengths.tolist()), np.full(lengths.sum(), 9), {}, {"rates": np.full(lengths.size, p)})
        for law in (fm.ExactCount(0.9), fm.Spans(0.9, fm.Fixed(3))):
            got = agree(fm.Masker(VOCAB, law, seed=SEED), batch)
            same(got.num_masked, np.floor(p * lengths + 0.5).astype(np.int64))


def test_a_cut_among_equal_words_lies_at_any_position() -> None:
    """Words forged, since equal ones are too rare to meet in a chunk: what is before a cut is taken, whole units."""
    from fastmask.kernels import cpu_sets

    def bits_of(flags: Any) -> Any:
        return np.packbits(np.pad(flags, (0, 320 - flags.size)), bitorder="little").view(np.uint64)

    rng = np.random.default_rng(0)
    words = rng.choice(np.array([0, 5, 6, 2**32 - 1], np.uint32), 256)
    candidates = rng.random(256) < 0.9
    for by_word in (False, True):
        goes_on = candidates & np.roll(candidates, 1) & (rng.random(256) < 0.6) & by_word
        goes_on[0] = False
        starts, rest = candidates & ~goes_on, bits_of(goes_on)
        units = np.cumsum(starts) - 1
        size = int(candidates.sum()), int(starts.sum())
        row = cpu_sets.Row(
            words, bits_of(candidates), bits_of(starts), rest, np.uint64(4), by_word, *map(np.uint64, size)
        )
        for key in (0, 5, 6, 2**32 - 1):
            for position in range(0, 256):
                chosen = np.zeros(5, np.uint64)
                taken = cpu_sets.take_prefix(row, np.uint64(key << 32 | position), chosen)
                first = np.flatnonzero(starts)
                before = (words[first] < key) | ((words[first] == key) & (first < position))
                want = candidates & before[units]
                assert int(taken) == want.sum()
                same(np.unpackbits(chosen.view(np.uint8), bitorder="little")[:256] > 0, want)
