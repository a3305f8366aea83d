"""Failures of other systems, boiled down: how many are chosen, whole words, and spans.

Each test carries the id of its case. The small vocabulary: PAD 0, UNK 1, CLS 2, SEP 3, MASK 4, others 5..29.
"""

from __future__ import annotations

import itertools
import resource
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import on_host, same, same_batches
from support_statistics import assert_shares

import fastmask as fm
from fastmask.laws import Law

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
ALL_MASK = fm.Replace(mask=1.0, random=0.0)
GEOMETRIC = fm.Geometric(0.2, 10)
LEAST_ONE: list[Law] = [
    fm.Bernoulli(0.15, min_masked=1),
    fm.ExactCount(0.15, min_masked=1),
    fm.Spans(0.15, GEOMETRIC, min_masked=1),
]
EVERYTHING: list[Law] = [fm.Bernoulli(1, min_masked=1), fm.ExactCount(1), fm.Spans(1, GEOMETRIC), fm.Diffusion(1)]


def mask(law: Law, ids: Any, backend: str, replace: Any = None, seed: int = 7, **given: Any) -> Any:
    """The batch of epoch 0, unless given, with all that a batch can return."""
    masker = fm.Masker(VOCAB, law, replace, seed)
    return masker(np.asarray(ids), backend=backend, **{"epoch": 0, "returns": ("decisions", "compact"), **given})


def ordinary(rows: int, columns: int) -> Any:
    """Rows of ordinary tokens, no two alike in what they hold or in their ids."""
    return np.random.default_rng(columns).integers(5, 30, (rows, columns))


# Which positions may be chosen.


@on_host
@pytest.mark.parametrize("law", EVERYTHING)
def test_b09_cells_that_the_user_excluded_are_never_touched(backend: str, law: Law) -> None:
    ids = np.array([[2, 7, 8, 9, 10, 3]])
    loss_mask = np.array([[0, 0, 0, 1, 1, 0]])
    batch = mask(law, ids, backend, ALL_MASK, special_tokens_mask=1 - loss_mask)
    same(batch.labels, np.array([[-100, -100, -100, 9, 10, -100]]))
    same(batch.input_ids, np.array([[2, 7, 8, 4, 4, 3]]))


@on_host
@pytest.mark.parametrize("law", [fm.ExactCount(0.25), fm.Spans(0.25, GEOMETRIC)])
def test_b11_a_short_row_keeps_its_masks_whatever_the_longest_row_is(backend: str, law: Law) -> None:
    ids = np.full((2, 16), 9)
    ids[:, 0], ids[0, 15], ids[1, 3] = 2, 3, 3
    for seed in range(200):
        batch = mask(law, ids, backend, seed=seed, lengths=[16, 4])
        same(batch.num_masked, np.array([4, 1]))  # 3.5 of 14 and 0.5 of 2, halves up
        same(batch.labels[1, 4:], np.full(12, -100))


# What a chosen word is replaced by.


