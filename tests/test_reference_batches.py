"""The reference on whole batches: invariances, odd shapes and ids, supplied decisions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from plain import IGNORED, plain_content_id, plain_row
from support import Array, same
from support_reference import equal, lengths_of, mask, part, plan_of, poisoned, sample_of, some_rows

from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.replace import Replace
from fastmask.vocab import Vocab

# Invariances.


def test_a_sample_has_the_same_fates_alone_and_in_any_batch() -> None:
    ids = some_rows(7, 40)
    samples = sample_of(*range(100, 107))
    plan = plan_of(0.4)
    batch = mask(plan, ids, sample_ids=samples)
    order = [4, 0, 6]
    other = mask(plan, ids[order], sample_ids=samples[order])
    for place, row in enumerate(order):
        alone = mask(plan, ids[row], sample_ids=samples[row : row + 1])
        equal(part(batch, row, 0, 40), alone)
        equal(part(other, place, 0, 40), alone)


@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (3, 0), (0, 9), (5, 2)])
@pytest.mark.parametrize("named", [False, True])
def test_padding_influences_nothing(left: int, right: int, named: bool) -> None:
    ids = some_rows(3, 40)
    given = {"sample_ids": sample_of(1, 2, 3)} if named else {}
    want = mask(plan_of(0.4), ids, **given)
    padded = np.pad(ids, ((0, 0), (left, right)))
    extents = {"starts": lengths_of(left, left, left), "lengths": lengths_of(40, 40, 40)}
    for out in (mask(plan_of(0.4), padded, **given), mask(plan_of(0.4), padded, **given, **extents)):
        for row in range(3):
            equal(part(out, row, left, left + 40), part(want, row, 0, 40))
        outside = np.pad(np.zeros(ids.shape, np.bool_), ((0, 0), (left, right)), constant_values=True)
        same(out.input_ids[outside], padded[outside])
        same(out.labels[outside], np.full(outside.sum(), IGNORED))
        same(out.decisions[outside], np.zeros(outside.sum(), np.uint8))


def test_ids_beyond_the_given_length_come_back_as_they_were() -> None:
    ids = np.full((2, 20), 9)
    out = mask(plan_of(1.0, Replace(1.0, 0.0)), ids, lengths=lengths_of(7, 0))
    same(out.input_ids, np.where(np.arange(20) < np.array([[7], [0]]), 4, 9))
    same(out.num_masked, np.array([7, 0]))


def test_without_a_pad_id_the_whole_row_is_real() -> None:
    vocab = Vocab(size=30, mask_token_id=4)
    out = mask(plan_of(1.0, Replace(1.0, 0.0), vocab=vocab), np.zeros((2, 5), np.int64))
    same(out.input_ids, np.full((2, 5), 4))


@pytest.mark.parametrize("cuts", [[0, 13, 40], [0, 1, 2, 4, 8, 40], [0, 20, 20, 40]])
def test_chunks_with_offsets_keep_the_fates_of_the_document(cuts: list[int]) -> None:
    ids = some_rows(1, 40)
    plan = plan_of(0.5)
    whole = mask(plan, ids, sample_ids=sample_of(5), offsets=sample_of(1000))
    for start, stop in pairwise(cuts):
        piece = {
            "sample_ids": sample_of(5),
            "offsets": sample_of(1000 + start),
            "lengths": lengths_of(stop - start),
        }
        chunk = mask(plan, ids[:, start:stop], **piece)
        for name in ("input_ids", "labels", "decisions"):
            same(getattr(chunk, name), getattr(whole, name)[:, start:stop])


def test_offsets_reach_the_last_position_and_leave_the_content_id_alone() -> None:
    ids = some_rows(2, 24)
    offsets = sample_of(3, 2**34 - 24)
    out = mask(plan_of(0.5), ids, offsets=offsets)
    pool: dict[int, float | None] = dict.fromkeys(range(5, 30))
    for row, (tokens, offset) in enumerate(zip(ids.tolist(), offsets.tolist(), strict=True)):
        want = plain_row(tokens, 0.5, Replace(), pool, 1, plain_content_id(tokens), offset)
        same(out.decisions[row], np.array(want[2], np.uint8))
        same(out.input_ids[row], np.array(want[0]))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
def test_dtypes_decide_nothing(dtype: Any, id_dtype: Any, label_dtype: Any) -> None:
    ids = some_rows(3, 40)
    want = mask(plan_of(0.4), ids)
    out = mask(plan_of(0.4), ids.astype(dtype), id_dtype, label_dtype)
    same(out.input_ids, want.input_ids.astype(id_dtype))
    same(out.labels, want.labels.astype(label_dtype))
    same(out.decisions, want.decisions)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_may_be_masked_in_place_without_decisions_or_counts(dtype: Any) -> None:
    ids = some_rows(3, 40).astype(dtype)
    want = mask(plan_of(0.4), ids, dtype)
    flat = ids.reshape(-1)
    out = Outputs(input_ids=flat, labels=np.empty(flat.size, np.int64))
    assert reference.mask_batch(plan_of(0.4), Call(flat, 3, 40, epoch=1), out) is True
    same(flat.reshape(3, 40), want.input_ids)
    same(out.labels.reshape(3, 40), want.labels)


@pytest.mark.parametrize("shape", [(0, 0), (0, 7), (3, 0)])
@pytest.mark.parametrize("weights", [None, range(30)])
def test_empty_batches_come_back_empty(shape: tuple[int, int], weights: range | None) -> None:
    out = mask(plan_of(0.5, Replace(weights=weights)), np.empty(shape, np.int64))
    same(out.input_ids, np.empty(shape, np.int64))
    same(out.num_masked, np.zeros(shape[0], np.int64))


def test_rows_without_candidates_come_back_as_they_were() -> None:
    ids = np.array([[0, 0, 0], [1, 2, 3], [4, 4, 4]])
    out = mask(plan_of(1.0), ids)
    same(out.input_ids, ids)
    same(out.labels, np.full((3, 3), IGNORED))


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        (dtype, bad)
        for dtype in (np.uint16, np.int32, np.int64)
        for bad in (-1, 30, 65535, -(2**31), 2**31 - 1, 2**32 + 9, 2**63 - 1)
        if np.iinfo(dtype).min <= bad <= np.iinfo(dtype).max
    ],
)
@pytest.mark.parametrize("cell", [0, 17, 39])
def test_an_id_outside_the_vocabulary_is_told_even_on_padding(dtype: Any, bad: int, cell: int) -> None:
    ids = np.full(40, 9, dtype)
    ids[cell] = bad
    out = Outputs(np.empty(40, np.int64), np.empty(40, np.int64))
    assert reference.mask_batch(plan_of(0.5), Call(ids, 2, 20, epoch=0, lengths=lengths_of(5, 5)), out) is False


def test_the_largest_id_is_inside_the_vocabulary() -> None:
    same(mask(plan_of(0.0), [[29, 5]]).input_ids, np.array([[29, 5]]))


# Supplied decisions.


def supplied(
    ids: Array, positions: Array, probs: Array, tokens: Array, borders: Any = (0.8, 0.9)
) -> tuple[Array, Array]:
    masked_ids, labels = poisoned(ids.size, np.int64, 0x55), poisoned(ids.size, np.int64, 0x55)
    reference.apply_supplied(ids, positions, probs, tokens, 103, borders, masked_ids, labels)
    return masked_ids, labels


def test_supplied_decisions_give_the_worked_example() -> None:
    ids = np.array([101, 2023, 2003, 1037, 6251, 2005, 9543, 4083, 1012, 102])
    positions = np.isin(np.arange(10), [4, 6])
    probs, tokens = np.zeros(10), np.zeros(10, np.int64)
    probs[[4, 6]] = 0.35, 0.87
    tokens[6] = 7592
    masked_ids, labels = supplied(ids, positions, probs, tokens)
    same(masked_ids, np.array([101, 2023, 2003, 1037, 103, 2005, 7592, 4083, 1012, 102]))
    same(labels, np.array([-100, -100, -100, -100, 6251, -100, 9543, -100, -100, -100]))


def test_a_probability_at_a_border_belongs_to_the_next_interval() -> None:
    probs = np.array([np.nextafter(0.8, 0), 0.8, np.nextafter(0.9, 0), 0.9, 1.0])
    ids, tokens = np.arange(5), np.arange(50, 55)
    masked_ids, labels = supplied(ids, np.ones(5, np.bool_), probs, tokens)
    same(masked_ids, np.array([103, 51, 52, 3, 4]))
    same(labels, ids)


@pytest.mark.parametrize(
    ("borders", "want"),
    [((0.0, 0.0), [0, 1]), ((0.0, 1.0), [50, 1]), ((0.5, 0.5), [103, 1]), ((1.0, 1.0), [103, 1])],
)
def test_borders_may_meet_each_other_and_the_ends(borders: tuple[float, float], want: list[int]) -> None:
    masked_ids, _ = supplied(np.arange(2), np.ones(2, np.bool_), np.array([0.0, 1.0]), np.array([50, 51]), borders)
    same(masked_ids, np.array(want))
