"""pack: every sample whole, in order, masked as if alone, in batches as full as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import on_host, same
from support_collate import (
    KINDS,
    LENGTHS,
    MASKERS,
    Rows,
    every_kind,
    flat,
    marks_of,
    returns_of,
    same_as,
    some_rows,
    types_of,
    words_of,
)
from support_collate import poisoned_buffers as poisoned_buffers

import fastmask as fm

MASKER = MASKERS["Bernoulli"]
ROWS = some_rows()


def packed_by_hand(masker: fm.Masker, rows: Rows, **said: Any) -> fm.MaskedBatch:
    """What the reference makes of some samples side by side."""
    bounds = np.cumsum([0, *map(len, rows)])
    for name in {"word_ids", "special_tokens_mask"} & set(said):
        said[name] = flat([[-1 if value is None else value for value in row] for row in said[name]])
    return masker(flat(rows), cu_seqlens=bounds, backend="numpy", **said)


def check(parts: list[fm.PackedBatch], rows: Rows, budget: int) -> None:
    """Samples are whole and in order, and no batch could have taken one more."""
    assert [part.samples[0] for part in parts] == [0, *(part.samples[1] for part in parts[:-1])]
    assert parts[-1].samples[1] == len(rows)
    for part in parts:
        first, end = part.samples
        lengths = [len(row) for row in rows[first:end]]
        same(part.cu_seqlens, np.cumsum([0, *lengths], dtype=np.int32))
        same(part.position_ids, flat([list(range(length)) for length in lengths]))
        assert part.max_seqlen == max(lengths)
        assert part.input_ids.size == part.labels.size == sum(lengths) <= budget
        assert end == len(rows) or sum(lengths) + len(rows[end]) > budget


@on_host
@pytest.mark.parametrize("law", MASKERS)
def test_every_law_masks_each_sample_as_if_alone(law: str, backend: str) -> None:
    masker = MASKERS[law]
    call: dict[str, Any] = {"epoch": 3, "returns": returns_of(masker)}
    said: dict[str, Any] = {"word_ids": words_of(ROWS), "special_tokens_mask": marks_of(ROWS)}
    names = np.arange(len(ROWS), dtype=np.uint64) * np.uint64(2**61)
    for sample_ids in (None, names):
        parts = fm.pack(masker, ROWS, max_tokens=1200, sample_ids=sample_ids, backend=backend, **call, **said)
        check(parts, ROWS, 1200)
        assert len(parts) > 1
        for part in parts:
            inside = slice(*part.samples)
            own: dict[str, Any] = {"sample_ids": sample_ids if sample_ids is None else sample_ids[inside]}
            cut: dict[str, Any] = {name: rows[inside] for name, rows in said.items()}
            same_as(part, packed_by_hand(masker, ROWS[inside], **own, **cut, **call))


@on_host
@pytest.mark.parametrize("law", MASKERS)
def test_a_sample_has_the_fates_it_has_in_padded_rows(law: str, backend: str) -> None:
    call: dict[str, Any] = {"epoch": 3, "word_ids": words_of(ROWS), "backend": backend}
    rows = fm.collate(MASKERS[law], ROWS, padding_side="left", **call)
    for part in fm.pack(MASKERS[law], ROWS, max_tokens=1100, **call):
        for sample, (first, end) in enumerate(zip(part.cu_seqlens, part.cu_seqlens[1:], strict=False), part.samples[0]):
            inside = slice(rows.labels.shape[1] - (end - first), None)
            same(part.labels[first:end], rows.labels[sample, inside])
            same(part.input_ids[first:end], rows.input_ids[sample, inside])


@on_host
def test_types_and_marks_go_along(backend: str) -> None:
    given: dict[str, Any] = {"token_type_ids": types_of(ROWS), "special_tokens_mask": marks_of(ROWS)}
    for part in fm.pack(MASKER, ROWS, epoch=0, max_tokens=1100, backend=backend, **given):
        for name, rows in given.items():
            same(getattr(part, name), flat(rows[slice(*part.samples)]))


@on_host
def test_rates_go_to_the_samples(backend: str) -> None:
    rates = np.linspace(0, 1, len(ROWS))
    for part in fm.pack(MASKER, ROWS, epoch=0, max_tokens=1100, rates=rates, backend=backend):
        inside = slice(*part.samples)
        same(part.labels, packed_by_hand(MASKER, ROWS[inside], epoch=0, rates=rates[inside]).labels)


@on_host
@every_kind
def test_every_kind_of_samples_is_packed(kind: str, backend: str) -> None:
    rows = some_rows((5, 0, 30, 1, 64, 0, 9))
    parts = fm.pack(MASKER, KINDS[kind](rows), epoch=1, max_tokens=64, backend=backend)
    check(parts, rows, 64)
    for part in parts:
        same(part.labels, packed_by_hand(MASKER, rows[slice(*part.samples)], epoch=1).labels)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.integers(12, 60))
def test_batches_are_as_full_as_they_can_be(lengths: list[int], budget: int) -> None:
    rows = some_rows(lengths)
    check(fm.pack(MASKER, rows, epoch=0, max_tokens=budget), rows, budget)


@on_host
def test_a_vocabulary_without_a_pad_id_is_packed(backend: str) -> None:
    masker = fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.5))
    (part,) = fm.pack(masker, ROWS, epoch=0, max_tokens=sum(LENGTHS), backend=backend)
    same_as(part, packed_by_hand(masker, ROWS, epoch=0))


@on_host
def test_empty_samples_are_packed(backend: str) -> None:
    (part,) = fm.pack(MASKER, [[], []], epoch=0, max_tokens=1, returns=("num_masked", "compact"), backend=backend)
    check([part], [[], []], 1)
    same(part.num_masked, np.zeros(2, np.int64))


@on_host
def test_what_cannot_be_packed_is_named(backend: str) -> None:
    def pack(rows: Any, most: Any) -> object:
        return fm.pack(MASKER, rows, epoch=0, max_tokens=most, backend=backend)

    with pytest.raises(ValueError, match="max_tokens = 4 is too small: sample 2 has 5 tokens"):
        pack([[5], [6], [5] * 5, [5] * 9], 4)
    for most, message in ((0, "at least 1, got 0"), (1 << 31, r"in \[1, 2\^31\)")):
        with pytest.raises(ValueError, match="max_tokens must be " + message):
            pack([[5]], most)
    with pytest.raises(TypeError, match="max_tokens must be an integer"):
        pack([[5]], 5.0)
    with pytest.raises(ValueError, match="at least one sample"):
        pack([], 5)
    with pytest.raises(ValueError, match="got 30 in sample 2, position 1"):
        pack([[5], [6], [7, 30]], 2)
