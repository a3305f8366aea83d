"""The public surface: threads, backends, and the process that the library leaves as it found it."""

from __future__ import annotations

import os
import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from support import on_host, run_python, same, some_ids

import fastmask as fm
from fastmask import threads

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)


# Threads and backends.


def test_the_number_of_threads_is_the_one_set_last() -> None:
    for n in (1, 3, np.int64(8)):
        fm.set_num_threads(n)  # type: ignore[arg-type]
        assert fm.get_num_threads() == n
        assert type(fm.get_num_threads()) is int


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("2", TypeError)]
)
def test_other_numbers_of_threads_are_refused_and_change_nothing(n: Any, error: type[Exception]) -> None:
    fm.set_num_threads(3)
    with pytest.raises(error, match=r"^n must be"):
        fm.set_num_threads(n)
    assert fm.get_num_threads() == 3


def test_the_environment_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTMASK_NUM_THREADS", "5")
    assert fm.get_num_threads() == 5
    fm.set_num_threads(2)
    assert fm.get_num_threads() == 2


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", " 2", "²"])
def test_an_environment_that_is_no_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FASTMASK_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"FASTMASK_NUM_THREADS must be a whole number above 0, got {text!r}"):
        fm.get_num_threads()


def test_without_a_setting_the_cores_of_the_process_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert fm.get_num_threads() == 3


def test_backends_are_told_with_their_reasons() -> None:
    states = fm.backends()
    assert list(states) == ["numpy", "cpu", "cuda"]
    for name, state in states.items():
        assert state.name == name
        assert state.reason
    assert states["numpy"].available
    assert states["cpu"].available


@pytest.mark.parametrize(
    ("cells", "threads_set", "why"),
    [
        (threads.LEAST_CELLS - 1, 8, f"serial: fewer than {threads.LEAST_CELLS} cells"),
        (threads.LEAST_CELLS, 1, "serial: one thread is allowed"),
    ],
)
def test_a_masker_explains_its_backend(cells: int, threads_set: int, why: str) -> None:
    fm.set_num_threads(threads_set)
    ids = np.broadcast_to(np.int64(9), (1, cells))
    assert MASKER.explain_backend(ids) == f"cpu: input_ids is a numpy.ndarray; {why}"
    assert MASKER.explain_backend(ids, "cpu") == f"cpu: asked for; {why}"
    assert MASKER.explain_backend(ids, "numpy") == "numpy: asked for"


def test_a_masker_explains_parallel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_numba_threads", lambda: 8)
    monkeypatch.setattr(threads, "threading_layer", lambda: "omp")
    fm.set_num_threads(3)
    ids = np.broadcast_to(np.int64(9), (1, threads.LEAST_CELLS))
    why = "parallel in 3 ranges: 3 threads of the omp layer"
    assert MASKER.explain_backend(ids) == f"cpu: input_ids is a numpy.ndarray; {why}"


def test_what_is_masked_and_what_is_explained_are_one_backend() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for ids in (some_ids(), some_ids().tolist(), torch.from_numpy(some_ids())):
        assert MASKER.explain_backend(ids).startswith("cpu: ")
        assert MASKER(ids, epoch=0).backend == "cpu"
        assert MASKER(ids, epoch=0, backend="numpy").backend == "numpy"
    assert MASKER.explain_backend(torch.from_numpy(some_ids())).startswith("cpu: input_ids is a torch.Tensor")


# The process.

HEAVY = "{'numba', 'llvmlite', 'typer', 'rich', 'torch', 'cupy', 'numba_cuda', 'tokenizers', 'transformers'}"


def test_importing_loads_nothing_heavy() -> None:
    code = f"""
import sys, fastmask
fastmask.__version__, fastmask.backends()
print(sorted({HEAVY} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"


def test_the_reference_needs_no_compiler() -> None:
    code = f"""
import sys
import fastmask as fm
masker = fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.5))
masker([[5, 6, 7]], epoch=0, backend="numpy", attention_mask=[[1, 1, 0]])
print(sorted({HEAVY} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"


def test_masking_numpy_arrays_loads_no_other_framework() -> None:
    code = """
import sys
import fastmask as fm
fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.5))([[5, 6, 7]], epoch=0)
print(sorted({'typer', 'rich', 'torch', 'cupy', 'numba_cuda'} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"


def test_what_is_exported_exists_and_nothing_is_missing() -> None:
    assert all(hasattr(fm, name) for name in fm.__all__)
    assert fm.STREAM_VERSION == 1
    assert isinstance(fm.__version__, str)
    with pytest.raises(AttributeError, match="module 'fastmask' has no attribute 'nothing'"):
        _ = fm.nothing


def global_states() -> tuple[object, ...]:
    """What a library may change behind its caller's back, as values to compare."""
    import numba
    import torch

    name, keys, *rest = np.random.get_state()
    return (
        random.getstate(),
        (name, np.asarray(keys).tobytes(), rest),
        torch.get_rng_state().numpy().tobytes(),
        (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        np.geterr(),
        np.get_printoptions(),
        list(warnings.filters),
        (numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS, numba.config.THREADING_LAYER),
        dict(os.environ),
        os.getcwd(),
        sys.getswitchinterval(),
        (sys.excepthook, sys.getrecursionlimit()),
    )


@on_host
def test_a_call_leaves_every_global_state_alone(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ids = some_ids()
    fm.warmup()
    before = global_states()
    inputs: list[Any] = [ids.copy(), torch.from_numpy(ids.copy())]
    for x in inputs:
        MASKER(x, epoch=0, backend=backend, attention_mask=x != 0, rates=[0.2] * 6, returns="decisions")
        MASKER(x, epoch=0, backend=backend, out=(x, x + 0))
    with pytest.raises(ValueError, match="lengths"):
        MASKER(ids, epoch=0, backend=backend, lengths=[99] * 6)
    fm.apply_mlm_mask(ids, ids > 9, ids / 30, ids, backend=backend)
    assert global_states() == before


@on_host
def test_a_caller_who_lets_numpy_raise_gets_the_same_bits(backend: str) -> None:
    ids = some_ids()
    want = MASKER(ids, epoch=2**24 - 1, backend=backend)
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)
    with np.errstate(all="raise"):
        got = masker(ids, epoch=2**24 - 1, backend=backend)
        weighted = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0, 1, weights=range(30)), seed=2**64 - 1)
        weighted(ids, epoch=0, sample_ids=2**64 - 6, rates=[0, 0.1, 0.2, 0.3, 0.5, 1], backend=backend)
    same(got.input_ids, want.input_ids)
    same(got.labels, want.labels)
