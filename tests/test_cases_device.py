"""Failures of other systems, boiled down: arrays on a GPU, what is installed there, and bounds.

Each test carries the id of its case. Where there is no GPU, the arrays are those of Numba's CUDA simulator.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import on_host, run_python, same
from support_cuda import OVERFLOW
from support_cuda import numba_cuda as cuda
from support_cuda import tiny_launches as tiny_launches

import fastmask as fm
from fastmask import dispatch

pytestmark = OVERFLOW


VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)
ON_DEVICE = SimpleNamespace(__cuda_array_interface__={})  # stands for an array of a GPU that is not here


@pytest.mark.parametrize("shape", [(0, 128), (4, 0), (0, 0), (0,)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_b92_empty_arrays_of_a_gpu_come_back_empty_without_a_launch(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    from fastmask.kernels import cuda_launch

    ids = cuda.to_device(np.empty(shape, dtype))
    launches: list[object] = []
    monkeypatch.setattr(cuda_launch.Kernel, "launch", lambda kernel, *_: launches.append(kernel))
    batch = MASKER(ids, epoch=0, returns="decisions")
    assert launches == []
    same(batch.check().input_ids.copy_to_host(), np.empty(shape, dtype))
    same(batch.labels.copy_to_host(), np.empty(shape, np.int64))
    same(batch.decisions.copy_to_host(), np.empty(shape, np.uint8))


def test_b92_empty_rows_on_a_gpu_are_counted() -> None:
    held = [np.full(4, 77) for _ in range(8)]
    del held  # small arrays are handed out again with what they held
    batch = MASKER(cuda.to_device(np.empty((4, 0), np.int64)), epoch=0, returns="num_masked")
    same(batch.num_masked.copy_to_host(), np.zeros(4, np.int64))


def test_b92_supplied_decisions_on_no_tokens_come_back_empty() -> None:
    dtypes = (np.int64, np.bool_, np.float64, np.int64)
    done = fm.apply_mlm_mask(*(cuda.to_device(np.empty((0, 128), dtype)) for dtype in dtypes))
    for array in done.values():
        same(array.copy_to_host(), np.empty((0, 128), np.int64))


@pytest.mark.parametrize("shape", [(0, 128), (4, 0)])
def test_b92_empty_tensors_come_back_empty(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = MASKER(torch.empty(shape, dtype=torch.int32), epoch=0)
    assert (batch.input_ids.shape, batch.labels.shape) == (shape, shape)
    assert (batch.input_ids.dtype, batch.labels.dtype) == (torch.int32, torch.int64)


@pytest.mark.parametrize("kind", ["numpy", "torch", "a list"])
def test_b96_arrays_in_host_memory_are_refused_by_the_cuda_backend(kind: str) -> None:
    ids: Any = np.full((2, 4), 9)
    if kind == "torch":
        ids = pytest.importorskip("torch", reason="torch is not installed").from_numpy(ids)
    elif kind == "a list":
        ids = ids.tolist()
    with pytest.raises(TypeError, match=r"backend='cuda' cannot reach input_ids, a .* in host memory"):
        MASKER(ids, epoch=0, backend="cuda")


@on_host
def test_b96_arrays_of_a_gpu_are_refused_by_the_backends_of_the_host(backend: str) -> None:
    with pytest.raises(TypeError, match=rf"backend='{backend}' cannot reach input_ids, a .* in device memory"):
        MASKER(cuda.to_device(np.full((2, 4), 9)), epoch=0, backend=backend)


def test_b96_rates_that_require_a_gradient_are_read() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ids = torch.full((2, 64), 9)
    rates = torch.tensor([0.1, 0.9], dtype=torch.float64, requires_grad=True)
    batch = MASKER(ids, epoch=0, sample_ids=0, rates=rates)
    want = MASKER(ids.numpy(), epoch=0, sample_ids=0, rates=[0.1, 0.9])
    same(batch.labels.numpy(), want.labels)
    assert rates.requires_grad
    assert not batch.labels.requires_grad


def test_b96_the_output_of_a_gpu_array_is_on_the_gpu() -> None:
    batch = MASKER(cuda.to_device(np.full((2, 4), 9)), epoch=0, sample_ids=0)
    assert batch.backend == "cuda"
    assert type(batch.input_ids) is type(batch.labels) is type(cuda.to_device(np.zeros(1)))


# What is installed.


def without_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in dispatch.COMPILERS else found(name, *more)
    )


def without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_simulated", lambda: False)
    monkeypatch.setattr(dispatch, "_driver_present", lambda: False)


def test_b98_without_numba_cuda_the_message_has_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    without_numba_cuda(monkeypatch)
    state = fm.backends()["cuda"]
    assert not state.available
    assert "pip install 'fastmask-kernels[cu13]'" in state.reason
    with pytest.raises(RuntimeError, match=r"backend 'cuda' is not here: numba-cuda is not installed: pip install"):
        MASKER(ON_DEVICE, epoch=0)


def test_b99_without_a_driver_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_driver(monkeypatch)
    state = fm.backends()["cuda"]
    assert (state.available, state.reason) == (False, "no NVIDIA driver: libcuda.so.1 cannot be loaded")
    with pytest.raises(RuntimeError, match="backend 'cuda' is not here: no NVIDIA driver"):
        MASKER(ON_DEVICE, epoch=0, backend="cuda")


@pytest.mark.parametrize("missing", [without_numba_cuda, without_a_driver])
def test_b99_arrays_in_host_memory_are_masked_whatever_a_gpu_lacks(
    monkeypatch: pytest.MonkeyPatch, missing: Any
) -> None:
    """DESIGN, section 7, holds: the type of the input decides, so there is no fallback to warn of."""
    ids = np.full((2, 64), 9)
    want = MASKER(ids, epoch=0)
    missing(monkeypatch)
    batch = MASKER(ids, epoch=0)
    assert batch.backend == "cpu"
    same(batch.labels, want.labels)


def test_b99_a_library_that_cannot_be_loaded_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", fails)
    assert dispatch._driver_present.__wrapped__() is False


def test_b101_the_simulator_in_a_fresh_process_gives_the_bits_of_the_reference() -> None:
    code = """
