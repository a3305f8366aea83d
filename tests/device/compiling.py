"""A program: the PTX of the CUDA kernels, for chips of several generations, in a folder. It takes no GPU.

`python compiling.py FOLDER ARCHITECTURES [KERNEL ...]` compiles each kernel once for each group of dtypes worth it, and
generates code from that for each architecture. It needs a process of its own, since Numba has no compiler for GPUs
where its simulator is switched on.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
EVERY_DTYPE = "sm_90"  # other chips get the code of the last dtypes alone: of int64


def file_of(folder: Path, architecture: str, name: str, dtypes: tuple[str, ...]) -> Path:
    """Where the code of a kernel is."""
    return folder / ".".join([architecture, name, *(dtype.strip("<|") for dtype in dtypes), "ptx"])


def capability(architecture: str) -> tuple[int, int]:
    return divmod(int(architecture.removeprefix("sm_")), 10)


def code_of(kernel: Any, dtypes: tuple[str, ...], architectures: list[str]) -> Iterator[tuple[str, str]]:
    """(architecture, PTX) of a kernel for these dtypes, by the compiler that FASTMASK_CUDA_COMPILER names."""
    from fastmask.kernels.cuda_compiler import chosen_compiler

    of_compiler = _code_of_mlir if chosen_compiler() == "numba-cuda-mlir" else _code_of_numba
    return of_compiler(kernel, dtypes, architectures)


# Both compilers ask the current device for its capability, and there is none.


def _code_of_numba(kernel: Any, dtypes: tuple[str, ...], architectures: list[str]) -> Iterator[tuple[str, str]]:
    """Only the last of the compiler's steps looks at the chip; what comes before is done once."""
    from numba.cuda import compiler, dispatcher

    lowest = capability(architectures[0])
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=lowest)
    library, _ = compiler._compile_pyfunc_with_fixup(
        kernel.function, kernel.signature(dtypes), device=False, abi="numba", cc=lowest
    )
    for architecture in architectures:
        (text,) = library.get_asm_strs(cc=capability(architecture))
        yield architecture, text


def _code_of_mlir(kernel: Any, dtypes: tuple[str, ...], architectures: list[str]) -> Iterator[tuple[str, str]]:
    """Without the functions behind the kernel: they are all inlined."""
    from numba_cuda_mlir import tools

    cuda: Any = importlib.import_module("numba_cuda_mlir.cuda")
    for architecture in architectures:
        chip = capability(architecture)
        tools.get_gpu_compute_capability = lambda *_, chip=chip, **__: chip
        text, _ = cuda.compile_ptx(kernel.function, kernel.signature(dtypes), cc=chip)
        end = "\n}\n"
        yield architecture, text[: text.index(end, text.index(".entry"))] + end


def write(folder: Path, architectures: list[str], names: list[str], every: bool) -> None:
    """The files of the kernels with these names; those for the last dtypes come first."""
    from fastmask.kernels import cuda

    kernels = [kernel for kernel in cuda.KERNELS if kernel.function.__name__ in names or not names]
    last = [(kernel, kernel.variants[-1], architectures) for kernel in kernels]
    chips = architectures if every else [chip for chip in architectures if chip == EVERY_DTYPE]
    others = [(kernel, dtypes, chips) for kernel in kernels for dtypes in kernel.variants[:-1]]
    for kernel, dtypes, wanted in [*last, *others]:
        for architecture, text in code_of(kernel, dtypes, wanted) if wanted else ():
            file = file_of(folder, architecture, kernel.function.__name__, dtypes)
            draft = file.with_suffix(".draft")
            draft.write_text(text)
            draft.rename(file)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:], every=False)
