"""Compact targets and the rates of Diffusion, as the reference gives them, against plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import IGNORED
from plain_laws import Sample, plain_rate
from support import same
from support_laws import Layout, call_of, left_aligned, masked, packed, padded, plan_of, some_samples
from support_reference import POISONS, poisoned, sample_of

from fastmask.call import Call, Compact, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli, Diffusion, ExactCount
from fastmask.plan import make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

# Compact targets.


def compacted(call: Call, out: Outputs, slots: int, width: int | None) -> Compact:
    """The selected tokens, whatever the slots held before."""
    done = []
    for poison in POISONS:
        positions, ids, weights = (poisoned(slots, dtype, poison) for dtype in (np.int64, out.labels.dtype, np.float32))
        done.append(Compact(positions, ids, weights, width))
        reference.compact(plan_of(Bernoulli(0.15)), call, out, done[-1])
    for name in ("positions", "ids", "weights"):
        same(getattr(done[0], name), getattr(done[1], name))
    return done[0]


def decided(layout: Layout, decisions: list[list[int]], label_dtype: Any = np.int64) -> tuple[Call, Outputs]:
    """A batch in which the token of cell c is c + 5 and the decisions are as given."""
    call = Call(np.zeros(layout.size, np.int64), epoch=1, **layout.call)
    flat = layout.spread(decisions, np.uint8, 0)
    labels = np.where(flat != 0, np.arange(layout.size) + 5, IGNORED).astype(label_dtype)
    return call, Outputs(call.ids, labels, flat)


LENGTHS, CHOSEN = [4, 0, 3], [[0, 1, 0, 3], [], [2, 1, 1]]


def test_flat_targets_of_a_padded_batch_stand_row_after_row_with_their_columns() -> None:
    call, out = decided(padded(LENGTHS, [2, 0, 1], 1), CHOSEN)  # rows of seven
    got = compacted(call, out, 5, None)
    same(got.positions, np.array([3, 5, 1, 2, 3]))
    same(got.ids, np.array([8, 10, 20, 21, 22]))
    same(got.weights, np.ones(5, np.float32))


def test_flat_targets_of_a_packed_batch_stand_in_order_with_their_cells() -> None:
    call, out = decided(packed(LENGTHS), CHOSEN)
    got = compacted(call, out, 5, None)
    same(got.positions, np.array([1, 3, 4, 5, 6]))
    same(got.ids, got.positions + 5)
    same(got.weights, np.ones(5, np.float32))


@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
def test_slots_that_are_not_used_hold_position_0_the_ignored_id_and_weight_0(label_dtype: Any) -> None:
    call, out = decided(packed(LENGTHS), CHOSEN, label_dtype)
    got = compacted(call, out, 12, 4)
    same(got.positions, np.array([1, 3, 0, 0, 0, 0, 0, 0, 4, 5, 6, 0]))
    same(got.ids, np.array([6, 8, *[IGNORED] * 6, 9, 10, 11, IGNORED], label_dtype))
    same(got.weights, np.array([1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0], np.float32))


def test_a_slot_that_is_not_used_holds_the_ignored_id_of_the_plan() -> None:
    plan = make_plan(Vocab(30, 4), Bernoulli(0.5), Replace(), 7, -1)
    call, out = decided(packed([2]), [[0, 1]])
    got = Compact(np.empty(2, np.int64), np.empty(2, np.int64), np.empty(2, np.float32), 2)
    reference.compact(plan, call, out, got)
    same(got.ids, np.array([6, -1]))


@pytest.mark.parametrize("layout", [packed([]), packed([0, 0]), left_aligned([]), left_aligned([0, 0])])
@pytest.mark.parametrize("width", [None, 0, 3])
def test_batches_without_cells_have_no_targets(layout: Layout, width: int | None) -> None:
    call, out = decided(layout, [[]] * len(layout.lengths))
    got = compacted(call, out, len(layout.lengths) * (width or 0), width)
    assert not got.weights.any()
    same(got.ids, np.full(got.ids.size, IGNORED))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_targets_are_the_labels_that_are_not_ignored(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=6))
    lengths = list(map(len, chosen))
    lefts = data.draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)))
    layout = data.draw(st.sampled_from([packed(lengths), padded(lengths, lefts, 2)]))
    width = data.draw(st.none() | st.integers(max((len(row) - row.count(0) for row in chosen), default=0), 11))
    slots: list[tuple[int, int, float]] = []
    for row, (first, decisions) in enumerate(zip(layout.firsts, chosen, strict=True)):
        cells = [first + j for j, decision in enumerate(decisions) if decision]
        before = 0 if "boundaries" in layout.call else row * layout.call["row_length"]
        slots += [(cell - before, cell + 5, 1.0) for cell in cells]
        slots += [(0, IGNORED, 0.0)] * ((width or 0) - len(cells))
    call, out = decided(layout, chosen)
    got = compacted(call, out, len(slots), width)
    assert list(zip(got.positions.tolist(), got.ids.tolist(), got.weights.tolist(), strict=True)) == slots


def test_targets_of_a_masked_batch_are_its_original_tokens() -> None:
    samples = some_samples(5, 40)
    layout = padded([len(sample.tokens) for sample in samples], [0, 3, 1, 0, 2], 4)
    call = call_of(samples, layout)
    out = masked(plan_of(ExactCount(0.3)), call)
    got = compacted(call, Outputs(**out._asdict()), int(out.num_masked.sum()), None)
    rows = np.repeat(np.arange(5), out.num_masked)
    same(got.ids, call.ids.reshape(5, -1)[rows, got.positions])


# The rates of Diffusion.

ALL_MASK = Replace(1, 0)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.5, 1.0])
@pytest.mark.parametrize("named", [True, False])
def test_a_rate_is_drawn_from_the_id_of_the_sample_alone(eps: float, named: bool) -> None:
    samples = [Sample(s.tokens, given_id=s.given_id if named else None) for s in some_samples(8, 20)]
    samples.append(Sample([], given_id=2**64 - 1 if named else None))
    want = np.array([plain_rate(Diffusion(eps), sample.id) for sample in samples], np.uint32)
    lengths = [len(sample.tokens) for sample in samples]
    for layout in (packed(lengths), padded(lengths, [*range(9)], 2)):
        same(reference.sample_rates(plan_of(Diffusion(eps), ALL_MASK), call_of(samples, layout)), want)


def test_strata_shift_one_number_of_the_step() -> None:
    samples = some_samples(16, 10)
    call = call_of(samples, packed([len(sample.tokens) for sample in samples]), epoch=3)
    strata = [index * 2**32 // 16 for index in range(16)]
    call.strata = np.array(strata, np.uint32)
    plan = plan_of(Diffusion(), ALL_MASK)
    for step in (0, 1, 2**32 + 5, 2**64 - 1):
        call.step = step
        rates = reference.sample_rates(plan, call)
        want = [plain_rate(Diffusion(), s.id, 3, 7, stratum, step) for s, stratum in zip(samples, strata, strict=True)]
        same(rates, np.array(want, np.uint32))
        parts = np.sort((rates.astype(np.float64) - 16777) / (2**24 - 16777) * 16).astype(np.int64)
        same(parts, np.arange(16))


def test_a_rate_lies_between_the_least_one_and_one() -> None:
    call = Call(np.empty(0, np.int64), 4000, 0, 1, sample_ids=np.arange(4000, dtype=np.uint64))
    for eps, least in ((0.0, 1), (1e-3, 16777), (0.999, 16760439)):
        rates = reference.sample_rates(plan_of(Diffusion(eps), ALL_MASK), call)
        assert least <= rates.min()
        assert rates.max() < 2**24
        assert abs(float(rates.mean()) - (least + 2**24) / 2) < (2**24 - least) * 0.02
    same(reference.sample_rates(plan_of(Diffusion(1.0), ALL_MASK), call), np.full(4000, 2**24, np.uint32))


@pytest.mark.parametrize("strata", [None, [0, 2**31, 2**32 - 1]])
def test_diffusion_masks_below_the_rates_that_it_gives(strata: list[int] | None) -> None:
    samples = some_samples(3, 60)
    layout = packed([len(sample.tokens) for sample in samples])
    call = call_of(samples, layout)
    call.strata = None if strata is None else np.array(strata, np.uint32)
    plan = plan_of(Diffusion(), ALL_MASK)
    drawn = masked(plan, call).decisions
    call.thresholds = reference.sample_rates(plan, call)
    same(masked(plan, call).decisions, drawn)
    call.strata = None
    for row, rate in enumerate(call.thresholds.tolist()):
        one = Call(np.array(samples[row].tokens), 1, len(samples[row].tokens), 1, sample_ids=sample_of(samples[row].id))
        want = masked(plan_of(Bernoulli(rate / 2**24), ALL_MASK), one).decisions
        same(drawn[layout.firsts[row] :][: layout.lengths[row]], want)


def test_thresholds_that_were_given_are_not_drawn() -> None:
    samples = some_samples(2, 30)
    call = call_of(samples, packed([len(sample.tokens) for sample in samples]))
    call.thresholds = np.array([0, 2**24], np.uint32)
    out = masked(plan_of(Diffusion(), ALL_MASK), call)
    same(out.num_masked, np.array([0, len(samples[1].candidates)]))
