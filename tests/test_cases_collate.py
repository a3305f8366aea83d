"""Failures of other systems' collators, boiled down. Each test carries the id of its case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import on_host, same
from support_collate import IGNORED, KINDS, masked_by_hand, same_as, tensors
from support_collate import poisoned_buffers as poisoned_buffers

import fastmask as fm

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))


def masker_of(p: float, replace: fm.Replace | None = None, vocab: fm.Vocab = VOCAB, **given: Any) -> fm.Masker:
    return fm.Masker(vocab, fm.Bernoulli(p), replace or fm.Replace(), **{"seed": 7, **given})


on_both_sides = pytest.mark.parametrize("side", ["right", "left"])


@on_host
@on_both_sides
def test_b01_b04_padding_is_never_masked_and_its_labels_are_ignored(side: str, backend: str) -> None:
    rows = [[2, 7, 8, 3], [2, 7, 8, 9, 10, 11, 12, 3]]
    got = fm.collate(masker_of(1), rows, epoch=0, padding_side=side, backend=backend, returns="decisions")
    padding = slice(4) if side == "left" else slice(4, None)
    same(got.input_ids[0, padding], np.zeros(4, np.int64))
    same(got.labels[0, padding], np.full(4, IGNORED))
    same(got.labels[0][got.attention_mask[0] == 1], np.array([IGNORED, 7, 8, IGNORED]))


@on_host
def test_b07_a_real_token_with_the_pad_id_is_real_and_padding_is_not(backend: str) -> None:
    vocab = fm.Vocab(30, 4, pad_token_id=3, special_token_ids=(1, 2))
    got = fm.collate(masker_of(1, vocab=vocab), [[5, 7, 8, 3], [5] * 6], epoch=0, backend=backend)
    same(got.attention_mask, np.array([[1, 1, 1, 1, 0, 0], [1] * 6]))
    same(got.input_ids[0, 3:], np.full(3, 3))
    same(got.labels[0], np.array([5, 7, 8, IGNORED, IGNORED, IGNORED]))


@on_host
@pytest.mark.parametrize("pad", [0, 29])
def test_b08_the_attention_mask_is_that_of_the_input_whatever_is_drawn(pad: int, backend: str) -> None:
    vocab = fm.Vocab(30, 4, pad, (1, 2, 3))
    pool = fm.Replace(0, 1, pool=(pad,))  # every drawn token is the pad id
    got = fm.collate(masker_of(1, pool, vocab), [[2, 7, 8, 3], [9]], epoch=0, backend=backend)
    same(got.attention_mask, np.array([[1, 1, 1, 1], [1, 0, 0, 0]]))
    same(got.input_ids, np.array([[2, pad, pad, 3], [pad, pad, pad, pad]]))
    same(got.labels, np.array([[IGNORED, 7, 8, IGNORED], [9, IGNORED, IGNORED, IGNORED]]))


@on_host
def test_b08_by_default_the_pad_id_is_never_drawn(backend: str) -> None:
    rows = [list(range(5, 30)) * 40 for _ in range(20)]
    got = fm.collate(masker_of(1, fm.Replace(0, 1)), rows, epoch=0, sample_ids=0, backend=backend)
    same(np.unique(got.input_ids), np.arange(5, 30))


@on_host
def test_b15_an_id_out_of_range_is_named_with_sample_position_and_value(backend: str) -> None:
    for bad in (30, -1, 31, 2**40):
        with pytest.raises(ValueError, match=rf"in \[0, 30\), got {bad} in sample 1, position 2"):
            fm.collate(masker_of(0.5), [[5] * 9, [5, 6, bad, bad], [7, bad]], epoch=0, backend=backend)


@on_host
def test_b27_rows_without_candidates_come_back_as_they_were(backend: str) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(1, min_masked=1), seed=7)
    got = fm.collate(masker, [[2, 3], [], [0, 0, 0, 0]], epoch=0, returns="num_masked", backend=backend)
    same(got.input_ids, np.array([[2, 3, 0, 0], [0] * 4, [0] * 4]))
    same(got.labels, np.full((3, 4), IGNORED))
    same(got.num_masked, np.zeros(3, np.int64))


@on_host
def test_b36_spans_do_not_depend_on_the_other_rows(backend: str) -> None:
    masker = fm.Masker(VOCAB, fm.Spans(0.3, fm.Fixed(10)), seed=7)
    rows = [list(range(5, 25)) * 10, list(range(5, 25)) * 2]
    both = fm.collate(masker, rows, epoch=0, sample_ids=[1, 2], backend=backend)
    for row, sample in enumerate(rows):
        alone = fm.collate(masker, [sample], epoch=0, sample_ids=[row + 1], backend=backend)
        same(both.labels[row, : len(sample)], alone.labels[0])


@on_host
def test_b45_arrays_lists_and_tensors_give_equal_results_and_the_width_is_rounded_up(backend: str) -> None:
    masker, ids = masker_of(0.5), np.arange(5, 13)
    want = masked_by_hand(masker, [ids.tolist()], 16, epoch=0)
    for row in (ids, ids.tolist(), tensors([ids.tolist()])[0]):
        got = fm.collate(masker, [row], epoch=0, pad_to_multiple_of=16, token_type_ids=[[1] * 8], backend=backend)
        same_as(got, want)
        same(got.attention_mask, np.array([[1] * 8 + [0] * 8]))
        same(got.token_type_ids, np.array([[1] * 8 + [0] * 8]))
    for row in (ids[None], [ids.tolist()], tensors([[ids.tolist()]])[0]):
        with pytest.raises(ValueError, match=r"input_ids of sample 0 must have 1 dimension, got shape \(1, 8\)"):
            fm.collate(masker, [row], epoch=0, backend=backend)


@on_host
@pytest.mark.parametrize("kind", ["arrays", "a pair", "lists"])
def test_b54_flat_and_padded_layouts_give_numpy_arrays_and_identical_masks(kind: str, backend: str) -> None:
    rows = [list(range(5, 5 + n)) for n in (20, 12, 8)]
    padded = fm.collate(masker_of(0.5), KINDS[kind](rows), epoch=0, backend=backend)
    (flat,) = fm.pack(masker_of(0.5), KINDS[kind](rows), epoch=0, max_tokens=40, backend=backend)
    for name in ("input_ids", "labels"):
        assert type(getattr(padded, name)) is type(getattr(flat, name)) is np.ndarray
        same(getattr(flat, name), getattr(padded, name)[padded.attention_mask == 1])


@on_host
def test_b68_16_bit_ids_wrap_nowhere_and_labels_are_wide(backend: str) -> None:
    vocab = fm.Vocab(119547, 103, 0, (100, 101, 102))
    with pytest.raises(OverflowError, match="too narrow for a vocabulary of 119547 ids"):
        fm.collate(masker_of(0.5, vocab=vocab), [np.array([4464, 7], np.uint16)], epoch=0, backend=backend)
    vocab = fm.Vocab(1 << 16, 103, 0, (100, 101, 102))
    row = np.arange(1000, 66000, 65).astype(np.uint16)
    got = fm.collate(masker_of(1, fm.Replace(1, 0), vocab), [row, row[:5]], epoch=0, backend=backend)
    same(got.labels[0], np.where(np.isin(row, (100, 101, 102, 103)), IGNORED, row).astype(np.int64))
    same(got.labels[1, 5:], np.full(995, IGNORED))
    same(got.input_ids[0], np.where(got.labels[0] == IGNORED, row, 103).astype(np.int64))


@on_host
@pytest.mark.parametrize("kind", ["lists", "arrays", "a pair", "Arrow"])
def test_b71_the_data_set_is_as_before_however_often_it_is_collated(kind: str, backend: str) -> None:
    rows = KINDS[kind]([[5, 6, 7, 8], [9, 10], [11, 12, 13]])
    first, second = (fm.collate(masker_of(0.9), rows, epoch=0, backend=backend) for _ in range(2))
    same(first.input_ids, second.input_ids)
    same(first.labels, second.labels)
    untouched = fm.collate(masker_of(0), rows, epoch=0, backend=backend)
    same(untouched.input_ids, np.array([[5, 6, 7, 8], [9, 10, 0, 0], [11, 12, 13, 0]]))
