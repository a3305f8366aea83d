"""`python -m benchmarks.gpu`: the CUDA backend's speed beside a copy and torch's own masking, once its bits are right.

It takes a GPU, and torch for CUDA. Without them it ends with one line that says what is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu_cases import Case, TorchDevice, cases, check
from benchmarks.measure import commit
from benchmarks.report import head, publish, row
from fastmask.cli.machine import package_version
from fastmask.dispatch import backends

SMALLEST, LARGEST = 16, 30  # sizes are 2^16 to 2^30 tokens
GATED = 1 << 18  # tokens of a case that is compared with the reference, bit for bit
TORCH_UP_TO = 1 << 28  # tokens: torch's sequence makes many temporaries

NOTES = """\
- Each figure is a median over {rounds} rounds, taken with CUDA events around {number} calls (fewer for large sizes),
  after untimed ones. `out=` and `sample_ids=` are given; rows have 512 tokens.
- GB/s counts ids read, ids written and labels written. "Of a copy": the speed as a fraction of a device-to-device copy
  of half as many bytes (which reads and writes each of them), measured in the same run at the same size.
- "x torch" is the time of torch's sequence of bernoulli and where, for the same ids, divided by that of the call."""


@dataclass(frozen=True)
class Figures:
    """Seconds of one call, of the copy that moves the same bytes, and of torch's sequence (None: not timed)."""

    case: Case
    call: float
    copy: float
    torch: float | None

    def cells(self) -> list[str]:
        """A line of the table."""
        case = self.case
        return [
            case.law,
            case.dtype,
            f"2^{case.tokens.bit_length() - 1}",
            f"{self.call * 1e6:.1f}",
            f"{case.tokens / self.call / 1e9:.2f}",
            f"{case.bytes_moved / self.call / 1e9:.0f}",
            f"{self.copy / self.call:.2f}",
            "" if self.torch is None else f"{self.torch / self.call:.1f}",
        ]


TITLES = ("law", "ids", "tokens", "µs a call", "Gtok/s", "GB/s", "of a copy", "x torch")


def per_call(milliseconds: list[float], number: int) -> float:
    """Seconds of one call: the median over rounds of so many calls each, timed in milliseconds."""
    return statistics.median(milliseconds) / 1e3 / number


