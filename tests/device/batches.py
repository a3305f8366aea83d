"""Batches that launch every kernel over and over, their results compared with the reference's where there are such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from plain_laws import VOCAB
from support import SCATTERED
from support_devices import agree_on_device, launches_of
from support_laws import LAYOUTS, random_batch, wordy

import fastmask as fm
from device.borders import BARE, EPOCH, mask_at_borders, whole_rows
from device.memory import memory
from fastmask.laws import Law

Masker = tuple[Law, fm.Replace]

LENGTHS = (0, 9, 33, 1, 70, 12, 0, 4, 17, 2, 3, 38, 64, 6, 0, 1, 8, 16, 0)
SHAPES = ((8, 1, 1), (8, 2, 1), (32, 1, 1), (16, 40, 1))  # threads of a block; blocks, at most and at least
GEOMETRIC, WEIGHTS = fm.Geometric(0.2, 10), tuple(range(60))

CONTINUES = wordy(SCATTERED).is_continuation
VOCABS = [  # special ids in one run, in two, and so on
    fm.Vocab(60, *ids, CONTINUES)
    for ids in [
        (1, 0, ()), (4, 0, ()), (4, 0, (30,)), (4, 0, (30, 59)), (4, 0, (8, 9, 30, 59)), (4, 0, (8, 9, 30, 40, 59)),
        (4, 0, (8, 9, 30, 40, 50, 59)), (4, 0, range(8, 24, 2)), (4, 0, range(8, 28, 2)),
    ]
]  # fmt: skip
BY_TOKEN: list[Masker] = [
    (fm.Bernoulli(0.4), fm.Replace(0.3, 0.5)),
    (fm.Bernoulli(0.9), fm.Replace(0, 1, pool=(29, 7, 20), exclude_original=True)),
    (fm.Bernoulli(0.7), fm.Replace(0, 1, pool="vocab", weights=WEIGHTS, exclude_original=True)),
    (fm.Bernoulli(0.8), fm.Replace(0.1, 0.9, pool=(29, 7, 20), weights=(3, 2, 5), exclude_original=True)),
    (fm.Diffusion(0.1), fm.Replace(1, 0)),
]
BY_SAMPLE: list[Masker] = [
    (fm.Bernoulli(0.2, "token", 9, 12), fm.Replace(0.3, 0.5)),
    (fm.Bernoulli(0.5, "word", 0, 9), fm.Replace(0.3, 0.4, unit="word")),
    (fm.Bernoulli(0.5), fm.Replace(0.3, 0.4, unit="span")),
    (fm.Bernoulli(0.5), fm.Replace(0.3, 0.4, unit="word")),
    (fm.ExactCount(0.3), fm.Replace(0.3, 0.4)),
    (fm.ExactCount(0.5, count_of="sequence"), fm.Replace(0, 1, pool="vocab", weights=WEIGHTS)),
    (fm.ExactCount(0.4, "word"), fm.Replace(0.3, 0.4, unit="span", exclude_original=True)),
    (fm.ExactCount(0.5, "word", 3, 11, "candidates"), fm.Replace(0.3, 0.4)),
    (fm.ExactCount(0.8), fm.Replace(0, 1, pool=(29, 7, 20), exclude_original=True)),
    (fm.ExactCount(0.8), fm.Replace(0.1, 0.9, pool="vocab", weights=WEIGHTS, exclude_original=True)),
    (fm.Spans(0.4, GEOMETRIC), fm.Replace(0.3, 0.4, unit="span")),
    (fm.Spans(0.5, GEOMETRIC), fm.Replace(0.3, 0.4, unit="word")),
    (fm.Spans(0.9, fm.Fixed(2), "word", 0, 30), fm.Replace(0.3, 0.4)),
    (fm.Spans(0.6, GEOMETRIC, "word"), fm.Replace(0.3, 0.4, unit="word")),
]


def on_device(x: Any) -> Any:
    return memory().to_device(x)


def seed_of(number: int) -> int:
    return (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64)


def mask_batches(maskers: Sequence[Masker] = (*BY_TOKEN, *BY_SAMPLE)) -> None:
    """Each law in several layouts, with everything that a call may say."""
    for number, (law, how) in enumerate(maskers):
        for at, layout in enumerate(LAYOUTS):
            said = {"marks": at % 2 == 0, "named": at % 3 != 1, "rates": at % 3 == 1, "offsets": at % 3 == 2}
            if isinstance(law, fm.Spans):
                said["offsets"] = False
            if isinstance(law, fm.Diffusion):
                said["rates"] = False
            beginnings = (None, 0.5, 0.9, 0.05)[(number + at) % 4]
            vocab = VOCABS[(number + 2 * at) % len(VOCABS)]
            batch = random_batch(number * 5 + at, vocab, layout, LENGTHS, beginnings, 0.2, **said)
            masker = fm.Masker(vocab, law, how, seed=seed_of(number * 5 + at))
            agree_on_device(masker, batch, EPOCH, SHAPES[(number + at) % len(SHAPES)])


def mask_aligned_batches() -> None:
    """Rows of whole quads, for kernels that take four tokens at a time."""
    lengths = [min(length, 69) for length in LENGTHS]
    for number, (law, how) in enumerate(BY_TOKEN * 4):
        rates = number % 4 == 1 and not isinstance(law, fm.Diffusion)
        said = {"marks": number % 2 == 0, "named": number % 3 != 1, "rates": rates}
        vocab = VOCABS[number % len(VOCABS)]
        batch = random_batch(number, vocab, "left", lengths, None, 0.2, **said)
        assert batch.shape[1] % 4 == 0
        masker = fm.Masker(vocab, law, how, seed=seed_of(number) & -4 | batch.ids.size % 4)
        agree_on_device(masker, batch, EPOCH, SHAPES[number % len(SHAPES)])


def mask_what_device_memory_names(maskers: Sequence[Masker] = (*BY_TOKEN, *BY_SAMPLE[::3])) -> None:
    """The epoch and the id of the first sample lie in device memory, or the first sample has an id of the host."""
    firsts, epochs = (0, (1 << 32) - 3, (1 << 63) - 1), (0, 1 << 16, (1 << 24) - 1)
    for number, (law, how) in enumerate(maskers):
        for at, (first, epoch) in enumerate(zip(firsts, epochs, strict=True)):
            length = (24, 23, 25)[(number + at) % 3] if at else 24
            masker = fm.Masker(BARE, law, how, seed=seed_of(number))
            for batch in (whole_rows(number, 5, length, sample_ids=first), whole_rows(number, 5, length)):
                agree_on_device(masker, batch, np.array(epoch), SHAPES[(number + at) % len(SHAPES)])


def call_the_rest() -> None:
    """What no such batch launches: numbers to be checked, rates of strata, targets in rows, supplied decisions."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 30, (7, 23))
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.5), seed=3)
    lengths = on_device(np.array([23, 0, 24, -1, 9, 5, 1]))
    masker(on_device(ids), epoch=1, returns="compact", max_predictions=9, lengths=lengths)
    masker(on_device(ids), epoch=1, lengths=on_device(np.array([0, 23, 1, 22, 23, 23, 0])))
    masker(on_device(ids), epoch=1, returns="compact", max_predictions=23, sample_ids=on_device(np.arange(-2, 5)))
    bad = np.array([0.5, -0.1, np.nan, 1.0, 2.0, 0.25, 1e-9])
    masker(on_device(ids), epoch=1, rates=on_device(bad))
    fm.Masker(VOCAB, fm.ExactCount(0.5), seed=3)(on_device(ids), epoch=1, rates=on_device(bad))
    for ones in ((0, 1), (0, 1, 2)):
        for dtype in (np.float64, np.int64):
            ragged = on_device(rng.choice(ones, ids.shape).astype(dtype))
            masker(on_device(ids), epoch=1, attention_mask=ragged)
    for bounds in ([0, 40, 30, 161], [0, -1, 170, 161], [*range(0, 161, 8), 161], [0, 150, *range(20), 161]):
        given = {"cu_seqlens": on_device(np.array(bounds)), "returns": "compact"}
        for most in (5, 40, None):
            masker(on_device(ids.reshape(-1)), epoch=1, max_predictions=most, **given)
    for size in (1, 1, 2, 2, 3, 9, 17, 40, 70):
        wrong = np.sort(rng.integers(-20, 180, size))[rng.permutation(size) if size % 2 else slice(None)]
        masker(on_device(ids.reshape(-1)), epoch=1, cu_seqlens=on_device(wrong))
    strata = fm.Masker(VOCAB, fm.Diffusion(0.1), fm.Replace(1, 0), seed=3)
    for epoch in (1, on_device(np.array(EPOCH))):
        strata(on_device(ids), epoch=epoch, returns="rates", stratify=(2, 9, 5))
        many = on_device(np.resize(ids, (700, 4)))  # rates tell little of a word: the last bits by one in 256
        strata(many, epoch=epoch, returns="rates", stratify=(0, 700, 6))
        for first in (3, on_device(np.array(1 << 33)), on_device(np.arange(700) << 40)):
            strata(many, epoch=epoch, returns="rates", sample_ids=first)
    supply_decisions(ids, rng)
    name_what_is_out_of_range(ids)


