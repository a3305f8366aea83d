"""The kernels that numba-cuda-mlir compiles, run on the host, give the bits of the reference."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device import batches
from device.code import DeviceCode, code_of_run
from support import small_launches
from support_cuda import HALF_RANDOM, OVERFLOW, POISONS, VOCAB, call_of, check, numba_cuda, plan_of

import fastmask as fm
from fastmask.kernels import cuda

ARCHITECTURE = "sm_100"  # of which only the code for int64 is compiled
WHEELS = ("numba-cuda-mlir", "nvidia-nvvm", "nvidia-nvjitlink")
IDS = np.random.default_rng(0).integers(5, 60, (3, 24))


def missing_wheels() -> list[str]:
    return [wheel for wheel in WHEELS if not any(importlib.metadata.distributions(name=wheel))]


pytestmark = [
    OVERFLOW,
    pytest.mark.skipif(
        bool(missing_wheels()),
        reason=f"not installed: {', '.join(missing_wheels())}: pip install 'fastmask-kernels[mlir]'",
    ),
]


@pytest.fixture(scope="session")
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceCode]:
    with code_of_run(request, tmp_path_factory, "numba-cuda-mlir", (ARCHITECTURE,)) as code:
        yield code


@pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
def device(code: DeviceCode, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Until the test ends, CUDA is the code of this compiler, run on the host."""
    from device.backend import Device

    with pytest.MonkeyPatch.context() as patch:
        there = Device(ARCHITECTURE, code.text, request.param)
        there.install(patch)
        yield there


@pytest.fixture
def small(device: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The same, in small launches."""
    with small_launches(monkeypatch):
        yield device


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


@pytest.mark.parametrize("row_length", [1, 37, 64])
def test_cells_are_masked_as_the_reference_does(small: Any, row_length: int) -> None:
    check(plan_of(), call_of(3, row_length), poisons=POISONS)
    assert small.launched == {"clear", "mask_quads" if row_length == 64 else "mask_tokens"}


def test_offsets_and_padding(small: Any) -> None:
    offsets, lengths = np.array([0, 5, (1 << 34) - 64], np.uint64), np.array([40, 0, 17])
    check(plan_of(), call_of(3, 40, starts=40 - lengths, lengths=lengths, offsets=offsets), poisons=POISONS)


def test_what_a_call_says_of_rows(small: Any) -> None:
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
    assert small.launched >= rows | {"list_in_rows"}


def test_supplied_decisions(small: Any) -> None:
    rng = np.random.default_rng(0)
    given = IDS, rng.random(IDS.shape) < 0.5, rng.choice([0.0, 0.8, 0.85, 0.9, 1.0], IDS.shape), IDS[::-1].copy()
    got, want = fm.apply_mlm_mask(*map(numba_cuda.to_device, given)), fm.apply_mlm_mask(*given)
    assert small.launched == {"apply_decisions"}
    for name, array in want.items():
        np.testing.assert_array_equal(got[name].copy_to_host(), array, strict=True)


def test_laws_of_tokens_in_every_layout(device: Any) -> None:
    batches.mask_batches(batches.BY_TOKEN)
    batches.mask_aligned_batches()
    batches.mask_what_device_memory_names(batches.BY_TOKEN)
    counts = {"count_rows", "add_up", "list_flat", "weigh_rates"}
    assert device.launched >= counts | {"mask_tokens", "mask_quads"}


@pytest.mark.slow
def test_every_kernel_and_every_law(device: Any) -> None:
    """All launches that find changed instructions in the code of the other compiler."""
    batches.launch_everything()
    assert device.launched == {kernel.function.__name__ for kernel in cuda.KERNELS}


def test_quads_are_loaded_and_stored_16_bytes_at_a_time(code: DeviceCode) -> None:
    ptx = code.text(ARCHITECTURE, "mask_quads", code.kernels["mask_quads"].variants[-1])
    assert (ptx.count("ld.global.v2.u64"), ptx.count("st.global.v2.u64")) == (2, 4)


def test_numba_cuda_is_what_compiles_unless_the_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastmask.kernels.cuda_compiler import chosen_compiler

    monkeypatch.delenv("FASTMASK_CUDA_COMPILER", raising=False)
    assert chosen_compiler() == "numba-cuda"
    monkeypatch.setenv("FASTMASK_CUDA_COMPILER", "numba-cuda-mlir")
    assert chosen_compiler() == "numba-cuda-mlir"
