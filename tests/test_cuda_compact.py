"""Compact targets and the rates of Diffusion on a GPU, as the reference gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import IGNORED
from support import Array, same
from support_cuda import OVERFLOW, cuda, launch, numba_cuda, to_device, to_host
from support_cuda import tiny_launches as tiny_launches
from support_laws import Layout, call_of, left_aligned, packed, padded, plan_of, some_samples

from fastmask.call import Call, Compact, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli, Diffusion
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

pytestmark = OVERFLOW

LENGTHS = [19, 0, 3, 8]
LAYOUTS = {"packed": packed(LENGTHS), "padded": padded(LENGTHS, [1, 4, 9, 2], 2)}
PLAN = make_plan(Vocab(30, 4, 0), Bernoulli(0.5), Replace(), 7, -1)


def decided(layout: Layout, label_dtype: Any = np.int64, ignored: int = -1, share: float = 0.5) -> tuple[Call, Outputs]:
    """A batch in which the token of cell c was c + 5, and some of the cells are decided upon."""
    rng = np.random.default_rng(0)
    call = Call(np.zeros(layout.size, np.int64), epoch=1, **layout.call)
    chosen = [(rng.integers(1, 4, n) * (rng.random(n) < share)).tolist() for n in layout.lengths]
    decisions = layout.spread(chosen, np.uint8, 0).copy()
    labels = np.where(decisions != 0, np.arange(layout.size) + 5, ignored).astype(label_dtype)
    ids = np.where(decisions == 1, 4, np.arange(layout.size) + 5)
    return call, Outputs(ids, labels, decisions, np.array([sum(d != 0 for d in row) for row in chosen]))


def blank(slots: int, width: int | None, label_dtype: Any = np.int64) -> Compact:
    return Compact(np.full(slots, -7), np.full(slots, -7, label_dtype), np.full(slots, -7, np.float32), width)


def compacted(plan: Plan, call: Call, out: Outputs, slots: int, width: int | None) -> tuple[Compact, Outputs, bool]:
    """What the kernels make of a masked batch, in host memory; and whether they complained."""
    got, device_out = to_device(blank(slots, width, out.labels.dtype)), to_device(out)
    flag = cuda.compact(plan, to_device(call), device_out, got)
    positions, ids, weights = (getattr(got, name).copy_to_host() for name in ("positions", "ids", "weights"))
    return Compact(positions, ids, weights, width), to_host(device_out), launch.is_set(flag)


def all_same(got: Any, want: Any, *names: str) -> None:
    for name in names:
        same(getattr(got, name), getattr(want, name))


@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("width", [None, 0, 3])
def test_the_selected_tokens_stand_where_the_reference_puts_them(
    name: str, width: int | None, label_dtype: str
) -> None:
    call, out = decided(LAYOUTS[name], label_dtype)
    assert out.num_masked is not None
    total, most = int(out.num_masked.sum()), int(out.num_masked.max())
    width = None if width is None else most + width
    want = blank(total if width is None else 4 * width, width, label_dtype)
    reference.compact(PLAN, call, out, want)
    got, after, complained = compacted(PLAN, call, out, want.ids.size, width)
    all_same(got, want, "positions", "ids", "weights")
    all_same(after, out, "input_ids", "labels", "decisions", "num_masked")
    assert not complained


@pytest.mark.parametrize("name", LAYOUTS)
def test_flat_slots_beyond_the_selected_tokens_are_not_used(name: str) -> None:
    call, out = decided(LAYOUTS[name])
    cells = out.labels.size
    got, _, complained = compacted(PLAN, call, out, cells, None)
    chosen = np.flatnonzero(np.asarray(out.decisions))
    rest = cells - chosen.size
    assert rest > 0
    positions = chosen if name == "packed" else chosen % call.row_length
    same(got.positions, np.concatenate([positions, np.zeros(rest, np.int64)]))
    same(got.ids, np.concatenate([chosen + 5, np.full(rest, -1)]))
    same(got.weights, np.concatenate([np.ones(chosen.size, np.float32), np.zeros(rest, np.float32)]))
    assert not complained


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("width", [0, 1, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_surplus_of_a_row_becomes_what_it_was_and_is_flagged(name: str, width: int, counted: bool) -> None:
    layout = LAYOUTS[name]
    call, out = decided(layout)
    if not counted:
        out.num_masked = None
    got, after, complained = compacted(PLAN, call, out, 4 * width, width)
    decisions = np.array(out.decisions)
    want = Outputs(out.input_ids.copy(), out.labels.copy(), decisions)
    firsts = np.arange(4) * call.row_length if call.boundaries is None else call.boundaries[:-1]
    counts = []
    for row, first in enumerate(firsts):
        span = call.row_length if call.boundaries is None else LENGTHS[row]
        chosen = first + np.flatnonzero(out.labels[first : first + span] != -1)
        surplus = chosen[width:]
        want.input_ids[surplus], want.labels[surplus], decisions[surplus] = surplus + 5, -1, 0
        counts.append(min(len(chosen), width))
        kept = chosen[:width] - (0 if name == "packed" else first)
        same(got.positions[row * width : row * width + kept.size], kept)
        same(got.weights[row * width : (row + 1) * width], (np.arange(width) < kept.size).astype(np.float32))
    all_same(after, want, "input_ids", "labels", "decisions")
    if counted:
        same(after.num_masked, np.array(counts))
    assert complained


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("layout", [packed([]), packed([0, 0]), left_aligned([0, 0]), left_aligned([0], right=4)])
def test_nothing_selected_uses_no_slot(layout: Layout, width: int | None) -> None:
    call, out = decided(layout, ignored=IGNORED)
    slots = 5 if width is None else width * call.rows
    got, _, complained = compacted(plan_of(Bernoulli(0.5)), call, out, slots, width)
    same(got.positions, np.zeros(slots, np.int64))
    same(got.ids, np.full(slots, IGNORED))
    same(got.weights, np.zeros(slots, np.float32))
    assert not complained


def test_many_rows_are_added_up_over_the_borders_of_a_block() -> None:
    layout = packed([3] * 21)
    call, out = decided(layout, share=1.0)
    got, _, _ = compacted(PLAN, call, out, 63, None)
    same(got.positions, np.arange(63))


# Rates.


def rates(plan: Plan, call: Call) -> Array:
    drawn: Array = cuda.sample_rates(plan, to_device(call)).copy_to_host()
    return drawn


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.5, 1.0])
@pytest.mark.parametrize("named", [False, True])
def test_rates_are_those_of_the_reference(eps: float, named: bool) -> None:
    plan = plan_of(Diffusion(eps), Replace(1, 0), seed=2**64 - 1)
    samples = some_samples(19, 9)
    for layout in (packed([len(s.tokens) for s in samples]), left_aligned([len(s.tokens) for s in samples], 1)):
        call = call_of(samples, layout)
        if not named:
            call.sample_ids = None
        same(rates(plan, call), reference.sample_rates(plan, call))


@pytest.mark.parametrize("step", [0, 5, 2**63])
def test_stratified_rates_are_those_of_the_reference_and_masks_follow_them(step: int) -> None:
    plan = plan_of(Diffusion(1e-3), Replace(1, 0))
    samples = some_samples(6, 20)
    call = call_of(samples, packed([len(s.tokens) for s in samples]))
    call.strata, call.step = (np.arange(6) * 2**32 // 6).astype(np.uint32), step
    same(rates(plan, call), reference.sample_rates(plan, call))
    want, got = (Outputs(*(np.full(call.ids.size, -7) for _ in range(2))) for _ in range(2))
    reference.mask_batch(plan, call, want)
    out = to_device(got)
    cuda.mask_batch(plan, to_device(call), out)
    same(out.labels.copy_to_host(), want.labels)


def test_rates_that_are_given_are_not_drawn_again() -> None:
    plan = plan_of(Diffusion(1e-3), Replace(1, 0))
    samples = some_samples(3, 20)
    call = call_of(samples, packed([len(s.tokens) for s in samples]))
    call.thresholds = np.array([0, 1 << 24, 0], np.uint32)
    ids, labels = (np.full(call.ids.size, -7) for _ in range(2))
    out = to_device(Outputs(ids, labels, None, np.full(3, -7)))
    cuda.mask_batch(plan, to_device(call), out)
    same(out.num_masked.copy_to_host(), np.array([0, len(samples[1].candidates), 0]))


def test_no_samples_have_no_rates() -> None:
    same(rates(plan_of(Diffusion(), Replace(1, 0)), call_of([], packed([]))), np.empty(0, np.uint32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-300, 1.0000000000000002])
@pytest.mark.parametrize("place", [0, 40])
def test_a_bad_rate_of_a_counting_law_counts_as_0_and_is_flagged(bad: float, place: int) -> None:
    given = np.linspace(0, 1, 41)
    for broken in (False, True):
        want = given.copy()
        values = given.copy()
        if broken:
            values[place], want[place] = bad, 0.0
        checked, flag = cuda.checked_shares(numba_cuda.to_device(values))
        same(checked.copy_to_host(), want)
        assert launch.is_set(flag) == broken