def calls_per_round(tokens: int) -> int:
    """Enough calls that a round lasts, for a launch or for memory, some hundred microseconds or more."""
    return max(1, min(50, (1 << 26) // tokens))


class Clock:
    """Times what is queued on the device.

    Args:
        device: whose events tell the time.
        rounds: how often each figure is taken.
    """

    def __init__(self, device: Any, rounds: int) -> None:
        self._device, self._rounds = device, rounds

    def _rounds_of(self, call: Callable[[], object], number: int) -> Iterable[tuple[float, float]]:
        """(device, host): milliseconds and seconds of each round of so many calls."""
        for _ in range(3):
            call()
        for _ in range(self._rounds):
            first, last = self._device.event(), self._device.event()
            first.record()
            start = perf_counter()
            for _ in range(number):
                call()
            queued = perf_counter() - start
            last.record()
            last.synchronize()
            yield first.elapsed_time(last), queued

    def seconds(self, call: Callable[[], object], number: int) -> float:
        """Device time of one call, between events."""
        return per_call([device for device, _ in self._rounds_of(call, number)], number)

    def host_seconds(self, call: Callable[[], object], number: int) -> float:
        """Host time until one call is queued."""
        return statistics.median(host for _, host in self._rounds_of(call, number)) / number


def missing() -> str | None:
    """What is not here that the benchmark needs, in one line; None where all is."""
    cuda = backends()["cuda"]
    if not cuda.available:
        return f"No figures: {cuda.reason}"
    if "simulator" in cuda.reason:
        return "No figures: Numba's CUDA simulator is switched on (NUMBA_ENABLE_CUDASIM), and it is no GPU"
    if package_version("torch") is None:
        return "No figures: torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "No figures: torch sees no GPU"


def gate(device: Any, gated: Iterable[Case]) -> int:
    """How many cases gave the reference's bits on the device; a difference ends the program before any figure."""
    count = 0
    for case in gated:
        try:
            check(device, case)
        except AssertionError as error:
            sys.exit(f"No figures: {case} is not equal to the reference.\n{error}")
        count += 1
    return count


def prepared(device: Any, case: Case) -> tuple[Any, Callable[[], object]]:
    """The ids of a case, and its call: with `out=`, and the first sample id."""
    ids, masker = device.ids(case), case.masker()
    out = device.empty_like(ids), device.empty_like(ids)
    return ids, lambda: masker(ids, epoch=3, sample_ids=0, out=out)


def measured(device: Any, clock: Clock, case: Case) -> Figures:
    """The figures of a case."""
    number = calls_per_round(case.tokens)
    ids, call = prepared(device, case)
    taken = clock.seconds(call, number)
    copied = clock.seconds(device.copy(case.bytes_moved), number)
    usual = None
    if case.law == "Bernoulli" and case.tokens <= TORCH_UP_TO:
        usual = clock.seconds(device.usual(ids), max(1, number // 10))
    return Figures(case, taken, copied, usual)


def machine(device: Any) -> list[str]:
    """Lines that say what the figures were measured on."""
    packages = ("torch", "numba", "numba-cuda", "numpy")
    versions = ", ".join(f"{name} {package_version(name) or 'not installed'}" for name in packages)
    return [f"GPU: {device}", f"{versions}, fastmask at commit {commit()}, {date.today().isoformat()}"]


def report(device: Any, sizes: list[int], rounds: int, done: list[Figures]) -> Iterable[str]:
    """The report line by line, each as soon as it is known; the figures are added to `done`."""
    yield from (f"- {line}" for line in machine(device))
    passed = gate(device, cases(sorted({min(size, GATED) for size in sizes})))
    yield f"- Equal to the NumPy backend, bit for bit, on this device: all {passed} cases"
    clock, smallest = Clock(device, rounds), Case("Bernoulli", "int64", sizes[0])
    _, call = prepared(device, smallest)
    queued = clock.host_seconds(call, calls_per_round(smallest.tokens))
    yield f"- Launch overhead: a call of {smallest.tokens} tokens is queued after {queued * 1e6:.1f} µs on the host"
    yield from ("", *NOTES.format(rounds=rounds, number=calls_per_round(1)).splitlines())
    yield from head(*TITLES)
    for case in cases(sizes):
        done.append(measured(device, clock, case))
        yield row(done[-1].cells())


def plot(done: list[Figures], path: Path) -> None:
    """The fraction of a copy over the number of tokens, a line per law and dtype."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for law, dtype in dict.fromkeys((figures.case.law, figures.case.dtype) for figures in done):
        line = [f for f in done if (f.case.law, f.case.dtype) == (law, dtype)]
        style = "-" if dtype == "int64" else "--"
        axes.plot([f.case.tokens for f in line], [f.copy / f.call for f in line], style, label=f"{law}, {dtype}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="tokens", ylabel="speed, as a fraction of a device-to-device copy", ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smallest", type=int, default=SMALLEST, metavar="N", help="from 2^N tokens on (default 16)")
    parser.add_argument("--largest", type=int, default=LARGEST, metavar="N", help="up to 2^N tokens (default 30)")
    parser.add_argument("--rounds", type=int, default=21, metavar="N", help="default 21")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there as well")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture of the table (needs matplotlib)")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if (line := missing()) is not None:
        sys.exit(line)
    sizes = [1 << n for n in range(options.smallest, options.largest + 1, 2)]
    done: list[Figures] = []
    publish(report(TorchDevice(), sizes, options.rounds, done), options.markdown)
    if options.plot is not None:
        plot(done, options.plot)


if __name__ == "__main__":
    main()
