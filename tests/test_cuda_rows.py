"""The kernels over rows find and check what the reference and the validation on the host do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support_cuda import (
    NO_PAD,
    OFFSETS,
    OVERFLOW,
    VOCAB,
    Ints,
    call_of,
    check,
    cuda,
    launch,
    numba_cuda,
    plan_of,
)
from support_cuda import tiny_launches as tiny_launches

from fastmask import validate
from fastmask.call import Call
from fastmask.kernels import reference
from fastmask.vocab import Vocab

pytestmark = OVERFLOW


@pytest.mark.parametrize("row", [[0] * 5, [0, 0, 5, 0, 6, 0], [5, 6, 7], [0, 0, 9], [9, 0, 0]])
@pytest.mark.parametrize("pads", [0, 70])
def test_padding_is_found_at_both_ends(row: list[int], pads: int) -> None:
    ids = np.array([0] * pads + row + [0] * pads + [5] + [0] * (len(row) + 2 * pads - 1), np.int64)
    call = Call(ids=ids, rows=2, row_length=len(row) + 2 * pads, epoch=0)
    check(plan_of(p=1.0), call)


@pytest.mark.parametrize("vocab", [VOCAB, NO_PAD], ids=["trimmed", "whole"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_content_ids(dtype: str, vocab: Vocab) -> None:
    check(plan_of(vocab), call_of(3, 70, dtype, vocab=vocab, sample_ids=None, lengths=None))


def test_content_ids_do_not_depend_on_padding_nor_on_the_offset() -> None:
    given: dict[str, Any] = {
        "sample_ids": None,
        "lengths": np.array([0, 3, 40], np.int64),
        "offsets": OFFSETS[[0, 3, 6]],
    }
    check(plan_of(), call_of(3, 40, starts=np.array([0, 36, 0], np.int64), **given))


ONE_RUN = [[1, 1, 1, 0], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_real_runs(dtype: str) -> None:
    mask = np.repeat(np.array(ONE_RUN), 11, axis=1).astype(dtype)
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *mask.shape)
    want_starts, want_lengths, _ = reference.real_runs(mask)
    np.testing.assert_array_equal(starts.copy_to_host(), want_starts, strict=True)
    np.testing.assert_array_equal(lengths.copy_to_host(), want_lengths, strict=True)
    assert not launch.is_set(flag)


BAD_MASKS = [
    np.array([[1, 1, 1], [1, 0, 1]]),
    np.array([[1] * 40 + [0] + [1] * 30]),
    np.array([[1, 2, 1]]),
    np.array([[1, -1]], np.int8),
    np.array([[0.5, 1.0]]),
    np.array([[np.nan, 1.0]], np.float32),
]


@pytest.mark.parametrize("mask", BAD_MASKS, ids=str)
def test_real_runs_flags_holes_and_other_values(mask: Ints) -> None:
    assert reference.real_runs(mask)[2] >= 0
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *mask.shape)
    assert launch.is_set(flag)
    ends = starts.copy_to_host() + lengths.copy_to_host()
    assert (starts.copy_to_host() >= 0).all()
    assert (ends <= mask.shape[1]).all()


def test_real_runs_takes_minus_zero_for_zero() -> None:
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(np.array([-0.0, 1.0, 1.0, -0.0])), 1, 4)
    assert not launch.is_set(flag)
    assert (starts.copy_to_host()[0], lengths.copy_to_host()[0]) == (1, 2)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_real_runs_of_nothing(shape: tuple[int, int]) -> None:
    mask = np.zeros(shape, np.int64)
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *shape)
    np.testing.assert_array_equal(starts.copy_to_host(), np.zeros(shape[0], np.int64), strict=True)
    np.testing.assert_array_equal(lengths.copy_to_host(), np.zeros(shape[0], np.int64), strict=True)
    assert not launch.is_set(flag)


def copied(values: Ints, operation: Any, *limit: int) -> tuple[Ints, bool]:
    """What an operation on values in device memory makes of them, in host memory, and whether it complained."""
    given = numba_cuda.to_device(values)
    made, flag = operation(given, *limit)
    np.testing.assert_array_equal(given.copy_to_host(), values, strict=True)
    return made.copy_to_host(), launch.is_set(flag)


def test_rates_get_the_thresholds_of_the_host() -> None:
    halves = (np.random.default_rng(0).integers(0, 1 << 24, 20) + 0.5) / (1 << 24)
    near = np.concatenate([np.nextafter(halves, 0), halves, np.nextafter(halves, 1)])
    rates = np.concatenate([near, [0.0, -0.0, 1.0, 0.15, 2.0**-24, 2.0**-25, np.nextafter(1, 0)]])
    thresholds, complained = copied(rates, cuda.rate_thresholds)
    np.testing.assert_array_equal(thresholds, validate.checked_rates(rates, rates.size), strict=True)
    assert not complained


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-300, 1.0000000000000002, 1e-8, 5e-324])
@pytest.mark.parametrize("place", [0, 40])
def test_a_bad_rate_counts_as_0_and_is_flagged(bad: float, place: int) -> None:
    rates = np.full(41, 0.25)
    rates[place] = bad
    want = np.full(41, 1 << 22, np.uint32)
    want[place] = 0
    thresholds, complained = copied(rates, cuda.rate_thresholds)
    np.testing.assert_array_equal(thresholds, want, strict=True)
    assert complained


@pytest.mark.parametrize("limit", [0, 1, 40, (1 << 63) - 1])
def test_integers_in_range_are_copied(limit: int) -> None:
    values = np.random.default_rng(0).integers(0, limit, 41, endpoint=True)
    checked, complained = copied(values, cuda.checked_integers, limit)
    np.testing.assert_array_equal(checked, values, strict=True)
    assert not complained


@pytest.mark.parametrize(("bad", "nearest"), [(-1, 0), (-(1 << 63), 0), (41, 40), ((1 << 63) - 1, 40)])
@pytest.mark.parametrize("place", [0, 40])
def test_integers_out_of_range_are_clamped_and_flagged(bad: int, nearest: int, place: int) -> None:
    values = np.arange(41)
    want = values.copy()
    values[place], want[place] = bad, nearest
    checked, complained = copied(values, cuda.checked_integers, 40)
    np.testing.assert_array_equal(checked, want, strict=True)
    assert complained


def test_no_numbers_give_no_numbers_and_no_complaint() -> None:
    for operation, dtype, limit in ((cuda.rate_thresholds, np.float64, ()), (cuda.checked_integers, np.int64, (5,))):
        made, complained = copied(np.empty(0, dtype), operation, *limit)
        assert (made.shape, complained) == ((0,), False)
