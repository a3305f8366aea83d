"""A changed instruction is found: most mutants of the kernels do not get through the launches of a few batches.

Those that do are listed in survivors.md.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import SCATTERED
from support_devices import FIRST, agree_on_device, launches_of
from support_laws import LAYOUTS, random_batch, wordy

import fastmask as fm
from device.code import DeviceCode
from device.machine import CompiledKernel
from device.memory import memory
from device.mutants import Mutant, Recorder, mutants_of
from fastmask.laws import Law

NUMBERS = {"mask_samples": 80, "mask_tokens": 80, "mask_quads": 80}  # of mutants
NUMBER = 15  # of any other kernel's
MOST_SURVIVORS = 0.13  # of all mutants, those that change nothing included
LENGTHS = (0, 9, 33, 1, 70, 12, 0, 4, 17, 2, 3, 38, 64, 6, 0, 1, 8, 16, 0)
SHAPES = ((8, 1, 1), (8, 2, 1), (32, 1, 1), (16, 40, 1))  # threads of a block; blocks, at most and at least
EPOCH = 0xABCDEF
GEOMETRIC = fm.Geometric(0.2, 10)
LIST = Path(__file__).with_name("survivors.md")

WORDY, WEIGHTS = wordy(SCATTERED), tuple(range(60))
MASKERS: list[tuple[Law, fm.Replace]] = [
    (fm.Bernoulli(0.4), fm.Replace(0.3, 0.5)),
    (fm.Bernoulli(0.9), fm.Replace(0, 1, pool=(29, 7, 20), exclude_original=True)),
    (fm.Bernoulli(0.7), fm.Replace(0, 1, pool="vocab", weights=WEIGHTS, exclude_original=True)),
    (fm.Bernoulli(0.2, "token", 9, 12), fm.Replace(0.3, 0.5)),
    (fm.Bernoulli(0.5, "word", 0, 9), fm.Replace(0.3, 0.4, unit="word")),
    (fm.Bernoulli(0.5), fm.Replace(0.3, 0.4, unit="span")),
    (fm.ExactCount(0.3), fm.Replace(0.3, 0.4)),
    (fm.ExactCount(0.5, count_of="sequence"), fm.Replace(0, 1, pool="vocab", weights=WEIGHTS)),
    (fm.ExactCount(0.4, "word"), fm.Replace(0.3, 0.4, unit="span", exclude_original=True)),
    (fm.ExactCount(0.5, "word", 3, 11, "candidates"), fm.Replace(0.3, 0.4)),
    (fm.Spans(0.4, GEOMETRIC), fm.Replace(0.3, 0.4, unit="span")),
    (fm.Spans(0.9, fm.Fixed(2), "word", 0, 30), fm.Replace(0.3, 0.4)),
    (fm.Diffusion(0.1), fm.Replace(1, 0)),
]


def on_device(x: Any) -> Any:
    return memory().to_device(x)


def mask_batches() -> None:
    """Each law in several layouts, with everything that a call may say."""
    for number, (law, how) in enumerate(MASKERS):
        for at, layout in enumerate(LAYOUTS):
            said = {"marks": at % 2 == 0, "named": at % 3 != 1, "rates": at % 3 == 1, "offsets": at % 3 == 2}
            if isinstance(law, fm.Spans):
                said["offsets"] = False
            if isinstance(law, fm.Diffusion):
                said["rates"] = False
            beginnings = (None, 0.5, 0.9, 0.05)[(number + at) % 4]
            vocab = WORDY if layout != "pad id" else fm.Vocab(60, 4, 0, (1, 8, 9, 30, 59), WORDY.is_continuation)
            batch = random_batch(number * 5 + at, vocab, layout, LENGTHS, beginnings, 0.2, **said)
            masker = fm.Masker(vocab, law, how, seed=(number * 5 + at + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
            agree_on_device(masker, batch, EPOCH, SHAPES[(number + at) % len(SHAPES)])


def mask_aligned_batches() -> None:
    """Rows of whole quads, for kernels that take four tokens at a time."""
    lengths = [min(length, 69) for length in LENGTHS]
    for number, (law, how) in enumerate(MASKERS[:3] * 4):
        said = {"marks": number % 2 == 0, "named": number % 3 != 1, "rates": number % 4 == 1}
        batch = random_batch(number, WORDY, "left", lengths, None, 0.2, **said)
        assert batch.shape[1] % 4 == 0
        masker = fm.Masker(WORDY, law, how, seed=(4 * number + batch.ids.size % 4) * 0x9E3779B97F4A7C14 % (1 << 64))
        agree_on_device(masker, batch, EPOCH, SHAPES[number % len(SHAPES)])


def call_the_rest() -> None:
    """What no such batch launches: numbers to be checked, rates of strata, targets in rows, supplied decisions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 30, (7, 23))
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.5), seed=3)
    masker(
        on_device(ids),
        epoch=1,
        returns="compact",
        max_predictions=9,
        lengths=on_device(np.array([23, 0, 24, -1, 9, 5, 1])),
    )
    masker(on_device(ids), epoch=1, returns="compact", max_predictions=23, sample_ids=on_device(np.arange(-2, 5)))
    bad = np.array([0.5, -0.1, np.nan, 1.0, 2.0, 0.25, 1e-9])
    masker(on_device(ids), epoch=1, rates=on_device(bad))
    fm.Masker(VOCAB, fm.ExactCount(0.5), seed=3)(on_device(ids), epoch=1, rates=on_device(bad))
    ragged = rng.integers(0, 2, ids.shape).astype(np.float32)
    masker(on_device(ids), epoch=1, attention_mask=on_device(ragged))
    for bounds in ([0, 40, 30, 161], [0, -1, 170, 161], [*range(0, 161, 8), 161]):
        masker(on_device(ids.reshape(-1)), epoch=1, cu_seqlens=on_device(np.array(bounds)), returns="num_masked")
    strata = fm.Masker(VOCAB, fm.Diffusion(0.1), fm.Replace(1, 0), seed=3)
    strata(on_device(ids), epoch=1, returns="rates", stratify=(2, 9, 5))
    chances = rng.choice([0.0, 0.8, 0.85, 0.9, 1.0, 0.3], ids.shape)
    tokens, chosen, drawn = (on_device(x) for x in (ids, rng.random(ids.shape) < 0.6, ids[::-1].copy()))
    fm.apply_mlm_mask(tokens, chosen, on_device(chances), drawn)
    chances[3, 3] = 1.5
    fm.apply_mlm_mask(tokens, chosen, on_device(chances), drawn, check=False)


@pytest.fixture(scope="module")
def recorded(device_code: DeviceCode) -> Recorder:
    recorder = Recorder(FIRST, device_code.text)
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        mask_batches()
        mask_aligned_batches()
        for shape in SHAPES[:2]:
            with launches_of(shape):
                call_the_rest()
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
        layout = random_batch(1, VOCAB, "pad id", LENGTHS, None)
        for shape in SHAPES[:2]:
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
