"""Where the samples of a batch lie, which of their tokens may be selected, and what identifies a sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastmask.kernels.reference_stream import GOLDEN_64, mix


class Tokens(NamedTuple):
    """Some tokens of a batch in ascending order of their cells, three arrays of one length."""

    rows: np.ndarray  # int64
    positions: np.ndarray  # int64, in the sample
    cells: np.ndarray  # int64, in the flat array of ids


def real_tokens(first, lengths):
    """The Tokens of samples that begin at the cells `first` and have `lengths` tokens, both (rows,) int64."""
    rows = np.repeat(np.arange(lengths.size), lengths)
    positions = np.arange(rows.size) - (np.cumsum(lengths) - lengths)[rows]
    return Tokens(rows, positions, first[rows] + positions)


def trim_padding(ids2d, pad_id):
    """(starts, lengths), int64 (rows,): each row less its leading and trailing runs of `pad_id`.

    A row of nothing but `pad_id` has start 0 and length 0. With `pad_id` None every row is real as a whole.

    Args:
        ids2d: (rows, row_length) integers.
        pad_id: int, or None.

    >>> trim_padding(np.array([[0, 5, 0, 6, 0, 0]]), 0)
    (array([1]), array([3]))
    """
    rows, row_length = ids2d.shape
    if pad_id is None or row_length == 0:
        return np.zeros(rows, np.int64), np.full(rows, row_length, np.int64)
    real = ids2d.astype(np.int64) != pad_id
    starts = real.argmax(axis=1)
    ends = row_length - real[:, ::-1].argmax(axis=1)
    return starts.astype(np.int64), np.where(real.any(axis=1), ends - starts, 0)


def real_runs(attention_mask2d):
    """(starts, lengths, bad): where each row's run of ones lies, int64 (rows,), and the first offending cell.

    bad is an int: -1, or the flat index in row-major order of the first cell that is neither 0 nor 1 (NaN
    included) or is a one after a hole; starts and lengths then mean nothing. An empty row has start 0.

    Args:
        attention_mask2d: (rows, row_length) of any integer, bool or float dtype.
    """
    rows, row_length = attention_mask2d.shape
    ones = attention_mask2d == 1
    begins = ones.copy()
    begins[:, 1:] &= ~ones[:, :-1]
    again = begins & (begins.cumsum(axis=1) > 1)  # a run that is not the row's first
    offending = np.flatnonzero(~(ones | (attention_mask2d == 0)) | again)
    starts = ones.argmax(axis=1) if row_length else np.zeros(rows)
    lengths = ones.sum(axis=1, dtype=np.int64)
    return starts.astype(np.int64), lengths, int(offending[0]) if offending.size else -1


def sample_runs(plan, call, ids):
    """(first, lengths), int64 (rows,): the cell of each sample's first real token, and how many it has.

    `ids` are the call's, flat, in any dtype; they are read where the pad id tells what is real.
    """
    if call.boundaries is not None:
        return call.boundaries[:-1], np.diff(call.boundaries)
    starts, lengths = call.starts, call.lengths
    if lengths is None:
        starts, lengths = trim_padding(ids.reshape(call.rows, call.row_length), plan.pad_id)
    begins = np.arange(call.rows) * call.row_length
    return begins if starts is None else begins + starts, lengths


def content_ids(ids2d, starts, lengths):
    """The sample id that each row's real tokens give, uint64 (rows,); the padding around them does not enter.

    Args:
        ids2d: (rows, row_length) integers in [0, 2^31).
        starts: (rows,) int64, the column of the first real token.
        lengths: (rows,) int64, the number of real tokens.
    """
    rows, row_length = ids2d.shape
    return ids_of_runs(ids2d.reshape(-1), np.arange(rows) * row_length + starts, lengths)


def ids_of_runs(ids, first, lengths):
    """The content ids of samples in a flat array, uint64 (rows,); `first` and `lengths` as of `sample_runs`."""
    tokens = real_tokens(first, lengths)
    weights = mix(np.arange(1, lengths.max(initial=0) + 1, dtype=np.uint64) * np.uint64(GOLDEN_64))
    sums = np.zeros(lengths.size, np.uint64)
    np.add.at(sums, tokens.rows, (ids[tokens.cells].astype(np.uint64) + np.uint64(1)) * weights[tokens.positions])
    return mix(sums)


def candidates(plan, call, ids, tokens):
    """Those of the real tokens that may be selected: neither the id nor the call says that they are special."""
    allowed = ~np.isin(ids[tokens.cells], np.array(plan.special_ids, np.int64))
    if call.special_tokens_mask is not None:
        allowed &= call.special_tokens_mask[tokens.cells] == 0
    return Tokens(*(array[allowed] for array in tokens))


def adjoining(tokens):
    """Whether each of the tokens follows the one before it in its sample with nothing between, bool."""
    follows = np.zeros(tokens.cells.size, np.bool_)
    follows[1:] = (np.diff(tokens.rows) == 0) & (np.diff(tokens.positions) == 1)
    return follows


def word_begins(plan, call, ids, tokens):
    """Whether each candidate is the first position of a word, bool: by the call's word ids, else by its own id."""
    if call.word_ids is None:
        continues = plan.is_continuation[ids[tokens.cells]] != 0
    else:
        given = call.word_ids[tokens.cells]
        continues = np.zeros(given.size, np.bool_)
        continues[1:] = given[1:] == given[:-1]
    return ~(adjoining(tokens) & continues)
