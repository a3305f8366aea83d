"""Presets: the law of each, what its options change, and batches of those that select token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import same, same_batches

import fastmask as fm
from fastmask import presets

VOCAB = fm.Vocab(size=40, mask_token_id=5, pad_token_id=0, special_token_ids=(1, 3, 4))  # [CLS] 3, [SEP] 4
AMINO_ACIDS = range(10, 30)
untyped: Any = presets  # for calls that a type checker refuses

Preset = Callable[..., fm.Masker]


def esm2(vocab: fm.Vocab, seed: int = 0) -> fm.Masker:
    return presets.esm2(vocab, seed, amino_acids=AMINO_ACIDS)


def counted(unit: Any = "token", p: float = 0.15, max_masked: int | None = None) -> fm.ExactCount:
    return fm.ExactCount(p, unit, 1, max_masked, "sequence")


LAWS: list[tuple[Preset, Any, fm.Replace]] = [
    (presets.bert, counted(), fm.Replace(0.8, 0.1)),
    (presets.roberta, fm.Bernoulli(0.15), fm.Replace(0.8, 0.1)),
    (presets.modernbert, fm.Bernoulli(0.3), fm.Replace(0.8, 0.1)),
    (
        presets.spanbert,
        fm.Spans(0.15, fm.Geometric(0.2, 10), unit="word", min_masked=1),
        fm.Replace(0.8, 0.1, unit="span"),
    ),
    (presets.albert, fm.Spans(0.15, fm.InverseLength(3), unit="word", min_masked=1), fm.Replace(0.8, 0.1)),
    (presets.electra, counted(), fm.Replace(0.85, 0)),
    (presets.llada, fm.Diffusion(1e-3), fm.Replace(1, 0)),
    (presets.mdlm, fm.Diffusion(1e-3), fm.Replace(1, 0)),
    (esm2, fm.Bernoulli(0.15), fm.Replace(0.8, 0.1, pool=AMINO_ACIDS)),
]
on_all = pytest.mark.parametrize(("preset", "select", "replace"), LAWS, ids=[row[0].__name__ for row in LAWS])
by_token = pytest.mark.parametrize("preset", [presets.roberta, presets.modernbert, esm2])


# Laws.


@on_all
def test_a_preset_is_the_masker_with_its_law(preset: Preset, select: Any, replace: fm.Replace) -> None:
    assert preset(VOCAB) == fm.Masker(VOCAB, select, replace)
    assert preset(VOCAB, 2**64 - 1) == fm.Masker(VOCAB, select, replace, seed=2**64 - 1)


def test_every_preset_is_tested() -> None:
    assert sorted(row[0].__name__ for row in LAWS) == presets.__all__
    assert fm.presets is presets


@pytest.mark.parametrize("name", presets.__all__)
def test_a_preset_says_where_it_comes_from_and_differs_and_shows_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(presets, name)) or ""
    assert all(part in text for part in ("\nSource: ", "\nDiffers:\n", "\n>>> "))


OPTIONS: list[tuple[fm.Masker, Any, fm.Replace]] = [
    (presets.bert(VOCAB, whole_word=True), counted("word"), fm.Replace()),
    (presets.bert(VOCAB, max_masked=20), counted(max_masked=20), fm.Replace()),
    (presets.bert(VOCAB, pool="vocab"), counted(), fm.Replace(pool="vocab")),
    (presets.bert(VOCAB, pool=[7, 9]), counted(), fm.Replace(pool=[7, 9])),
    (presets.modernbert(VOCAB, p=0.15), fm.Bernoulli(0.15), fm.Replace()),
    (
        presets.spanbert(VOCAB, weights=range(40)),
        fm.Spans(0.15, fm.Geometric(0.2, 10), "word", 1),
        fm.Replace(weights=range(40), unit="span"),
    ),
    (
        presets.albert(VOCAB, ngram=5, max_masked=20),
        fm.Spans(0.15, fm.InverseLength(5), "word", 1, 20),
        fm.Replace(),
    ),
    (presets.electra(VOCAB, p=0.25, mask=1.0), counted(p=0.25), fm.Replace(1, 0)),
    (presets.electra(VOCAB, max_masked=19), counted(max_masked=19), fm.Replace(0.85, 0)),
]


@pytest.mark.parametrize(("masker", "select", "replace"), OPTIONS)
def test_options_change_what_they_name(masker: fm.Masker, select: Any, replace: fm.Replace) -> None:
    assert masker == fm.Masker(VOCAB, select, replace)


@pytest.mark.parametrize("mask", [0.85, 1.0])
def test_electra_never_draws_a_random_token(mask: float) -> None:
    plan = presets.electra(VOCAB, mask=mask).plan
    assert plan.random_share == plan.mask_share


# Errors.


def test_the_pool_of_amino_acids_is_never_guessed() -> None:
    with pytest.raises(TypeError, match="amino_acids"):
        untyped.esm2(VOCAB)


@pytest.mark.parametrize(
    ("amino_acids", "message"),
    [(range(24, 4), "pool holds 0 ids"), (range(30, 41), "pool holds 40, outside"), ([9, 9], "pool holds 9 more")],
)
def test_a_pool_of_amino_acids_that_cannot_be_drawn_from_is_refused(amino_acids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        presets.esm2(VOCAB, amino_acids=amino_acids)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: presets.bert(VOCAB, max_masked=0), "max_masked must be at least min_masked = 1, got 0"),
        (lambda: presets.modernbert(VOCAB, p=1.5), "p must lie in"),
        (lambda: presets.albert(VOCAB, ngram=0), "n must be in"),
        (lambda: presets.electra(VOCAB, mask=1.1), "mask must lie in"),
        (lambda: presets.spanbert(VOCAB, weights=[1, 2]), "weights holds 2 numbers for a pool of 40 ids"),
        (lambda: presets.llada(VOCAB, -1), "seed must be in"),
    ],
)
def test_options_out_of_range_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# Batches.


def rows_of_candidates() -> Any:
    return np.random.default_rng(0).integers(6, 40, (200, 1000))


def off_by(count: int, p: float, of: int) -> float:
    """How many standard deviations a count of independent events is away from its mean."""
    return float(abs(count - p * of) / np.sqrt(of * p * (1 - p)))


@by_token
def test_realised_shares_are_those_of_the_law(preset: Preset) -> None:
    ids = rows_of_candidates()
    masker = preset(VOCAB, 11)
    batch = masker(ids, epoch=0, backend="numpy", returns="decisions")
    select: Any = masker.select
    _, masked, random, kept = np.bincount(batch.decisions.reshape(-1), minlength=4)
    selected = int(masked + random + kept)
    assert off_by(selected, select.p, ids.size) < 4
    for count, share in zip((masked, random, kept), (0.8, 0.1, 0.1), strict=True):
        assert off_by(count, share, selected) < 4
    drawn = np.unique(batch.input_ids[batch.decisions == 2])
    same(drawn, np.arange(10, 30) if preset is esm2 else np.arange(2, 40)[np.r_[0, 4:38]])


@by_token
def test_special_tokens_of_any_vocabulary_stay(preset: Preset) -> None:
    row = [3, 9, 12, 5, 20, 1, 30, 4, 0, 0]
    ids = np.tile(row, (500, 1))
    batch = preset(VOCAB)(ids, epoch=0, sample_ids=0, backend="numpy")
    special = np.isin(row, VOCAB.special_token_ids)
    same(batch.input_ids[:, special], ids[:, special])
    assert (batch.labels[:, special] == -100).all()
    assert (batch.labels[:, ~special] != -100).any(axis=0).all()
    assert not np.isin(batch.input_ids[:, ~special], (0, 1, 3, 4)).any()


def test_one_epoch_is_one_mask_and_another_is_another() -> None:
    ids = rows_of_candidates()[:4]
    masker = presets.roberta(VOCAB, 3)
    first, again, other = (masker(ids, epoch=epoch, backend="numpy") for epoch in (0, 0, 1))
    same_batches(first, again)
    assert (first.labels != other.labels).any()
