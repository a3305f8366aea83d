"""Failures of other systems, boiled down: seeds, epochs, workers and ranks; data types and mutation.

Each test carries the id of its case. The small vocabulary: PAD 0, UNK 1, CLS 2, SEP 3, MASK 4, others 5..29.
"""

from __future__ import annotations

import inspect
import multiprocessing
import random
import sys
from typing import Any

import numpy as np
import pytest
from support import Array, on_host, random_candidates, same, same_batches

import fastmask as fm
from fastmask.kernels import reference

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.15), seed=7)
ALL_MASK = fm.Masker(VOCAB, fm.Bernoulli(1.0), fm.Replace(1.0, 0.0))
IGNORED = -100

may_fork = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # other tests leave threads


def selected(batch: fm.MaskedBatch) -> Array:
    return np.asarray(batch.labels != IGNORED)


# Seeds, epochs, workers, ranks.


@on_host
def test_b58_no_global_generator_has_a_say(backend: str) -> None:
    ids = random_candidates(4, 64)
    batches = []
    for state in (1, 2):
        np.random.seed(state)
        random.seed(state)
        batches.append(MASKER(ids, epoch=0, sample_ids=0, backend=backend))
    same_batches(*batches)


@may_fork
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_b58_forked_workers_that_share_a_state_mask_their_samples_differently() -> None:
    ids = np.full((4, 64), 9)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        batches = pool.starmap(worker, [(ids[row : row + 1], 0, [row]) for row in range(4)])
    masks = {selected(batch).tobytes() for batch in batches}
    assert len(masks) == 4
    for row, batch in enumerate(batches):
        same_batches(batch, MASKER(ids[row : row + 1], epoch=0, sample_ids=[row]))


def worker(ids: Array, epoch: int, sample_ids: Any) -> fm.MaskedBatch:
    """What a data loader's worker does, in whatever process."""
    return MASKER(ids, epoch=epoch, sample_ids=sample_ids)


@may_fork
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("workers", [2, 4])
def test_b59_the_number_of_forked_workers_changes_nothing(workers: int) -> None:
    ids, samples = random_candidates(32, 16), np.arange(100, 132)
    shares = [np.arange(first, 32, workers) for first in range(workers)]
    for epoch in (0, 1):  # workers start anew in each
        whole = MASKER(ids, epoch=epoch, sample_ids=samples)
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            batches = pool.starmap(worker, [(ids[rows], epoch, samples[rows]) for rows in shares])
        for rows, batch in zip(shares, batches, strict=True):
            same(batch.input_ids, whole.input_ids[rows])
            same(batch.labels, whole.labels[rows])


def test_b59_spawned_workers_give_the_same_masks() -> None:
    ids, samples = random_candidates(32, 16), np.arange(100, 132)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for epoch in (0, 1):
            whole = MASKER(ids, epoch=epoch, sample_ids=samples)
            jobs = [
                pool.apply_async(
                    MASKER, (ids[rows],), {"epoch": epoch, "sample_ids": samples[rows], "backend": "numpy"}
                )
                for rows in (slice(0, 20), slice(20, 32))
            ]
            parts = [job.get(60) for job in jobs]
            same(np.concatenate([part.input_ids for part in parts]), whole.input_ids)
            same(np.concatenate([part.labels for part in parts]), whole.labels)


@on_host
def test_b59_epochs_differ(backend: str) -> None:
    ids = random_candidates(32, 16)
    one, other = (MASKER(ids, epoch=epoch, sample_ids=0, backend=backend) for epoch in (0, 1))
    assert not np.array_equal(selected(one), selected(other))


@on_host
def test_b61_ranks_with_other_samples_agree_by_chance_alone(backend: str) -> None:
    ids = np.full((4, 16 * 1024), 9)
    ranks = [MASKER(ids, epoch=0, sample_ids=4 * rank, backend=backend) for rank in (0, 1)]
    one, other = map(selected, ranks)
    overlap = np.count_nonzero(one & other) / np.count_nonzero(one)
    assert abs(overlap - 0.15) <= 5 * np.sqrt(0.15 * 0.85 / np.count_nonzero(one))