import sys, warnings
import numpy as np
import fastmask as fm
from numba import cuda
warnings.simplefilter("ignore")
sys.setswitchinterval(1e-4)
masker = fm.Masker(fm.Vocab(30, 4, 0), fm.Bernoulli(0.5), fm.Replace(0.4, 0.4), seed=7)
ids = np.arange(66).reshape(2, 33) % 29 + 1
batch = masker(cuda.to_device(ids), epoch=1, sample_ids=0, lengths=[33, 30]).check()
want = masker(ids, epoch=1, sample_ids=0, lengths=[33, 30], backend="numpy")
np.testing.assert_array_equal(batch.input_ids.copy_to_host(), want.input_ids, strict=True)
np.testing.assert_array_equal(batch.labels.copy_to_host(), want.labels, strict=True)
print(fm.backends()["cuda"].reason)
"""
    assert "simulator" in run_python(code, NUMBA_ENABLE_CUDASIM="1")


def test_b101_a_simulator_asked_for_too_late_is_not_here() -> None:
    """Numba reads the variable once, when it is imported."""
    code = """
import os
import numba, fastmask as fm
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
print(fm.backends()["cuda"].reason)
"""
    assert "simulator" not in run_python(code, NUMBA_ENABLE_CUDASIM="0")


# Bounds.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": [8, 9]}, r"lengths must be in \[0, 8\], got 9 in row 1"),
        ({"lengths": [-1, 8]}, r"lengths must be in \[0, 8\], got -1 in row 0"),
        ({"lengths": [2**63, 8]}, r"lengths must be in \[0, 8\], got 9223372036854775808 in row 0"),
        ({"lengths": [8]}, r"lengths must hold one value for each of 2 rows"),
        ({"attention_mask": np.ones((2, 9), bool)}, r"attention_mask has shape \(2, 9\)"),
        ({"special_tokens_mask": np.ones((8, 2), bool)}, r"special_tokens_mask has shape \(8, 2\)"),
        ({"rates": [0.1, 0.2, 0.3]}, r"rates must hold one value for each of 2 rows"),
        ({"sample_ids": [1]}, r"sample_ids must hold one value for each of 2 rows"),
        ({"position_offset": [0, 2**34]}, r"position_offset must be >= 0, .* got 17179869184 in row 1"),
    ],
)
@on_host
def test_b103_what_would_leave_an_array_is_refused_before_any_kernel_runs(
    monkeypatch: pytest.MonkeyPatch, backend: str, given: dict[str, Any], message: str
) -> None:
    def runs(*_: object) -> bool:
        raise AssertionError("a kernel ran")

    monkeypatch.setattr("fastmask.host.run", runs)
    with pytest.raises(ValueError, match=message):
        MASKER(np.full((2, 8), 9), epoch=0, backend=backend, **given)


@pytest.mark.slow
def test_b103_no_kernel_leaves_an_array_under_a_checker_of_bounds(tmp_path: Path) -> None:
    code = """
import itertools
import numpy as np
import fastmask as fm

rng = np.random.default_rng(3)
vocab = fm.Vocab(30, 4, 0, (1, 2, 3, 29))
for rows, columns in itertools.product((1, 3), (0, 1, 7, 8, 255, 513)):
    ids = rng.integers(0, 30, (rows, columns))
    lengths = rng.integers(0, columns + 1, rows)
    right = np.arange(columns) >= columns - lengths[:, None]
    for replace in (fm.Replace(0.3, 0.5), fm.Replace(0, 1, weights=range(30), exclude_original=True)):
        masker = fm.Masker(vocab, fm.Bernoulli(0.8), replace, seed=7)
        for given in ({}, {"lengths": lengths}, {"attention_mask": right, "position_offset": 3}):
            call = {"epoch": 1, "returns": ("decisions", "num_masked"), **given}
            got, want = (masker(ids, backend=backend, **call) for backend in ("cpu", "numpy"))
            for name in ("input_ids", "labels", "decisions"):
                np.testing.assert_array_equal(getattr(got, name), getattr(want, name), strict=True)
masker = fm.Masker(vocab, fm.Bernoulli(0.8))
for bad in ({"lengths": [9]}, {"lengths": [-1]}, {"attention_mask": [[1] * 9]}, {"sample_ids": [-1]}):
    try:
        masker(np.full((1, 8), 9), epoch=0, **bad)
    except ValueError:
        continue
    raise AssertionError(bad)
for bad in (30, -1, 2**40, -(2**63)):
    try:
        masker(np.full((1, 8), bad), epoch=0)
    except ValueError:
        continue
    raise AssertionError(bad)
print("good")
"""
    checked = run_python(code, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path), FASTMASK_NUM_THREADS="1")
    assert checked.strip() == "good"
