"""What tests need that run on compiled device code: the chips, and a batch of any law on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pytest
import support_laws
from support import same
from support_laws import RETURNS, Batch

import fastmask as fm
from fastmask.kernels import cpu
from fastmask.laws import Diffusion

# Code for sm_80 is that for sm_90, and code for sm_120 that for sm_100, as a test says that stays with the compiler.
FIRST, SECOND, TWINS = "sm_90", "sm_100", ("sm_80", "sm_120")
SHAPES = ((128, 8192, 128), (8, 2, 1), (32, 1, 1), (64, 3, 1))  # threads of a block; blocks, at most and at least


def slow(*chips: str) -> list[Any]:
    return [pytest.param(chip, marks=pytest.mark.slow) for chip in chips]


@contextmanager
def device_of(chip: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Within the block Numba's CUDA is a chip's compiled code, run by the machine in `device`."""
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")
    from device.backend import Device

    text = request.getfixturevalue("device_code").text
    with pytest.MonkeyPatch.context() as patch:
        Device(chip, text, backwards=chip in (FIRST, "sm_120")).install(patch)
        yield


@contextmanager
def types_checked() -> Iterator[None]:
    """Within the block Numba's dispatcher calls the CPU's masking kernels, and refuses what is not of their types."""
    cpu._mask_entry.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "entry_point", lambda kernel: kernel)
        yield
    cpu._mask_entry.cache_clear()


class Agree(Protocol):
    def __call__(self, masker: fm.Masker, batch: Batch, epoch: int = 3) -> fm.MaskedBatch: ...


def _agree_of(request: pytest.FixtureRequest) -> Iterator[Agree]:
    if request.param == "cpu":
        with types_checked():
            yield support_laws.agree
        return
    with device_of(request.param, request):
        yield agree_on_device


_cpu_first = ["cpu", FIRST]
agree = pytest.fixture(params=[*_cpu_first, *slow(SECOND)], name="agree")(_agree_of)
agree_everywhere = pytest.fixture(params=[*_cpu_first, SECOND, *slow(*TWINS)], name="agree_everywhere")(_agree_of)
agree_at_length = pytest.fixture(params=["cpu", *slow(FIRST, SECOND)], name="agree_at_length")(_agree_of)


def agree_on_device(
    masker: fm.Masker, batch: Batch, epoch: Any = 3, shape: tuple[int, int, int] | None = None
) -> fm.MaskedBatch:
    """What kernels make of a batch: in every output the bits of the reference, all of them written.

    Launches are as they are, or so small that blocks take several rows; arrays begin anywhere they may. `epoch` is an
    int, or an array of no dimensions that goes into device memory.
    """
    call: dict[str, Any] = {"epoch": epoch, "returns": RETURNS + ("rates",) * isinstance(masker.select, Diffusion)}
    want = masker(batch.shaped, backend="numpy", **call, **batch.arguments)
    number = int(batch.ids.size) + masker.seed
    with launches_of(shape or SHAPES[number % len(SHAPES)]):
        got = _on_device(masker, batch, 8 * (number // 2 % 2), call)
    for name in ("input_ids", "labels", "decisions", "num_masked", "rates", "weights"):
        there, here = getattr(got, name), getattr(want, name)
        same(None if there is None else there.copy_to_host(), None if here is None else np.asarray(here))
    _same_targets(masker, got.compact, want.compact)
    return want


def _on_device(masker: fm.Masker, batch: Batch, shift: int, call: dict[str, Any]) -> fm.MaskedBatch:
    from device.memory import memory

    device = memory()
    ids = device.to_device(batch.shaped, shift=shift)
    given: dict[str, Any] = {name: device.to_device(x, shift=shift) for name, x in batch.arguments.items()}
    if isinstance(call["epoch"], np.ndarray):
        call["epoch"] = device.to_device(call["epoch"])
    out = device.empty(batch.shape, np.int64, shift=shift), device.empty(batch.shape, masker.label_dtype, shift=shift)
    got = masker(ids, out=out, **call, **given).check()
    same(ids.copy_to_host(), batch.shaped)
    return got


def _same_targets(masker: fm.Masker, got: Any, want: Any) -> None:
    """Flat targets on a device have a slot for each token; those behind the last target are unused."""
    used = want.ids.size
    for name, unused in (("positions", 0), ("ids", masker.ignore_index), ("weights", 0)):
        there, here = getattr(got, name).copy_to_host(), getattr(want, name)
        same(there[:used], here)
        same(there[used:], np.full(there.size - used, unused, here.dtype))
    same(got.counts.copy_to_host(), want.counts)


@contextmanager
def launches_of(shape: tuple[int, int, int]) -> Iterator[None]:
    """Launches of so many threads a block, and at most and at least so many blocks."""
    from fastmask.kernels import cuda_launch

    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("THREADS", "MAX_BLOCKS", "MIN_BLOCKS"), shape, strict=True):
            patch.setattr(cuda_launch, name, value)
        if shape[0] < 32:
            patch.setattr(cuda_launch, "WIDTHS", (2, 4))
        yield
