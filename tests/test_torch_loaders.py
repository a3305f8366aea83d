"""Masks of a DataLoader's batches: the same on any workers, ranks, batch sizes and orders, and after a restart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support_loaders import COUNT, MASKER, Fates, Samples, by_index, fates, few_cores, loader, torch, wanted
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import fastmask as fm
from fastmask.torch import Collator

pytestmark = few_cores


def workers(method: str, count: int = 2, **given: Any) -> dict[str, Any]:
    return {"num_workers": count, "multiprocessing_context": method, **given}


@pytest.mark.parametrize("count", [0, 2, 4])
def test_b59_the_number_of_forked_workers_changes_nothing_and_epochs_differ(count: int) -> None:
    seen: list[Fates] = []
    collator = by_index()
    batches = loader(collator, 32 // 8, **workers("fork", count) if count else {})
    for epoch in (0, 1):  # workers start anew in each
        collator.set_epoch(epoch)
        seen.append(fates(batches))
        assert seen[-1] == wanted(epoch)
    assert seen[0] != seen[1]


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_b59_the_epoch_reaches_workers_that_already_run(method: str) -> None:
    collator = by_index()
    batches = loader(collator, **workers(method, persistent_workers=True))
    for epoch in (0, 3, 1):
        collator.set_epoch(epoch)
        assert fates(batches) == wanted(epoch)
    batches._iterator._shutdown_workers()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_b59_b104_the_number_of_spawned_workers_changes_nothing(method: str, count: int) -> None:
    collator = by_index()
    batches = loader(collator, **workers(method, count))
    for epoch in (0, 1):
        collator.set_epoch(epoch)
        assert fates(batches) == wanted(epoch)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_neither_batch_size_nor_order_changes_a_mask(batch_size: int) -> None:
    generator = torch.Generator().manual_seed(batch_size)
    assert fates(loader(by_index(), batch_size, shuffle=True, generator=generator)) == wanted(0)


def test_masks_from_the_content_are_as_independent() -> None:
    def by_content(**given: Any) -> Fates:
        return fates(DataLoader(Samples(), collate_fn=Collator(MASKER), **given))

    want = by_content(batch_size=32)
    generator = torch.Generator().manual_seed(1)
    assert by_content(batch_size=5, shuffle=True, generator=generator, **workers("fork")) == want


def ranks(world_size: int, epoch: int) -> Iterator[Fates]:
    for rank in range(world_size):
        sampler = DistributedSampler(Samples(), world_size, rank, seed=3)
        sampler.set_epoch(epoch)
        collator = by_index()
        collator.set_epoch(epoch)
        yield fates(loader(collator, sampler=sampler))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_b61_every_rank_of_a_sampler_gives_its_samples_their_masks(world_size: int) -> None:
    parts = list(ranks(world_size, epoch=2))
    assert sum(map(len, parts)) == COUNT
    assert {index: fate for part in parts for index, fate in part.items()} == wanted(2)


def test_a_restart_in_mid_epoch_goes_on_with_the_same_masks() -> None:
    def started() -> DataLoader[Any]:
        collator = by_index()
        collator.set_epoch(3)
        generator = torch.Generator().manual_seed(5)
        return loader(collator, shuffle=True, generator=generator, **workers("fork"))

    before = fates(islice(started(), 3))
    assert len(before) == 15
    after = fates(islice(started(), 3, None))
    assert not before.keys() & after.keys()
    assert before | after == wanted(3)


class Stream(IterableDataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """The samples one after the other, shared among the workers."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (Samples()[i] for i in range(first, COUNT, step))


@pytest.mark.parametrize("count", [0, 2])
def test_iterable_data_sets_give_the_same_masks(count: int) -> None:
    assert fates(DataLoader(Stream(), 5, collate_fn=by_index(), num_workers=count)) == wanted(0)


def test_packed_batches_of_workers_hold_every_sample() -> None:
    collator = Collator(MASKER, sample_id="index", max_tokens=64)
    found: Fates = {}
    for packs in loader(collator, 16, **workers("fork")):
        for pack in packs:
            cuts = pack["cu_seqlens"].tolist()
            for index, first, end in zip(pack["index"].tolist(), cuts[:-1], cuts[1:], strict=True):
                found[index] = (pack["input_ids"][first:end].tolist(), pack["labels"][first:end].tolist())
    assert found == wanted(0)


def test_compact_targets_come_out_of_workers_whole() -> None:
    collator = Collator(MASKER, sample_id="index", returns="compact")
    for batch in loader(collator, **workers("fork")):
        rows = torch.repeat_interleave(torch.arange(len(batch["index"])), batch["compact"].counts)
        assert torch.equal(batch["labels"][rows, batch["compact"].positions], batch["compact"].ids)


def test_b64_a_loader_with_a_collator_leaves_the_random_states_of_one_without() -> None:
    def states() -> tuple[object, ...]:
        name, keys, *rest = np.random.get_state()
        return random.getstate(), name, np.asarray(keys).tobytes(), rest, torch.get_rng_state().numpy().tobytes()

    after = []
    for collate in (by_index(), len):
        torch.manual_seed(3)  # the loader itself draws from torch's
        before = states()
        list(DataLoader(Samples(), 5, collate_fn=collate))
        after.append(states())
        assert after[-1][:4] == before[:4]
    assert after[0] == after[1]


def test_b67_an_epoch_that_stays_evaluates_on_the_same_masks() -> None:
    evaluation = loader(by_index(), **workers("fork"))
    assert fates(evaluation) == fates(evaluation) == wanted(0)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
def test_b104_a_loader_that_pins_gives_the_same_batches() -> None:
    collator = Collator(MASKER, sample_id="index", returns="compact")
    assert fates(loader(collator, pin_memory=True, **workers("fork"))) == wanted(0)


def built(num_workers: int, batch_size: int, rank: int, world_size: int, start: int) -> DataLoader[Any]:
    """For verify: the samples of a rank, from the place where it was stopped."""
    mine = list(range(rank, COUNT, world_size))[start:]
    return loader(by_index(), batch_size, sampler=mine, num_workers=num_workers)


def by_worker(num_workers: int, **setting: int) -> Iterator[Any]:
    """For verify: as a collator would mask whose seed is its worker's."""
    for batch in built(num_workers, **setting):
        masked = MASKER(batch["input_ids"], epoch=num_workers, attention_mask=batch["attention_mask"])
        yield batch | {"input_ids": masked.input_ids, "labels": masked.labels}


def test_verify_finds_the_masks_of_real_loaders_the_same() -> None:
    report = fm.verify.loader(built, sample_id="index")
    assert report.difference is None
    assert report.same
    assert report.samples == COUNT
    assert report.runs[-1] == "resumed"


def test_verify_finds_masks_that_follow_the_worker() -> None:
    report = fm.verify.loader(by_worker, sample_id="index")
    assert report.runs[-1] == "num_workers=1"
    assert not report.same
