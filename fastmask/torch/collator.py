"""Collator: what a DataLoader calls to make a masked batch of samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastmask.batch import CompactTargets
from fastmask.collating import collate
from fastmask.epochs import SharedEpoch
from fastmask.features import Batch, columns_of, packed_batches, padded_batch
from fastmask.masker import Masker
from fastmask.outputs import check_returns, checked_returns
from fastmask.packing import pack
from fastmask.torch.transfer import SharedBatch

NO_LAYOUT = {"padding_side": "right", "pad_to_multiple_of": None, "max_length": None, "max_predictions": None}


class Collator:
    """A collate function for a DataLoader: samples in, a masked batch of tensors out.

    A sample has the masks that its sample id, the seed and the epoch give it, in any batch, worker, rank and order. No
    random state is read or changed. Where no sample id is named, equal samples have equal masks within an epoch.

    The epoch lies in memory that the workers share: `set_epoch` reaches those that run already, whether they were
    forked or spawned, and persistent or not. Call it between epochs, before the loader is iterated: what workers have
    prefetched has the masks of the epoch before. A pickled or copied collator has an epoch of its own.

    Args:
        masker: Masker; corrupted ids are int64 unless its id_dtype says int32.
        epoch: 0 <= epoch < 2^24.
        sample_id: the key of a feature that holds its sample id, an integer in [0, 2^64), such as its index; None: ids
            from the content.
        padding_side: "right" or "left".
        pad_to_multiple_of: the number of columns is rounded up to a multiple of it.
        max_length: samples are cut to their first so many tokens.
        max_tokens: None for padded rows. Else a batch is a list of packed ones of at most so many tokens each, with
            every sample whole and in order (see `fastmask.pack`).
        returns: as for a call of the masker.
        max_predictions: likewise.
        pin_memory: True: tensors in pinned memory, where there is an accelerator. Not in workers: there, give
            `pin_memory=True` to the DataLoader.

    Raises:
        TypeError, ValueError: arguments that are wrong or do not fit each other.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> collator = Collator(fm.Masker(vocab, fm.Bernoulli(0.3), seed=7), sample_id="index")
    >>> batch = collator([{"input_ids": [2, 7, 8, 9, 10, 11, 3], "index": 5}, {"input_ids": [2, 5, 3], "index": 6}])
    >>> batch["input_ids"].tolist()
    [[2, 4, 4, 9, 10, 4, 3], [2, 5, 3, 0, 0, 0, 0]]
    >>> sorted(batch)
    ['attention_mask', 'index', 'input_ids', 'labels']
    """

    def __init__(
        self,
        masker: Masker,
        *,
        epoch: int = 0,
        sample_id: str | None = None,
        padding_side: str = "right",
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        max_tokens: int | None = None,
        returns: str | Iterable[str] = (),
        max_predictions: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        names = checked_returns(returns)
        check_returns(masker.plan, names, max_predictions)
        layout = {
            "padding_side": padding_side,
            "pad_to_multiple_of": pad_to_multiple_of,
            "max_length": max_length,
            "max_predictions": max_predictions,
        }
        if max_tokens is not None and layout != NO_LAYOUT:
            wrong = next(name for name, value in layout.items() if value != NO_LAYOUT[name])
            raise ValueError(f"{wrong} goes with padded rows, and max_tokens with packed ones: give one of them")
        self.masker = masker if masker.id_dtype is not None else replace(masker, id_dtype=np.int64)
        self.sample_id = sample_id
        self.max_tokens = max_tokens
        self.returns = tuple(sorted(names))
        self.pin_memory = pin_memory
        self._layout: dict[str, Any] = layout
        self._epoch = SharedEpoch(epoch)
        self._try_layout()

    def _try_layout(self) -> None:
        """Raises what the first batch would, for arguments that are wrong whatever the batch."""
        sample = [[self.masker.vocab.mask_token_id]]
        if self.max_tokens is None:
            collate(
                self.masker, sample, epoch=0, word_ids=sample, returns=self.returns, backend="numpy", **self._layout
            )
        else:
            pack(self.masker, sample, epoch=0, word_ids=sample, max_tokens=self.max_tokens, backend="numpy")

    @property
    def epoch(self) -> int:
        """The epoch of the batches that are collated from now on."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the batches that are collated from now on, here and in running workers."""
        self._epoch.value = epoch

    def __call__(self, features: Sequence[Any]) -> Any:
        """The masked batch of some features: mappings with equal keys, or bare sequences of token ids.

        Args:
            features: mappings with input_ids, and with token_type_ids, special_tokens_mask or word_ids where there are
                any: lists, arrays or tensors of one dimension and one length. What the attention_mask, one run of
                ones, leaves out is padding: it is taken off and put on anew, so that a batch is no narrower than its
                longest sample was. Labels that are there are replaced. Other keys come back as a tensor where their
                values are numbers or arrays of one shape, else as a list.

        Returns:
            A dictionary: input_ids, labels, attention_mask, each (samples, columns); the keys that the features have;
            what `returns` asks for (compact as CompactTargets; with rates also weights). With max_tokens a list of
            dictionaries: input_ids, labels and position_ids, each (tokens,), cu_seqlens int32, max_seqlen int.

        Raises:
            TypeError, ValueError: features that disagree or cannot be masked; the message names the sample.
            RuntimeError: pin_memory in a worker.
        """
        pin = self._may_pin()
        columns = columns_of(features, self.sample_id)
        if self.max_tokens is None:
            return as_tensors(padded_batch(self.masker, columns, self.epoch, self._layout, self.returns), pin)
        packs = packed_batches(self.masker, columns, self.epoch, self.max_tokens, self.returns)
        return [as_tensors(one, pin) for one in packs]

    def _may_pin(self) -> bool:
        if not self.pin_memory:
            return False
        if get_worker_info() is not None:
            raise RuntimeError("pin_memory does not work in a worker: give pin_memory=True to the DataLoader")
        return bool(torch.accelerator.is_available())


def as_tensors(batch: Batch, pin: bool = False) -> Batch:
    """The arrays of a batch as tensors: in a worker in shared memory, else in their own, or copied to pinned memory."""

    def tensor(value: Any) -> Any:
        if isinstance(value, CompactTargets):
            return CompactTargets(*map(tensor, value))
        if not isinstance(value, np.ndarray):
            return value
        shared = torch.from_numpy(value)
        return shared.pin_memory() if pin else shared

    if get_worker_info() is not None:
        batch = SharedBatch(batch)
        batch.update({name: tensor(value) for name, value in batch.items() if isinstance(value, CompactTargets)})
        return batch
    return {name: tensor(value) for name, value in batch.items()}