@on_host
def test_b61_a_sample_has_its_masks_on_every_rank(backend: str) -> None:
    ids = random_candidates(8, 16)
    alone = MASKER(ids, epoch=0, sample_ids=0, backend=backend)
    for rank in (0, 1):
        batch = MASKER(ids[rank::2], epoch=0, sample_ids=np.arange(rank, 8, 2), backend=backend)
        same(batch.input_ids, alone.input_ids[rank::2])
        same(batch.labels, alone.labels[rank::2])


def test_b62_a_million_samples_have_a_million_streams() -> None:
    block = reference.words(1, 1, np.arange(1_000_000, dtype=np.uint64), 0, 0)
    streams = np.ascontiguousarray(block.T).view("V16").reshape(-1)
    assert len(set(streams.tolist())) == 1_000_000


def test_b62_a_million_contents_have_a_million_ids() -> None:
    rows = np.stack(np.divmod(np.arange(1_000_000), 1000), axis=1)
    ids = reference.content_ids(rows, np.zeros(len(rows), np.int64), np.full(len(rows), 2))
    assert np.unique(ids).size == 1_000_000


@on_host
@pytest.mark.parametrize("samples", [(0, 2**32), (2**60, 2**60 + 1), (2**63, 2**64 - 1)])
def test_b62_all_64_bits_of_a_sample_id_count(backend: str, samples: tuple[int, int]) -> None:
    ids = np.full((2, 128), 9)
    batch = MASKER(ids, epoch=0, sample_ids=list(samples), backend=backend)
    assert not np.array_equal(*selected(batch))


