"""Device code is compiled although NumPy 2.5 has no row_stack, which numba-cuda asks it for."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastmask as fm

WITHOUT = """
import numpy as np

if hasattr(np, "row_stack"):
    del np.row_stack  # as in NumPy 2.5
    np.__all__.remove("row_stack")
"""
COMPILE = """
import types
from numba import cuda
from numba.cuda import dispatcher

dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))
from fastmask.kernels.cuda_rows import CLEAR as kernel

ptx, _ = cuda.compile_ptx(kernel.function, kernel.signature(()), cc=(9, 0))
assert not hasattr(np, "row_stack"), "left behind"
print(ptx.count(".entry"))
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    for wheel in ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvrtc"):
        try:
            importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{wheel} is not installed: pip install 'fastmask-kernels[test]'")
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_ENABLE_CUDASIM", "FASTMASK_CUDA_COMPILER")}
    environment["PYTHONPATH"] = str(Path(fm.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_kernels_are_compiled_without_row_stack_and_numpy_is_left_as_it_was() -> None:
    done = run(WITHOUT + COMPILE)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["1"]


def test_numba_cuda_alone_would_fail() -> None:
    """Where it no longer does, the remedy can go."""
    done = run(WITHOUT + "import numba.cuda.np.arrayobj")
    assert "has no attribute 'row_stack'" in done.stderr


def test_a_numpy_that_has_row_stack_keeps_it() -> None:
    code = "import numpy as np\nnp.row_stack = kept = object()\nfrom fastmask.kernels import cuda_compiler\n"
    done = run(code + "assert np.row_stack is kept")
    assert done.returncode == 0, done.stderr[-4000:]
