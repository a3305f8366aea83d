"""The cases of `benchmarks.cpu` for pytest-benchmark: `python -m pytest benchmarks/test_cpu.py`.

Times are shown, never asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fastmask as fm
from benchmarks.cases import CASES, LARGE, Case, Prepared
from benchmarks.measure import warm_malloc
from fastmask.cli.machine import cores

pytest.importorskip("pytest_benchmark")

THREADS = tuple(range(1, min(2, cores()) + 1))

CONTESTANTS: dict[str, Callable[[Prepared], Callable[[], object] | str]] = {
    "fastmask": lambda prepared: prepared.fastmask,
    "copy": lambda prepared: prepared.copy(),
    "banded": lambda prepared: prepared.banded,
    "sparse": lambda prepared: prepared.sparse,
    "hugging_face": lambda prepared: prepared.hugging_face(),
}


@pytest.fixture(scope="session", autouse=True)
def equal() -> None:
    """Every case gives the NumPy backend's bits, or nothing is timed."""
    for threads in THREADS:
        fm.set_num_threads(threads)
        for case in (*CASES, *LARGE) if threads == 1 else LARGE:
            Prepared(case).check()
    warm_malloc()


def _name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("contestant", CONTESTANTS)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_small(benchmark: Any, case: Case, contestant: str) -> None:
    prepared = Prepared(case)
    call = CONTESTANTS[contestant](prepared)
    if isinstance(call, str):
        pytest.skip(f"Hugging Face: {call}")
    fm.set_num_threads(1)
    benchmark.group = case.name
    benchmark.extra_info.update(tokens=prepared.tokens, bytes=prepared.bytes_moved)
    benchmark(call)


@pytest.mark.parametrize("contestant", ["fastmask", "copy"])
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("case", LARGE, ids=_name)
def test_large(benchmark: Any, case: Case, threads: int, contestant: str) -> None:
    prepared = Prepared(case)
    call = prepared.fastmask if contestant == "fastmask" else prepared.copy(threads)
    fm.set_num_threads(threads)
    benchmark.group = f"{case.name}, from memory, {threads} thread(s)"
    benchmark.extra_info.update(tokens=prepared.tokens, bytes=prepared.bytes_moved)
    benchmark.pedantic(call, rounds=7, warmup_rounds=1)
