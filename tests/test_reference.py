"""The reference against known answers of Philox, worked examples, and plain Python integers."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from plain import IGNORED, plain_content_id, plain_numbers, plain_philox, plain_row
from support import Array, same
from support_reference import ROW, equal, lengths_of, mask, part, plan_of, sample_of, some_rows

from fastmask.call import Call
from fastmask.kernels import reference
from fastmask.replace import Replace

# The stream.


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, answer: str) -> None:
    c, k, want = ([int(value, 16) for value in text.split()] for text in (counter, key, answer))
    arrays = tuple(np.array([value], np.uint64) for value in c)
    same(reference.philox(arrays, k)[:, 0], np.array(want, np.uint32))
    block = reference.words(k[0] + (k[1] << 32), c[3] >> 8, c[1] + (c[2] << 32), c[0] * 4, c[3] & 255)
    same(block, np.array(want, np.uint32))
    assert plain_philox(c, k) == want


@pytest.mark.parametrize(
    ("seed", "epoch", "sample", "position", "purpose", "word", "draw", "mixed", "pick"),
    [
        (0, 0, 0, 0, 0, 0x6627E8D5, 6694888, 0x2AA2CD3D, 4),
        (0, 0, 0, 5, 0, 0x5CB200DB, 6074880, 0xF2A0FDDB, 13),
        (1, 2, 3, 4, 0, 0x36EC1DE0, 3599389, 0x24D21AED, 20),
        (2**64 - 1, 2**24 - 1, 2**64 - 1, 7, 0, 0xC2996E2A, 12753262, 0x5DEB3B38, 10),
        (7, 0, 4294967296, 17179869183, 0, 0xAF884529, 11503685, 0xE7C70DDE, 8),
        (7, 1, 9, 0, 1, 0x9CFCBED0, 10288318, 0x87752E2E, 8),
        (7, 1, 9, 6, 2, 0xAA97FDB1, 11180029, 0xFE8C049E, 17),
    ],
)
def test_the_stream_gives_the_worked_examples(
    seed: int,
    epoch: int,
    sample: int,
    position: int,
    purpose: int,
    word: int,
    draw: int,
    mixed: int,
    pick: int,
) -> None:
    places = np.array([position])
    block = reference.words(seed, epoch, sample, places, purpose)
    same(reference.word(block, places), np.array([word], np.uint32))
    same(reference.draw(block, places), np.array([draw], np.uint32))
    same(reference.mixed(block, places), np.array([mixed], np.uint32))
    same(reference.pick(reference.mixed(block, places), 25), np.array([pick]))
    assert plain_numbers(seed, epoch, sample, position, purpose) == (word, draw, mixed)


def test_the_stream_of_arrays_is_that_of_their_elements() -> None:
    samples = sample_of(0, 9, 2**32 - 1, 2**32, 2**64 - 1)[:, None]
    places = np.array([0, 1, 2, 3, 4, 1023, 2**32 - 1, 2**34 - 1])
    block = reference.words(2**63 + 5, 3, samples, places, 0)
    assert block.shape == (4, 5, 8)
    spread = np.broadcast_to(places, (5, 8))
    want = [[plain_numbers(2**63 + 5, 3, s, j) for j in places.tolist()] for s in samples[:, 0].tolist()]
    want_words, want_draws, want_mixed = np.moveaxis(np.array(want, np.uint32), 2, 0)
    same(reference.word(block, spread), want_words)
    same(reference.draw(block, spread), want_draws)
    same(reference.mixed(block, spread), want_mixed)


def test_the_extras_of_a_block_are_one_number_rotated_by_bytes() -> None:
    block = np.array([[0x11], [0x22], [0x33], [0x44]], np.uint32).repeat(4, axis=1) + np.uint32(0xABCDEF00)
    want = np.array([0x44332211, 0x11443322, 0x22114433, 0x33221144], np.uint32)
    same(reference.extra(block, np.arange(4)), want)


# Where the real tokens lie, and what identifies them.


@pytest.mark.parametrize(("tokens", "want"), [([2, 7, 8, 3], 0x0D27D47B53A85802), ([0], 0x48218226FF3CD4BF), ([], 0)])
def test_content_ids_are_the_worked_examples(tokens: list[int], want: int) -> None:
    ids = np.array([[0, *tokens, 0, 0]])
    same(reference.content_ids(ids, lengths_of(1), lengths_of(len(tokens))), sample_of(want))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_a_content_id_is_that_of_the_real_tokens_alone_in_any_dtype(dtype: Any) -> None:
    largest = min(2**31 - 1, np.iinfo(dtype).max)
    ids = np.random.default_rng(1).integers(0, largest, (6, 40), endpoint=True).astype(dtype)
    starts, lengths = lengths_of(0, 3, 39, 20, 7, 0), lengths_of(40, 36, 1, 0, 30, 0)
    rows = [ids[r, s : s + n].tolist() for r, (s, n) in enumerate(zip(starts, lengths, strict=True))]
    same(reference.content_ids(ids, starts, lengths), sample_of(*map(plain_content_id, rows)))


def test_rows_without_columns_have_the_empty_content_id() -> None:
    ids = np.empty((2, 0), np.int64)
    same(reference.content_ids(ids, lengths_of(0, 0), lengths_of(0, 0)), sample_of(0, 0))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_the_runs_of_the_pad_id_at_both_ends_are_trimmed(dtype: Any) -> None:
    ids = np.array([[9, 5, 9, 9], [9, 9, 9, 9], [5, 9, 9, 5], [9, 5, 9, 5], [5, 5, 5, 5]], dtype)
    starts, lengths = reference.trim_padding(ids, 9)
    same(starts, lengths_of(1, 0, 0, 1, 0))
    same(lengths, lengths_of(1, 0, 4, 3, 4))


@pytest.mark.parametrize("pad_id", [None, 100_000])
def test_rows_without_the_pad_id_are_real_as_a_whole(pad_id: int | None) -> None:
    starts, lengths = reference.trim_padding(np.array([[0, 5, 0], [0, 0, 0]], np.uint16), pad_id)
    same(starts, lengths_of(0, 0))
    same(lengths, lengths_of(3, 3))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0)])
def test_empty_batches_have_empty_runs(shape: tuple[int, int]) -> None:
    nothing = np.zeros(shape[0], np.int64)
    for starts, lengths in (
        reference.trim_padding(np.empty(shape, np.int64), 0),
        reference.real_runs(np.empty(shape, np.int64))[:2],
    ):
        same(starts, nothing)
        same(lengths, nothing)
    assert reference.real_runs(np.empty(shape, np.bool_))[2] == -1


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.uint64, np.float16, np.float64, ">i4"])
def test_an_attention_mask_of_runs_gives_the_runs(dtype: Any) -> None:
    mask = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype)
    starts, lengths, bad = reference.real_runs(mask)
    same(starts, lengths_of(0, 2, 1, 0, 0, 3))
    same(lengths, lengths_of(2, 2, 2, 0, 4, 1))
    assert bad == -1


@pytest.mark.parametrize(
    ("mask", "want"),
    [
        ([[0, 1, 1, 0], [1, 0, 1, 1]], 6),
        ([[1, 0, 0, 1], [2, 1, 1, 1]], 3),
        ([[1, 1, 2, 1], [1, 0, 1, 0]], 2),
        ([[0, 0, 0, 0], [0, 0, -1, 0]], 6),
        ([[1.0, 1.0, float("nan"), 0.0]], 2),
        ([[1.0, 1.0, 0.0, 0.5]], 3),
        ([[1.0, 0.0, 0.0, float("inf")]], 3),
        ([[256, 0, 0, 0]], 0),
    ],
)
def test_the_first_offending_cell_of_an_attention_mask_is_named(mask: list[list[float]], want: int) -> None:
    assert reference.real_runs(np.array(mask))[2] == want


# Token-level Bernoulli.


@pytest.mark.parametrize("extent", [{"lengths": lengths_of(22)}, {}])
def test_the_row_of_bernoulli_is_the_worked_example(extent: dict[str, Array]) -> None:
    out = mask(plan_of(0.3), ROW, sample_ids=sample_of(9), **extent)
    decisions = [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 3, 0, 1, 0, 0, 0, 0, 0]
    ids = [2, 5, 8, 11, 4, 17, 20, 23, 4, 29, 4, 10, 4, 4, 19, 22, 25, 28, 4, 9, 12, 3, 0, 0]
    same(out.decisions, np.array([decisions], np.uint8))
    same(out.input_ids, np.array([ids]))
    same(out.labels, np.array([[t if d else IGNORED for t, d in zip(ROW, decisions, strict=True)]]))
    same(out.num_masked, np.array([7]))


POOLS: dict[str, tuple[Replace, dict[int, float | None]]] = {
    "all but special": (Replace(0.3, 0.6), dict.fromkeys(range(5, 30))),
    "vocab": (Replace(0.3, 0.6, pool="vocab"), dict.fromkeys(range(30))),
    "a range": (Replace(0.0, 1.0, pool=range(20, 4, -3)), dict.fromkeys(range(20, 4, -3))),
    "one id": (Replace(0.1, 0.9, pool=[11]), dict.fromkeys([11])),
    "a list": (Replace(0.0, 0.9, pool=[29, 5, 17]), dict.fromkeys([29, 5, 17])),
    "weights": (Replace(0.1, 0.8, weights=range(30)), {i: i * (i > 4) for i in range(30)}),
    "equal weights": (Replace(0.1, 0.8, pool=[9, 8, 7], weights=[1, 1, 1]), {9: 1, 8: 1, 7: 1}),
    "zero weights": (
        Replace(0.0, 1.0, pool=[20, 9, 4, 5], weights=[0.1, 0, 1e-3, 0]),
        {20: 0.1, 9: 0, 4: 1e-3, 5: 0},
    ),
    "a steep list": (Replace(0.0, 1.0, pool=[28, 6, 13], weights=[1e9, 1, 3e8]), {28: 1e9, 6: 1, 13: 3e8}),
}


@pytest.mark.parametrize(
    ("name", "exclude"),
    [case for case in product(POOLS, (False, True)) if case != ("one id", True)],  # refused by the plan
)
def test_every_pool_gives_what_plain_integers_give(name: str, exclude: bool) -> None:
    replace, pool = POOLS[name]
    replace = Replace(
        replace.mask, replace.random, pool=replace.pool, weights=replace.weights, exclude_original=exclude
    )
    ids = some_rows(12, 61)
    samples = sample_of(*range(10), 2**32, 2**64 - 1)
    out = mask(plan_of(0.8, replace), ids, sample_ids=samples, epoch=2**24 - 1)
    rows = [
        plain_row(tokens, 0.8, replace, pool, 2**24 - 1, sample)
        for tokens, sample in zip(ids.tolist(), samples.tolist(), strict=True)
    ]
    same(out.input_ids, np.array([row[0] for row in rows]))
    same(out.labels, np.array([row[1] for row in rows]))
    same(out.decisions, np.array([row[2] for row in rows], np.uint8))
    same(out.num_masked, np.count_nonzero(out.decisions, axis=1))
    if exclude:
        assert not ((out.decisions == 2) & (out.input_ids == ids)).any()
    drawn = set(out.input_ids[out.decisions == 2].tolist())
    assert drawn <= {token for token, weight in pool.items() if weight != 0}


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_an_original_outside_the_pool_excludes_nothing(weights: list[float] | None) -> None:
    ids = np.full((4, 50), 10)
    free, strict = (
        plan_of(1.0, Replace(0.0, 1.0, pool=[6, 21, 8], weights=weights, exclude_original=exclude))
        for exclude in (False, True)
    )
    equal(mask(strict, ids), mask(free, ids))


def test_a_sample_without_an_id_has_that_of_its_content() -> None:
    ids = some_rows(5, 33)
    samples = sample_of(*map(plain_content_id, ids.tolist()))
    equal(mask(plan_of(0.3), ids), mask(plan_of(0.3), ids, sample_ids=samples))


def test_selections_are_nested_in_p() -> None:
    ids = some_rows(8, 64)
    previous: Array = np.zeros(ids.shape, np.bool_)
    for p in (0.0, 1e-6, 0.05, 0.15, 0.3, 0.5, 0.95, 1.0):
        selected = mask(plan_of(p), ids).decisions != 0
        same(previous & selected, previous)
        previous = selected


def test_p_of_zero_changes_nothing() -> None:
    ids = some_rows(4, 50)
    out = mask(plan_of(0.0), ids)
    same(out.input_ids, ids)
    same(out.labels, np.full(ids.shape, IGNORED))
    same(out.decisions, np.zeros(ids.shape, np.uint8))
    same(out.num_masked, np.zeros(4, np.int64))


def test_p_of_one_selects_every_candidate() -> None:
    ids = some_rows(4, 50)
    out = mask(plan_of(1.0), ids)
    candidates = ids > 4
    same(out.decisions != 0, candidates)
    same(out.labels, np.where(candidates, ids, IGNORED))


@pytest.mark.parametrize(
    ("replace", "decision"), [(Replace(1.0, 0.0), 1), (Replace(0.0, 1.0), 2), (Replace(0.0, 0.0), 3)]
)
def test_a_share_of_one_decides_every_selected_token(replace: Replace, decision: int) -> None:
    ids = some_rows(4, 50)
    out = mask(plan_of(1.0, replace), ids)
    same(out.decisions, np.where(ids > 4, np.uint8(decision), np.uint8(0)))


def test_an_empty_pool_is_never_asked() -> None:
    out = mask(plan_of(0.5, Replace(0.5, 0.0, pool=[], exclude_original=True)), some_rows(3, 40))
    assert set(np.unique(out.decisions).tolist()) == {0, 1, 3}


def test_special_ids_and_barred_cells_are_never_touched() -> None:
    ids = some_rows(6, 40)
    barred = np.random.default_rng(2).integers(0, 3, ids.shape).astype(np.uint8) * np.uint8(127)
    out = mask(plan_of(1.0), ids, special_tokens_mask=barred.reshape(-1))
    same(out.decisions != 0, (ids > 4) & (barred == 0))
    same(out.input_ids[barred != 0], ids[barred != 0])


def test_thresholds_of_rows_replace_the_plans() -> None:
    ids = some_rows(5, 50)
    rates = [0.0, 0.15, 0.5, 1.0, 0.300001]
    thresholds = np.array([math.floor(p * 2**24 + 0.5) for p in rates], np.uint32)
    replace = Replace(0.3, 0.3)
    out = mask(plan_of(0.77, replace), ids, thresholds=thresholds)
    for row, p in enumerate(rates):
        equal(part(out, row, 0, 50), mask(plan_of(p, replace), ids[row]))


@pytest.mark.parametrize(("replace", "decision"), [(Replace(1, 0), 1), (Replace(0, 1), 2), (Replace(0, 0), 3)])
def test_a_draw_at_a_threshold_is_not_below_it(replace: Replace, decision: int) -> None:
    draws = np.array([plain_numbers(7, 1, sample, 0)[1] for sample in range(8)], np.uint32)
    ids, samples = np.full((8, 1), 9), sample_of(*range(8))
    for above in (0, 1):
        out = mask(plan_of(0.5, replace), ids, sample_ids=samples, thresholds=draws + np.uint32(above))
        same(out.decisions, np.full((8, 1), decision * above, np.uint8))


@pytest.mark.parametrize("select", [0, 1, 2, 3, 5, 2516582, 2**24 - 1, 2**24])
def test_shares_are_nested_in_a_select_threshold_by_rounding(select: int) -> None:
    replace = Replace(0.5, 0.25)
    want = [math.floor(Fraction(select) * share + Fraction(1, 2)) for share in (Fraction(1, 2), Fraction(3, 4), 1)]
    call = Call(np.empty(0, np.int64), 1, 0, 0, thresholds=np.array([select], np.uint32))
    for cuts in (
        reference.thresholds(plan_of(0.5, replace), call),
        reference.thresholds(plan_of(select / 2**24, replace), Call(np.empty(0, np.int64), 1, 0, 0)),
    ):
        same(np.concatenate(cuts), np.array(want, np.uint64))


def test_equal_weights_cut_the_numbers_where_a_uniform_pool_of_four_does() -> None:
    x = [edge + side for edge in (2**30, 2**31, 3 * 2**30) for side in (-1, 0)]
    mixed = np.array([value * pow(0x9E3779B1, -1, 2**32) % 2**32 for value in x], np.uint32)
    for weights in (None, [1, 1, 1, 1]):
        plan = plan_of(0.5, Replace(0, 1, pool=range(5, 9), weights=weights))
        same(reference.drawn_tokens(plan, np.full(6, 29), mixed), np.array([5, 6, 6, 7, 7, 8]))
