"""What a loader's worker hands over: tensors of one block of shared memory; on the other side a plain dictionary."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from support import same
from support_loaders import by_index, fates, few_cores, loader, torch, wanted

from fastmask.torch.transfer import SharedBatch

ARRAYS: dict[str, Any] = {
    "input_ids": np.arange(15).reshape(3, 5),
    "decisions": np.arange(15, dtype=np.uint8).reshape(3, 5),
    "labels": np.arange(15, dtype=np.int32).reshape(3, 5) - 7,
    "rates": np.linspace(0, 1, 3, dtype=np.float32),
    "index": np.array([2**64 - 1, 0, 5], np.uint64),
    "nothing": np.empty((3, 0), np.int64),
}


def sent(batch: Any) -> Any:
    return pickle.loads(bytes(ForkingPickler.dumps(batch)))


def memory_of(batch: Any) -> set[int]:
    """Where the memory of the batch's tensors begins."""
    values = [value for value in batch.values() if isinstance(value, torch.Tensor) and value.numel()]
    return {value.untyped_storage().data_ptr() for value in values}


def test_a_batch_is_sent_as_one_tensor_and_comes_out_plain() -> None:
    batch = SharedBatch(ARRAYS | {"text": ["a", "b", "c"], "max_seqlen": 5})
    got = sent(batch)
    assert type(got) is dict
    assert list(got) == [*ARRAYS, "text", "max_seqlen"]
    assert (got["text"], got["max_seqlen"]) == (["a", "b", "c"], 5)
    for one in (batch, got):
        assert len(memory_of(one)) == 1
        for name, array in ARRAYS.items():
            same(one[name].numpy(), array)
            assert one[name].data_ptr() % 64 == 0
    got["labels"][0, 0] = 9  # shared, not copied
    assert batch["labels"][0, 0] == 9


def test_the_arrays_that_came_in_are_copied() -> None:
    array = np.arange(4)
    SharedBatch({"index": array})["index"][0] = 9
    same(array, np.arange(4))


def test_a_batch_without_arrays_is_sent_too() -> None:
    assert sent(SharedBatch({"text": ["a"]})) == {"text": ["a"]}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_what_a_worker_changed_in_a_batch_is_sent_as_it_is_then() -> None:
    batch = SharedBatch(ARRAYS)
    del batch["rates"]
    batch["labels"] = batch["labels"][1:, ::2].T
    batch["sparse"] = torch.eye(2).to_sparse()
    batch["own"] = torch.arange(3)
    batch["index"] = "gone"
    got = sent(batch)
    assert list(got) == list(batch)
    same(got["labels"].numpy(), ARRAYS["labels"][1:, ::2].T)
    assert got["labels"].stride() == batch["labels"].stride()
    assert torch.equal(got["sparse"].to_dense(), torch.eye(2))
    assert torch.equal(got["own"], torch.arange(3))
    assert got["index"] == "gone"


@few_cores
@pytest.mark.parametrize("strategy", sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_batches_of_workers_lie_in_one_block_each(strategy: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        batches = list(loader(by_index(), num_workers=2, multiprocessing_context="fork"))
        assert fates(batches) == wanted(0)
        assert all(type(batch) is dict and len(memory_of(batch)) == 1 for batch in batches)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
