"""The laws that are timed: their arrays, the gate of each, and what each is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

import fastmask as fm
from benchmarks.baselines import Ids
from benchmarks.baselines_laws import compact_flat, compact_padded
from benchmarks.baselines_spans import SpanMasker
from benchmarks.cases import BERT_SHARES, MASK_ID, PAD_ID, SIZE, Case, P, Prepared, sample_ids
from benchmarks.measure import aligned_empty
from benchmarks.plausible import Selection, check_compact, check_similar
from fastmask.laws import Law

CLS, SEP = 101, 102
CONTINUATIONS = 5828  # ids of bert-base-uncased that begin with "##"
SHORTEST, LONGEST = 20, 500  # documents, in tokens
GOOGLE_MOST = 77  # predictions per sequence of 512 in the recipe of BERT
SLOTS = 128  # six standard deviations above the mean of Bernoulli
LENGTHS = fm.Geometric(0.2, 10)
TOKENS = fm.Bernoulli(P)


@dataclass(frozen=True)
class LawCase(Case):
    """A line of the tables of laws. Targets are those of the project, on a core with AVX-512."""

    law: Law = TOKENS
    replace: fm.Replace | None = BERT_SHARES
    words: str = ""  # "ids": the call is given word_ids, int32; "table": the vocabulary knows continuations
    packed: bool = False  # documents of 20 to 500 tokens side by side
    compact: str = ""  # "flat" or "padded": compact targets as well
    baseline: str = "sparse"  # the method of SpanMasker that does the same in NumPy
    target: float | None = None  # billion tokens per second, int64


BERNOULLI = LawCase("Bernoulli")
EXACT = LawCase("ExactCount", law=fm.ExactCount(P), baseline="exact_count", target=0.5)
WORDS = LawCase("words, Bernoulli", law=fm.Bernoulli(P, "word"), words="ids", baseline="words", target=0.4)
EXACT_WORDS = LawCase(
    "words, ExactCount", law=fm.ExactCount(P, "word"), words="ids", baseline="exact_words", target=0.32
)
SPANS = LawCase("Spans", law=fm.Spans(P, LENGTHS), baseline="spans", target=0.33)
SPANS_OF_WORDS = LawCase("Spans of words", law=fm.Spans(P, LENGTHS, "word"), words="ids", baseline="spans")

LAWS = (
    BERNOULLI,
    LawCase("Diffusion", law=fm.Diffusion(), replace=None, baseline="diffusion", target=1.0),
    EXACT,
    WORDS,
    replace(WORDS, name="words by the vocabulary's table, Bernoulli", words="table", target=None),
    EXACT_WORDS,
    SPANS,
    SPANS_OF_WORDS,
    LawCase('Bernoulli, `Replace(unit="span")`', replace=fm.Replace(unit="span"), baseline="one_fate_per_run"),
    LawCase("Bernoulli, 1 to 77 per row", law=fm.Bernoulli(P, "token", 1, GOOGLE_MOST), baseline="limited"),
    LawCase("packed, Bernoulli", packed=True, target=0.6),
    LawCase("packed, ExactCount", packed=True, law=fm.ExactCount(P), baseline="packed_exact_count"),
)
COMPACT = (
    LawCase("Bernoulli, flat", compact="flat"),
    LawCase(f"Bernoulli, {SLOTS} slots a row", compact="padded"),
    replace(EXACT, name="ExactCount, flat", compact="flat", target=None),
    replace(EXACT, name=f"ExactCount, {SLOTS} slots a row", compact="padded", target=None),
)
BY_LENGTH = (EXACT, WORDS, EXACT_WORDS, SPANS, SPANS_OF_WORDS)
ROW_LENGTHS = (512, 4096, 131072)


def in_int32(case: LawCase) -> LawCase:
    """The same with int32 ids in and out and int32 labels; targets are for int64."""
    return replace(case, ids="int32", ids_out="int32", labels="int32", target=None)


def with_rows_of(case: LawCase, columns: int) -> LawCase:
    """As many cells in rows of another length."""
    return replace(
        case, name=f"{case.name}, rows of {columns}", rows=case.rows * case.columns // columns, columns=columns
    )


class PreparedLaw(Prepared):
    """A law's case with its arrays in memory; a method per contestant."""

    case: LawCase

    def __init__(self, case: LawCase) -> None:
        super().__init__(case)
        self.masker = self._masker(case.law, case.replace)
        if case.packed:
            self.ids, self.out = self.ids.reshape(-1), (self.out[0].reshape(-1), self.out[1].reshape(-1))

    @cached_property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """Where rows begin in the flat ids, or documents, and the number of cells."""
        cells, rng = self.case.rows * self.case.columns, np.random.default_rng(2)
        if not self.case.packed:
            return np.arange(self.case.rows + 1) * self.case.columns
        ends = np.cumsum(rng.integers(SHORTEST, LONGEST + 1, cells // SHORTEST))
        inside = ends[ends <= cells - SHORTEST]
        halves = [inside[-1] + (cells - inside[-1]) // 2] if cells - inside[-1] > LONGEST else []
        return np.array([0, *inside, *halves, cells])

    def _ids(self, rng: np.random.Generator) -> Ids:
        ids = super()._ids(rng)
        flat = ids.reshape(-1)
        flat[self.boundaries[:-1]], flat[self.boundaries[1:] - 1] = CLS, SEP
        return ids

    @cached_property
    def continues(self) -> npt.NDArray[np.bool_]:
        """For each id whether it continues a word: as many as in BERT's vocabulary, anywhere in it."""
        table = np.zeros(SIZE, np.bool_)
        table[np.random.default_rng(3).choice(np.arange(MASK_ID + 1, SIZE), CONTINUATIONS, replace=False)] = True
        return table

    @cached_property
    def word_ids(self) -> npt.NDArray[np.int32]:
        """The words of a row counted, special ids among them."""
        counted = aligned_empty(self.ids.shape, np.int32)
        np.cumsum(~self.continues[self.ids], axis=-1, dtype=np.int32, out=counted)
        return counted

    def _arguments(self, rng: np.random.Generator) -> dict[str, Any]:
        case = self.case
        arguments: dict[str, Any] = {"sample_ids": sample_ids(self.boundaries.size - 1)}
        if case.packed:
            arguments["cu_seqlens"] = self.boundaries
        if case.words == "ids":
            arguments["word_ids"] = self.word_ids
        if case.compact:
            arguments["returns"] = "compact"
        if case.compact == "padded":
            arguments["max_predictions"] = SLOTS
        return arguments

    def _vocab(self) -> fm.Vocab:
        table = self.continues if self.case.words == "table" else None
        return fm.Vocab(SIZE, MASK_ID, PAD_ID, self.case.specials, is_continuation=table)

    @property
    def bytes_moved(self) -> int:
        """Word ids, which are read, count as well."""
        return super().bytes_moved + (self.word_ids.nbytes if self.case.words == "ids" else 0)

    def reference(self) -> Callable[[], object]:
        """Token-level Bernoulli on the same cells as rows of 512."""
        masker = self._masker(TOKENS)
        ids, *out = (array.reshape(-1, BERNOULLI.columns) for array in (self.ids, *self.out))
        return partial(masker, ids, epoch=0, sample_ids=sample_ids(len(ids)), out=tuple(out), backend="cpu")

    def law_alone(self) -> Callable[[], object]:
        """The same call without compact targets."""
        arguments = {k: v for k, v in self.arguments.items() if k not in ("returns", "max_predictions")}
        return partial(self.masker, self.ids, out=self.out, backend="cpu", **arguments)

    @cached_property
    def _law_masker(self) -> SpanMasker:
        return SpanMasker(self.special, MASK_ID, P)

    def numpy(self) -> Callable[[], object]:
        """The same law by whole NumPy arrays."""
        case = self.case
        more: dict[str, Any] = {}
        if case.words:
            more["word_ids"] = self.word_ids
        if isinstance(case.law, fm.Spans):
            more["weights"] = case.law.lengths.weights
        if case.baseline == "limited":
            more.update(least=1, most=GOOGLE_MOST)
        if case.baseline == "packed_exact_count":
            more["cu_seqlens"] = self.boundaries
        call = partial(getattr(self._law_masker, case.baseline), self.ids, self.out, **more)
        return partial(self._numpy_compact, call) if case.compact else call

    def _numpy_compact(self, call: Callable[[], Any]) -> object:
        _, labels = call()
        return compact_flat(labels) if self.case.compact == "flat" else compact_padded(labels, SLOTS)

    def numpy_by_row(self) -> Callable[[], object] | None:
        """Spans of tokens by a loop over rows in Python; None for other laws."""
        if not isinstance(self.case.law, fm.Spans) or self.case.words:
            return None
        return partial(self._law_masker.spans_by_row, self.ids, self.out, self.case.law.lengths.weights)

    def _parts(self) -> list[slice]:
        return [slice(None)]

    def check(self) -> None:
        """The gate: ids, labels and compact targets are the NumPy backend's, bit for bit; and baselines are sound."""
        super().check()
        if self.case.compact:
            got: Any = self.fastmask()
            want: Any = self.masker(self.ids, backend="numpy", **self.arguments)
            for one, other in zip(got.compact, want.compact, strict=True):
                np.testing.assert_array_equal(one, other, f"{self.case.name}: compact targets differ", strict=True)
        self.check_baselines()

    def check_baselines(self) -> None:
        """Raises AssertionError where a baseline does not do what the law says, judged by the NumPy backend."""
        for call in filter(None, (self.numpy(), self.numpy_by_row())):
            before = self.ids.copy()
            for array in self.out:
                array.fill(-7)
            result: Any = call()
            np.testing.assert_array_equal(self.ids, before, "the input was written")
            if self.case.compact:
                check_compact(self.out[1], *result)
            self._check_selection()

    def _check_selection(self) -> None:
        case, want = self.case, self.masker(self.ids, backend="numpy", **self.arguments)
        selection = Selection.of(self.ids, self.out, self.special)
        reference = Selection.of(self.ids, (want.input_ids, want.labels), self.special)
        check_similar(selection, reference, slack=0.08 if isinstance(case.law, fm.Spans) else 0)
        heads = None
        if case.words and not isinstance(case.law, fm.Spans):
            heads = selection.check_words(self.word_ids)
        if isinstance(case.law, (fm.ExactCount, fm.Spans)):
            got, expected = (one.counts(self.boundaries, heads) for one in (selection, reference))
            np.testing.assert_array_equal(got, expected, f"{case.name}: targets of rows")
        if case.baseline == "limited":
            assert selection.counts(self.boundaries).max() <= GOOGLE_MOST, "too many targets in a row"
