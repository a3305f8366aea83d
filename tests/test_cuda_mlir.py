"""The kernels that numba-cuda-mlir compiles, run on the host, give the bits of the reference."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import small_launches
from support_cuda import HALF_RANDOM, OVERFLOW, POISONS, VOCAB, call_of, check, numba_cuda, plan_of

import fastmask as fm
from fastmask.kernels import cuda

pytestmark = [
    OVERFLOW,
    pytest.mark.skipif(
        importlib.util.find_spec("numba_cuda_mlir") is None,
        reason="numba-cuda-mlir is not installed: pip install 'fastmask-kernels[test-mlir]'",
    ),
]

PROGRAM = """
import json, sys
from numba_cuda_mlir import cuda, tools

tools.get_gpu_compute_capability = lambda *_, **__: (9, 0)  # asked of the current device, and there is none
from fastmask.kernels import cuda as kernels, cuda_compiler

assert cuda_compiler.cuda is cuda
code = {}
for kernel in kernels.KERNELS:
    if kernel.function.__name__ in sys.argv[2:]:
        ptx, _ = cuda.compile_ptx(kernel.function, kernel.signature(kernel.variants[-1]), cc=(9, 0))
        code[kernel.function.__name__] = ptx
json.dump(code, open(sys.argv[1], "w"))
"""
SLOWEST = "mask_samples"  # a minute
NAMES = [kernel.function.__name__ for kernel in cuda.KERNELS if kernel.function.__name__ != SLOWEST]
IDS = np.random.default_rng(0).integers(5, 60, (3, 24))
LAWS = {
    "count": fm.ExactCount(0.4),
    "spans": fm.Spans(0.4, fm.Geometric(0.2, 10)),
    "limits": fm.Bernoulli(0.4, min_masked=5, max_masked=8),
}

Compile = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """The PTX of kernels by name, for int64; each is compiled once."""
    done: dict[str, str] = {}
    path: Path = tmp_path_factory.mktemp("mlir") / "code.json"

    def compiled(*names: str) -> dict[str, str]:
        missing = [name for name in names if name not in done]
        if missing:
            kept = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
            environment = kept | {"FASTMASK_CUDA_COMPILER": "numba-cuda-mlir"}
            environment["PYTHONPATH"] = str(Path(fm.__file__).parents[1])
            command = [sys.executable, "-c", PROGRAM, str(path), *missing]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert run.returncode == 0, run.stderr[-4000:]
            done.update(json.loads(path.read_text()))
        return {name: done[name] for name in names}

    return compiled


@pytest.fixture
def device(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Until the test ends, CUDA is the code of this compiler, run on the host."""
    from device.backend import Device

    def text(architecture: str, name: str, dtypes: tuple[str, ...]) -> str:
        return compiled(*NAMES)[name] if name in NAMES else compiled(name)[name]

    with small_launches(monkeypatch), pytest.MonkeyPatch.context() as patch:
        there = Device("sm_90", text)
        there.install(patch)
        yield there


def agree(masker: fm.Masker, ids: Any, **given: Any) -> None:
    """The call in device memory gives what backend="numpy" gives in host memory."""
    arrays = {name: numba_cuda.to_device(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    returns = ("decisions", "num_masked", "compact")
    got = masker(numba_cuda.to_device(ids), epoch=5, returns=returns, max_predictions=24, **arrays).check()
    want = masker(ids, epoch=5, returns=returns, max_predictions=24, backend="numpy", **given)
    for name in (*returns[:2], "input_ids", "labels"):
        np.testing.assert_array_equal(getattr(got, name).copy_to_host(), getattr(want, name), strict=True)
    for one, other in zip(got.compact or (), want.compact or (), strict=True):
        np.testing.assert_array_equal(one.copy_to_host(), other, strict=True)


def launched(device: Any) -> set[str]:
    return {name for name, _ in device.launched}


@pytest.mark.parametrize("row_length", [1, 37, 64])
def test_cells_are_masked_as_the_reference_does(device: Any, row_length: int) -> None:
    check(plan_of(), call_of(3, row_length), poisons=POISONS)
    assert launched(device) == {"clear", "mask_quads" if row_length == 64 else "mask_tokens"}


def test_offsets_and_padding(device: Any) -> None:
    offsets, lengths = np.array([0, 5, (1 << 34) - 64], np.uint64), np.array([40, 0, 17])
    check(plan_of(), call_of(3, 40, starts=40 - lengths, lengths=lengths, offsets=offsets), poisons=POISONS)


def test_what_a_call_says_of_rows(device: Any) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.4), HALF_RANDOM, seed=7)
    runs = np.zeros_like(IDS)
    runs[0, 2:], runs[2, :9] = 1, 1
    padded = np.where(np.arange(24) < 20, IDS, 0)
    agree(masker, padded)
    agree(masker, IDS, attention_mask=runs)
    agree(masker, IDS, sample_ids=np.array([3, 4, 5]), rates=np.array([0.5, 0.0, 1.0]))
    agree(masker, IDS.reshape(-1), cu_seqlens=np.array([0, 30, 30, 41, 72]))
    agree(fm.Masker(VOCAB, fm.Diffusion(0.1), seed=7), IDS)
    rows = {"trim_rows", "sum_content", "find_runs", "clamp_integers", "cut_rates", "check_boundaries", "draw_rates"}
    assert launched(device) >= rows | {"list_in_rows"}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_laws_over_whole_samples(device: Any, law: Any) -> None:
    agree(fm.Masker(VOCAB, law, HALF_RANDOM, seed=7), IDS)
    assert SLOWEST in launched(device)


def test_quads_are_loaded_and_stored_16_bytes_at_a_time(compiled: Compile) -> None:
    ptx = compiled(*NAMES)["mask_quads"]
    assert (ptx.count("ld.global.v2.u64"), ptx.count("st.global.v2.u64")) == (2, 4)


def test_numba_cuda_is_what_compiles_unless_the_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastmask.kernels.cuda_compiler import chosen_compiler

    monkeypatch.delenv("FASTMASK_CUDA_COMPILER", raising=False)
    assert chosen_compiler() == "numba-cuda"
    monkeypatch.setenv("FASTMASK_CUDA_COMPILER", "numba-cuda-mlir")
    assert chosen_compiler() == "numba-cuda-mlir"
