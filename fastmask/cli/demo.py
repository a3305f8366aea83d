"""`fastmask demo`: real text masked by every backend that is here, compared bit for bit, shown and timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

import fastmask as fm
from fastmask.cli import sentences
from fastmask.cli.errors import RefusedError, refusals
from fastmask.cli.places import places
from fastmask.cli.text import Rows, Words, read_text, rows_of, sentences_of, words_from, words_of
from fastmask.cli.timing import Masked, Setting, Timing, difference, mask_all, time_backend, time_plain
from fastmask.cli.units import amount, seconds
from fastmask.kernels.fate import KEPT, MASKED, RANDOM

LEAST_TOKENS = 1 << 20  # a shorter text is repeated, for times that can be measured
DISAGREED = 1
PLAIN = "plain NumPy"


@dataclass(frozen=True)
class Request:
    """What the demo is asked to do."""

    files: Sequence[Path]
    tokenizer: Path | None
    row_length: int
    p: float
    mask: float
    random: float
    seed: int
    epoch: int
    sentences: int
    seconds: float


def demo(request: Request) -> None:
    """Prints masked sentences, rates, agreement and speed; fails with status 1 where backends differ."""
    console = Console(highlight=False)
    parts = sentences_of(read_text(request.files))
    words = words_of(parts) if request.tokenizer is None else words_from(request.tokenizer)
    text = rows_of(parts, words, request.row_length)
    setting = Setting(text.repeated(LEAST_TOKENS), _masker(request, words), request.epoch, request.p)
    console.print(_describe(text, setting.rows, words))
    masked, timings, notes = _mask_and_time(setting, request.seconds)
    reference = next(iter(masked.values()))
    _show_sentences(console, request.sentences, setting.rows, words, reference)
    console.print(_rates(setting, reference))
    _require_agreement(console, setting.rows, masked)
    console.print(_speeds(setting.rows.tokens, timings))
    for note in notes:
        console.print(note, style="dim", markup=False)


def _masker(request: Request, words: Words) -> fm.Masker:
    with refusals():
        return fm.Masker(
            fm.Vocab(words.size, words.mask, words.pad, words.special),
            select=fm.Bernoulli(request.p),
            replace=fm.Replace(mask=request.mask, random=request.random),
            seed=request.seed,
        )


def _describe(text: Rows, repeated: Rows, words: Words) -> str:
    padding = 1 - text.tokens / text.ids.size
    times = repeated.tokens // text.tokens
    rows, row_length = text.ids.shape
    once = f"{text.tokens:,} tokens of a vocabulary of {words.size:,}, in {rows:,} rows of {row_length:,}"
    again = f"{repeated.tokens:,} tokens: the text {times} times over, each row with a sample id of its own"
    return f"{once} with {padding:.1%} padding\n" + (f"{again}\n" if times > 1 else "")


def _mask_and_time(setting: Setting, limit: float) -> tuple[dict[str, Masked], dict[str, Timing], list[str]]:
    """Results and timings by the label of a place, the reference first, and notes on how each place masks, or why not.

    The timings hold plain NumPy's as well. What runs in parallel is asked while the thread of the status is there.
    """
    masked: dict[str, Masked] = {}
    timings: dict[str, Timing] = {}
    notes: list[str] = []
    with Console(stderr=True).status("") as status:
        with refusals():
            here, absent = places(setting.rows.ids.size)
        share = limit / (len(here) + 1)
        for place in here:
            masking = f"masking with {place.label}"
            status.update(masking if place.backend == "numpy" else f"{masking}: compiling kernels, once")
            with refusals():
                timings[place.label] = time_backend(setting, place, share, partial(status.update, masking))
            masked[place.label] = mask_all(setting, place)
            if place.backend == "cpu":
                batch = setting.rows.ids[: timings[place.label].batch_rows]
                notes.append(f"{place.label}: {setting.masker.explain_backend(batch).removeprefix('cpu: ')}")
        status.update(f"masking with {PLAIN}")
        timings[PLAIN] = time_plain(setting, share)
    return masked, timings, notes + [f"{name} is not here: {reason}" for name, reason in absent.items()]


def _show_sentences(console: Console, count: int, rows: Rows, words: Words, masked: Masked) -> None:
    if not count:
        return
    arrow = "->" if console.options.ascii_only else "→"
    for row, first, last in sentences.chosen(rows, words, masked, count):
        console.print(sentences.sentence(row, first, last, rows, words, masked, arrow))
        console.print()
    console.print(sentences.legend(arrow))
    console.print()


def _rates(setting: Setting, masked: Masked) -> Table:
    """Realised rates beside those asked for, with one standard error of chance."""
    replace = setting.masker.replace
    special = np.isin(setting.rows.ids, setting.masker.vocab.special_token_ids)
    padding = np.arange(special.shape[1]) >= setting.rows.lengths[:, None]
    candidates = int(np.count_nonzero(~(special | padding)))
    counts = np.bincount(masked.decisions.ravel(), minlength=4)
    selected = int(counts[1:].sum())
    columns: list[Column | str] = ["", *map(_right, ("asked", "realised", "± chance"))]
    table = Table(*columns, title="Rates", title_justify="left")
    lines = [
        ("selected", setting.p, selected, candidates),
        ("  masked", replace.mask, int(counts[MASKED]), selected),
        ("  replaced", replace.random, int(counts[RANDOM]), selected),
        ("  kept", replace.kept, int(counts[KEPT]), selected),
    ]
    for name, asked, found, among in lines:
        chance = math.sqrt(asked * (1 - asked) / among) if among else 0.0
        realised = f"{found / among:.3%}" if among else "none"
        table.add_row(name, f"{asked:.1%}", realised, f"{chance:.3%}")
    return table


def _require_agreement(console: Console, rows: Rows, masked: dict[str, Masked]) -> None:
    (name, reference), *others = masked.items()  # the cpu backend is always among them
    for other, got in others:
        if (found := difference(got, reference)) is not None:
            raise RefusedError(f"{other} and {name} differ in {found}", DISAGREED)
    what = f"all {rows.tokens:,} tokens: ids, labels, decisions"
    console.print(f"{'; '.join(masked)}: they agree bit for bit on {what}\n", style="bold")


def _speeds(tokens: int, timings: dict[str, Timing]) -> Table:
    """Tokens per second of every backend, and how many times that of plain NumPy."""
    headers = ("tokens/s", "x plain", "batch rows", "runs", "first call")
    columns: list[Column | str] = ["backend", *map(_right, headers)]
    table = Table(*columns, title="Speed (int64, outputs given)", title_justify="left")
    plain = timings[PLAIN].median
    for name, timing in timings.items():
        table.add_row(
            name,
            amount(tokens / timing.median),
            f"{plain / timing.median:.2f}",
            str(timing.batch_rows),
            str(timing.runs),
            seconds(timing.first),
        )
    return table


def _right(header: str) -> Column:
    return Column(header, justify="right")