def supply_decisions(ids: Any, rng: np.random.Generator) -> None:
    chances = rng.choice([0.0, 0.8, 0.85, 0.9, 1.0, 0.3], ids.shape)
    tokens, chosen, drawn = (on_device(x) for x in (ids, rng.random(ids.shape) < 0.6, ids[::-1].copy()))
    for last in (1, 6, -1):
        one = [x.reshape(-1)[:last] for x in (tokens, chosen, on_device(chances), drawn)]
        fm.apply_mlm_mask(*one)
    fm.apply_mlm_mask(tokens, chosen, on_device(chances), drawn)
    chances[3, 3] = 1.5
    fm.apply_mlm_mask(tokens, chosen, on_device(chances), drawn, check=False)


def name_what_is_out_of_range(ids: Any) -> None:
    """Epochs, sample ids and token ids that a flag tells of."""
    aligned = ids[:, :20].copy()
    for vocab, law in ((VOCAB, fm.Bernoulli(0.5)), (BARE, fm.Bernoulli(0.5)), (BARE, fm.ExactCount(0.5))):
        masker = fm.Masker(vocab, law, seed=3)
        for given in (ids, aligned):
            for epoch, first in ((-1, 0), (1 << 24, 0), (0, -1), (0, -(1 << 63))):
                masker(on_device(given), epoch=on_device(np.array(epoch)), sample_ids=on_device(np.array(first)))
            for place, token in enumerate((60, -1, 1 << 40, 61)):
                bad = given.copy()
                bad[place, 4 + place] = token
                masker(on_device(bad), epoch=1)


def launch_everything() -> None:
    """All of the above."""
    mask_batches()
    mask_aligned_batches()
    mask_what_device_memory_names()
    mask_at_borders()
    for shape in SHAPES[:2]:
        with launches_of(shape):
            call_the_rest()
