"""`python -m benchmarks.train`: a small BERT encoder learns to fill in masked words of real text, on a CPU.

Its batches come from `fastmask.torch.Collator`; another epoch masks other words. Held-out text is masked in one epoch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.data import DataLoader

import fastmask as fm
from benchmarks.encoder import Encoder, Outcome, Shape
from fastmask.cli.text import Words, read_text, sentences_of, words_of
from fastmask.torch import Collator

Sample = dict[str, Any]
SMOOTHED = 50  # steps that a point of the curve is the mean of
WARM_UP = 0.05  # the share of the training in which the learning rate rises
HELD_OUT = 20  # every so many-th sample


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    files: Sequence[Path] = ()
    seconds: float = 240
    steps: int | None = None
    batch_size: int = 32
    row_length: int = 64
    hidden: int = 128
    layers: int = 2
    rate: float = 2e-3
    p: float = 0.15
    seed: int = 7
    threads: int | None = None
    png: Path | None = None


@dataclass
class Clock:
    """A collator whose time is taken."""

    collator: Collator
    seconds: float = 0.0

    def __call__(self, features: Sequence[Any]) -> Mapping[str, Any]:
        start = perf_counter()
        batch: Mapping[str, Any] = self.collator(features)
        self.seconds += perf_counter() - start
        return batch


@dataclass
class Course:
    """What a training run measured."""

    losses: list[float] = field(default_factory=list)  # per step, nats per selected token
    accuracies: list[float] = field(default_factory=list)
    tokens: int = 0  # real ones, all epochs together
    seconds: float = 0.0
    masking: float = 0.0  # seconds, of these

    def smoothed(self, values: Sequence[float]) -> float:
        """The mean of the last steps."""
        return float(np.mean(values[-SMOOTHED:]))


def samples_of(ids: npt.NDArray[np.int64], words: Words, row_length: int) -> list[Sample]:
    """The text cut into [CLS] one half [SEP] other half [SEP], segment 0 and segment 1; the last sample is shorter."""
    piece = row_length - 3
    samples = []
    for k, first in enumerate(range(0, len(ids), piece)):
        one, other = np.array_split(ids[first : first + piece], 2)
        row = np.concatenate([[words.cls], one, [words.sep], other, [words.sep]])
        types = np.repeat([0, 1], [len(one) + 2, len(other) + 1])
        samples.append({"input_ids": row, "token_type_ids": types, "index": k})
    return samples


def entropy_of(ids: npt.NDArray[np.int64]) -> float:
    """The entropy in nats of the words' frequencies: the best loss of a guess that does not look at the text."""
    shares = np.bincount(ids) / len(ids)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def train(model: Encoder, loader: DataLoader[Any], clock: Clock, options: Options) -> Iterator[tuple[Course, float]]:
    """Trains until the time or the steps are up; yields the course and the share done after every step."""
    optimizer = torch.optim.AdamW(model.parameters(), options.rate, weight_decay=0.01)
    course, start = Course(), perf_counter()
    clock.seconds = 0.0
    model.train()
    for epoch in range(1 << 24):
        clock.collator.set_epoch(epoch)
        for batch in loader:
            done = _done(course, perf_counter() - start, options)
            if done >= 1:
                return
            for group in optimizer.param_groups:
                group["lr"] = options.rate * min(1.0, (done + 0.005) / WARM_UP) * max(0.02, 1 - done)
            outcome = model.outcome(batch)
            if outcome.selected:
                optimizer.zero_grad()
                outcome.loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                course.losses.append(float(outcome.loss.detach()))
                course.accuracies.append(outcome.correct / outcome.selected)
            course.tokens += int(batch["attention_mask"].sum())
            course.seconds, course.masking = perf_counter() - start, clock.seconds
            yield course, done


def _done(course: Course, seconds: float, options: Options) -> float:
    by_steps = 0.0 if options.steps is None else len(course.losses) / options.steps
    return max(by_steps, seconds / options.seconds)


@torch.no_grad()
def evaluate(model: Encoder, loader: DataLoader[Any]) -> tuple[float, float]:
    """Loss and masked accuracy over all selected tokens of a loader."""
    model.eval()
    outcomes: list[Outcome] = [model.outcome(batch) for batch in loader]
    selected = sum(outcome.selected for outcome in outcomes)
    loss = sum(float(outcome.loss) * outcome.selected for outcome in outcomes if outcome.selected)
    return loss / selected, sum(outcome.correct for outcome in outcomes) / selected


