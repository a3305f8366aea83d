"""The same text masked by every backend: what came out, and how long it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import fastmask as fm
from fastmask.cli.baseline import mask_plain
from fastmask.cli.places import CACHE_TOKENS, Place
from fastmask.cli.text import Rows

MOST_RUNS = 25


@dataclass(frozen=True)
class Masked:
    """All of the text, masked: three arrays (rows, row length)."""

    input_ids: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    decisions: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Timing:
    """Seconds of the very first batch, and the median over some later runs through all of the text."""

    first: float
    median: float
    runs: int
    batch_rows: int


@dataclass(frozen=True)
class Setting:
    """What is masked, by which law, in which epoch; row r has the sample id r."""

    rows: Rows
    masker: fm.Masker
    epoch: int
    p: float  # of the masker's Bernoulli law

    def batches(self, tokens: int | None) -> Iterator[tuple[int, int]]:
        """First row and last row + 1 of batches of about that many tokens (None: one batch)."""
        count, row_length = self.rows.ids.shape
        step = count if tokens is None else max(1, min(count, tokens // row_length))
        return ((row, min(row + step, count)) for row in range(0, count, step))


def mask_all(setting: Setting, place: Place) -> Masked:
    """The whole text by one backend, with the decisions."""
    parts = []
    for first, last in setting.batches(place.batch_tokens):
        batch = setting.masker(
            place.bring(setting.rows.ids[first:last]),
            epoch=setting.epoch,
            sample_ids=first,
            lengths=place.bring(setting.rows.lengths[first:last]),
            backend=place.backend,
            returns=("decisions",),
        ).check()
        arrays = (batch.input_ids, batch.labels, batch.decisions)
        parts.append([np.array(place.fetch(array)) for array in arrays])
    return Masked(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def time_backend(setting: Setting, place: Place, limit: float, compiled: Callable[[], object]) -> Timing:
    """How long a backend takes, its arrays in place and outputs given; `compiled` is called after its first call."""
    borders = list(setting.batches(place.batch_tokens))
    batches = [
        (first, place.bring(setting.rows.ids[first:last]), place.bring(setting.rows.lengths[first:last]))
        for first, last in borders
    ]
    empty = np.empty_like(setting.rows.ids[: borders[0][1]])
    ids_out, labels_out = place.bring(empty), place.bring(empty.copy())

    def run(count: int | None) -> None:
        for first, ids, lengths in batches[:count]:
            rows = ids.shape[0]
            setting.masker(
                ids,
                epoch=setting.epoch,
                sample_ids=first,
                lengths=lengths,
                out=(ids_out[:rows], labels_out[:rows]),
                backend=place.backend,
            )
        place.wait()

    return _measure(run, limit, borders[0][1], compiled)


def time_plain(setting: Setting, limit: float) -> Timing:
    """How long plain NumPy takes for the same batches."""
    masker = setting.masker
    special = np.zeros(masker.vocab.size, np.bool_)
    special[list(masker.vocab.special_token_ids)] = True
    pool = np.flatnonzero(~special)
    rng = np.random.default_rng(0)
    borders = list(setting.batches(CACHE_TOKENS))

    def run(count: int | None) -> None:
        for first, last in borders[:count]:
            mask_plain(
                setting.rows.ids[first:last],
                special=special,
                pool=pool,
                mask_id=masker.vocab.mask_token_id,
                p=setting.p,
                mask=masker.replace.mask,
                random=masker.replace.random,
                rng=rng,
            )

    return _measure(run, limit, borders[0][1])


def _measure(
    run: Callable[[int | None], None], limit: float, batch_rows: int, compiled: Callable[[], object] = lambda: None
) -> Timing:
    """Times run(1), the first batch, then run(None), all of them, until `limit` seconds, at least once."""
    first = _seconds(lambda: run(1))
    compiled()
    taken: list[float] = []
    end = time.perf_counter() + limit
    while not taken or (len(taken) < MOST_RUNS and time.perf_counter() + taken[-1] < end):
        taken.append(_seconds(lambda: run(None)))
    return Timing(first, statistics.median(taken), len(taken), batch_rows)


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def difference(got: Masked, reference: Masked) -> str | None:
    """Where two results differ first, or None: every bit is the same."""
    for what in ("input_ids", "labels", "decisions"):
        mine, theirs = getattr(got, what), getattr(reference, what)
        if not np.array_equal(mine, theirs):
            row, column = (int(index) for index in np.argwhere(mine != theirs)[0])
            values = f"{mine[row, column]} and {theirs[row, column]}"
            return f"{what}, first at row {row}, column {column}: {values}"
    return None
