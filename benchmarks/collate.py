"""`python -m benchmarks.collate`: a table of the speed of collate and pack, once their bits are the NumPy backend's."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

import fastmask as fm
from benchmarks.cases import BERT_SHARES, MASK_ID, PAD_ID, SEED, SIZE, TWO_RUNS, P, sample_ids
from benchmarks.measure import UNTIMED, interleave, machine, quartiles, ratio, warm_malloc
from benchmarks.report import head, load_note, options_of, publish, row

ROWS = 256
FASTMASK, PADDED, IN_NUMPY, IN_TORCH = "fastmask", "masker", "hugging face np", "hugging face pt"
MOST_ROUNDS = 11  # of lines with Hugging Face, whose calls take up to half a second

NOTES = """\
- One thread, {rows} samples of [CLS], ordinary ids, [SEP]; Bernoulli(0.15), 80/10/10, BERT's vocabulary; ids and labels
  int64, attention_mask int64, sample ids given. Tokens are real ones: padding does not count.
- Every figure is a median over {rounds} rounds, in brackets quartiles. A round runs all contestants of a line one
  after the other, each {untimed} times untimed and then once timed; a ratio is taken within a round. Time is the
  thread's own, on its core: other work on a machine interrupts the long calls of Hugging Face. torch has one thread.
- "Of the masker": the time of the masker alone, on ids that are padded already, as a fraction.
- Hugging Face is `DataCollatorForLanguageModeling` with a BertTokenizerFast of {size} tokens, called on a list of
  {{"input_ids": sample}}: samples are lists, or arrays where fastmask gets arrays (from Arrow offsets, lists). "np" and
  "pt" are its return_tensors; fastmask returns NumPy arrays."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    kind: str  # of samples: lists, arrays, a pair or Arrow
    shortest: int = 512
    longest: int = 512
    packed: bool = False


CASES = (
    Case("lists of 512", "lists"),
    Case("NumPy rows of 512", "arrays"),
    Case("Arrow lists of 512", "arrow"),
    Case("values and offsets, 512", "pair"),
    Case("lists of 20 to 512", "lists", shortest=20),
    Case("NumPy rows of 20 to 512", "arrays", shortest=20),
    Case("Arrow lists of 20 to 512", "arrow", shortest=20),
    Case("`pack`, Arrow lists of 20 to 512", "arrow", shortest=20, packed=True),
)


def _arrow(rows: list[list[int]]) -> Any:
    import pyarrow as pa  # type: ignore[import-untyped]

    return pa.array(rows, pa.list_(pa.int64()))


KINDS: dict[str, Callable[[list[list[int]]], Any]] = {
    "lists": lambda rows: rows,
    "arrays": lambda rows: [np.array(row) for row in rows],
    "arrow": _arrow,
    "pair": lambda rows: (np.array([*chain.from_iterable(rows)]), np.array([*accumulate(map(len, rows), initial=0)])),
}


SPECIALS = {"pad_token": 0, "unk_token": 100, "cls_token": 101, "sep_token": 102, "mask_token": 103}


