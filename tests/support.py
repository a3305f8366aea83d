"""What several tests need: backends, ids, random calls on kernels, poisoned outputs, exact comparison, processes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fastmask as fm
from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

Array = npt.NDArray[Any]

OVERFLOW = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # scalars of the simulator
HOST = ("numpy", "cpu")
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.skipif(
            importlib.util.find_spec("numba_cuda") is None,
            reason="numba-cuda is not installed: pip install numba-cuda",
        ),
        OVERFLOW,
    ],
)
on_host = pytest.mark.parametrize("backend", HOST)
on_cuda = pytest.mark.parametrize("backend", [CUDA])  # in a module that imports tiny_launches
on_every_backend = pytest.mark.parametrize("backend", [*HOST, CUDA])  # likewise

POISON = 0x5A5A5A5A

SEEDS = (0, 1, 1 << 32, (1 << 64) - 1)
EPOCHS = (0, (1 << 24) - 1)
PROBABILITIES = (0, 2.0**-24, 0.15, 1)
SIZES = (0, 1, 3, 4, 5, 255, 256, 257, 513, 8191)
ID_DTYPES = ("uint16", "int32", "int64")
OUT_DTYPES = ("int32", "int64")
BERT = Vocab(30522, 103, 0, (0, 100, 101, 102, 103))
SMALL = Vocab(30, 4, 0, (0, 1, 2, 3, 4))
SCATTERED = Vocab(60, 4, None, (1, 8, 9, 30, 59))  # five runs of special ids


def _shared_array(self: Any, shape: int, dtype: Any) -> Any:
    """An array that the threads of a block share, the same for all that come by a line of code.

    The simulator's own looks first and allocates then: of two threads at once each may get an array of its own.
    """
    line = sys._getframe(1)
    return self._allocations.setdefault((line.f_code.co_filename, line.f_lineno), np.empty(shape, dtype))


@contextmanager
def small_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks and grids so small that a few cells cross their borders, and threads that take turns quickly.

    The simulator starts a thread for each of the device's, and its main thread polls: with Python's interval
    of 5 ms it would keep the others waiting.
    """
    from fastmask.kernels import cuda_launch

    monkeypatch.setattr(cuda_launch, "THREADS", 8)
    monkeypatch.setattr(cuda_launch, "WIDTHS", (2, 4))
    monkeypatch.setattr(cuda_launch, "MAX_BLOCKS", 2)
    monkeypatch.setattr(cuda_launch, "MIN_BLOCKS", 1)
    if cuda_launch.SIMULATED:
        simulator = importlib.import_module("numba.cuda.simulator.kernelapi")
        monkeypatch.setattr(simulator.FakeCUDAShared, "array", _shared_array)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def tiny_launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small launches for the tests with "cuda" among their parameters."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    with small_launches(monkeypatch) if "cuda" in parameters.values() else nullcontext():
        yield


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made by the reference, which compiles nothing: that backends agree is tested elsewhere."""
    for module in ("fastmask.samples", "fastmask.masker"):
        monkeypatch.setattr(f"{module}.choose", lambda *given: "numpy")


def plan_of(
    vocab: Vocab = BERT, p: float = 0.15, how: Replace | None = None, seed: int = 7, ignore_index: int = -100
) -> Plan:
    """A plan with defaults."""
    return make_plan(vocab, Bernoulli(p), how or Replace(), seed, ignore_index)


def poisoned(call: Call, id_dtype: str = "int64", label_dtype: str = "int64", poison: int = -7) -> Outputs:
    """Outputs full of a value that no kernel leaves."""
    cells = call.rows * call.row_length
    return Outputs(
        np.full(cells, poison, id_dtype),
        np.full(cells, poison, label_dtype),
        np.full(cells, poison & 0xFF, np.uint8),
        np.full(call.rows, poison, np.int64),
    )


def expected(plan: Plan, call: Call, id_dtype: str = "int64", label_dtype: str = "int64") -> Outputs:
    """What the reference says."""
    out = poisoned(call, id_dtype, label_dtype)
    assert reference.mask_batch(plan, call, out)
    return out


def same(got: object, want: object) -> None:
    """Two arrays are equal, bit for bit, dtype and shape included."""
    np.testing.assert_array_equal(got, want, strict=True)


def all_same(got: tuple[Array, ...], want: tuple[Array, ...]) -> None:
    """Arrays are equal in pairs."""
    for one, other in zip(got, want, strict=True):
        same(one, other)


def same_batches(got: fm.MaskedBatch, want: fm.MaskedBatch) -> None:
    """Everything in two batches is equal: arrays or tensors in host memory, or not there in either."""
    for name in ("input_ids", "labels", "decisions", "num_masked"):
        same(np.asarray(getattr(got, name)), np.asarray(getattr(want, name)))


def with_lists(out: Outputs, poison: int = -7) -> Outputs:
    """The same outputs, and lists of the selected tokens full of a value that no kernel leaves."""
    out.selected_positions = np.full(out.labels.size, poison, np.int64)
    out.selected_ids = np.full_like(out.labels, poison)
    return out


def assert_same(got: Outputs, want: Outputs) -> None:
    """Every output is equal, bit for bit, dtype and shape included; lists as far as there are selected tokens."""
    for name in (field.name for field in fields(Outputs)):
        one, other = getattr(got, name), getattr(want, name)
        if name.startswith("selected") and want.num_masked is not None:
            assert (one is None) == (other is None), name
            one, other = (None if x is None else x[: want.num_masked.sum()] for x in (one, other))
        np.testing.assert_array_equal(one, other, strict=True, err_msg=name)


def some_ids(rows: int = 6, columns: int = 20, dtype: Any = np.int64) -> Array:
    """Ids below 30; the last columns of some rows are padding with 0."""
    rng = np.random.default_rng(rows + columns)
    ids = rng.integers(1, 30, (rows, columns))
    ids[np.arange(columns) >= rng.integers(columns // 2, columns + 1, (rows, 1))] = 0
    return ids.astype(dtype)


def random_candidates(rows: int, columns: int, seed: int = 0) -> Array:
    """Ids below 30, none of them special in the small vocabulary."""
    return np.random.default_rng(seed).integers(5, 30, (rows, columns))


def small_ids() -> Array:
    """Three rows of four ids."""
    return np.arange(5, 17).reshape(3, 4)


def small_outputs(dtype: Any = np.int64) -> tuple[Array, Array]:
    """Ids and labels for `small_ids`, full of POISON."""
    return np.full((3, 4), POISON, dtype), np.full((3, 4), POISON, dtype)


def random_ids(rng: np.random.Generator, vocab: Vocab, shape: Any, dtype: str = "int64") -> npt.NDArray[Any]:
    """Ids of which a good part are special, and rows that may be padded on both sides."""
    ids = rng.integers(0, vocab.size, shape)
    specials = np.array(vocab.special_token_ids)
    ids = np.where(rng.random(shape) < 0.1, rng.choice(specials, shape), ids)
    if vocab.pad_token_id is not None and ids.ndim == 2 and ids.shape[1]:
        columns = np.arange(ids.shape[1])
        left, right = rng.integers(0, ids.shape[1] + 1, (2, ids.shape[0], 1)) // 3
        ids[(columns < left) | (columns >= ids.shape[1] - right)] = vocab.pad_token_id
    typed: npt.NDArray[Any] = ids.astype(dtype)
    return typed


def in_place(call: Call, out: Outputs) -> Call:
    """The call with its ids in the memory of the outputs."""
    out.input_ids[:] = call.ids
    return replace(call, ids=out.input_ids, in_place=True)


def every(**tables: Sequence[tuple[Any, ...]]) -> list[Any]:
    """A test for each row of tables that are named after errors."""
    errors = {"value": ValueError, "type": TypeError, "overflow": OverflowError}
    return [
        pytest.param(errors[name], *row, id=f"{row[0]}-{i}")
        for name, rows in tables.items()
        for i, row in enumerate(rows)
    ]


def run_python(code: str, *options: str, **environment: str) -> str:
    """What a fresh process prints; its errors are the test's, and so are its warnings unless options say else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(fm.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
