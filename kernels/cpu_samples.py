"""What the kernels over rows work on and with: a batch, an objective, and the memory of a thread for one row."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fastmask.kernels.cpu_range import line_aligned
from fastmask.kernels.cpu_sets import NEAR
from fastmask.kernels.cpu_spans import ATTEMPTS
from fastmask.kernels.cpu_tile import TILE


class Samples(NamedTuple):
    """The cells and samples of a batch; arrays that are not there are empty."""

    ids: Any
    firsts: Any  # the flat cells between which the real tokens of each row lie
    ends: Any
    sample_ids: Any
    special_tokens_mask: Any
    offsets: Any
    thresholds: Any
    rates: Any
    weights: Any  # content weights
    word_ids: Any
    epoch: Any
    counts: Any  # k for n = 0, 1, ...
    stride: Any  # cells from one row to the next; 0 in a packed batch, where positions are cells


class Law(NamedTuple):
    """The integers of a plan, for compiled code."""

    plan: Any
    runs: Any
    pool: Any
    cumulative: Any
    lengths: Any
    is_continuation: Any


class RowScratch(NamedTuple):
    """The working memory of one thread; sets have a word more than a row has chunks, which is empty."""

    pairs: Any  # the words of a row as uint64: two words each
    words: Any  # the same memory as uint32
    candidates: Any
    starts: Any  # of words
    rest: Any
    none: Any  # the empty set
    chosen: Any
    left: Any
    added: Any
    units: Any
    near: Any
    attempts: Any
    attempt_words: Any
    marks: Any
    seconds: Any  # the second numbers of a tile
    draws: Any
    others: Any
    found: Any
    written: Any  # a tile of ids, where the target is the input itself
    end: Any  # one cell: where the piece of a tile ends
    shift: Any


@njit
def make_row_scratch(longest, ids, in_place, spans):
    """Memory for one row of so many tokens."""
    chunks = longest // 64 + 2
    cells = (chunks + 1) * 64
    pairs, attempts = line_aligned(cells // 2), line_aligned(2 * ATTEMPTS)
    seconds = line_aligned(TILE // 2 + 64).view(np.uint32)
    sets = np.zeros((7, chunks), np.uint64)
    places = np.zeros((2, 1), np.int64)
    tile, other_tile = line_aligned(TILE // 2), line_aligned(TILE // 2)
    units, written = np.empty(cells if spans else 0, np.uint32), np.empty(TILE if in_place else 0, ids.dtype)
    return RowScratch(
        pairs, pairs.view(np.uint32), sets[0], sets[1], sets[2], sets[3], sets[4], sets[5], sets[6], units,
        np.empty(NEAR, np.uint64), attempts, attempts.view(np.uint32), line_aligned(TILE // 2).view(np.uint32),
        seconds, tile.view(np.int32), other_tile.view(np.int32), np.empty(TILE, np.uint32),
        written, places[0], places[1],
    )  # fmt: skip
