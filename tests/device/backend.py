"""The library's own host code on the machine: what it launches is compiled device code, run on the host."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from typing import Any

import numba.cuda
import pytest

from device.machine import CompiledKernel
from device.memory import memory
from device.ptx import parse
from fastmask.kernels import cuda_launch as launch

Dtypes = tuple[str, ...]
Which = tuple[str, Dtypes]
CodeOf = Callable[[str, str, Dtypes], str]


@functools.cache
def compiled_kernel(text: str) -> CompiledKernel:
    """The kernel of a text."""
    return CompiledKernel(parse(text))


@functools.cache
def kernel_for_any_target(text: str) -> CompiledKernel:
    """The same; texts that differ in the chip alone are one."""
    return compiled_kernel(re.sub(r"^\.target \w+", ".target any", text, flags=re.MULTILINE))


class Device:
    """A chip that is not there.

    Args:
        architecture: whose code runs, such as sm_90.
        code_of: the PTX of a kernel by (architecture, name, dtypes).
        backwards: whether the last thread of a block comes first.
    """

    def __init__(self, architecture: str, code_of: CodeOf, backwards: bool = False) -> None:
        self.architecture, self._code_of, self.backwards = architecture, code_of, backwards
        self.launched: set[str] = set()  # names of kernels

    def kernel(self, kernel: launch.Kernel, dtypes: Dtypes) -> _Launchable:
        """What stands for a kernel that Numba has compiled for these dtypes."""
        name = kernel.function.__name__
        code = kernel_for_any_target(self._code_of(self.architecture, name, dtypes))
        return _Launchable(self, (name, dtypes), code)

    def run(self, which: Which, kernel: CompiledKernel, grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        """A launch; `which` is the kernel's name and dtypes."""
        self.launched.add(which[0])
        kernel.launch(grid, block, arguments, backwards=self.backwards)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Until the patch is undone, `numba.cuda` has this device's memory, and kernels are launched on it."""
        device = memory()
        patch.setattr(launch, "SIMULATED", False)
        patch.setattr(launch, "_NOWHERE", 0)
        patch.setattr(launch, "_flags", {})
        patch.setattr(launch, "_tables", weakref.WeakKeyDictionary())
        patch.setattr(launch.Kernel, "_kernel", lambda kernel, dtypes: self.kernel(kernel, dtypes))
        patch.setattr(numba.cuda, "to_device", device.to_device)
        patch.setattr(numba.cuda, "device_array", device.empty)
        patch.setattr(numba.cuda, "default_stream", numba.cuda.stream, raising=False)


class _Launchable:
    """`kernel[grid, block, stream](*arguments)`, as Numba has it."""

    def __init__(self, device: Device, which: Which, kernel: CompiledKernel) -> None:
        self._device, self._which, self._kernel = device, which, kernel

    def __getitem__(self, configuration: tuple[int, int, Any]) -> Callable[..., None]:
        grid, block, _ = configuration
        return lambda *arguments: self._device.run(self._which, self._kernel, grid, block, arguments)
