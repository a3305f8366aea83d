"""The laws beyond token-level Bernoulli in plain NumPy: the fastest way we know, whole arrays at a time.

Each method does the whole job: special ids are left out, targets replaced, labels written into `out`. Uniforms are
float32 from numpy.random.Generator. All arrays are contiguous, and no sample has padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.baselines import MASK_SHARE, RANDOM_SHARE, Floats, Ids, Masked, NumpyMasker

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]  # in the flat ids

NEVER = 1.0  # above every uniform


class LawMasker(NumpyMasker):
    """A method per law. `word_ids` are equal within a word, as a tokenizer gives them."""

    def diffusion(self, ids: Ids, out: Masked, eps: float = 1e-3) -> Masked:
        """A rate per row, uniform in [eps, 1); replacement by MASK alone."""
        rates = (eps + (1 - eps) * self.rng.random((ids.shape[0], 1), np.float32)).astype(np.float32)
        chosen = self.rng.random(ids.shape, np.float32) < rates
        chosen &= ~self.table.take(ids)
        masked, labels = out
        for array, kept, filled in ((masked, ~chosen, self.mask_token_id), (labels, chosen, -100)):
            np.multiply(ids - filled, kept, out=array)  # half of `where`'s time: no branch to mispredict
            array += filled
        return out

    def exact_count(self, ids: Ids, out: Masked) -> Masked:
        """In every row the floor(p * candidates + 0.5) candidates with the smallest uniforms."""
        special = self.table.take(ids)
        counts = self._share_of(ids.shape[1] - np.count_nonzero(special, axis=1))
        return self.finish(ids, np.flatnonzero(smallest(self._keys(special), counts)), out)

    def limited(self, ids: Ids, out: Masked, least: int, most: int) -> Masked:
        """Bernoulli, but no row has fewer than `least` nor more than `most` targets."""
        keys = self._keys(self.table.take(ids))
        chosen = keys < self.p
        counts = np.count_nonzero(chosen, axis=1)
        candidates = np.count_nonzero(keys < NEVER, axis=1)
        wanted = np.minimum(counts.clip(least, most), candidates)
        changed = np.flatnonzero(wanted != counts)
        chosen[changed] = smallest(keys[changed], wanted[changed])
        return self.finish(ids, np.flatnonzero(chosen), out)

    def one_fate_per_run(self, ids: Ids, out: Masked) -> Masked:
        """Bernoulli, and one draw of MASK, random or kept for each maximal run of targets in a row."""
        chosen = np.flatnonzero(self.rng.random(ids.size, np.float32) < self.p)
        chosen = chosen[~self.table.take(ids.reshape(-1).take(chosen))]
        begins = chosen % ids.shape[1] == 0
        begins[1:] |= np.diff(chosen) != 1
        run = np.cumsum(begins) - 1
        uniform = self.rng.random(int(begins.sum()) + 1, np.float32)  # begins[0] may be false: run -1 is the last
        return self.finish(ids, chosen, out, uniform.take(run))

    def words(self, ids: Ids, out: Masked, word_ids: Ids) -> Masked:
        """Bernoulli over words: one uniform each."""
        special, begins = self.unit_begins(ids, word_ids)
        firsts = np.flatnonzero(begins)
        chosen = np.flatnonzero(self.rng.random(firsts.size, np.float32) < self.p)
        ends = np.append(firsts, ids.size).take(chosen + 1)
        firsts = firsts.take(chosen)
        allowed = ~special.reshape(-1).take(firsts)
        firsts, ends = firsts[allowed], ends[allowed]
        return self.finish(ids, spread(firsts, ends - firsts), out)

    def exact_words(self, ids: Ids, out: Masked, word_ids: Ids) -> Masked:
        """In every row the floor(p * words + 0.5) words with the smallest uniforms."""
        special, begins = self.unit_begins(ids, word_ids)
        units = np.flatnonzero(begins)
        lengths = np.empty(ids.size, np.int32)
        lengths[units] = np.diff(units, append=ids.size)
        begins = begins.reshape(ids.shape) & ~special
        counts = self._share_of(np.count_nonzero(begins, axis=1))
        firsts = np.flatnonzero(smallest(self._keys(~begins), counts))
        return self.finish(ids, spread(firsts, lengths.take(firsts)), out)

    def packed_exact_count(self, ids: Ids, out: Masked, cu_seqlens: Places) -> Masked:
        """Exact counts in documents side by side: ranked in a padded array, faster than sorting by (document, key)."""
        lengths = np.diff(cu_seqlens)
        real = np.arange(lengths.max()) < lengths[:, None]
        never = np.ones(real.shape, np.bool_)
        never[real] = self.table.take(ids)
        counts = self._share_of(real.shape[1] - np.count_nonzero(never, axis=1))
        return self.finish(ids, np.flatnonzero(smallest(self._keys(never), counts)[real]), out)

    def unit_begins(self, ids: Ids, word_ids: Ids) -> tuple[Bools, Bools]:
        """Where ids are special, and (flat) where a word or a special id begins."""
        special = self.table.take(ids)
        flat = word_ids.reshape(-1)
        begins = np.empty(ids.size, np.bool_)
        np.not_equal(flat[1:], flat[:-1], out=begins[1:])
        begins.reshape(ids.shape)[:, 0] = True
        never = special.reshape(-1)
        begins |= never
        begins[1:] |= never[:-1]
        return special, begins

    def finish(self, ids: Ids, chosen: Places, out: Masked, uniform: Floats | None = None) -> Masked:
        """Targets replaced 80/10/10, each by its own uniform unless one is given, and labels."""
        if uniform is None:
            uniform = self.rng.random(chosen.size, np.float32)
        original = ids.reshape(-1).take(chosen)
        self.write(ids, chosen, original, uniform, (MASK_SHARE, MASK_SHARE + RANDOM_SHARE), out)
        return out

    def _keys(self, never: Bools) -> Floats:
        """Uniforms, raised by NEVER where nothing may be chosen: adding takes a tenth of an assignment's time."""
        keys = self.rng.random(never.shape, np.float32)
        keys += never
        return keys

    def _share_of(self, counts: Places) -> Places:
        shares: Places = np.floor(self.p * counts + 0.5).astype(np.int64)
        return shares