def main(options: Options) -> Course:
    """Trains and prints; the course of the training."""
    console = Console(highlight=False)
    sentences = sentences_of(read_text(options.files))
    words = words_of(sentences)
    ids = np.concatenate([np.array(one, np.int64) for one in words.encode(sentences) if one])
    samples = samples_of(ids, words, options.row_length)
    held_out = samples[::HELD_OUT]
    kept = [sample for sample in samples if sample["index"] % HELD_OUT]
    entropy = entropy_of(ids)
    console.print(
        f"{len(ids):,} words of {words.size:,} kinds in {len(samples):,} samples, {len(held_out):,} of them held out; "
        f"unigram entropy {entropy:.3f} nats"
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = Encoder(Shape(words.size, options.row_length, options.hidden, options.layers))
    masker = fm.Masker(fm.Vocab(words.size, words.mask, words.pad, words.special), fm.Bernoulli(options.p), seed=7)
    clock = Clock(Collator(masker, sample_id="index", returns="compact"))
    fixed = Collator(masker, sample_id="index", returns="compact")
    generator = torch.Generator().manual_seed(options.seed)
    loader: DataLoader[Any] = DataLoader(kept, options.batch_size, True, collate_fn=clock, generator=generator)
    test: DataLoader[Any] = DataLoader(held_out, options.batch_size, collate_fn=fixed)
    fixed(held_out[: options.batch_size])  # compiles the kernels
    course = _shown(console, train(model, loader, clock, options))
    loss, accuracy = evaluate(model, test)
    _print_result(console, course, entropy, loss, accuracy)
    if options.png is not None:
        console.print(draw(course, entropy, options.png))
    return course


def _shown(console: Console, steps: Iterator[tuple[Course, float]]) -> Course:
    """The course of a training, after its progress was shown."""
    course = Course()
    columns = (TextColumn("step {task.fields[step]}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        task = progress.add_task("", total=1.0, step=0)
        for course, done in steps:
            if not course.losses:
                continue
            shown = f"loss {course.smoothed(course.losses):.3f}, accuracy {course.smoothed(course.accuracies):.1%}"
            speed = f"{course.tokens / course.seconds:,.0f} tokens/s"
            progress.update(task, completed=done, description=f"{shown}, {speed}", step=len(course.losses))
        progress.update(task, completed=1.0)
    return course


def _print_result(console: Console, course: Course, entropy: float, loss: float, accuracy: float) -> None:
    last = course.smoothed(course.losses)
    console.print(
        f"training: loss {last:.3f} nats ({entropy - last:+.3f} below the unigram entropy), masked accuracy "
        f"{course.smoothed(course.accuracies):.1%}, means of the last {min(SMOOTHED, len(course.losses))} of "
        f"{len(course.losses):,} steps\n"
        f"held out: loss {loss:.3f} nats ({entropy - loss:+.3f} below), masked accuracy {accuracy:.1%}\n"
        f"{course.tokens:,} tokens in {course.seconds:.1f} s: {course.tokens / course.seconds:,.0f} tokens/s; "
        f"collating and masking took {course.masking / course.seconds:.2%} of the time"
    )


def draw(course: Course, entropy: float, path: Path) -> str:
    """Saves the curve of the loss as a PNG; a line that says so, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no curve: pip install 'fastmask-kernels[bench]'"
    window = max(1, min(SMOOTHED, len(course.losses) // 4))
    curve = np.convolve(course.losses, np.full(window, 1 / window), "valid")
    figure = Figure((7, 4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="step", ylabel="loss, nats per selected token", title=f"Training loss, mean of {window} steps"
    )
    axes.plot(np.arange(window, len(course.losses) + 1), curve, label="loss")
    axes.axhline(entropy, color="grey", linestyle="--", label=f"unigram entropy {entropy:.2f}")
    axes.legend()
    figure.savefig(path, dpi=120)
    return f"{path}: the curve of the loss"


def options_from(arguments: Sequence[str]) -> Options:
    """The options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    add = parser.add_argument
    add("files", nargs="*", type=Path, help="UTF-8 text; without it the help texts of Python itself")
    add("--seconds", type=float, default=Options.seconds, help="time for training (default %(default)s)")
    add("--steps", type=int, help="at most so many steps")
    add("--batch-size", type=int, default=Options.batch_size, help="samples per step (default %(default)s)")
    add("--row-length", type=int, default=Options.row_length, help="tokens per sample (default %(default)s)")
    add("--hidden", type=int, default=Options.hidden, help="width of the encoder (default %(default)s)")
    add("--layers", type=int, default=Options.layers, help="layers of the encoder (default %(default)s)")
    add("--rate", type=float, default=Options.rate, help="highest learning rate (default %(default)s)")
    add("--p", type=float, default=Options.p, help="probability that a token is selected (default %(default)s)")
    add("--seed", type=int, default=Options.seed, help="of weights and order (default %(default)s)")
    add("--threads", type=int, help="of torch; one is many times faster where other work keeps the cores busy")
    add("--png", type=Path, default=Path("train.png"), help="for the curve of the loss (default %(default)s)")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    course = main(options_from(sys.argv[1:]))
    sys.exit(0 if course.losses and math.isfinite(course.losses[-1]) else 1)