@on_host
def test_b64_random_states_are_byte_identical_before_and_after(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def states() -> tuple[object, ...]:
        name, keys, *rest = np.random.get_state()
        return (
            random.getstate(),
            name,
            np.asarray(keys).tobytes(),
            rest,
            torch.get_rng_state().numpy().tobytes(),
        )

    ids = random_candidates(8, 64)
    before = states()
    MASKER(ids, epoch=0, backend=backend)
    MASKER(torch.from_numpy(ids), epoch=0, backend=backend)
    assert states() == before


@on_host
def test_b66_an_epoch_can_be_had_again_and_the_next_differs(backend: str) -> None:
    ids = random_candidates(8, 64)
    first, again, following = (MASKER(ids, epoch=epoch, backend=backend) for epoch in (3, 3, 4))
    same_batches(first, again)
    assert not np.array_equal(first.labels, following.labels)


def test_b66_a_forgotten_epoch_is_an_error() -> None:
    epoch = inspect.signature(fm.Masker.__call__).parameters["epoch"]
    assert epoch.kind is inspect.Parameter.KEYWORD_ONLY
    with pytest.raises(TypeError, match="epoch"):
        MASKER(random_candidates(1, 8))  # type: ignore[call-arg]


@on_host
def test_b67_a_fixed_epoch_evaluates_on_the_same_masks_every_time(backend: str) -> None:
    ids = random_candidates(8, 64)
    want = MASKER(ids, epoch=0, backend=backend)
    assert np.count_nonzero(selected(want)) > 0
    for size in (1, 3, 8):
        for first in range(0, 8, size):
            batch = MASKER(ids[first : first + size], epoch=0, backend=backend)
            same(batch.labels, want.labels[first : first + size])


# Data types, mutation.


@pytest.mark.parametrize(("dtype", "size"), [("uint16", 119_547), ("uint16", 65_537), ("int16", 40_000)])
def test_b68_ids_too_narrow_for_the_vocabulary_are_refused(dtype: str, size: int) -> None:
    """DESIGN, section 7, holds: the dtype of the input is known at the call only."""
    masker = fm.Masker(fm.Vocab(size, 4), fm.Bernoulli(0.15))
    with pytest.raises(OverflowError, match=f"input_ids is {dtype}, too narrow for a vocabulary of {size} ids"):
        masker(np.full((1, 4), 9, dtype), epoch=0)


@pytest.mark.parametrize(("dtype", "size"), [("uint16", 65_536), ("int16", 32_768)])
def test_b68_ids_just_wide_enough_are_not_refused(dtype: str, size: int) -> None:
    masker = fm.Masker(fm.Vocab(size, 4), fm.Bernoulli(1.0), fm.Replace(0.0, 0.0))
    ids = np.array([[size - 1, 9]], dtype)
    batch = masker(ids, epoch=0, backend="numpy")
    same(batch.labels, np.array([[size - 1, 9]]))
    same(batch.input_ids, np.array([[size - 1, 9]]))


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_b68_an_output_dtype_too_narrow_for_the_vocabulary_is_refused_at_construction(dtype: Any) -> None:
    with pytest.raises(OverflowError, match="id_dtype"):
        fm.Masker(fm.Vocab(119_547, 4), fm.Bernoulli(0.15), id_dtype=dtype)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_b68_labels_that_cannot_hold_the_ignored_label_are_refused_at_construction(dtype: Any) -> None:
    with pytest.raises(OverflowError, match=r"label_dtype = uint\d+ cannot hold -100"):
        fm.Masker(VOCAB, fm.Bernoulli(0.15), label_dtype=dtype)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint32", "int32", "int64"])
def test_b68_labels_are_signed_and_wide_whatever_came_in(dtype: str) -> None:
    batch = MASKER(random_candidates(2, 8).astype(dtype), epoch=0, backend="numpy")
    assert batch.labels.dtype == np.int64


@on_host
def test_b68_rows_may_be_longer_than_16_bits_count(backend: str) -> None:
    ids = np.full((1, 70_000), 9)
    batch = ALL_MASK(ids, epoch=0, lengths=[69_999], sample_ids=0, backend=backend, returns="num_masked")
    same(batch.num_masked, np.array([69_999]))
    same(batch.labels[0, -2:], np.array([9, IGNORED]))


def test_b70_labels_of_torch_are_what_cross_entropy_takes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = ALL_MASK(torch.full((2, 8), 9, dtype=torch.int32), epoch=0)
    assert (batch.input_ids.dtype, batch.labels.dtype) == (torch.int32, torch.int64)
    loss = torch.nn.functional.cross_entropy(torch.zeros(16, 30), batch.labels.reshape(-1))
    assert torch.isfinite(loss)


@on_host
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_b71_the_input_is_neither_changed_nor_shared(backend: str, dtype: str) -> None:
    ids = random_candidates(4, 33).astype(dtype)
    copy = ids.copy()
    first, second = (MASKER(ids, epoch=0, backend=backend) for _ in range(2))
    same(ids, copy)
    same_batches(first, second)
    outputs = [first.input_ids, first.labels, second.input_ids, second.labels]
    for i, output in enumerate(outputs):
        assert output.flags.writeable
        assert not any(np.shares_memory(output, other) for other in [ids, *outputs[:i]])


@on_host
@pytest.mark.parametrize("shape", [(8,), (1, 8), (0, 8), (3, 0), (0, 0), (0,)])
def test_b72_one_and_two_dimensions_come_back_in_their_shape(backend: str, shape: tuple[int, ...]) -> None:
    batch = ALL_MASK(np.full(shape, 9), epoch=0, backend=backend, returns=("decisions", "num_masked"))
    same(batch.input_ids, np.full(shape, 4))
    same(batch.labels, np.full(shape, 9))
    same(batch.decisions, np.ones(shape, np.uint8))


@on_host
@pytest.mark.parametrize("shape", [(8,), (1, 8), (0, 8), (3, 0), (0, 0), (0,)])
def test_b72_rows_are_counted_even_where_they_are_empty(backend: str, shape: tuple[int, ...]) -> None:
    rows = 1 if len(shape) == 1 else shape[0]
    held = [np.full(rows, 77) for _ in range(8)]
    del held  # small arrays are handed out again with what they held
    batch = ALL_MASK(np.full(shape, 9), epoch=0, backend=backend, returns="num_masked")
    same(batch.num_masked, np.full(rows, shape[-1]))


@on_host
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 8), ()])
def test_b72_other_numbers_of_dimensions_are_refused_with_the_shape(backend: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"input_ids must have 1 or 2 dimensions, got shape \("):
        MASKER(np.full(shape, 9), epoch=0, backend=backend)
