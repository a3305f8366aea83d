"""`python -m benchmarks.laws`: tables of the speed of every law on the CPU, once its bits are the NumPy backend's."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import fastmask as fm
from benchmarks.law_cases import BY_LENGTH, COMPACT, LAWS, ROW_LENGTHS, LawCase, PreparedLaw, in_int32, with_rows_of
from benchmarks.measure import UNTIMED, interleave, machine, ratio, warm_malloc
from benchmarks.report import gate, head, load_note, options_of, publish, rate, row, speed

FASTMASK, BERNOULLI, COPY, NUMPY, BY_ROW, ALONE = "fastmask", "bernoulli", "copy", "numpy", "by row", "law alone"
TIMES_NUMPY, TIMES_BY_ROW = 8, 40  # targets; in the second, Spans against rows in Python
COMPACT_TIME, LENGTH_COST = 1.25, 1.3  # targets: at most so many times as long

NOTES = """\
- One thread, 131,072 tokens, as (256, 512) unless said, `out=` and sample ids given; p = 0.15, replacement 80/10/10.
  BERT's special ids; every row or document begins with [CLS] and ends with [SEP]; a word has 1.24 tokens, and word ids
  are int32. Packed documents have 20 to 500 tokens. Spans have Geometric(0.2, 10) lengths.
- Every figure is a median over {rounds} rounds, in brackets quartiles. A round runs all contestants of a line one after
  the other, each {untimed} times untimed and then once timed; a ratio is taken within a round.
- GB/s counts ids and word ids read, and ids and labels written. "Of Bernoulli": the speed as a fraction of that of
  Bernoulli over tokens on the same cells as rows of 512. "Of a copy": of np.copyto of the ids into both outputs.
- "Times NumPy": how many times longer the same law takes in vectorised NumPy (benchmarks/baselines_laws.py and
  baselines_spans.py), with malloc warm and `out` given; each was found to do what the law says, before it was timed.
  "Times NumPy by row": against a loop over rows in Python, as such code is usually written.
- Targets are the project's own, for int64 on a core with AVX-512."""


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    quick: bool
    rounds: int
    markdown: Path | None


def law_line(case: LawCase, rounds: int) -> str:
    """One line of the tables of laws."""
    prepared = PreparedLaw(case)
    contestants: dict[str, Callable[[], object]] = {
        FASTMASK: prepared.fastmask,
        BERNOULLI: prepared.reference(),
        COPY: prepared.copy(),
        NUMPY: prepared.numpy(),
    }
    by_row = prepared.numpy_by_row()
    if by_row is not None:
        contestants[BY_ROW] = by_row
    warm_malloc()
    seconds = interleave(contestants, rounds)
    cells = [
        case.name,
        rate(prepared, seconds[FASTMASK]),
        "" if case.target is None else f"{case.target:.2f}",
        speed(prepared, seconds[FASTMASK])[1],
        f"{ratio(seconds, BERNOULLI, FASTMASK):.2f}",
        f"{ratio(seconds, COPY, FASTMASK):.2f}",
        f"{ratio(seconds, NUMPY, FASTMASK):.1f}",
        "" if by_row is None else f"{ratio(seconds, BY_ROW, FASTMASK):.0f}",
    ]
    return row(cells)


def law_table(title: str, cases: Iterable[LawCase], rounds: int) -> Iterable[str]:
    """A line per law."""
    yield from head(
        title,
        "Gtok/s",
        "target",
        "GB/s",
        "of Bernoulli",
        "of a copy",
        f"times NumPy (target {TIMES_NUMPY})",
        f"times NumPy by row (target {TIMES_BY_ROW})",
    )
    for case in cases:
        yield law_line(case, rounds)


def compact_table(rounds: int) -> Iterable[str]:
    """What compact targets cost."""
    yield from head(
        "compact targets, int64",
        "Gtok/s",
        f"time, the law alone = 1 (target at most {COMPACT_TIME})",
        "times NumPy",
    )
    for case in COMPACT:
        prepared = PreparedLaw(case)
        contestants = {FASTMASK: prepared.fastmask, ALONE: prepared.law_alone(), NUMPY: prepared.numpy()}
        warm_malloc()
        seconds = interleave(contestants, rounds)
        slower = f"{ratio(seconds, FASTMASK, ALONE):.2f}"
        yield row([case.name, rate(prepared, seconds[FASTMASK]), slower, f"{ratio(seconds, NUMPY, FASTMASK):.1f}"])


def length_table(rounds: int) -> Iterable[str]:
    """What a token costs in short and in long rows."""
    first, *longer = (f"rows of {columns:,}" for columns in ROW_LENGTHS)
    target = f"times the cost in {first} (target at most {LENGTH_COST})"
    yield from head("ns per token, int64", first, *longer, *(f"{name}: {target}" for name in longer))
    for case in BY_LENGTH:
        batches = [PreparedLaw(with_rows_of(case, columns)) for columns in ROW_LENGTHS]
        names = [str(columns) for columns in ROW_LENGTHS]
        seconds = interleave(dict(zip(names, (one.fastmask for one in batches), strict=True)), rounds)
        costs = [
            f"{statistics.median(seconds[name]) / one.tokens * 1e9:.2f}"
            for name, one in zip(names, batches, strict=True)
        ]
        yield row([case.name, *costs, *(f"{ratio(seconds, name, names[0]):.2f}" for name in names[1:])])


def report(options: Options) -> Iterable[str]:
    """The report line by line, each as soon as it is known."""
    yield from (f"- {line}" for line in machine(1))
    int32 = [in_int32(case) for case in LAWS]
    long_rows = [with_rows_of(case, columns) for case in BY_LENGTH for columns in ROW_LENGTHS[1:]]
    passed = gate(map(PreparedLaw, (*LAWS, *int32, *COMPACT, *long_rows)), 1)
    yield f"- Equal to the NumPy backend, bit for bit: all {passed} cases"
    yield from ("", *NOTES.format(rounds=options.rounds, untimed=UNTIMED).splitlines())
    fm.set_num_threads(1)
    yield from law_table("int64", LAWS, options.rounds)
    yield from law_table("int32", int32, options.rounds)
    yield from compact_table(options.rounds)
    yield from length_table(options.rounds)
    yield from load_note()


def main() -> None:
    options = Options(**options_of(argparse.ArgumentParser(description=__doc__)))
    publish(report(options), options.markdown)


if __name__ == "__main__":
    main()
