"""What the compiler makes of the CUDA kernels, for chips of four generations; it takes no GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support_devices import FIRST, SECOND, TWINS

import fastmask as fm
from device.code import Code, DeviceCode, environment
from device.compiling import ARCHITECTURES

FLOATS_OF_THE_CALLER = {"apply_decisions", "cut_rates", "clamp_shares", "mask_samples", "weigh_rates"}
INTEGERS_ALONE = {"mask_tokens", "clear", "trim_rows", "find_runs", "sum_content", "clamp_integers", "draw_rates"}
INTEGERS_ALONE |= {"mask_quads", "list_in_rows", "count_rows", "add_up", "list_flat", "check_boundaries"}
COUNTING = {"mask_tokens", "mask_quads"}  # several threads add to the count of a row

LAUNCH = """
import json
from fastmask.kernels import cuda_launch as launch
from fastmask.kernels import cuda_rows as kernels

class Array:
    def __init__(self, address, dtype):
        self.__cuda_array_interface__ = {"data": (address, False), "typestr": dtype}

calls = []
class Compiled:
    def __getitem__(self, configuration):
        return lambda *arguments: calls.append([list(configuration), list(arguments)])

launch.Kernel._kernel = lambda self, undecided: calls.append(list(undecided)) or Compiled()
arrays = [Array(4096, "<i4"), None, Array(512, "<i8")]
kernels.TRIM_ROWS.launch(launch.Queue(0, 77), 3, arrays, [5, 6, 7])
kernels.CLEAR.launch(launch.Queue(0, 0), 1 << 20, [Array(64, "<i8")], [1])
print(json.dumps(calls))
"""


def run_without_simulator(program: str) -> str:
    """What a fresh Python prints that runs the program; the test fails where the program does."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def code(device_code: DeviceCode) -> Code:
    return device_code.everything()


def instructions(ptx: str) -> list[str]:
    """The lines of the kernel's body and its declarations, less comments, names and directives for tools."""
    lines = (re.sub(r"//.*|_Z\w+", "", line).strip() for line in ptx.splitlines())
    return [line for line in lines if line and not line.startswith((".version", ".target", ".address_size"))]


def having(pattern: str, code: Code) -> dict[tuple[str, str, tuple[str, ...]], list[str]]:
    """The kernels that hold lines of this pattern, with the first three of them."""
    found = {which: [line for line in instructions(ptx) if re.search(pattern, line)] for which, ptx in code.items()}
    return {which: lines[:3] for which, lines in found.items() if lines}


def test_every_kernel_is_compiled_for_every_architecture(code: Code) -> None:
    names = INTEGERS_ALONE | FLOATS_OF_THE_CALLER
    assert {(arch, name) for arch, name, _ in code} == {(a, n) for a in ARCHITECTURES for n in names}
    for (arch, _, _), ptx in code.items():
        assert ptx.count(".entry") == 1
        assert re.search(rf"^\.target {arch}\b", ptx, re.MULTILINE)


def test_chips_of_a_generation_have_one_code(code: Code) -> None:
    """Else what ran for one says little of the other, and the other's tests are to leave the slow ones."""
    for twin, chip in zip(TWINS, (FIRST, SECOND), strict=True):
        for (arch, name, dtypes), ptx in code.items():
            if arch == twin:
                assert ptx.replace(f".target {twin}", f".target {chip}") == code[chip, name, dtypes], name


def test_no_float_decides(code: Code) -> None:
    pattern = r"\.b?f(16|32|64)|\.tf32|\.e[45]m"
    floating = having(pattern, code)
    assert {name for _, name, _ in floating} == FLOATS_OF_THE_CALLER, floating


def test_a_threshold_is_rounded_once(code: Code) -> None:
    """The product by 2^24 is exact, so that the sum may be contracted to an FMA; nothing else is computed in floats."""
    for (_, name, _), ptx in code.items():
        if name == "cut_rates":
            arithmetic = re.findall(r"\b(fma|mul|add|sub|div|sqrt|rcp)\.([\w.]*f\d+)", ptx)
            assert arithmetic in ([("fma", "rn.f64")], [("mul", "rn.f64"), ("add", "rn.f64")]), arithmetic
            assert "0d4170000000000000" in ptx  # 2^24
            assert "0d3FE0000000000000" in ptx  # 0.5


def test_the_share_of_a_count_is_rounded_twice(code: Code) -> None:
    """Spelled out, the rounding of the product forbids an FMA. A law of tokens and spans each have one such share."""
    for (_, name, _), ptx in code.items():
        if name == "mask_samples":
            floating = re.findall(r"^\s*(?:@\S+ )?((?!ld\.|mov\.)\w+(?:\.\w+)*\.f64\S*)\s", ptx, re.MULTILINE)
            share = ["cvt.rn.f64.u64", "mul.rn.f64", "add.rn.f64", "cvt.rzi.u64.f64"]
            assert floating in (share, share * 2), floating
            assert set(re.findall(r"0d[0-9A-Fa-f]{16}", ptx)) == {"0d3FE0000000000000"}  # 0.5


