"""Every law on the CPU leaves the bits of the reference: at the borders of chunks and tiles, in every layout."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from plain_laws import VOCAB
from support import BERT, SCATTERED, same
from support_devices import Agree
from support_laws import LAYOUTS, allowed, random_batch, wordy

import fastmask as fm
from fastmask.laws import Law

GEOMETRIC = fm.Geometric(0.2, 10)
LAWS: dict[str, Law] = {
    "Bernoulli": fm.Bernoulli(0.3),
    "Bernoulli, limits": fm.Bernoulli(0.2, min_masked=5, max_masked=40),
    "Bernoulli words": fm.Bernoulli(0.3, "word"),
    "Bernoulli words, limits": fm.Bernoulli(0.1, "word", 12, 70),
    "ExactCount": fm.ExactCount(0.15),
    "ExactCount, limits": fm.ExactCount(0.15, min_masked=9, max_masked=63),
    "ExactCount of the sequence": fm.ExactCount(0.5, count_of="sequence"),
    "ExactCount words": fm.ExactCount(0.3, "word"),
    "ExactCount words by tokens": fm.ExactCount(0.3, "word", count_of="candidates"),
    "ExactCount words, limits": fm.ExactCount(0.5, "word", 3, 65, "sequence"),
    "Spans": fm.Spans(0.3, GEOMETRIC),
    "Spans words": fm.Spans(0.15, fm.InverseLength(3), "word"),
    "Spans, limits": fm.Spans(0.5, fm.Fixed(70), "token", 4, 129),
    "Diffusion": fm.Diffusion(1e-3),
}
UNITS = ("token", "word", "span")
SAID = ("marks", "rates", "offsets", "named")
VOCABS = (VOCAB, wordy(SCATTERED), wordy(BERT, 0.7))
SHARES = ((0.4, 0.4), (0.8, 0.1), (0.0, 1.0))


def replacement(law: Law, unit: Any, number: int = 0) -> fm.Replace:
    if isinstance(law, fm.Diffusion):
        return fm.Replace(1, 0)
    return fm.Replace(*SHARES[number % 3], unit=unit, exclude_original=number % 5 == 0)


# What a call says beside the layout takes all sixteen forms in turn, and so do vocabularies and shares.
GRID = [
    pytest.param(number, *which, id=", ".join(which))
    for number, which in enumerate(product(LAWS, UNITS, LAYOUTS))
    if which[:2] not in (("Diffusion", "word"), ("Diffusion", "span"))
]


@pytest.mark.parametrize(("number", "law", "unit", "layout"), GRID)
def test_every_law_and_unit_of_replacement_in_every_layout(
    number: int, law: str, unit: str, layout: str, agree_everywhere: Agree
) -> None:
    select = LAWS[law]
    for beginnings in (None, 0.4):
        number = number * 7 + (beginnings is None)
        vocab = VOCABS[(number // 3) % 3 if layout != "pad id" else 0]
        said = allowed(select, {name: bool(number >> bit & 1) for bit, name in enumerate(SAID)})
        batch = random_batch(number, vocab, layout, beginnings=beginnings, **said)
        agree_everywhere(fm.Masker(vocab, select, replacement(select, unit, number), seed=number), batch)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("beginnings", [0.0, 0.005, 1.0])
@pytest.mark.parametrize("specials", [0.0, 0.01, 1.0])
def test_words_of_any_length_up_to_the_whole_row(law: str, beginnings: float, specials: float, agree: Agree) -> None:
    for unit in UNITS if law != "Diffusion" else UNITS[:1]:
        masker = fm.Masker(VOCAB, LAWS[law], replacement(LAWS[law], unit), seed=3)
        agree(masker, random_batch(11, VOCAB, "packed", beginnings=beginnings, specials=specials))


@pytest.mark.parametrize("law", LAWS)
def test_rates_of_a_sample_are_those_of_the_reference(law: str, agree: Agree) -> None:
    masker = fm.Masker(VOCAB, LAWS[law], replacement(LAWS[law], "token"), seed=3)
    batch = random_batch(5, VOCAB, "middle", **allowed(LAWS[law], {"rates": True}))
    agree(masker, batch)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("beginnings", [0.3, 0.0001])
def test_a_row_of_131072_tokens(law: str, beginnings: float, agree_at_length: Agree) -> None:
    select = LAWS[law]
    if isinstance(select, fm.Bernoulli | fm.ExactCount) and select.max_masked is not None:
        select = type(select)(select.p, select.unit, 20_000, 30_000)
    masker = fm.Masker(wordy(BERT), select, replacement(select, "token"), seed=3)
    agree_at_length(masker, random_batch(8, BERT, "left", [131_072], beginnings, specials=0.01))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0), (2, 3)])
def test_empty_batches_and_rows_without_candidates_come_back_as_they_were(law: str, shape: tuple[int, int]) -> None:
    masker = fm.Masker(VOCAB, LAWS[law], replacement(LAWS[law], "token"), seed=3)
    batch = masker(np.full(shape, 2), epoch=0, returns=("decisions", "num_masked", "compact"))
    same(batch.input_ids, np.full(shape, 2))
    same(batch.labels, np.full(shape, -100))
    same(batch.num_masked, np.zeros(shape[0], np.int64))
    assert batch.compact is not None
    assert batch.compact.ids.size == 0


@pytest.mark.parametrize("law", LAWS)
def test_empty_segments_come_back_empty(law: str, agree: Agree) -> None:
    masker = fm.Masker(VOCAB, LAWS[law], replacement(LAWS[law], "token"), seed=3)
    for lengths in ([], [0], [0, 0, 0], [0, 700, 0, 0, 3, 0]):
        agree(masker, random_batch(5, VOCAB, "packed", lengths))


@pytest.mark.parametrize("seed", [0, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("epoch", [0, (1 << 24) - 1])
@pytest.mark.parametrize("law", ["Bernoulli, limits", "ExactCount", "Spans", "Diffusion"])
def test_extreme_seeds_epochs_and_sample_ids_are_no_exception(law: str, seed: int, epoch: int, agree: Agree) -> None:
    batch = random_batch(6, VOCAB, "left", [70] * 4)
    batch.rows["sample_ids"] = np.array([0, 1, 1 << 32, (1 << 64) - 1], np.uint64)
    agree(fm.Masker(VOCAB, LAWS[law], replacement(LAWS[law], "token"), seed=seed), batch, epoch)


@pytest.mark.parametrize("p", [0.0, 1e-6, 2.0**-24, 0.5, 1 - 2.0**-25, 1.0])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_extreme_probabilities_are_no_exception(p: float, unit: Any, agree: Agree) -> None:
    for law in (fm.Bernoulli(p, unit, 1), fm.ExactCount(p, unit), fm.Spans(p, GEOMETRIC, unit), fm.Diffusion(p)):
        agree(fm.Masker(VOCAB, law, replacement(law, "token"), seed=3), random_batch(7, VOCAB, "left"))


@pytest.mark.parametrize(
    ("dtype", "id_dtype", "label_dtype"),
    [("int32", "int32", "int64"), ("uint16", None, "int32")],
)
@pytest.mark.slow  # each compiles a kernel
def test_dtypes_decide_nothing(dtype: str, id_dtype: Any, label_dtype: str) -> None:
    batch = random_batch(9, VOCABS[1], "middle")
    parts = VOCABS[1], fm.Spans(0.3, GEOMETRIC, "word"), fm.Replace(0.4, 0.4, unit="span")
    call: dict[str, Any] = {"epoch": 1, "returns": ("compact", "decisions"), **batch.arguments}
    want = fm.Masker(*parts, seed=5)(batch.shaped, backend="numpy", **call)
    got = fm.Masker(*parts, seed=5, id_dtype=id_dtype, label_dtype=label_dtype)(batch.shaped.astype(dtype), **call)
    same(got.input_ids, want.input_ids.astype(id_dtype or "int64"))
    same(got.labels, want.labels.astype(label_dtype))
    same(got.decisions, want.decisions)
    assert got.compact is not None
    assert want.compact is not None
    same(got.compact.ids, want.compact.ids.astype(label_dtype))
    same(got.compact.positions, want.compact.positions)


@pytest.mark.parametrize("layout", ["packed", "middle"])
@pytest.mark.parametrize("width", [None, 70])
def test_compact_targets_are_the_labels_that_are_not_ignored(layout: str, width: int | None) -> None:
    batch = random_batch(10, VOCAB, layout)
    masker = fm.Masker(VOCAB, fm.ExactCount(0.3, max_masked=70), seed=3)
    call: dict[str, Any] = {"epoch": 1, "returns": "compact", "max_predictions": width, **batch.arguments}
    got, want = (masker(batch.shaped, backend=name, **call).compact for name in ("cpu", "numpy"))
    assert got is not None
    assert want is not None
    for one, other in zip(got, want, strict=True):
        same(one, other)
    assert got.ids.shape == ((len(batch.layout.lengths), 70) if width else (int(got.counts.sum()),))
