"""For datasets: masked columns, by `Dataset.map`, `with_transform`, iterable datasets and Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.arrays import as_kind_of
from fastmask.epochs import SharedEpoch
from fastmask.masker import Masker
from fastmask.samples import Said, Samples

Array = npt.NDArray[Any]
MASKED = ("input_ids", "labels")


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
        offsets, *masked = self._masked(list(columns), columns.__getitem__, indices)
        first = next(iter(columns["input_ids"]), None)
        new = columns.copy()
        for name, values in zip(MASKED, masked, strict=True):
            samples = np.split(values, offsets[1:-1]) if len(offsets) > 1 else []
            new[name] = [as_kind_of(first, sample) for sample in samples]
        return new

    def _of_table(self, table: Any) -> Any:
        import pyarrow

        if not isinstance(table, pyarrow.Table):
            raise TypeError(f"columns must be a mapping of columns or an Arrow table, got {type(table).__name__}")

        def column(name: str) -> Any:
            found = table[name].combine_chunks()
            return found.to_numpy() if name == self.sample_id else found

        offsets, *masked = self._masked(table.column_names, column, None)
        large = offsets[-1] >= 1 << 31
        lists, kind = (pyarrow.LargeListArray, np.int64) if large else (pyarrow.ListArray, np.int32)
        for name, values in zip(MASKED, masked, strict=True):
            array = lists.from_arrays(offsets.astype(kind), values)
            there = name in table.column_names
            place = table.column_names.index(name) if there else table.num_columns
            table = (table.set_column if there else table.add_column)(place, name, array)
        return table

    def _masked(self, held: list[str], column: Callable[[str], Any], indices: Any) -> tuple[Array, Array, Array]:
        """Where each sample begins among the tokens of all, these tokens masked, and their labels."""
        for name in ("input_ids", *([] if self.sample_id is None else [self.sample_id])):
            if name not in held:
                raise ValueError(f"columns lack {name!r}: they are {', '.join(map(repr, held)) or 'none'}")
        rows = column("input_ids")
        if not len(rows):
            return np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        marks, words = (column(name) if name in held else None for name in ("special_tokens_mask", "word_ids"))
        sample_ids = indices if self.sample_id is None else column(self.sample_id)
        samples = Samples(self.masker, rows, Said(self.epoch, sample_ids, None, marks, words, None, None), None)
        out = samples.masked()
        return samples.offsets, out.input_ids, out.labels