def test_weights_are_divided_in_float64_and_rounded_as_ieee_754_says(code: Code) -> None:
    for (_, name, _), ptx in code.items():
        if name == "weigh_rates":
            computed = set(re.findall(r"\b((?:fma|mul|add|sub|div|rcp|cvt)\.[\w.]*f\d+[\w.]*)", ptx))
            assert computed == {"cvt.rn.f64.u32", "mul.f64", "div.rn.f64", "cvt.rn.f32.f64"}, computed


def test_nothing_lies_in_local_memory(code: Code) -> None:
    assert not having(r"\.local\b", code)


def test_nothing_is_called_and_nothing_traps(code: Code) -> None:
    assert not having(r"\bcall\b|\btrap\b|\bbrkpt\b|printf|\.extern|\.func\b", code)


def test_arrays_are_read_as_global_memory(code: Code) -> None:
    """A load or store that names no space would have to find out at run time."""
    assert not having(r"^(@\S+ )?(ld|st|atom|red)\.(?!global|shared|param|const)", code)


def test_aligned_batches_are_read_and_written_in_16_bytes(code: Code) -> None:
    """Four tokens: one access of 16 bytes for int32, two for int64. Nothing else in device memory is so wide."""
    for (arch, name, dtypes), ptx in code.items():
        wide = re.findall(r"^\s*(?:@\S+ )?(ld|st)\.global(?:\.nc)?\.(v4\.\w32|v2\.\w64)\s", ptx, re.MULTILINE)
        kinds = [operation for operation, _ in wide]
        if name != "mask_quads":
            assert not wide, (arch, name)
            continue
        ids, out, labels = (int(dtype[-1]) * 4 // 16 for dtype in dtypes)
        assert (kinds.count("ld"), kinds.count("st")) == (ids, out + labels), (arch, dtypes)


def test_counts_are_added_without_an_answer(code: Code) -> None:
    assert {name for _, name, _ in having(r"\batom\.", code)} <= COUNTING
    assert {name for _, name, _ in having(r"\batom\.|\bred\.", code)} == COUNTING


def test_a_launch_hands_over_addresses_and_warns_of_no_small_grid() -> None:
    undecided, trim, none, clear = json.loads(run_without_simulator(LAUNCH))
    assert undecided == ["<i4"]
    assert trim == [[128, 128, 77], [4096, 0, 512, 5, 6, 7]]
    assert none == []
    assert clear == [[8192, 128, 0], [64, 1]]


@pytest.mark.slow
def test_what_is_shared_between_chips_changes_no_code(code: Code) -> None:
    """Numba compiles each kernel once for all chips here; for one chip alone it comes to the same."""
    program = f"""
import json, types
from numba import cuda
from numba.cuda import dispatcher
from fastmask.kernels import cuda as kernels

for architecture in {ARCHITECTURES}:
    cc = divmod(int(architecture.removeprefix("sm_")), 10)
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=cc)
    for kernel in kernels.KERNELS:
        dtypes = kernel.variants[-1]
        ptx, _ = cuda.compile_ptx(kernel.function, kernel.signature(dtypes), cc=cc)
        print(json.dumps([architecture, kernel.function.__name__, dtypes, ptx]))
"""
    for line in run_without_simulator(program).splitlines():
        arch, name, dtypes, ptx = json.loads(line)
        assert unnamed(ptx) == unnamed(code[arch, name, tuple(dtypes)]), (arch, name)


def unnamed(ptx: str) -> str:
    """The code without the numbers that Numba gives its functions and shared arrays."""
    return re.sub(r"B\d+v\d+B\d+|cudapy_smem_\d+|_ZN\w+", "", ptx)


@pytest.mark.slow
def test_nothing_is_spilled(tmp_path: Path) -> None:
    """As the table says that `python -m benchmarks.device` makes."""
    table = tmp_path / "device.md"
    command = [sys.executable, "-m", "benchmarks.device", "--markdown", str(table)]
    subprocess.run(command, cwd=Path(fm.__file__).parents[1], env=environment(), check=True, capture_output=True)
    text = table.read_text()
    if "ptxas is not installed" in text:
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \w+ \| sm_", line)]
    assert len(lines) >= len(ARCHITECTURES) * len(INTEGERS_ALONE | FLOATS_OF_THE_CALLER)
    for kernel, chip, *_, local, _, registers, spills, stack, _, _ in lines:
        assert (local, spills, stack) == ("0", "0", "0"), (kernel, chip)
        assert 0 < int(registers) <= 128, (kernel, chip)