def smallest(keys: npt.NDArray[Any], counts: Places, front: npt.NDArray[Any] | None = None) -> Bools:
    """In each row, where the counts[row] smallest keys are; the counts may differ.

    `front` holds at least the smallest keys in order. By default one partition at the largest count, its front alone
    sorted: NumPy vectorises both, but no partition at several counts at once (4 times slower).
    """
    most = int(counts.max(initial=0))
    if most == 0:
        return np.zeros(keys.shape, np.bool_)
    if front is None:
        front = np.partition(keys, most - 1, axis=1)[:, :most]
        front.sort(axis=1)
    limits = front[np.arange(counts.size), np.maximum(counts, 1) - 1]
    limits[counts == 0] = -1
    chosen: Bools = keys <= limits[:, None]
    for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) != counts):  # equal keys: a row in 30,000
        chosen[row] = False
        chosen[row, np.argsort(keys[row], kind="stable")[: counts[row]]] = True
    return chosen


def spread(firsts: Places, lengths: npt.NDArray[Any]) -> Places:
    """The places firsts[i] .. firsts[i] + lengths[i] - 1 of each i, one after the other."""
    ends = np.cumsum(lengths)
    if not ends.size:
        return np.empty(0, np.int64)
    return np.repeat(firsts - (ends - lengths), lengths) + np.arange(ends[-1])


def compact_flat(labels: Ids) -> tuple[Any, ...]:
    """Columns, ids and weights of all targets, row after row, and the targets of each row."""
    rows, columns = np.nonzero(labels != -100)
    return columns, labels[rows, columns], np.ones(rows.size, np.float32), np.bincount(rows, minlength=len(labels))


def compact_padded(labels: Ids, width: int) -> tuple[Any, ...]:
    """The same in `width` slots per row; unused ones hold 0, -100 and weight 0."""
    rows, columns = np.nonzero(labels != -100)
    counts = np.bincount(rows, minlength=len(labels))
    slots = rows * width + np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    positions, weights = np.zeros((len(labels), width), np.int64), np.zeros((len(labels), width), np.float32)
    ids = np.full((len(labels), width), -100, labels.dtype)
    positions.reshape(-1)[slots], weights.reshape(-1)[slots] = columns, 1
    ids.reshape(-1)[slots] = labels[rows, columns]
    return positions, ids, weights, counts
