"""Samples of unequal lengths, loaders of them, and what became of each sample. Spawned workers import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from support import Array

import fastmask as fm

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from fastmask.torch import Collator  # noqa: E402

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.6, 0.2), seed=7)
COUNT = 32
Fates = dict[int, tuple[list[int], list[int]]]

# A machine of few cores is told so by each loader.
few_cores = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")


def ids_of(index: int) -> Array:
    """CLS, 3 to 18 tokens, SEP."""
    rng = np.random.default_rng(index)
    return np.concatenate([[2], rng.integers(5, 30, 3 + index % 16), [3]])


def features(count: int = COUNT) -> list[dict[str, Any]]:
    """Samples as mappings, each with its index."""
    return [{"input_ids": ids_of(i), "index": i} for i in range(count)]


class Samples(Dataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not type-checked here
    """The same, one at a time."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": ids_of(index), "index": index}


def by_index() -> Collator:
    return Collator(MASKER, sample_id="index")


def fates(batches: Iterable[Mapping[str, Any]]) -> Fates:
    """The ids and labels of each sample, by its index."""
    return dict(_each(batches))


def _each(batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, tuple[list[int], list[int]]]]:
    for batch in batches:
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        for row, index in enumerate(batch["index"].tolist()):
            real = batch["attention_mask"][row] != 0
            yield index, (batch["input_ids"][row][real].tolist(), batch["labels"][row][real].tolist())


def wanted(epoch: int, count: int = COUNT) -> Fates:
    """The reference's, sample by sample."""
    fate = {}
    for i in range(count):
        batch = MASKER(ids_of(i)[None], epoch=epoch, sample_ids=[i], backend="numpy")
        fate[i] = (batch.input_ids[0].tolist(), batch.labels[0].tolist())
    return fate


def loader(collator: Collator, batch_size: int = 5, count: int = COUNT, **given: Any) -> DataLoader[Any]:
    return DataLoader(Samples(count), batch_size, collate_fn=collator, **given)
