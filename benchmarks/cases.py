"""What is timed: the list of cases, their arrays, and the gate that every case passes before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import fastmask as fm
from benchmarks.baselines import Ids, NumpyMasker, copier, hugging_face
from benchmarks.measure import aligned_empty
from fastmask.laws import Law

SIZE, MASK_ID, PAD_ID, P, SEED, EPOCH = 30522, 103, 0, 0.15, 7, 0
TWO_RUNS = (0, 100, 101, 102, 103)  # BERT's: 0 alone, then 100 to 103
FIVE_RUNS = (0, 3, 7, 11, 103)
BERT_SHARES = fm.Replace(mask=0.8, random=0.1)
PART_ROWS = 1024  # the NumPy backend makes temporaries: large cases are compared in parts


@dataclass(frozen=True)
class Case:
    """One line of the table: a shape, dtypes, and what the call is given."""

    name: str
    rows: int = 256
    columns: int = 512
    ids: str = "int64"
    ids_out: str = "int64"
    labels: str = "int64"
    specials: tuple[int, ...] = TWO_RUNS
    sample_ids: bool = True  # False: computed from the content
    out: bool = True  # False: fresh arrays, which fastmask recycles
    lengths: bool = False  # True: padding begins at a random column of the second half
    number: int = 1  # calls under one clock reading


CASES = (
    Case("int64"),
    Case("int32", ids="int32", ids_out="int32", labels="int32"),
    Case("uint16 to int64", ids="uint16"),
    Case("int64, ids from content", sample_ids=False),
    Case("int64, no `out=`", out=False),
    Case("int64, 1024 rows of 128", rows=1024, columns=128),
    Case("int64, 256 rows of 500", columns=500),
    Case("int64, `lengths=`", lengths=True),
    Case("int64, 5 runs of special ids", specials=FIVE_RUNS),
    Case("int64, one row of 128", rows=1, columns=128, number=200),
)

LARGE = (  # 2^24 tokens: from memory, not from a cache
    Case("int64", rows=32768),
    Case("int32", rows=32768, ids="int32", ids_out="int32", labels="int32"),
)


def sample_ids(rows: int) -> npt.NDArray[np.uint64]:
    """Ids that need more than 32 bits."""
    return np.arange(rows, dtype=np.uint64) + np.uint64(1 << 33)


class Prepared:
    """A case with its arrays in memory; a method per contestant."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(1)
        self.ids = self._ids(rng)
        self.padding: npt.NDArray[np.bool_] | None = None
        self.arguments: dict[str, Any] = {"epoch": EPOCH, **self._arguments(rng)}
        self.out = (self._poisoned(case.ids_out), self._poisoned(case.labels))
        self.vocab = self._vocab()
        self.masker = self._masker(fm.Bernoulli(P))

    def _ids(self, rng: np.random.Generator) -> Ids:
        case = self.case
        ids = aligned_empty((case.rows, case.columns), case.ids)
        for first in range(0, case.rows, PART_ROWS):  # in parts: no temporary of the size of a large case
            part = ids[first : first + PART_ROWS]
            part[...] = rng.integers(0, SIZE, part.shape, np.int32)
        return ids

    def _arguments(self, rng: np.random.Generator) -> dict[str, Any]:
        case = self.case
        arguments: dict[str, Any] = {}
        if case.sample_ids:
            arguments["sample_ids"] = sample_ids(case.rows)
        if case.lengths:
            lengths = rng.integers(case.columns // 2, case.columns + 1, case.rows)
            self.padding = np.arange(case.columns) >= lengths[:, None]
            self.ids[self.padding] = PAD_ID
            arguments["lengths"] = lengths
        return arguments

    def _vocab(self) -> fm.Vocab:
        return fm.Vocab(size=SIZE, mask_token_id=MASK_ID, pad_token_id=PAD_ID, special_token_ids=self.case.specials)

    def _masker(self, law: Law, replace: Any = BERT_SHARES) -> fm.Masker:
        dtypes: dict[str, Any] = {"id_dtype": np.dtype(self.case.ids_out), "label_dtype": np.dtype(self.case.labels)}
        return fm.Masker(self.vocab, select=law, replace=replace, seed=SEED, **dtypes)

    def _poisoned(self, dtype: str) -> npt.NDArray[Any]:
        array = aligned_empty(self.ids.shape, dtype)
        array.fill(-7)  # never an id nor a label; and every page is in memory now
        return array

    @property
    def tokens(self) -> int:
        """Cells of the array, padding included."""
        return self.ids.size

    @property
    def bytes_moved(self) -> int:
        """Ids read, and ids and labels written."""
        return self.ids.nbytes + sum(array.nbytes for array in self.out)

    def fastmask(self) -> object:
        """One public call; the backend is named, so that no other one can be timed by mistake."""
        if self.case.out:
            return self.masker(self.ids, out=self.out, backend="cpu", **self.arguments)
        return self.masker(self.ids, backend="cpu", **self.arguments)

    def copy(self, threads: int = 1) -> Callable[[], object]:
        """The copy that moves the same bytes."""
        return copier(self.ids, self.out, threads)

    @property
    def special(self) -> npt.NDArray[np.bool_]:
        """For each id whether it is special."""
        table = np.zeros(SIZE, np.bool_)
        table[list(self.vocab.special_token_ids)] = True
        return table

    @cached_property
    def _numpy(self) -> NumpyMasker:
        return NumpyMasker(self.special, MASK_ID, P)

    def banded(self, double: bool = False) -> object:
        """The banded masker in NumPy, given the same padding; with draws in float32, or in float64."""
        return self._numpy.banded(self.ids, self.padding, double)

    def sparse(self) -> object:
        """The fastest masker in plain NumPy that we know, given the same padding and outputs."""
        return self._numpy.sparse(self.ids, self.out, self.padding)

    def hugging_face(self) -> Callable[[], object] | str:
        """Hugging Face's mask step, or why there is none."""
        never = self._numpy.table[self.ids]
        if self.padding is not None:
            never |= self.padding
        return hugging_face(self.ids, SIZE, MASK_ID, never, P)

    def _parts(self) -> list[slice]:
        """Rows that are compared together."""
        return [slice(first, first + PART_ROWS) for first in range(0, self.case.rows, PART_ROWS)]

    def check(self) -> None:
        """The gate: the timed call gives the NumPy backend's bits in every cell.

        Raises AssertionError where it does not, or where it writes into its input.
        """
        for array in self.out:
            array.fill(-7)
        before = self.ids.copy()
        batch: Any = self.fastmask()
        np.testing.assert_array_equal(self.ids, before, err_msg="the input was written", strict=True)
        for part in self._parts():
            arguments: dict[str, Any] = {
                name: value[part] if isinstance(value, np.ndarray) else value for name, value in self.arguments.items()
            }
            want = self.masker(self.ids[part], backend="numpy", **arguments)
            for name in ("input_ids", "labels"):
                np.testing.assert_array_equal(
                    getattr(batch, name)[part],
                    getattr(want, name),
                    err_msg=f"{self.case.name}: {name} of {part} differ from the NumPy backend",
                    strict=True,
                )
