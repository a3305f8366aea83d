"""Spans in plain NumPy: all rows at once, and the loop over rows that people write."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from benchmarks.baselines import Ids, Masked
from benchmarks.baselines_laws import LawMasker, Places, smallest, spread

ATTEMPTS = 1.3  # times those that cover p on average: one round is enough for nearly all rows


class Units(NamedTuple):
    """Tokens or words that can be selected, row after row."""

    firsts: Places
    ends: Places
    bounds: Places  # (rows + 1,): the units of row r are bounds[r] .. bounds[r + 1] - 1
    stops: Places  # the places of special ids, and the end: spans end there at the latest
    tokens: Places  # (rows,): candidates


class SpanMasker(LawMasker):
    """Spans of lengths with the given weights, until exactly floor(p * candidates + 0.5) tokens are covered.

    Against fastmask's law it spares itself one rule: an attempt that begins in a selected token is not dropped, so
    that a few more spans grow together.
    """

    def spans(self, ids: Ids, out: Masked, weights: tuple[float, ...], word_ids: Ids | None = None) -> Masked:
        """All attempts of all rows are drawn at once.

        Each place is given the number of the first attempt that covers it; the places with the smallest (attempt,
        column) are taken. Rows that are not full get another round.
        """
        units = self._units(ids, word_ids)
        budget = self._share_of(units.tokens)
        cumulated = np.cumsum(weights) / np.sum(weights)
        mean = float(np.sum(1 - cumulated)) + 1
        attempts = int(ATTEMPTS * -np.log1p(-self.p) * np.diff(units.bounds).max() / mean) + 4
        columns = ids.shape[1]
        dtype = np.int32 if 4 * attempts * columns < 1 << 31 else np.int64
        never = np.iinfo(dtype).max
        keys = np.full(ids.shape, never, dtype)
        left, before = np.flatnonzero(budget), 0
        while left.size:
            number = np.arange(before + attempts - 1, before - 1, -1)  # the first attempt is written last, and stays
            places, attempt = self._attempts(units, left, number, cumulated)
            new = attempt * columns + places % columns
            flat = keys.reshape(-1)
            if before:
                free = flat.take(places) == never
                places, new = places[free], new[free]
            flat[places] = new
            left = left[np.count_nonzero(keys[left] != never, axis=1) < budget[left]]
            before += attempts
        ordered = np.sort(keys, axis=1)  # faster than a partition where most keys are equal
        return self.finish(ids, np.flatnonzero(smallest(keys, budget, ordered)), out)

    def _attempts(
        self, units: Units, rows: Places, number: Places, cumulated: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> tuple[Places, Places]:
        """The places that attempts cover in each of the rows, and the number of the attempt of each place."""
        shape = (rows.size, number.size)
        first_unit, count = units.bounds[rows, None], np.diff(units.bounds)[rows, None]
        length = np.searchsorted(cumulated, self.rng.random(shape, np.float32), side="right") + 1
        start = (self.rng.random(shape, np.float32) * (count + length - 1)).astype(np.int64) - (length - 1)
        last = np.minimum(start + length, count) - 1
        firsts = units.firsts.take(first_unit + np.minimum(np.maximum(start, 0), last))
        stops = units.stops.take(np.searchsorted(units.stops, firsts))
        lengths = (np.minimum(units.ends.take(first_unit + last), stops) - firsts).reshape(-1)
        attempt = np.repeat(np.broadcast_to(number, shape).reshape(-1), lengths)
        return spread(firsts.reshape(-1), lengths), attempt

    def _units(self, ids: Ids, word_ids: Ids | None) -> Units:
        if word_ids is None:
            special = self.table.take(ids)
            firsts = np.flatnonzero(~special)
            ends = firsts + 1
        else:
            special, begins = self.unit_begins(ids, word_ids)
            firsts = np.flatnonzero(begins)
            ends = np.append(firsts[1:], ids.size)
            candidates = ~special.reshape(-1).take(firsts)
            firsts, ends = firsts[candidates], ends[candidates]
        rows, columns = ids.shape
        bounds = np.searchsorted(firsts, np.arange(rows + 1) * columns)
        stops = np.append(np.flatnonzero(special), ids.size)
        return Units(firsts, ends, bounds, stops, columns - np.count_nonzero(special, axis=1))

    def spans_by_row(self, ids: Ids, out: Masked, weights: tuple[float, ...]) -> Masked:
        """A Python loop over rows and spans; lengths and starts of a row are drawn together."""
        cumulated = np.cumsum(weights) / np.sum(weights)
        chosen = [self._row(row, cumulated) + i * ids.shape[1] for i, row in enumerate(ids)]
        return self.finish(ids, np.concatenate(chosen), out)

    def _row(self, ids: Ids, cumulated: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Places:
        """The columns that one row selects."""
        candidates = np.flatnonzero(~self.table.take(ids))
        n = candidates.size
        budget = int(self.p * n + 0.5)
        stops = [*(np.flatnonzero(np.diff(candidates) != 1) + 1).tolist(), n]
        taken = bytearray(n)  # for spans so short a loop in Python is faster than NumPy
        covered = 0
        while covered < budget:
            lengths = np.searchsorted(cumulated, self.rng.random(budget, np.float32), side="right") + 1
            starts = (self.rng.random(budget, np.float32) * (n + lengths - 1)).astype(np.int64) - (lengths - 1)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                first = max(start, 0)
                if taken[first] or covered == budget:
                    continue
                last = min(start + length, n, stops[bisect_right(stops, first)])
                for place in range(first, last):
                    if not taken[place] and covered < budget:
                        taken[place] = 1
                        covered += 1
        return candidates[np.frombuffer(taken, np.bool_)]
