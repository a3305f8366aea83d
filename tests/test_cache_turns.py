"""Of processes that need one kernel at the same time one compiles, and none waits for ever."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from support_cache import MASK_DTYPES, SMALL_KERNELS, environment, files_of
from test_cache_races import start_together

from fastmask.kernels import cpu_compile
from fastmask.kernels.cpu_compile import Turn


def test_b78_processes_that_start_together_on_an_empty_cache_compile_each_kernel_once(tmp_path: Path) -> None:
    said = start_together(SMALL_KERNELS, [MASK_DTYPES[:2]] * 3, environment(tmp_path))
    assert Counter(line for lines in said for line in lines) == {
        f"{dtype} {what}": times for dtype in MASK_DTYPES[:2] for what, times in (("compiled", 1), ("loaded", 2))
    }
    assert [path for path in tmp_path.rglob("*.turn")] == []
    assert len(files_of(tmp_path)) >= 2


def test_a_turn_is_waited_for_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "kernel.turn")
    first, second = Turn(), Turn()
    first.take(path)
    slept = []

    def end_first(seconds: float) -> None:
        slept.append(seconds)
        first.end()

    monkeypatch.setattr(time, "sleep", end_first)
    second.take(path)
    assert len(slept) == 1
    second.end()
    assert os.listdir(tmp_path) == []


def test_the_turn_of_a_process_that_stands_still_is_not_waited_for_any_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_compile, "PATIENCE", 0.1)
    first, second = Turn(), Turn()
    first.take(str(tmp_path / "kernel.turn"))
    second.take(str(tmp_path / "kernel.turn"))
    second.end()
    first.end()
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn()
    turn.take(str(tmp_path / "missing" / "kernel.turn"))
    turn.end()
    monkeypatch.setattr(cpu_compile, "fcntl", None)
    turn.take(str(tmp_path / "kernel.turn"))
    turn.end()
    assert os.listdir(tmp_path) == []
