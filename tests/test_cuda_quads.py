"""Aligned batches are masked in accesses of 16 bytes, all others cell by cell, with the bits of the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same, poisoned
from support_cuda import HALF_RANDOM, OVERFLOW, POISONS, call_of, check, cuda, launch, plan_of, to_device, to_host
from support_cuda import numba_cuda as numba_cuda
from support_cuda import tiny_launches as tiny_launches

from fastmask.kernels import reference
from fastmask.replace import Replace

cuda_quads = pytest.importorskip("fastmask.kernels.cuda_quads")

pytestmark = OVERFLOW


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched."""
    names: list[str] = []
    run = launch.Kernel.launch

    def record(kernel: Any, *arguments: Any) -> None:
        names.append(kernel.function.__name__)
        run(kernel, *arguments)

    monkeypatch.setattr(launch.Kernel, "launch", record)
    return names


@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "row_length"), [(1, 8), (3, 12), (2, 260), (67, 8)])
def test_quads_of_every_dtype(launched: list[str], rows: int, row_length: int, ids: str, labels: str) -> None:
    check(plan_of(), call_of(rows, row_length, ids), ids, labels, POISONS)
    assert set(launched) == {"clear", "mask_quads"}


def test_rows_that_end_anywhere_in_a_quad(launched: list[str]) -> None:
    lengths = np.arange(14) - 1
    lengths[0] = 12
    check(plan_of(p=0.9), call_of(14, 12, lengths=lengths), poisons=POISONS)
    assert "mask_tokens" not in launched


@pytest.mark.parametrize(
    "how",
    [
        HALF_RANDOM,
        Replace(0, 0),
        Replace(1, 0),
        Replace(0, 1, pool=(7, 30, 59)),
        Replace(0.2, 0.6, pool=(7, 30, 59), weights=(1, 0, 5)),
        Replace(0.2, 0.6, exclude_original=True),
        Replace(0.2, 0.6, pool=(7, 30, 59), weights=(1, 2, 5), exclude_original=True),
    ],
)
def test_quads_of_every_replacement(launched: list[str], how: Replace) -> None:
    check(plan_of(p=0.8, replace=how), call_of(3, 64))
    assert "mask_quads" in launched


@pytest.mark.parametrize("content", [False, True])
def test_quads_with_all_that_they_take(launched: list[str], content: bool) -> None:
    marks = np.random.default_rng(5).choice([0, 0, 1, 255], 3 * 64).astype(np.uint8)
    thresholds = np.array([0, 1 << 23, 1 << 24], np.uint32)
    call = call_of(3, 64, special_tokens_mask=marks, thresholds=thresholds, lengths=np.array([64, 61, 30]))
    check(plan_of(), replace(call, sample_ids=None) if content else call)
    assert "mask_quads" in launched


def test_quads_without_decisions_and_counts() -> None:
    plan, call = plan_of(), call_of(3, 64)
    want = replace(poisoned(call), decisions=None, num_masked=None)
    got = to_device(want)
    assert reference.mask_batch(plan, call, want)
    assert not launch.is_set(cuda.mask_batch(plan, to_device(call), got))
    assert_same(to_host(got), want)


def test_quads_in_place() -> None:
    plan, call = plan_of(), call_of(3, 64)
    want, got = poisoned(call), to_device(poisoned(call))
    assert reference.mask_batch(plan, call, want)
    device_call = to_device(call)
    got.input_ids = device_call.ids
    assert not launch.is_set(cuda.mask_batch(plan, device_call, got))
    assert_same(to_host(got), want)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("cell", [0, 1, 2, 3, 63])
@pytest.mark.parametrize("bad", [-1, 60])
def test_a_bad_id_anywhere_in_a_quad_raises_the_flag(launched: list[str], bad: int, cell: int, dtype: str) -> None:
    call = call_of(1, 64, dtype)
    ids = call.ids.copy()
    ids[cell] = bad
    out = to_device(poisoned(call, dtype))
    assert launch.read_flag(cuda.mask_batch(plan_of(), to_device(replace(call, ids=ids)), out)) == 1
    assert "mask_quads" in launched


@pytest.mark.parametrize(
    ("row_length", "given"),
    [
        (9, {}),
        (10, {}),
        (11, {}),
        (4, {}),
        (12, {"starts": np.array([0, 3, 1]), "lengths": np.array([12, 9, 5])}),
        (12, {"offsets": np.array([0, 3, 8], np.uint64)}),
    ],
)
def test_other_rows_are_masked_cell_by_cell(launched: list[str], row_length: int, given: dict[str, Any]) -> None:
    check(plan_of(), call_of(3, row_length, **given), poisons=POISONS)
    assert "mask_tokens" in launched
    assert "mask_quads" not in launched


def test_ids_that_become_wider_are_masked_cell_by_cell(launched: list[str]) -> None:
    check(plan_of(), call_of(3, 12, "int32"), "int64")
    check(plan_of(), call_of(3, 12, "uint16"), "int32")
    assert "mask_quads" not in launched


@pytest.mark.parametrize("shift", [4, 8, 12])
@pytest.mark.parametrize("which", ["ids", "input_ids", "labels"])
def test_an_array_that_begins_between_16_bytes_is_masked_cell_by_cell(
    request: pytest.FixtureRequest, launched: list[str], which: str, shift: int
) -> None:
    if launch.SIMULATED:
        pytest.skip("arrays of the simulator have no alignment")
    from device.memory import memory

    plan, call = plan_of(), call_of(3, 12, "int32")
    want = poisoned(call, "int32", "int32")
    device_call, got = to_device(call), to_device(want)
    of = device_call if which == "ids" else got
    there = memory().to_device(getattr(call if which == "ids" else want, which), shift=shift)
    setattr(of, which, there)
    assert reference.mask_batch(plan, call, want)
    assert not launch.is_set(cuda.mask_batch(plan, device_call, got))
    assert_same(to_host(got), want)
    assert launched == ["clear", "mask_tokens"]


@given(st.integers(0, (1 << 32) - 1), st.integers(2, (1 << 32) - 1))
def test_a_row_is_found_without_a_division(n: int, d: int) -> None:
    reciprocal = -(-(1 << 64) // d)
    assert reciprocal < 1 << 64
    function = getattr(cuda_quads._quotient, "fn", None) or cuda_quads._quotient.py_func
    got = function(np.uint64(n), np.uint64(reciprocal))
    assert (int(got), got.dtype) == (n // d, np.uint64)
