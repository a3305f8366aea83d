"""`python -m benchmarks.loader`: tokens per second that come out of a DataLoader, with fastmask and with Hugging Face.

Samples are mappings of lists, as a data set of datasets gives them: input_ids, attention_mask, token_type_ids.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import fastmask as fm
from benchmarks.collate import bert_tokenizer
from benchmarks.measure import machine, quartiles
from benchmarks.report import head, load_note, options_of, publish, row
from fastmask.huggingface import DataCollatorForLanguageModeling as FastmaskForTransformers
from fastmask.torch import Collator

ROWS, WORKERS, BATCH = 64 * 64, 2, 64
THEIRS = "transformers' collator"
NOTES = """\
- {workers} forked, persistent workers; {rows} samples in batches of {batch}, held in memory as lists, so that collating
  is what workers do. int64 ids, labels and attention masks come out as tensors in shared memory. torch has one thread.
- Median of {rounds} epochs per contestant, in brackets the quartiles; the epochs of all contestants take turns. The
  ratio is the median of those within a turn."""


def samples(shortest: int, longest: int) -> list[dict[str, list[int]]]:
    """[CLS], ordinary ids, [SEP], as a tokenizer gives them."""
    rng = np.random.default_rng(1)
    made = []
    for length in rng.integers(shortest, longest, ROWS, endpoint=True).tolist():
        ids = [101, *rng.integers(1000, 30522, length - 2).tolist(), 102]
        made.append({"input_ids": ids, "token_type_ids": [0] * length, "attention_mask": [1] * length})
    return made


def collators() -> dict[str, Callable[[list[Any]], Any]]:
    """The contestants, transformers' own last."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer = bert_tokenizer()
    masker = fm.Masker(fm.Vocab.from_tokenizer(tokenizer, words=False), fm.Bernoulli(0.15), seed=7)
    return {
        "fastmask.torch.Collator": Collator(masker),
        "fastmask.huggingface": FastmaskForTransformers(tokenizer, seed=7),
        THEIRS: DataCollatorForLanguageModeling(tokenizer, seed=7),
    }


def epochs(data: list[Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of each epoch of each contestant, after one that is not timed."""
    loaders = {
        name: DataLoader(
            data,
            BATCH,
            num_workers=WORKERS,
            collate_fn=collator,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        for name, collator in collators().items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in loaders}
    for k in range(rounds + 1):
        for name, loader in loaders.items():
            start = perf_counter()
            assert sum(1 for _ in loader) == len(data) // BATCH
            if k:
                seconds[name].append(perf_counter() - start)
    return seconds


def report(rounds: int) -> Iterator[str]:
    """The report line by line, each as soon as it is known."""
    torch.set_num_threads(1)
    yield from (f"- {fact}" for fact in machine(1))
    yield from ("", *NOTES.format(rows=ROWS, batch=BATCH, rounds=rounds, workers=WORKERS).splitlines())
    for shortest, longest in ((512, 512), (20, 512)):
        data = samples(shortest, longest)
        tokens = sum(len(sample["input_ids"]) for sample in data)
        seconds = epochs(data, rounds)
        yield from head(f"samples of {shortest} to {longest} tokens", "million tokens/s", "x transformers'")
        for name, times in seconds.items():
            low, middle, high = quartiles([tokens / one / 1e6 for one in times])
            ratio = statistics.median(one / other for one, other in zip(seconds[THEIRS], times, strict=True))
            yield row([name, f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{ratio:.1f}"])
    yield from load_note()


def main() -> None:
    options = options_of(argparse.ArgumentParser(description=__doc__))
    markdown: Path | None = options["markdown"]
    publish(report(min(options["rounds"], 7)), markdown)


if __name__ == "__main__":
    main()
