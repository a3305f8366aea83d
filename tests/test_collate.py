"""collate: bit for bit what the masker makes of the padded samples, whatever law, side, width, dtype and backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_laws import VOCAB
from support import BERT, on_host, run_python, same
from support_cases import laws, replacements
from support_collate import (
    IGNORED,
    LENGTHS,
    MASKERS,
    arrays,
    by_hand,
    marks_of,
    masked_by_hand,
    returns_of,
    same_as,
    some_rows,
    types_of,
    width_of,
    words_of,
)
from support_collate import poisoned_buffers as poisoned_buffers

import fastmask as fm

PLAIN = MASKERS["Bernoulli"]
ROWS = some_rows()
on_both_sides = pytest.mark.parametrize("side", ["right", "left"])
every_law = pytest.mark.parametrize("law", MASKERS)


@on_host
@on_both_sides
@every_law
def test_every_law_gives_the_bits_of_the_padded_batch(law: str, side: str, backend: str) -> None:
    masker, names = MASKERS[law], np.arange(len(ROWS), dtype=np.uint64) * np.uint64(2**61)
    said: dict[str, Any] = {"word_ids": words_of(ROWS), "special_tokens_mask": marks_of(ROWS)}
    for sample_ids in (None, names):
        call = {"epoch": 3, "sample_ids": sample_ids, "returns": returns_of(masker), **said}
        got = fm.collate(masker, ROWS, padding_side=side, backend=backend, **call)
        same_as(got, masked_by_hand(masker, ROWS, 1100, side == "left", **call))


@on_host
@on_both_sides
def test_masks_types_and_lengths_go_along(side: str, backend: str) -> None:
    left, width = side == "left", 1104
    given: dict[str, Any] = {"token_type_ids": types_of(ROWS), "special_tokens_mask": marks_of(ROWS)}
    got = fm.collate(PLAIN, ROWS, epoch=0, padding_side=side, pad_to_multiple_of=16, backend=backend, **given)
    same(got.attention_mask, by_hand([[1] * len(row) for row in ROWS], width, left, 0))
    same(got.token_type_ids, by_hand(given["token_type_ids"], width, left, 0))
    same(got.special_tokens_mask, by_hand(given["special_tokens_mask"], width, left, 1))
    same(got.lengths, np.array(LENGTHS))


@on_host
def test_what_is_not_given_or_asked_for_is_not_there(backend: str) -> None:
    got = fm.collate(PLAIN, ROWS, epoch=0, backend=backend)
    for name in ("token_type_ids", "special_tokens_mask", "decisions", "num_masked", "compact", "rates", "weights"):
        assert getattr(got, name) is None


@on_host
@on_both_sides
@pytest.mark.parametrize("multiple", [None, 1, 8, 1099, 4096])
@pytest.mark.parametrize("most", [None, 1, 64, 600, 1100, 5000])
@pytest.mark.parametrize("law", ["Bernoulli", "Spans"])
def test_rows_are_cut_and_the_width_is_rounded_up(
    law: str, most: int | None, multiple: int | None, side: str, backend: str
) -> None:
    masker, cut = MASKERS[law], [row[:most] for row in ROWS]
    call: dict[str, Any] = {"epoch": 1, "returns": returns_of(masker)}
    got = fm.collate(
        masker, ROWS, padding_side=side, pad_to_multiple_of=multiple, max_length=most, backend=backend, **call
    )
    same_as(got, masked_by_hand(masker, cut, width_of(cut, multiple), side == "left", **call))
    same(got.lengths, np.minimum(LENGTHS, most or 5000))


@on_host
@pytest.mark.parametrize("law", ["Bernoulli words", "Diffusion"])
def test_what_goes_along_is_cut_with_the_rows(law: str, backend: str) -> None:
    masker, cut = MASKERS[law], [row[:100] for row in ROWS]
    said: dict[str, Any] = {"word_ids": words_of(ROWS), "special_tokens_mask": marks_of(ROWS)}
    got = fm.collate(masker, ROWS, epoch=1, token_type_ids=types_of(ROWS), max_length=100, backend=backend, **said)
    cut_too: dict[str, Any] = {name: [row[:100] for row in x] for name, x in said.items()}
    want = masked_by_hand(masker, cut, 100, epoch=1, **cut_too)
    same(got.labels, want.labels)
    same(got.token_type_ids, by_hand([row[:100] for row in types_of(ROWS)], 100, False, 0))


@on_host
@on_both_sides
@pytest.mark.parametrize("law", ["Bernoulli", "ExactCount", "Diffusion"])
def test_many_short_rows_are_masked_as_few_long_ones(law: str, side: str, backend: str) -> None:
    masker = MASKERS[law]
    rows = some_rows(np.random.default_rng(1).integers(0, 8, 1500).tolist())
    call: dict[str, Any] = {"epoch": 1, "sample_ids": 5, "returns": returns_of(masker)}
    got = fm.collate(masker, rows, padding_side=side, pad_to_multiple_of=8, backend=backend, **call)
    same_as(got, masked_by_hand(masker, rows, 8, side == "left", **call))


@on_host
@every_law
def test_without_padding_nothing_is_different(law: str, backend: str) -> None:
    masker, rows = MASKERS[law], some_rows([96] * 50)
    call: dict[str, Any] = {"epoch": 1, "returns": returns_of(masker), "word_ids": words_of(rows)}
    same_as(fm.collate(masker, rows, backend=backend, **call), masked_by_hand(masker, rows, 96, **call))


@on_host
@on_both_sides
def test_slots_for_compact_targets_are_filled_row_by_row(side: str, backend: str) -> None:
    masker = MASKERS["ExactCount"]
    call: dict[str, Any] = {"epoch": 1, "returns": "compact", "max_predictions": 200}
    got = fm.collate(masker, ROWS, padding_side=side, backend=backend, **call)
    same_as(got, masked_by_hand(masker, ROWS, 1100, side == "left", **call))


@on_host
def test_rates_and_strata_go_to_the_samples(backend: str) -> None:
    rates = np.linspace(0, 1, len(ROWS))
    for law in ("Bernoulli", "ExactCount"):
        want = masked_by_hand(MASKERS[law], ROWS, 1100, epoch=1, rates=rates)
        same(fm.collate(MASKERS[law], ROWS, epoch=1, rates=rates, backend=backend).labels, want.labels)
    call: dict[str, Any] = {"epoch": 1, "stratify": (3, 16, 5), "returns": "rates"}
    got = fm.collate(MASKERS["Diffusion"], ROWS, backend=backend, **call)
    same_as(got, masked_by_hand(MASKERS["Diffusion"], ROWS, 1100, **call))


@on_host
@pytest.mark.parametrize(
    ("law", "dtype"),
    [
        ("Bernoulli", "uint16"),
        ("Bernoulli", "int16"),
        *(pytest.param(*mix, marks=pytest.mark.slow) for mix in (("Bernoulli", ">i4"), ("ExactCount", "uint16"))),
    ],
)
def test_dtypes_are_those_of_the_masker(law: str, dtype: str, backend: str) -> None:
    labels = np.int32 if dtype == ">i4" else np.int64
    masker = fm.Masker(VOCAB, MASKERS[law].select, seed=3, label_dtype=labels)
    got = fm.collate(masker, arrays(ROWS, dtype), epoch=2, backend=backend)
    want = masked_by_hand(masker, ROWS, 1100, epoch=2)
    same(got.input_ids, want.input_ids.astype(np.int32 if dtype == ">i4" else np.int64))
    same(got.labels, want.labels)


def test_other_seeds_epochs_and_ignored_labels_are_heard() -> None:
    masker = fm.Masker(BERT, fm.Bernoulli(0.3), seed=2**63, ignore_index=-1)
    rows = [[101, *range(2000, 2300), 102], [101, *range(900, 917), 102]]
    for epoch in (0, 1, (1 << 24) - 1):
        same(fm.collate(masker, rows, epoch=epoch).labels, masked_by_hand(masker, rows, 302, epoch=epoch).labels)


@on_host
@on_both_sides
@pytest.mark.parametrize("rows", [[[]], [[], [], []]])
def test_batches_of_empty_rows_have_no_column_or_padding_alone(rows: Any, side: str, backend: str) -> None:
    got = fm.collate(PLAIN, rows, epoch=0, padding_side=side, backend=backend)
    same(got.input_ids, np.empty((len(rows), 0), np.int64))
    same(got.lengths, np.zeros(len(rows), np.int64))
    call: dict[str, Any] = {"epoch": 0, "padding_side": side, "pad_to_multiple_of": 8, "backend": backend}
    got = fm.collate(PLAIN, [*rows, [5]], returns="num_masked", token_type_ids=[*rows, [1]], **call)
    same(got.input_ids[: len(rows)], np.zeros((len(rows), 8), np.int64))
    same(got.labels[: len(rows)], np.full((len(rows), 8), IGNORED))
    same(got.attention_mask.sum(axis=1), np.array([0] * len(rows) + [1]))


@on_host
@every_law
def test_a_sample_keeps_its_fates_in_any_batch(law: str, backend: str) -> None:
    masker, sample = MASKERS[law], some_rows([300], seed=5)[0]
    alone = fm.collate(masker, [sample], epoch=1, sample_ids=[77], backend=backend)
    for row, side in ((0, "right"), (4, "left"), (10, "right")):
        rows = [*ROWS[:row], sample, *ROWS[row:]]
        names = [77 if i == row else i for i in range(len(rows))]
        got = fm.collate(masker, rows, epoch=1, sample_ids=names, padding_side=side, backend=backend)
        where = slice(-300, None) if side == "left" else slice(300)
        same(got.input_ids[row, where], alone.input_ids[0])
        same(got.labels[row, where], alone.labels[0])


@st.composite
def samples(draw: st.DrawFn) -> list[list[int]]:
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17, 64, 100, 513, 600]), min_size=1, max_size=12))
    return some_rows(lengths, seed=draw(st.integers(0, 99)))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), rows=samples())
def test_any_law_on_any_samples_gives_the_bits_of_the_padded_batch(data: st.DataObject, rows: list[list[int]]) -> None:
    draw = data.draw
    law = draw(laws())
    masker = fm.Masker(VOCAB, law, draw(replacements(law)), seed=draw(st.integers(0, 2**64 - 1)))
    said: dict[str, Any] = {"epoch": draw(st.integers(0, 2**24 - 1)), "returns": returns_of(masker)}
    if draw(st.booleans()):
        said["word_ids"] = words_of(rows)
    if draw(st.booleans()):
        said["special_tokens_mask"] = marks_of(rows)
    if draw(st.booleans()):
        said["sample_ids"] = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(rows), max_size=len(rows)))
    side, most = draw(st.sampled_from(["right", "left"])), draw(st.none() | st.integers(1, 700))
    multiple = draw(st.none() | st.integers(1, 70))
    got = fm.collate(masker, rows, padding_side=side, pad_to_multiple_of=multiple, max_length=most, **said)
    for name in {"word_ids", "special_tokens_mask"} & set(said):
        said[name] = [row[:most] for row in said[name]]
    cut = [row[:most] for row in rows]
    same_as(got, masked_by_hand(masker, cut, width_of(cut, multiple), side == "left", **said))


@pytest.mark.slow
def test_no_kernel_leaves_an_array_under_a_checker_of_bounds(tmp_path: Path) -> None:
    code = """
import sys
sys.path.insert(0, "tests")
from support_collate import *
import fastmask as fm
for name in ("Bernoulli", "ExactCount words", "Spans"):
    for lengths in ((0, 1, 63, 64, 511, 513, 1100, 0), (512, 512), [3] * 1500):
        rows, masker = some_rows(lengths), MASKERS[name]
        said = {"word_ids": words_of(rows), "special_tokens_mask": marks_of(rows), "returns": returns_of(masker)}
        for side in ("right", "left"):
            for samples in (rows, arrays(rows, "uint16")):
                got = fm.collate(masker, samples, epoch=1, padding_side=side, token_type_ids=types_of(rows), **said)
                if len(rows) < 100:
                    same_as(got, masked_by_hand(masker, rows, max(lengths), side == "left", epoch=1, **said))
"""
    assert run_python(code, "-W", "ignore", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path)) == ""
