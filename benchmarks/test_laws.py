"""The cases of `benchmarks.laws` for pytest-benchmark: `python -m pytest benchmarks/test_laws.py`.

Times are shown, never asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fastmask as fm
from benchmarks.law_cases import BY_LENGTH, COMPACT, LAWS, ROW_LENGTHS, LawCase, PreparedLaw, in_int32, with_rows_of
from benchmarks.measure import warm_malloc

pytest.importorskip("pytest_benchmark")

LONG_ROWS = tuple(with_rows_of(case, columns) for case in BY_LENGTH for columns in ROW_LENGTHS[1:])
CASES = (*LAWS, *COMPACT, *LONG_ROWS)
DTYPES: dict[str, Callable[[LawCase], LawCase]] = {"int64": lambda case: case, "int32": in_int32}

CONTESTANTS: dict[str, Callable[[PreparedLaw], Callable[[], object] | None]] = {
    "fastmask": lambda prepared: prepared.fastmask,
    "bernoulli": lambda prepared: prepared.reference(),
    "copy": lambda prepared: prepared.copy(),
    "numpy": lambda prepared: prepared.numpy(),
    "numpy_by_row": lambda prepared: prepared.numpy_by_row(),
}


@pytest.fixture(scope="session", autouse=True)
def equal() -> None:
    """Every case gives the NumPy backend's bits and its baselines are sound, or nothing is timed."""
    fm.set_num_threads(1)
    for case in CASES:
        for convert in DTYPES.values():
            PreparedLaw(convert(case)).check()
    warm_malloc()


def _name(case: LawCase) -> str:
    return case.name


@pytest.mark.parametrize("contestant", CONTESTANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_law(benchmark: Any, case: LawCase, dtype: str, contestant: str) -> None:
    prepared = PreparedLaw(DTYPES[dtype](case))
    call = CONTESTANTS[contestant](prepared)
    if call is None:
        pytest.skip("only Spans of tokens have a loop over rows")
    benchmark.group = f"{case.name}, {dtype}"
    benchmark.extra_info.update(tokens=prepared.tokens, bytes=prepared.bytes_moved)
    benchmark(call)
