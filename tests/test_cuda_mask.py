"""The masking kernel gives the bits of the reference, for every dtype, shape, law and argument."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import assert_same, poisoned
from support_cuda import OFFSETS, OVERFLOW, POISONS, call_of, check, cuda, launch, plan_of, to_device, to_host
from support_cuda import tiny_launches as tiny_launches

from fastmask.call import Call
from fastmask.kernels import reference
from fastmask.replace import Replace

pytestmark = OVERFLOW


@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("out", ["int32", "int64"])
@pytest.mark.parametrize("ids", ["uint16", "int32", "int64"])
def test_every_dtype(ids: str, out: str, labels: str) -> None:
    check(plan_of(), call_of(2, 37, ids), out, labels)


@pytest.mark.parametrize("row_length", [0, 1, 3, 4, 5, 255, 257])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_sizes(rows: int, row_length: int) -> None:
    check(plan_of(), call_of(rows, row_length), poisons=POISONS)


def test_many_short_rows() -> None:
    check(plan_of(), call_of(67, 2))


@pytest.mark.parametrize("seed", [0, 1, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("epoch", [0, (1 << 24) - 1])
def test_the_whole_range_of_the_key(seed: int, epoch: int) -> None:
    samples = np.array([0, 1, 1 << 32, (1 << 64) - 1], np.uint64)
    check(plan_of(seed=seed), call_of(4, 9, epoch=epoch, sample_ids=samples))


LENGTHS = np.array([40, 0, 1, 39, 5, 17, 33], np.int64)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_on_any_side_and_offsets(side: str, with_offsets: bool) -> None:
    rest = 40 - LENGTHS
    starts = {"left": rest, "right": None, "both": rest // 2}[side]
    offsets = OFFSETS if with_offsets else None
    check(plan_of(), call_of(7, 40, starts=starts, lengths=LENGTHS, offsets=offsets), poisons=POISONS)


def test_offsets_shift_the_stream_by_whole_tokens() -> None:
    """A document cut in two keeps its masks: positions 5.. of one row, and a row with offset 5."""
    plan = plan_of(p=0.6)
    whole = call_of(1, 70)
    part = replace(whole, ids=whole.ids[5:].copy(), row_length=65, lengths=None, offsets=np.array([5], np.uint64))
    results = []
    for call in (whole, replace(part, lengths=np.array([65], np.int64))):
        out = to_device(poisoned(call))
        cuda.mask_batch(plan, to_device(call), out)
        results.append(out.input_ids.copy_to_host())
    np.testing.assert_array_equal(results[0][5:], results[1], strict=True)


def test_thresholds_of_ones_own() -> None:
    thresholds = np.array([0, 1, 1 << 23, 1 << 24], np.uint32)
    check(plan_of(), call_of(4, 50, thresholds=thresholds))


PHILOX_ZERO = (
    0x6627E8D5,
    0xE169C58D,
    0xBC57AC4C,
    0x9B00DBD8,
)  # Random123, kat_vectors: philox4x32 10, all zeros


@pytest.mark.parametrize("shares", [(1, 0), (0, 1), (0, 0)])
def test_selected_is_exactly_a_draw_below_the_threshold(shares: tuple[float, float]) -> None:
    draws = np.array(PHILOX_ZERO) >> 8
    thresholds = np.concatenate([draws, draws + 1]).astype(np.uint32)
    call = Call(
        ids=np.tile(np.array([5, 6, 7, 8]), 8),
        rows=8,
        row_length=4,
        epoch=0,
        sample_ids=np.zeros(8, np.uint64),
        thresholds=thresholds,
    )
    plan = plan_of(replace=Replace(*shares), seed=0)
    out = to_device(poisoned(call))
    cuda.mask_batch(plan, to_device(call), out)
    selected = draws < thresholds[:, None]
    np.testing.assert_array_equal(out.labels.copy_to_host().reshape(8, 4) != -100, selected, strict=True)
    decision = 1 if shares[0] else 2 if shares[1] else 3
    want = np.where(selected, np.uint8(decision), np.uint8(0))
    np.testing.assert_array_equal(out.decisions.copy_to_host().reshape(8, 4), want, strict=True)
    check(plan, call)


def test_a_draw_on_a_border_lies_above_it() -> None:
    draws = np.array(PHILOX_ZERO) >> 8
    law = Replace(mask=draws[3] / (1 << 24), random=(draws[1] - draws[3]) / (1 << 24))
    call = Call(ids=np.array([5, 6, 7, 8]), rows=1, row_length=4, epoch=0, sample_ids=np.zeros(1, np.uint64))
    out = to_device(poisoned(call))
    cuda.mask_batch(plan_of(p=1.0, replace=law, seed=0), to_device(call), out)
    np.testing.assert_array_equal(out.decisions.copy_to_host(), np.array([1, 3, 2, 2], np.uint8), strict=True)


def test_special_tokens_mask() -> None:
    mask = np.random.default_rng(0).choice(np.array([0, 0, 1, 255], np.uint8), 3 * 50)
    check(plan_of(p=1.0), call_of(3, 50, special_tokens_mask=mask))


WEIGHTS = tuple([0.0, 5.0, 0.0] + [1.0, 0.5, 3.0] * 19)


POOLS = {
    "all": Replace(0, 1),
    "vocab": Replace(0.0, 1.0, pool="vocab"),
    "list": Replace(0.0, 1.0, pool=(59, 7, 20)),
    "weights": Replace(0.0, 1.0, pool="vocab", weights=WEIGHTS),
}


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, exclude: bool) -> None:
    chosen = POOLS[name]
    law = Replace(0.0, 1.0, pool=chosen.pool, weights=chosen.weights, exclude_original=exclude)
    check(plan_of(p=1.0, replace=law), call_of(2, 60))


@pytest.mark.parametrize("shares", [(1, 0), (0, 0), (0.8, 0.1)])
@pytest.mark.parametrize("p", [0.0, 0.15, 1.0])
def test_rates_and_shares(p: float, shares: tuple[float, float]) -> None:
    check(plan_of(p=p, replace=Replace(*shares)), call_of(2, 40))


@pytest.mark.parametrize("ignore", [-1, 0, 5, -(1 << 31)])
def test_ignore_index(ignore: int) -> None:
    check(plan_of(ignore=ignore), call_of(1, 20), labels="int32")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("content", [False, True])
def test_in_place(dtype: str, content: bool) -> None:
    call = call_of(3, 45, dtype, offsets=OFFSETS[1:4])
    if content:
        call.sample_ids = None
    want = poisoned(call, dtype)
    assert reference.mask_batch(plan_of(), call, want)
    device_call, got = to_device(call), to_device(poisoned(call, dtype))
    got.input_ids = device_call.ids
    cuda.mask_batch(plan_of(), device_call, got)
    assert_same(to_host(got), want)


def test_outputs_that_may_be_left_out() -> None:
    call = call_of(2, 30)
    want, few = (replace(poisoned(call), decisions=None, num_masked=None) for _ in range(2))
    assert reference.mask_batch(plan_of(), call, want)
    got = to_device(few)
    cuda.mask_batch(plan_of(), to_device(call), got)
    assert_same(to_host(got), want)


@pytest.mark.parametrize("bad", [-1, 60, 1 << 31, (1 << 32) + 5])
@pytest.mark.parametrize("cell", [0, 49])
def test_ids_out_of_range_raise_the_flag(bad: int, cell: int) -> None:
    call = call_of(1, 50, lengths=np.array([45], np.int64), sample_ids=None)
    call.ids[cell] = bad
    law = Replace(0.0, 1.0, pool="vocab", exclude_original=True)
    out = to_device(poisoned(call))
    assert launch.is_set(cuda.mask_batch(plan_of(p=1.0, replace=law), to_device(call), out))
