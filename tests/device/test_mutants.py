"""A changed instruction is found: most mutants of the kernels do not get through the launches of a few batches.

Those that do are listed in survivors.md, each with the reason.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support_devices import FIRST

from device import batches
from device.code import DeviceCode
from device.machine import CompiledKernel
from device.mutants import Mutant, Recorder, mutants_of
from device.survivors import LIST, UNKNOWN, WRITE, listed, reasons

NUMBERS = {"mask_samples": 80, "mask_tokens": 80, "mask_quads": 80}  # of mutants
NUMBER = 15  # of any other kernel's
LEAST_CAUGHT = 0.95  # of all mutants, those that change nothing included


@pytest.fixture(scope="module")
def kernels(device_code: DeviceCode) -> Iterator[dict[str, Any]]:
    """(kernel, launches) by name: of the dtypes with the most launches. The recorder holds their memory meanwhile."""
    recorder = Recorder(FIRST, device_code.text)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        batches.launch_everything()
    names = {name for name, _ in recorder.launches}
    assert names == device_code.kernels.keys()
    which = [
        max((w for w in recorder.launches if w[0] == name), key=lambda w: len(recorder.launches[w])) for name in names
    ]
    yield {w[0]: (recorder.kernels[w], recorder.launches[w]) for w in sorted(which)}
    recorder.let_go()


def survivors_of(kernels: Mapping[str, Any], numbers: Mapping[str, int], number: int) -> tuple[list[str], int]:
    """(the mutants that no launch tells from the kernel as it is, how many mutants there are)."""
    survivors, count = [], 0
    for name, (kernel, launches) in kernels.items():
        mutants = mutants_of(kernel, numbers.get(name, number))
        count += len(mutants)
        survivors += [f"{name}: {mutant}" for mutant in alive(kernel, mutants, launches)]
    return survivors, count


def alive(kernel: Any, mutants: list[Mutant], launches: list[Any]) -> list[Mutant]:
    numbered: dict[int, list[tuple[int, Any]]] = {}
    for number, mutant in enumerate(mutants, 1):
        numbered.setdefault(mutant.place, []).append((number, mutant.instruction))
    compiled = CompiledKernel(kernel, numbered)
    assert not any(launch.tells(compiled, 0) for launch in launches)
    return [
        mutant
        for number, mutant in enumerate(mutants, 1)
        if not any(launch.tells(compiled, number) for launch in launches)
    ]


@pytest.mark.slow
def test_mutants_are_caught(kernels: dict[str, Any]) -> None:
    survivors, count = survivors_of(kernels, NUMBERS, NUMBER)
    assert count >= 460
    assert len(survivors) <= (1 - LEAST_CAUGHT) * count, survivors
    version = importlib.metadata.version("nvidia-nvvm")
    if os.environ.get(WRITE):
        LIST.write_text(listed(survivors, count, version))
    if f"nvidia-nvvm {version}," in LIST.read_text():  # another version makes other code
        assert LIST.read_text() == listed(survivors, count, version)
        assert UNKNOWN not in reasons().values()


def test_a_few_mutants_of_every_kernel_are_caught(kernels: dict[str, Any]) -> None:
    """The least of what the slow test does, in every run."""
    survivors, count = survivors_of(kernels, {}, 6)
    assert count >= 100
    assert len(survivors) <= 0.1 * count, survivors
