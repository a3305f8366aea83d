"""What the commands share that print tables: the gate before any figure, cells and lines in Markdown."""

from __future__ import annotations

import os
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastmask as fm
from benchmarks.cases import Prepared
from benchmarks.measure import quartiles
from fastmask.cli.machine import cores


def options_of(parser: ArgumentParser, quick: str = "") -> dict[str, Any]:
    """What the command line asked for: --quick, --rounds and --markdown beside what the parser knows already."""
    parser.add_argument("--quick", action="store_true", help=f"few rounds{quick}")
    parser.add_argument("--rounds", type=int, metavar="N", help="default 51, with --quick 5")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there as well")
    options = vars(parser.parse_args())
    if options["rounds"] is None:
        options["rounds"] = 5 if options["quick"] else 51
    return options


def gate(prepared: Iterable[Prepared], threads: int) -> int:
    """How many cases gave the bits of the NumPy backend; a difference ends the program before any figure."""
    fm.set_num_threads(threads)
    count = 0
    for one in prepared:
        try:
            one.check()
        except AssertionError as error:
            sys.exit(f"No figures: case {one.case.name!r} on {threads} thread(s) is not equal.\n{error}")
        count += 1
    return count


def time(seconds: list[float], scale: float, unit: str) -> str:
    """The median, and the quartiles in brackets."""
    low, middle, high = (value * scale for value in quartiles(seconds))
    digits = 2 if middle < 10 else 1 if middle < 100 else 0
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def speed(prepared: Prepared, seconds: list[float]) -> list[str]:
    """Medians: billion tokens and gigabytes per second."""
    median = statistics.median(seconds)
    return [f"{prepared.tokens / median / 1e9:.3f}", f"{prepared.bytes_moved / median / 1e9:.1f}"]


def rate(prepared: Prepared, seconds: list[float]) -> str:
    """Billion tokens per second: the median, and the quartiles in brackets."""
    low, middle, high = quartiles([prepared.tokens / one / 1e9 for one in seconds])
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def head(*names: str) -> list[str]:
    """The first lines of a table."""
    return ["", row(names), row("---" for _ in names)]


def load_note() -> Iterable[str]:
    """What other work on the machine did to the figures, where there was any."""
    load = os.getloadavg()[0]
    if load > 1.5:  # this process alone makes 1, and a little more in the threaded lines
        yield ""
        yield (
            f"Load {load:.1f} on {cores()} cores at the end: other work ran meanwhile. It interrupts slow "
            "contestants most, which flatters the ratios to them, and makes threads wait for each other."
        )


def publish(lines: Iterable[str], markdown: Path | None) -> None:
    """Prints each line as soon as it is known, and writes them all to a file at the end."""
    printed = []
    for line in lines:
        print(line, flush=True)
        printed.append(line)
    if markdown is not None:
        markdown.write_text("\n".join(printed) + "\n")
