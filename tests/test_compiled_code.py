"""What the compiler made of the CPU kernels: integers decide, and nothing is compiled twice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fastmask.kernels import cpu

FLOAT = re.compile(r"\b(half|bfloat|float|double|fp128|x86_fp80)\b")
INT64 = np.dtype(np.int64)
SHARE = {"getelementptr double", "load double", "uitofp", "fmul double", "fadd double", "llvm.floor", "fptoui double"}
SHARE_OF_A_COUNT = re.compile("|".join(map(re.escape, SHARE)))


def floats(kernel: Any) -> list[str]:
    """The lines of a kernel's code that use floating-point numbers."""
    (code,) = kernel.inspect_llvm().values()
    return [line for line in code.splitlines() if FLOAT.search(line) and not line.startswith("declare")]


@pytest.mark.parametrize("parallel", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["serial", "parallel"])
def test_no_float_in_the_drawing_path(parallel: bool) -> None:
    kernel = cpu.compiled_mask_batch(INT64, INT64, INT64, parallel, cache=False)
    (code,) = kernel.inspect_llvm().values()
    assert "3528531795" in code  # Philox's multiplier: this is the code that draws
    assert not floats(kernel)


def test_over_rows_floats_make_the_share_of_a_count_and_nothing_else() -> None:
    only_the_share(cpu.compiled_mask_rows(INT64, INT64, INT64, False, cache=False))


def only_the_share(kernel: Any) -> None:
    lines = floats(kernel)
    operations = (SHARE_OF_A_COUNT.search(line) for line in lines)
    assert {found.group() if found else "another" for found in operations} == SHARE
    (assembly,) = kernel.inspect_asm().values()
    assert "fmadd" not in assembly  # one rounding would be missing


@pytest.mark.slow
def test_no_float_where_samples_are_collated() -> None:
    assert not floats(cpu.compiled_collate_batch(INT64, INT64, cache=False))


@pytest.mark.slow
def test_over_collated_rows_floats_make_the_share_of_a_count_and_nothing_else() -> None:
    only_the_share(cpu.compiled_collate_rows(INT64, INT64, cache=False))


def test_no_float_where_objects_are_read_and_rows_laid_out() -> None:
    for compiled in cpu.LAYOUT_KERNELS:
        assert not floats(compiled(cache=False))


def test_no_float_in_the_content_id() -> None:
    for kernel in (cpu.compiled_content_ids(INT64, cache=False), cpu.compiled_content_weights(cache=False)):
        assert not floats(kernel)


@pytest.mark.parametrize("dtype", ["u1", "u8"])
def test_no_float_in_the_runs_of_an_attention_mask(dtype: str) -> None:
    assert not floats(cpu.compiled_real_runs(np.dtype(dtype), cache=False))


def test_the_check_can_fail() -> None:
    assert floats(cpu.compiled_apply_supplied(False, cache=False))


def test_a_kernel_takes_one_signature_and_compiles_no_other() -> None:
    kernel = cpu.compiled_real_runs(np.dtype(np.uint8))
    writable = np.zeros(4, np.uint8)
    frozen = np.zeros(4, np.uint8)
    frozen.flags.writeable = False
    for mask in (writable, frozen):
        assert kernel(mask, 2, np.empty(2, np.int64), np.empty(2, np.int64)) == -1
    assert len(kernel.signatures) == 1
    with pytest.raises(TypeError):
        kernel(np.zeros(4, np.float64), 2, np.empty(2, np.int64), np.empty(2, np.int64))
