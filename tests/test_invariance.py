"""A sample's fates are its own: batch, row, padding, chunks, layout of the batch and process do not enter."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import BERT, random_ids

import fastmask as fm

MASKER = fm.Masker(BERT, fm.Bernoulli(0.3), fm.Replace(0.5, 0.3), seed=11)
Ids = npt.NDArray[Any]


@pytest.fixture(params=["numpy", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sample() -> Ids:
    ids = random_ids(np.random.default_rng(5), fm.Vocab(30522, 103, None, (0, 100, 101, 102)), 700)
    ids[[0, -1]] = 101, 102
    return ids


def alone(sample: Ids, backend: str, **given: Any) -> tuple[Ids, Ids]:
    batch = MASKER(sample[None], epoch=4, lengths=[sample.size], backend=backend, **given)
    return batch.input_ids[0], batch.labels[0]


@pytest.mark.parametrize("known", [{"sample_ids": [9]}, {}], ids=["sample id given", "content id"])
@pytest.mark.parametrize("left", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("right", [0, 1, 6])
def test_padding_left_or_right_changes_no_fate(
    sample: Ids, backend: str, known: dict[str, Any], left: int, right: int
) -> None:
    ids, labels = alone(sample, backend, **known)
    width = left + sample.size + right
    padded = np.zeros((1, width), np.int64)
    padded[0, left : left + sample.size] = sample
    real = np.zeros((1, width), np.int64)
    real[0, left : left + sample.size] = 1
    got = MASKER(padded, epoch=4, attention_mask=real, backend=backend, **known)
    inside = slice(left, left + sample.size)
    np.testing.assert_array_equal(got.input_ids[0, inside], ids, strict=True)
    np.testing.assert_array_equal(got.labels[0, inside], labels, strict=True)
    assert (got.input_ids[real == 0] == 0).all()
    assert (got.labels[real == 0] == -100).all()


@pytest.mark.parametrize("row", [0, 3, 6])
def test_neighbours_and_the_row_change_no_fate(sample: Ids, backend: str, row: int) -> None:
    ids, labels = alone(sample, backend, sample_ids=[9])
    others = random_ids(np.random.default_rng(row), BERT, (7, sample.size))
    others[row] = sample
    names = np.arange(100, 107, dtype=np.uint64)
    names[row] = 9
    got = MASKER(others, epoch=4, sample_ids=names, lengths=[sample.size] * 7, backend=backend)
    np.testing.assert_array_equal(got.input_ids[row], ids, strict=True)
    np.testing.assert_array_equal(got.labels[row], labels, strict=True)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 255, 512, 699])
def test_two_chunks_with_an_offset_are_the_whole(sample: Ids, backend: str, cut: int) -> None:
    ids, labels = alone(sample, backend, sample_ids=[9])
    parts = [
        MASKER(sample[:cut], epoch=4, sample_ids=9, lengths=[cut], backend=backend),
        MASKER(sample[cut:], epoch=4, sample_ids=9, lengths=[700 - cut], position_offset=cut, backend=backend),
    ]
    np.testing.assert_array_equal(np.concatenate([part.input_ids for part in parts]), ids, strict=True)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), labels, strict=True)


def test_one_dimension_is_one_sample(sample: Ids, backend: str) -> None:
    ids, labels = alone(sample, backend)
    got = MASKER(sample, epoch=4, lengths=[700], backend=backend)
    np.testing.assert_array_equal(got.input_ids, ids, strict=True)
    np.testing.assert_array_equal(got.labels, labels, strict=True)


def test_batch_size_and_order_change_no_fate(backend: str) -> None:
    ids = random_ids(np.random.default_rng(1), BERT, (12, 33))
    names = np.arange(50, 62, dtype=np.uint64)
    whole = MASKER(ids, epoch=2, sample_ids=names, backend=backend)
    order = np.random.default_rng(2).permutation(12)
    for size in (1, 5, 12):
        for rows in np.array_split(order, 12 // size):
            part = MASKER(ids[rows], epoch=2, sample_ids=names[rows], backend=backend)
            np.testing.assert_array_equal(part.input_ids, whole.input_ids[rows], strict=True)
            np.testing.assert_array_equal(part.labels, whole.labels[rows], strict=True)


def test_an_int_names_the_first_row_and_the_others_count_up(backend: str) -> None:
    ids = random_ids(np.random.default_rng(1), BERT, (6, 40))
    counted = MASKER(ids, epoch=0, sample_ids=(1 << 64) - 6, backend=backend)
    named = MASKER(ids, epoch=0, sample_ids=[(1 << 64) - 6 + row for row in range(6)], backend=backend)
    np.testing.assert_array_equal(counted.input_ids, named.input_ids, strict=True)


def test_equal_content_means_equal_masks_and_other_content_other_masks(backend: str) -> None:
    ids = random_ids(np.random.default_rng(1), fm.Vocab(30522, 103), (1, 64))
    twice = MASKER(np.concatenate([ids, ids]), epoch=0, backend=backend)
    np.testing.assert_array_equal(twice.labels[0], twice.labels[1], strict=True)
    other = ids.copy()
    other[0, 63] ^= 1
    changed = MASKER(other, epoch=0, lengths=[64], backend=backend)
    same = MASKER(ids, epoch=0, lengths=[64], backend=backend)
    assert ((changed.labels != -100) != (same.labels != -100)).any()


def test_rates_in_place_of_p_are_the_same_law(backend: str) -> None:
    ids = random_ids(np.random.default_rng(1), BERT, (6, 600))
    want = MASKER(ids, epoch=0, backend=backend)
    got = MASKER(ids, epoch=0, rates=[0.3] * 6, backend=backend, returns="decisions")
    np.testing.assert_array_equal(got.input_ids, want.input_ids, strict=True)
    np.testing.assert_array_equal(got.labels, want.labels, strict=True)


def test_selected_sets_are_nested_in_p(backend: str) -> None:
    ids = random_ids(np.random.default_rng(1), BERT, (6, 600))
    selected = [
        fm.Masker(BERT, fm.Bernoulli(p), seed=1)(ids, epoch=0, backend=backend).labels != -100
        for p in (0, 0.01, 0.15, 0.5, 0.99, 1)
    ]
    for fewer, more in pairwise(selected):
        assert not (fewer & ~more).any()


SCRIPT = """
import sys, numpy as np, fastmask as fm
vocab = fm.Vocab(30522, 103, 0, (0, 100, 101, 102, 103))
ids = np.random.default_rng(3).integers(0, 30522, (9, 333))
batch = fm.Masker(vocab, fm.Bernoulli(0.3), seed=11)(ids, epoch=4)
sys.stdout.write(batch.input_ids.tobytes().hex() + batch.labels.tobytes().hex())
"""


def test_another_process_gives_the_same_bits() -> None:
    ids = np.random.default_rng(3).integers(0, 30522, (9, 333))
    batch = fm.Masker(BERT, fm.Bernoulli(0.3), seed=11)(ids, epoch=4)
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    assert other.stdout == batch.input_ids.tobytes().hex() + batch.labels.tobytes().hex()
