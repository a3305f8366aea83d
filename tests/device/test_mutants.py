"""A changed instruction is found: most mutants of the kernels do not get through the launches of a few batches.

Those that do are listed in survivors.md.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from plain_laws import VOCAB
from support_devices import FIRST, agree_on_device
from support_laws import random_batch

import fastmask as fm
from device import batches
from device.borders import EPOCH
from device.code import DeviceCode
from device.machine import CompiledKernel
from device.mutants import Mutant, Recorder, mutants_of

NUMBERS = {"mask_samples": 80, "mask_tokens": 80, "mask_quads": 80}  # of mutants
NUMBER = 15  # of any other kernel's
MOST_SURVIVORS = 0.13  # of all mutants, those that change nothing included
LIST = Path(__file__).with_name("survivors.md")


@pytest.fixture(scope="module")
def recorded(device_code: DeviceCode) -> Recorder:
    recorder = Recorder(FIRST, device_code.text)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        batches.launch_everything()
    return recorder


def kernels_of(recorder: Recorder) -> dict[str, Any]:
    """(kernel, launches) by name: of the dtypes with the most launches."""
    names = {name for name, _ in recorder.launches}
    which = [
        max((w for w in recorder.launches if w[0] == name), key=lambda w: len(recorder.launches[w])) for name in names
    ]
    return {w[0]: (recorder.kernels[w], recorder.launches[w]) for w in sorted(which)}


@pytest.mark.slow
def test_mutants_are_caught(recorded: Recorder, device_code: DeviceCode) -> None:
    kernels = kernels_of(recorded)
    assert kernels.keys() == device_code.kernels.keys()
    survivors: list[str] = []
    count = 0
    for name, (kernel, launches) in kernels.items():
        mutants = mutants_of(kernel, NUMBERS.get(name, NUMBER))
        count += len(mutants)
        survivors += [f"{name}: {mutant}" for mutant in survivors_of(kernel, mutants, launches)]
    print(f"{len(survivors)} of {count} mutants live on:", *survivors, sep="\n")
    assert count >= 200
    assert len(survivors) <= MOST_SURVIVORS * count, survivors
    if importlib.metadata.version("nvidia-nvvm") in LIST.read_text():  # another version makes other code
        assert [survivor for survivor in survivors if f"`{survivor}`" not in LIST.read_text()] == []


def test_a_few_mutants_of_a_small_kernel_are_caught(device_code: DeviceCode) -> None:
    """The least of what the slow test does, in every run."""
    recorder = Recorder(FIRST, device_code.text)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        layout = random_batch(1, VOCAB, "pad id", batches.LENGTHS, None)
        for shape in batches.SHAPES[:2]:
            agree_on_device(fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=3), layout, EPOCH, shape)
    kernel, launches = kernels_of(recorder)["sum_content"]
    mutants = mutants_of(kernel, 24)
    assert len(survivors_of(kernel, mutants, launches)) <= 4, [str(m) for m in survivors_of(kernel, mutants, launches)]


def survivors_of(kernel: Any, mutants: list[Mutant], launches: list[Any]) -> list[Mutant]:
    """The mutants that no launch tells from the kernel as it is."""
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
