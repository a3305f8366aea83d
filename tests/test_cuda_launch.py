"""How kernels are launched: pieces of rows, flags, tables, and what is refused or needs no launch."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import poisoned
from support_cuda import OVERFLOW, call_of, check, cuda, launch, plan_of, to_device
from support_cuda import tiny_launches as tiny_launches

pytestmark = OVERFLOW


@pytest.mark.parametrize("row_length", [1, 60, 130])
def test_the_launch_as_it_is(monkeypatch: pytest.MonkeyPatch, row_length: int) -> None:
    monkeypatch.undo()
    assert (launch.THREADS, launch.WIDTHS) == (128, (8, 16, 32))
    offsets = np.array([0, 5, 2], np.uint64)
    check(plan_of(), call_of(3, row_length, sample_ids=None, lengths=None, offsets=offsets))


@pytest.mark.parametrize(
    ("quads", "pieces"),
    [
        (1, (8, 1)),
        (8, (8, 1)),
        (9, (16, 1)),
        (24, (8, 3)),
        (32, (32, 1)),
        (33, (8, 5)),
        (48, (16, 3)),
        (128, (32, 4)),
    ],
)
def test_pieces_cover_a_row_with_few_idle_threads(
    monkeypatch: pytest.MonkeyPatch, quads: int, pieces: tuple[int, int]
) -> None:
    monkeypatch.undo()
    assert launch.pieces_of(quads) == pieces


def test_a_flag_is_of_one_call() -> None:
    call = call_of(1, 4)
    bad = replace(call, ids=np.array([5, 6, 60, 7]))
    first = cuda.mask_batch(plan_of(), to_device(bad), to_device(poisoned(call)))
    second = cuda.mask_batch(plan_of(), to_device(call), to_device(poisoned(call)))
    assert launch.is_set(first)
    assert not launch.is_set(second)


def test_flags_do_not_run_out() -> None:
    flags = [launch.new_flag(launch.Queue(0, 0)) for _ in range(launch.FLAGS + 1)]
    assert not any(launch.is_set(flag) for flag in flags[-2:])


def test_an_array_of_another_dtype_is_refused() -> None:
    call = call_of(1, 4, sample_ids=np.array([1], np.int64))
    with pytest.raises(TypeError, match="mask_tokens takes an array of <u8, got <i8"):
        cuda.mask_batch(plan_of(), to_device(call), to_device(poisoned(call)))


def test_tables_live_as_long_as_their_plan() -> None:
    plan, call = plan_of(), call_of(1, 4)
    gc.collect()  # the plans of other tests
    before = len(launch._tables)
    for _ in range(2):
        cuda.mask_batch(plan, to_device(call), to_device(poisoned(call)))
    assert len(launch._tables) == before + 1
    del plan
    gc.collect()
    assert len(launch._tables) == before


def test_nothing_is_launched_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(launch.Kernel, "launch", refuse)
    for rows, row_length in [(0, 128), (4, 0), (0, 0)]:
        call = call_of(rows, row_length, sample_ids=None, lengths=None)
        out = to_device(replace(poisoned(call), num_masked=None))
        assert not launch.is_set(cuda.mask_batch(plan_of(), to_device(call), out))
