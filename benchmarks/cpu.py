"""`python -m benchmarks.cpu`: tables of the CPU backend's speed, once its bits are the NumPy backend's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import fastmask as fm
from benchmarks.cases import CASES, LARGE, Case, Prepared
from benchmarks.cold_start import CONFIGS, first_calls
from benchmarks.measure import UNTIMED, interleave, machine, ratio, warm_malloc
from benchmarks.report import gate, head, load_note, options_of, publish, row, speed, time
from fastmask.cli.machine import cores

FASTMASK, COPY, BANDED, DOUBLE, SPARSE = "fastmask", "copy", "banded", "banded float64", "sparse"
HUGGING_FACE = "hugging face"

NOTES = """\
- Every figure is a median over {rounds} rounds ({large_rounds} in the second table), in brackets quartiles.
- A round runs all contestants of a line one after the other, each {untimed} times untimed and then timed; a
  ratio is taken within a round.
- GB/s counts ids read, ids written and labels written. "Of a copy": the speed as a fraction of np.copyto of
  the ids into both outputs. Tokens include padding.
- Banded and sparse NumPy are those of benchmarks/baselines.py, run with malloc warm. Banded draws one float64 per
  token, as ModernBERT and others do; float32 draws (what the demo calls plain) are faster, and sparse uses them.
  Hugging Face is `DataCollatorForLanguageModeling.numpy_mask_tokens` with the special tokens mask
  ready."""


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    quick: bool
    rounds: int
    markdown: Path | None
    threads: int

    @property
    def large_rounds(self) -> int:
        return 3 if self.quick else 11

    @property
    def large_cases(self) -> tuple[Case, ...]:
        return tuple(replace(case, rows=case.rows // 16) for case in LARGE) if self.quick else LARGE


def parse() -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    default = min(2, cores())
    parser.add_argument("--threads", type=int, default=default, help=f"at most (default {default})")
    return Options(**options_of(parser, ", a sixteenth of the large size"))


def small_line(case: Case, rounds: int) -> str:
    """One line of the first table."""
    prepared = Prepared(case)
    contestants: dict[str, Callable[[], object]] = {
        FASTMASK: prepared.fastmask,
        COPY: prepared.copy(),
        BANDED: prepared.banded,
        DOUBLE: lambda: prepared.banded(double=True),
        SPARSE: prepared.sparse,
    }
    hugging_face = prepared.hugging_face()
    if callable(hugging_face):
        contestants[HUGGING_FACE] = hugging_face
    warm_malloc()
    seconds = interleave(contestants, rounds, case.number)
    cells = [
        case.name,
        time(seconds[FASTMASK], 1e6, "µs"),
        *speed(prepared, seconds[FASTMASK]),
        f"{ratio(seconds, COPY, FASTMASK):.2f}",
        f"{ratio(seconds, DOUBLE, FASTMASK):.1f}",
        f"{ratio(seconds, BANDED, FASTMASK):.1f}",
        f"{ratio(seconds, SPARSE, FASTMASK):.1f}",
        f"{ratio(seconds, HUGGING_FACE, FASTMASK):.1f}" if callable(hugging_face) else hugging_face,
    ]
    return row(cells)


def large_lines(case: Case, thread_counts: list[int], rounds: int) -> Iterable[str]:
    """The lines of a case in the second table, one per number of threads."""
    prepared = Prepared(case)
    most = thread_counts[-1]
    copies = {f"copy {n}": prepared.copy(n) for n in thread_counts}
    for threads in thread_counts:
        fm.set_num_threads(threads)
        seconds = interleave({FASTMASK: prepared.fastmask, **copies}, rounds)
        yield row(
            [
                f"{case.name}, {prepared.tokens / 1e6:.1f} million",
                str(threads),
                time(seconds[FASTMASK], 1e3, "ms"),
                *speed(prepared, seconds[FASTMASK]),
                f"{ratio(seconds, 'copy 1', FASTMASK):.2f}",
                f"{ratio(seconds, f'copy {most}', FASTMASK):.2f}",
            ]
        )


def report(options: Options) -> Iterable[str]:
    """The report line by line, each as soon as it is known."""
    thread_counts = sorted({1, options.threads})
    yield from (f"- {line}" for line in machine(options.threads))
    passed = gate(map(Prepared, CASES), 1) + sum(gate(map(Prepared, options.large_cases), n) for n in thread_counts)
    yield f"- Equal to the NumPy backend, bit for bit: all {passed} cases"

    first = first_calls(CONFIGS[0], 1 if options.quick else 3)
    yield ""
    yield (
        f"First call in a new process (int64): {first['compiled'] * 1e3:.0f} ms where it compiles, "
        f"{first['loaded'] * 1e3:.0f} ms where the compiled code is on disk. Below: the steady state."
    )
    rounds, large_rounds = options.rounds, options.large_rounds
    notes = NOTES.format(rounds=rounds, large_rounds=large_rounds, untimed=UNTIMED)
    yield from ("", *notes.splitlines())
    fm.set_num_threads(1)
    yield from head(
        "one thread, (256, 512) unless said",
        "time of a call",
        "Gtok/s",
        "GB/s",
        "of a copy",
        "times banded NumPy",
        "the same with float32 draws",
        "times sparse NumPy",
        "times Hugging Face",
    )
    for case in CASES:
        yield small_line(case, rounds)
    most = f"of a {options.threads}-thread copy"
    yield from head("from memory", "threads", "time of a call", "Gtok/s", "GB/s", "of a 1-thread copy", most)
    for case in options.large_cases:
        yield from large_lines(case, thread_counts, large_rounds)
    yield from load_note()


def main() -> None:
    options = parse()
    publish(report(options), options.markdown)


if __name__ == "__main__":
    main()