class Prepared:
    """A case with its samples in memory."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(1)
        lengths = rng.integers(case.shortest, case.longest, ROWS, endpoint=True).tolist()
        self.rows = [[101, *rng.integers(1000, SIZE, length - 2).tolist(), 102] for length in lengths]
        self.samples = KINDS[case.kind](self.rows)
        self.padded = np.full((ROWS, max(lengths)), PAD_ID)
        for r, sample in enumerate(self.rows):
            self.padded[r, : len(sample)] = sample
        self.lengths, self.ids = np.array(lengths), sample_ids(ROWS)
        vocab = fm.Vocab(size=SIZE, mask_token_id=MASK_ID, pad_token_id=PAD_ID, special_token_ids=TWO_RUNS)
        self._masker = fm.Masker(vocab, fm.Bernoulli(P), BERT_SHARES, seed=SEED)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def fastmask(self) -> Any:
        """One public call: a batch in padded rows, or packed ones of 8192 tokens."""
        given: dict[str, Any] = {"epoch": 0, "sample_ids": self.ids, "backend": "cpu"}
        if self.case.packed:
            return fm.pack(self._masker, self.samples, max_tokens=8192, **given)
        return fm.collate(self._masker, self.samples, **given)

    def masker(self, backend: str = "cpu") -> fm.MaskedBatch:
        """The masker alone, on ids that are padded already."""
        return self._masker(self.padded, epoch=0, sample_ids=self.ids, lengths=self.lengths, backend=backend)

    def hugging_face(self, tensors: str) -> Callable[[], Any]:
        """Hugging Face's collator on the same samples."""
        import torch
        from transformers import DataCollatorForLanguageModeling

        torch.set_num_threads(1)
        collator = DataCollatorForLanguageModeling(bert_tokenizer(), mlm_probability=P, return_tensors=tensors)
        samples = self.samples if self.case.kind == "arrays" else self.rows
        features = [{"input_ids": sample} for sample in samples]
        return lambda: collator(features)

    def check(self) -> None:
        """The gate: the timed call gives the NumPy backend's bits. Raises AssertionError where it does not."""
        want, got = self.masker("numpy"), self.fastmask()
        real = np.arange(self.padded.shape[1]) < self.lengths[:, None]
        for name in ("input_ids", "labels"):
            wanted = getattr(want, name)
            if self.case.packed:
                made = np.concatenate([getattr(part, name) for part in got])
                np.testing.assert_array_equal(made, wanted[real], strict=True)
            else:
                np.testing.assert_array_equal(getattr(got, name), wanted, strict=True)
        if not self.case.packed:
            np.testing.assert_array_equal(got.attention_mask, real.astype(np.int64), strict=True)


def bert_tokenizer() -> Any:
    """A BertTokenizerFast of SIZE tokens, made in memory."""
    from tokenizers import Tokenizer, models
    from transformers import BertTokenizerFast

    vocab = {f"token{token}": token for token in range(SIZE)}
    model = models.WordPiece(vocab, unk_token="token100")
    specials = {name: f"token{token}" for name, token in SPECIALS.items()}
    return BertTokenizerFast(tokenizer_object=Tokenizer(model), **specials)


def line(case: Case, rounds: int) -> str:
    """One line of the table."""
    prepared = Prepared(case)
    contestants = {
        FASTMASK: prepared.fastmask,
        PADDED: prepared.masker,
        IN_NUMPY: prepared.hugging_face("np"),
        IN_TORCH: prepared.hugging_face("pt"),
    }
    warm_malloc()
    seconds = interleave(contestants, rounds, clock=thread_time)
    low, middle, high = quartiles([prepared.tokens / one / 1e9 for one in seconds[FASTMASK]])
    return row(
        [
            case.name,
            f"{statistics.median(seconds[FASTMASK]) * 1e6:.0f} µs",
            f"{middle:.3f} ({low:.3f} to {high:.3f})",
            f"{ratio(seconds, PADDED, FASTMASK):.2f}",
            f"{ratio(seconds, IN_NUMPY, FASTMASK):.0f}",
            f"{ratio(seconds, IN_TORCH, FASTMASK):.0f}",
        ]
    )


def gate() -> int:
    """How many cases gave the bits of the NumPy backend; a difference ends the program before any figure."""
    for case in CASES:
        try:
            Prepared(case).check()
        except AssertionError as error:
            sys.exit(f"No figures: case {case.name!r} is not equal.\n{error}")
    return len(CASES)


def report(rounds: int) -> Iterator[str]:
    """The report line by line, each as soon as it is known."""
    fm.set_num_threads(1)
    yield from (f"- {fact}" for fact in machine(1))
    yield f"- Equal to the NumPy backend, bit for bit: all {gate()} cases"
    yield from ("", *NOTES.format(rows=ROWS, rounds=rounds, untimed=UNTIMED, size=SIZE).splitlines())
    yield from head("256 samples", "time", "Gtok/s", "of the masker", "x Hugging Face np", "x Hugging Face pt")
    for case in CASES:
        yield line(case, rounds)
    yield from load_note()


def main() -> None:
    options = options_of(argparse.ArgumentParser(description=__doc__))
    markdown: Path | None = options["markdown"]
    publish(report(min(options["rounds"], MOST_ROUNDS)), markdown)


if __name__ == "__main__":
    main()
