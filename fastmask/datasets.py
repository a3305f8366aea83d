"""For datasets: masked columns, by `Dataset.map`, `with_transform`, iterable datasets and Arrow tables."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.arrays import as_kind_of, is_torch
from fastmask.epochs import SharedEpoch
from fastmask.masker import Masker
from fastmask.ragged import WHOLE, WORDS, Ragged, ragged

BESIDE = {"special_tokens_mask": WHOLE, "word_ids": WORDS}


class MaskColumns:
    """A function of batched columns that masks input_ids, adds labels, and keeps all other columns.

    Samples keep their lengths: padding is a collate function's work. A sample has the masks that its sample id (or
    content), the seed and the epoch give it, whatever the batches and processes.

    `Dataset.map` writes the masks of one epoch to disk: static masking, or an evaluation set for good. Another epoch,
    seed or law is another fingerprint. With `with_transform` and iterable datasets the masks are made as samples are
    read, and `set_epoch` reaches the running workers of a data loader.

    Args:
        masker: Masker.
        epoch: 0 <= epoch < 2^24.
        sample_id: the column that holds sample ids; None: the indices where `map(with_indices=True)` gives them, else
            ids from the content.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> mask = MaskColumns(fm.Masker(vocab, fm.Bernoulli(0.3), seed=7), sample_id="index")
    >>> columns = mask({"input_ids": [[2, 7, 8, 9, 10, 11, 3], [2, 5, 3]], "index": [5, 6]})
    >>> columns["input_ids"][0].tolist(), columns["labels"][1].tolist(), columns["index"]
    ([2, 4, 4, 9, 10, 4, 3], [-100, -100, -100], [5, 6])
    """

    def __init__(self, masker: Masker, *, epoch: int = 0, sample_id: str | None = None) -> None:
        self.masker = masker
        self.sample_id = sample_id
        self._epoch = SharedEpoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch of what is masked from now on."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """The epoch of what is masked from now on, here and in running workers."""
        self._epoch.value = epoch

    def __call__(self, columns: Any, indices: Any = None) -> Any:
        """The columns with input_ids masked, and labels.

        Args:
            columns: a mapping of columns, or an Arrow table: input_ids, and special_tokens_mask and word_ids where
                there are any (None in word_ids reads as -1): lists, arrays or tensors of one dimension.
            indices: the sample ids, where no column holds them.

        Returns:
            A new mapping, in which input_ids and labels are lists of arrays (or tensors, where those came), or a table.

        Raises:
            TypeError, ValueError: a column is missing or cannot be masked; the message names the sample.
        """
        return self._of_mapping(columns, indices) if isinstance(columns, MutableMapping) else self._of_table(columns)

    def _of_mapping(self, columns: Any, indices: Any) -> Any:
        held = list(columns)
        tokens, ids, labels = self._masked(held, lambda name: columns[name], indices)
        first = next(iter(columns["input_ids"]), None)
        cuts = tokens.offsets[1:-1]
        new = columns.copy()
        for name, values in (("input_ids", ids), ("labels", labels)):
            samples = np.split(values, cuts) if len(tokens.offsets) > 1 else []
            new[name] = [as_kind_of(first, sample) for sample in samples] if is_torch(first) else samples
        return new

    def _of_table(self, table: Any) -> Any:
        import pyarrow

        if not isinstance(table, pyarrow.Table):
            raise TypeError(f"columns must be a mapping of columns or an Arrow table, got {type(table).__name__}")

        def column(name: str) -> Any:
            found = table[name].combine_chunks()
            return found.to_numpy() if name == self.sample_id else found

        tokens, *masked = self._masked(table.column_names, column, None)
        for name, values in zip(("input_ids", "labels"), masked, strict=True):
            lists = pyarrow.LargeListArray if values.size >= 1 << 31 else pyarrow.ListArray
            offsets = tokens.offsets.astype(np.int64 if values.size >= 1 << 31 else np.int32)
            array = lists.from_arrays(offsets, values)
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, array)
            else:
                table = table.append_column(name, array)
        return table

    def _masked(self, held: list[str], column: Any, indices: Any) -> tuple[Ragged, npt.NDArray[Any], npt.NDArray[Any]]:
        """The samples side by side as they came, masked, and their labels."""
        for name in ("input_ids", *([] if self.sample_id is None else [self.sample_id])):
            if name not in held:
                raise ValueError(f"columns lack {name!r}: they are {', '.join(map(repr, held)) or 'none'}")
        tokens = ragged("input_ids", column("input_ids"))
        beside: dict[str, Any] = {}
        for name in (name for name in BESIDE if name in held):
            values = ragged(name, column(name), BESIDE[name])
            if not np.array_equal(values.offsets, tokens.offsets):
                raise ValueError(_unequal(name, values, tokens))
            beside[name] = values.values
        batch = self.masker(
            tokens.values,
            epoch=self.epoch,
            sample_ids=indices if self.sample_id is None else column(self.sample_id),
            cu_seqlens=tokens.offsets,
            **beside,
        )
        return tokens, batch.input_ids, batch.labels


def _unequal(name: str, values: Ragged, tokens: Ragged) -> str:
    if values.lengths.size != tokens.lengths.size:
        return f"{name} holds {values.lengths.size} samples, but input_ids holds {tokens.lengths.size}"
    sample = int((values.lengths != tokens.lengths).argmax())
    got, want = values.lengths[sample], tokens.lengths[sample]
    return f"{name} of sample {sample} has length {got}, but input_ids has {want}"
