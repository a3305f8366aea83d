"""Features: the samples that a data loader hands to a collate function, as columns, and as masked batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastmask.arrays import to_host
from fastmask.collating import CollatedBatch, collate
from fastmask.masker import Masker
from fastmask.packing import PackedBatch, pack
from fastmask.vocab import integer

Batch = dict[str, Any]

BESIDE = ("token_type_ids", "special_tokens_mask", "word_ids")  # one value per token
FURTHER = ("token_type_ids", "special_tokens_mask", "decisions", "num_masked", "compact", "rates", "weights")
MADE_ANEW = ("input_ids", "attention_mask", "labels")


@dataclass(slots=True)
class Columns:
    """The features of a batch, column by column; the samples without the padding that attention masks tell of."""

    rows: list[Any]
    beside: dict[str, Any] = field(default_factory=dict)  # those of BESIDE that there are
    sample_ids: list[int] | None = None
    others: dict[str, list[Any]] = field(default_factory=dict)  # as they came
    width: int | None = None  # of the longest sample with its padding, where padding was taken off


def columns_of(features: Sequence[Any], sample_id: str | None = None, dropped: Sequence[str] = ()) -> Columns:
    """The columns of mappings with equal keys, or of bare sequences of ids.

    Args:
        features: the samples of a batch: mappings with input_ids, or sequences of ids, all of them one or the other.
        sample_id: the key of the sample ids; None: there are none.
        dropped: keys that are left out.

    Raises:
        TypeError: mappings and sequences in one batch, a sample id that is not an integer.
        ValueError: no features, a key that some have and others lack, an attention mask that is not one run of ones or
            of another length than the ids. Messages name the sample.
    """
    if not len(features):
        raise ValueError("the batch is empty: there are no features to collate")
    if not isinstance(features[0], Mapping):
        return _of_sequences(features, sample_id)
    _check_keys(features, sample_id)
    named = {name: [feature[name] for feature in features] for name in features[0] if name not in dropped}
    columns = Columns(
        named["input_ids"],
        {name: named[name] for name in BESIDE if name in named},
        None if sample_id is None else [_id_of(sample_id, i, x) for i, x in enumerate(named[sample_id])],
        {name: column for name, column in named.items() if name not in (*BESIDE, *MADE_ANEW)},
    )
    if columns.sample_ids is not None and sample_id is not None:
        columns.others[sample_id] = columns.sample_ids
    if "attention_mask" in named:
        _take_off_padding(columns, named["attention_mask"])
    return columns


def padded_batch(
    masker: Masker, columns: Columns, epoch: int, layout: Mapping[str, Any], returns: Sequence[str] = ()
) -> Batch:
    """The columns in padded rows, masked: NumPy arrays by name, and what else the features hold.

    Args:
        masker: Masker.
        columns: those of the features.
        epoch: 0 <= epoch < 2^24.
        layout: what `collate` takes for the layout of rows and of compact targets.
        returns: as for `collate`.
    """
    given = dict(layout)
    if columns.width is not None:
        given["pad_to_multiple_of"] = _padded_width(columns.width, layout)
    done = collate(
        masker, columns.rows, epoch=epoch, sample_ids=columns.sample_ids, returns=returns, **columns.beside, **given
    )
    names = ("input_ids", "labels", "attention_mask")
    return _arrays(done, names) | {name: stacked(values) for name, values in columns.others.items()}


def packed_batches(
    masker: Masker, columns: Columns, epoch: int, max_tokens: int, returns: Sequence[str] = ()
) -> list[Batch]:
    """The columns side by side, at most max_tokens in a batch, masked. Arguments are those of `padded_batch`."""
    done = pack(
        masker,
        columns.rows,
        epoch=epoch,
        max_tokens=max_tokens,
        sample_ids=columns.sample_ids,
        returns=returns,
        **columns.beside,
    )
    names = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen")
    return [
        _arrays(one, names) | {name: stacked(values[slice(*one.samples)]) for name, values in columns.others.items()}
        for one in done
    ]


def _padded_width(width: int, layout: Mapping[str, Any]) -> int:
    """The columns of a batch whose longest sample has this width, padding of its own included."""
    width = min(width, layout.get("max_length") or width)
    multiple = layout.get("pad_to_multiple_of") or 1
    return max(1, -(-width // multiple) * multiple)


def _arrays(done: CollatedBatch | PackedBatch, names: Sequence[str]) -> Batch:
    """What a batch holds, by name, without what was neither given nor asked for."""
    further = (name for name in FURTHER if getattr(done, name) is not None)
    return {name: getattr(done, name) for name in (*names, *further)}


def stacked(values: Sequence[Any]) -> Any:
    """The values as one NumPy array where they are numbers, or arrays of numbers of one shape; else as they are."""
    try:
        if all(type(value) is int for value in values):
            return np.array(values, np.uint64 if max(values) >= 1 << 63 else np.int64)  # sample ids have 64 bits
        array = np.stack([to_host("value", value) for value in values])
    except (TypeError, ValueError, OverflowError):
        return values
    return array if array.dtype.kind in "biuf" else values


def _of_sequences(features: Sequence[Any], sample_id: str | None) -> Columns:
    if sample_id is not None:
        raise ValueError(f"sample 0 is a sequence of ids and has no {sample_id!r}: sample_id goes with mappings")
    for i, feature in enumerate(features):
        if isinstance(feature, Mapping):
            raise TypeError(f"sample {i} is a mapping, but sample 0 is a sequence of ids")
    return Columns(list(features))


def _check_keys(features: Sequence[Any], sample_id: str | None) -> None:
    first = features[0].keys()
    for name in ("input_ids", *([] if sample_id is None else [sample_id])):
        if name not in first:
            raise ValueError(f"sample 0 lacks {name!r}: it has {', '.join(map(repr, first)) or 'nothing'}")
    for i, feature in enumerate(features):
        if not isinstance(feature, Mapping):
            raise TypeError(f"sample {i} is a {type(feature).__name__}, but sample 0 is a mapping")
        if feature.keys() != first:
            name = min(feature.keys() ^ first, key=str)
            without, having = (i, 0) if name in first else (0, i)
            raise ValueError(f"sample {without} lacks {name!r}, which sample {having} has")


def _id_of(name: str, index: int, value: Any) -> int:
    return integer(f"{name} of sample {index}", value)


def _take_off_padding(columns: Columns, masks: Sequence[Any]) -> None:
    """Cuts every column to the real tokens."""
    ragged = [columns.rows, *columns.beside.values()]
    for i, mask in enumerate(masks):
        length = len(columns.rows[i])
        if len(mask) != length:
            raise ValueError(f"attention_mask of sample {i} has length {len(mask)}, but input_ids has {length}")
        if type(mask) is list and mask.count(1) == length:
            continue
        real = _run_of_ones(i, mask)
        if real.stop - real.start < length:
            columns.width = max(map(len, columns.rows)) if columns.width is None else columns.width
            for column in ragged:
                column[i] = column[i][real]


def _run_of_ones(index: int, mask: Any) -> slice:
    values = to_host(f"attention_mask of sample {index}", mask)
    ones = np.flatnonzero(values == 1)
    run = slice(int(ones[0]), int(ones[-1]) + 1) if ones.size else slice(0, 0)
    if run.stop - run.start != ones.size or np.count_nonzero(values) != ones.size:
        raise ValueError(f"attention_mask of sample {index} must be one run of ones among zeros, got {mask}")
    return run
