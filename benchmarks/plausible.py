"""Whether a masker in NumPy did the job that it is timed for, judged by what fastmask does with the same law."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.baselines import Ids, Masked
from benchmarks.cases import MASK_ID

BLOCK = 512  # cells over which targets are counted
ERRORS = 6.0  # standard errors that two means may differ by

Bools = npt.NDArray[np.bool_]


class Selection(NamedTuple):
    """What became of each cell of a batch, flat."""

    candidates: Bools
    selected: Bools
    masked: Bools
    randomised: Bools

    @classmethod
    def of(cls, ids: Ids, out: Masked, special: Bools) -> Selection:
        """Raises AssertionError where ids and labels contradict each other, or special ids were touched or drawn."""
        ids, new, labels = (array.reshape(-1) for array in (ids, *out))
        selected = labels != -100
        assert (labels[selected] == ids[selected]).all(), "a label is not the original id"
        assert (new[~selected] == ids[~selected]).all(), "an id changed that has no label"
        candidates = ~special[ids]
        assert candidates[selected].all(), "a special id was selected"
        changed = new != ids
        masked = new == MASK_ID
        randomised = changed & ~masked
        assert not special[new[randomised]].any(), "a special id was drawn"
        return cls(candidates, selected, changed & masked, randomised)

    def counts(self, boundaries: npt.NDArray[np.int64], heads: Bools | None = None) -> npt.NDArray[np.int64]:
        """Selected tokens between boundaries (or, with `heads`, the words that they mark)."""
        counted = self.selected if heads is None else self.selected & heads
        return np.diff(np.concatenate([[0], np.cumsum(counted)])[boundaries])

    def check_words(self, word_ids: Ids) -> Bools:
        """Where words begin; AssertionError where one is selected in part."""
        flat, columns = word_ids.reshape(-1), word_ids.shape[1]
        continues = np.zeros(flat.size, np.bool_)
        continues[1:] = (flat[1:] == flat[:-1]) & self.candidates[:-1]
        continues[::columns] = False
        continues &= self.candidates
        parted = self.selected[1:] != self.selected[:-1]
        assert not (parted & continues[1:]).any(), "a word was selected in part"
        return self.candidates & ~continues

    def _by_block(self) -> dict[str, npt.NDArray[np.int64]]:
        """Counts per block of cells; a run of targets is counted where it begins."""
        begins = self.selected & ~np.concatenate([[False], self.selected[:-1]])
        counted = {"targets": self.selected, "MASK": self.masked, "random": self.randomised, "runs": begins}
        return {name: np.add.reduceat(x, range(0, x.size, BLOCK), dtype=np.int64) for name, x in counted.items()}


def check_similar(got: Selection, want: Selection, slack: float = 0.0) -> None:
    """AssertionError where targets, MASK, random ids or runs of targets are too many or too few on average.

    `slack` is a share by which runs may differ beyond chance.
    """
    for (name, a), b in zip(got._by_block().items(), want._by_block().values(), strict=True):
        error = float(np.sqrt((a.var() + b.var()) / a.size))
        allowed = ERRORS * error + (slack * b.mean() if name == "runs" else 0)
        difference = abs(a.mean() - b.mean())
        assert difference <= allowed, f"{name}: {a.mean():.2f} instead of {b.mean():.2f} in {BLOCK} cells"


def check_compact(labels: Ids, positions: Any, ids: Any, weights: Any, counts: Any) -> None:
    """AssertionError where compact targets are not those of the labels."""
    if positions.ndim == 2:
        used = np.arange(positions.shape[1]) < counts[:, None]
        unused_differ = (weights != used).any() or positions[~used].any() or (ids[~used] != -100).any()
        assert not unused_differ, "unused slots are not 0, -100 and 0"
        positions, ids = positions[used], ids[used]
    rows = np.repeat(np.arange(len(labels)), counts)
    assert counts.sum() == np.count_nonzero(labels != -100), "as many compact targets as labels"
    assert (ids == labels[rows, positions]).all(), "a compact target is not the label at its position"