def words_of(rows: int) -> tuple[Any, Any]:
    """Rows of 100 words of two tokens: ids and word ids."""
    return np.full((rows, 200), 9), np.tile(np.arange(200) // 2, (rows, 1))


@on_host
def test_b19_and_b20_shares_of_words_are_unconditional_and_exclude_each_other(backend: str) -> None:
    ids, words = words_of(1000 if backend == "cpu" else 100)
    replace = fm.Replace(0.8, 0.1, unit="word", exclude_original=True)
    batch = mask(fm.Bernoulli(1, "word"), ids, backend, replace, sample_ids=0, word_ids=words)
    decisions = batch.decisions.reshape(-1, 2)
    same(decisions[:, 0], decisions[:, 1])
    assert_shares(np.bincount(decisions[:, 0], minlength=4), [0, 0.8, 0.1, 0.1])
    outcome = np.where(batch.input_ids == 4, 1, np.where(batch.input_ids == 9, 3, 2)).astype(np.uint8)
    same(batch.decisions, outcome)
    pairs = batch.input_ids.reshape(-1, 2)[decisions[:, 0] == 2]
    assert (pairs[:, 0] != pairs[:, 1]).mean() > 0.9  # each token of a word draws its own


@on_host
@pytest.mark.parametrize("unit", ["word", "token"])
def test_b41_whole_words_honour_the_shares_by_word_or_by_piece(backend: str, unit: Any) -> None:
    ids, words = words_of(1000 if backend == "cpu" else 100)
    batch = mask(
        fm.ExactCount(0.5, "word"), ids, backend, fm.Replace(0.8, 0.1, unit=unit), sample_ids=0, word_ids=words
    )
    decisions = batch.decisions.reshape(-1, 2)
    decisions = decisions[decisions[:, 0] != 0]
    assert len(decisions) == 50 * len(ids)
    assert_shares(np.bincount(decisions[:, 0], minlength=4), [0, 0.8, 0.1, 0.1])
    together = (decisions[:, 0] == decisions[:, 1]).mean()
    assert together == 1 if unit == "word" else abs(together - 0.66) < 0.03


# How many are chosen.


@on_host
@pytest.mark.parametrize("law", LEAST_ONE)
def test_b26_every_row_with_a_candidate_has_a_target(backend: str, law: Law) -> None:
    batch = mask(law, np.tile([[2, 7, 8, 3]], (2000, 1)), backend, sample_ids=0)
    assert batch.num_masked.min() == 1
    same(batch.num_masked, (batch.labels != -100).sum(1))


@on_host
def test_b26_without_a_minimum_short_rows_may_have_none(backend: str) -> None:
    assert fm.Bernoulli(0.15).min_masked == 0
    batch = mask(fm.Bernoulli(0.15), np.tile([[2, 7, 8, 3]], (2000, 1)), backend, sample_ids=0)
    assert abs((batch.num_masked == 0).mean() - 0.7225) < 0.05


@on_host
@pytest.mark.parametrize("law", [*LEAST_ONE, *EVERYTHING])
def test_b27_rows_without_candidates_come_back_as_they_were(backend: str, law: Law) -> None:
    ids = np.array([[2, 3, 0, 0], [0, 0, 0, 0]])
    for given in ({}, {"lengths": [2, 0]}, {"attention_mask": np.array([[1, 1, 0, 0], [0, 0, 0, 0]])}):
        batch = mask(law, ids, backend, **given)
        same(batch.input_ids, ids)
        same(batch.labels, np.full((2, 4), -100))
        same(batch.num_masked, np.zeros(2, np.int64))
        assert batch.compact.ids.size == 0


@on_host
@pytest.mark.parametrize("law", [fm.ExactCount(0.15), fm.Spans(0.15, GEOMETRIC), fm.ExactCount(0.15, "word")])
def test_b28_no_rounding_adds_a_token(backend: str, law: Law) -> None:
    lengths = np.arange(20, 8193 if backend == "cpu" else 1000, 20)  # of which 0.15 is a whole number
    bounds = np.cumsum([0, *lengths])
    ids = np.full(bounds[-1], 9)
    given: dict[str, Any] = {"cu_seqlens": bounds, "word_ids": np.arange(ids.size)}
    same(mask(law, ids, backend, **given).num_masked, lengths * 3 // 20)


@on_host
def test_b30_the_share_is_that_of_the_candidates_unless_the_sequence_is_named(backend: str) -> None:
    ids = [[2, *range(5, 13), 3]]
    assert mask(fm.ExactCount(0.5), ids, backend).num_masked.tolist() == [4]
    assert mask(fm.ExactCount(0.5, count_of="sequence"), ids, backend).num_masked.tolist() == [5]


@on_host
def test_b31_an_exact_count_is_exact_on_every_backend(backend: str) -> None:
    ids = np.tile(np.arange(5, 12), (500, 1))
    batch = mask(fm.ExactCount(0.2), ids, backend, sample_ids=0)
    same(batch.num_masked, np.ones(500, np.int64))  # 1.4 is 1, never 0 or 2
    same_batches(batch, mask(fm.ExactCount(0.2), ids, "numpy", sample_ids=0))


@on_host
def test_b32_three_distinct_positions_of_eighteen_each_set_of_them_as_likely(backend: str) -> None:
    rows = 60_000 if backend == "cpu" else 20_000
    batch = mask(fm.ExactCount(3 / 18), np.tile(np.arange(5, 23), (rows, 1)), backend, sample_ids=0)
    same(batch.num_masked, np.full(rows, 3))
    chosen = np.nonzero(batch.labels != -100)[1].reshape(-1, 3)
    pairs = Counter(pair for row in chosen.tolist() for pair in itertools.combinations(row, 2))
    assert_shares([pairs[pair] for pair in itertools.combinations(range(18), 2)], np.ones(153))
    if backend == "cpu":
        sets = Counter(map(tuple, chosen.tolist()))
        assert_shares([sets[three] for three in itertools.combinations(range(18), 3)], np.ones(816))


@on_host
@pytest.mark.parametrize("law", [fm.ExactCount, lambda p, **most: fm.Spans(p, GEOMETRIC, **most)])
def test_b33_there_is_no_hidden_cap_and_one_that_is_set_holds(backend: str, law: Any) -> None:
    ids = ordinary(3, 8192)
    ids[2, 100:] = 0
    same(mask(law(0.15), ids, backend).num_masked, np.array([1229, 1229, 15]))
    same(mask(law(0.15, max_masked=512), ids, backend).num_masked, np.array([512, 512, 15]))


@on_host
def test_b35_ragged_targets_are_flat_with_counts_or_dense_with_weights(backend: str) -> None:
    ids = np.array([[2, 7, 8, 3, 0, 0, 0], [2, 9, 10, 11, 12, 13, 14]])
    flat = mask(fm.ExactCount(0.5), ids, backend)
    same(flat.compact.counts, np.array([1, 3]))
    rows = np.repeat([0, 1], flat.compact.counts)
    same(flat.compact.ids, ids[rows, flat.compact.positions])
    same(flat.compact.weights, np.ones(4, np.float32))
    dense = mask(fm.ExactCount(0.5), ids, backend, max_predictions=3).compact
    same(dense.weights, np.array([[1, 0, 0], [1, 1, 1]], np.float32))
    same(dense.ids[dense.weights > 0], flat.compact.ids)
    same(dense.positions[dense.weights > 0], flat.compact.positions)
    same(dense.ids[0, 1:], np.full(2, -100))
    same(dense.positions[0, 1:], np.zeros(2, np.int64))


@on_host
def test_b36_a_row_does_not_know_the_others_and_its_spans_are_whole(backend: str) -> None:
    law = fm.Spans(0.15, fm.Fixed(10))
    ids = np.zeros((2, 200), np.int64)
    ids[0], ids[1, :40] = 9, 8
    for seed in range(50):
        both = mask(law, ids, backend, seed=seed)
        for row, length in ((0, 200), (1, 40)):
            alone = mask(law, ids[row, :length], backend, seed=seed)
            same(both.labels[row, :length], alone.labels)
        edges = np.flatnonzero(np.diff(np.pad(both.labels[0] != -100, 1).astype(int)))
        short = [(a, b) for a, b in edges.reshape(-1, 2).tolist() if b - a < 10 and a > 0 and b < 200]
        assert len(short) <= 1  # the one that filled the budget


@on_host
def test_b38_a_sampled_rate_has_its_mean_and_stays_below_one(backend: str) -> None:
    batch = mask(fm.Diffusion(0.2), ordinary(10_000, 100), backend, sample_ids=0, returns=("rates", "num_masked"))
    assert abs(batch.num_masked.mean() / 100 - 0.6) < 0.01
    assert abs(batch.rates.mean() - 0.6) < 0.01
    assert 0.2 - 2.0**-24 <= batch.rates.min() < 0.21
    assert 0.99 < batch.rates.max() <= 1


# Whole words.


@on_host
@pytest.mark.parametrize("told", ["word ids", "table"])
def test_b39_all_pieces_of_a_word_are_chosen_together(backend: str, told: str) -> None:
    ids = np.tile([5, 25, 26, 6], (300, 1))
    continues = np.isin(np.arange(30), [25, 26])
    table = fm.Vocab(30, 4, 0, (1, 2, 3), is_continuation=continues if told == "table" else None)
    words = np.tile([0, 0, 0, 1], (300, 1)) if told == "word ids" else None
    batch = fm.Masker(table, fm.ExactCount(0.5, "word"))(ids, epoch=0, sample_ids=0, word_ids=words, backend=backend)
    chosen = Counter(map(tuple, (batch.labels != -100).tolist()))
    assert set(chosen) == {(True, True, True, False), (False, False, False, True)}
    assert abs(chosen[True, True, True, False] - 150) < 5 * 300**0.5 / 2


@on_host
def test_b40_words_are_what_the_caller_says_they_are(backend: str) -> None:
    ids = np.array([[7, 8, 9, 10]])
    for words, sizes in (([0, 1, 2, 3], {1}), ([0, 0, 1, 1], {2}), ([5, 5, 5, 5], {4}), ([-1, -1, 2, -1], {1, 2})):
        counts = {
            int(mask(fm.Bernoulli(0, "word", 1), ids, backend, seed=seed, word_ids=[words]).num_masked[0])
            for seed in range(60)
        }
        assert counts == sizes


@on_host
def test_b42_memory_for_words_grows_with_the_batch_and_not_with_its_square(backend: str) -> None:
    ids = np.full((64, 8192), 9)
    words = np.tile(np.arange(8192) // 3, (64, 1))
    mask(fm.ExactCount(0.15, "word"), ids[:1, :8], backend, word_ids=words[:1, :8])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mask(fm.ExactCount(0.15, "word"), ids, backend, word_ids=words)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < (100 if backend == "cpu" else 400) * 1024


@on_host
@pytest.mark.parametrize("law", [fm.ExactCount(0.25), fm.ExactCount(0.25, "word"), fm.Spans(0.25, GEOMETRIC)])
def test_b44_one_of_four_tokens_has_a_label(backend: str, law: Law) -> None:
    ids = np.tile([5, 6, 7, 8], (500, 1))
    words = np.tile([0, 1, 2, 3], (500, 1))
    batch = mask(law, ids, backend, ALL_MASK, sample_ids=0, word_ids=words)
    same((batch.labels != -100).sum(1), np.ones(500, np.int64))
    same(batch.labels != -100, batch.input_ids == 4)


# Spans and packing.


@on_host
def test_b52_no_word_joins_what_lies_on_both_sides_of_a_special_token(backend: str) -> None:
    ids = np.tile([[2, 7, 8, 3, 9, 10, 3]], (300, 1))
    words = np.zeros_like(ids)
    batch = mask(fm.ExactCount(0.5, "word"), ids, backend, ALL_MASK, sample_ids=0, word_ids=words)
    outcomes = Counter(map(tuple, batch.input_ids.tolist()))
    assert set(outcomes) == {(2, 4, 4, 3, 9, 10, 3), (2, 7, 8, 3, 4, 4, 3)}


@on_host
def test_b52_no_span_crosses_a_special_token(backend: str) -> None:
    """Two spans of one or two tokens make {b, c}; one that crossed would make it three times as often."""
    rows = 20_000 if backend == "cpu" else 3000
    batch = mask(fm.Spans(0.5, fm.Fixed(2)), np.tile([[2, 7, 8, 3, 9, 10, 3]], (rows, 1)), backend, sample_ids=0)
    chosen = batch.labels != -100
    same(chosen[:, [0, 3, 6]], np.zeros((rows, 3), np.bool_))
    assert abs((chosen[:, 2] & chosen[:, 4]).mean() - 1 / 15) < 5 * (1 / 15 / rows) ** 0.5


@on_host
@pytest.mark.parametrize("law", [fm.Spans(0.5, fm.Fixed(3)), fm.ExactCount(0.5, "word")])
def test_b52_no_span_or_word_crosses_the_end_of_a_document(backend: str, law: Law) -> None:
    lengths = [3, 5, 2, 0, 7]
    bounds = np.cumsum([0, *lengths])
    ids = ordinary(1, 17)[0]
    words = np.arange(17) // 4  # words that run on from a document to the next
    packed = mask(law, ids, backend, sample_ids=0, cu_seqlens=bounds, word_ids=words)
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        alone = mask(law, ids[first:end], backend, sample_ids=number, word_ids=words[first:end])
        same(packed.labels[first:end], alone.labels)
        same(packed.input_ids[first:end], alone.input_ids)


@on_host
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_b54_flat_and_padded_batches_give_the_same_fates_in_the_container_that_came(backend: str, kind: str) -> None:
    lengths = [13, 0, 20, 7]
    bounds = np.cumsum([0, *lengths])
    flat = ordinary(1, 40)[0]
    padded = np.zeros((4, 20), np.int64)
    real = np.arange(20) < np.array(lengths)[:, None]
    padded[real] = flat
    make: Any = np.asarray if kind == "array" else pytest.importorskip("torch").from_numpy
    for law in (fm.Spans(0.3, GEOMETRIC), fm.ExactCount(0.3), fm.Bernoulli(0.3, min_masked=1), fm.Diffusion()):
        call: dict[str, Any] = {"epoch": 0, "backend": backend, "returns": ("compact", "decisions")}
        masker = fm.Masker(VOCAB, law, seed=7)
        one, many = masker(make(flat), cu_seqlens=bounds, **call), masker(make(padded), lengths=lengths, **call)
        assert one.compact is not None
        for part in (one.input_ids, one.labels, one.decisions, one.num_masked, *one.compact):
            assert type(part) is type(make(flat))
        for name in ("input_ids", "labels", "decisions"):
            same(np.asarray(getattr(one, name)), np.asarray(getattr(many, name))[real])
        same(np.asarray(one.num_masked), np.asarray(many.num_masked))
        same(np.asarray(one.compact.ids), np.asarray(one.labels)[np.asarray(one.compact.positions)])


@on_host
@pytest.mark.parametrize("lengths", [fm.Fixed(3), fm.Fixed(5), GEOMETRIC])
def test_b56_overlapping_spans_fill_the_budget_all_the_same(backend: str, lengths: Any) -> None:
    batch = mask(fm.Spans(0.3, lengths), ordinary(1000, 20), backend, sample_ids=0)
    same(batch.num_masked, np.full(1000, 6))
