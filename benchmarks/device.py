"""`python -m benchmarks.device`: what compilers make of every CUDA kernel, chip by chip; it takes no GPU.

The PTX is NVVM's; registers, spills and shared memory are what ptxas says where it is installed (`pip install
nvidia-cuda-nvcc`). No time is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.measure import ROOT, commit
from benchmarks.report import head, publish, row
from fastmask.cli.machine import package_version

PROGRAM = ROOT / "tests" / "device" / "compiling.py"
THREADS = 128  # per block, as kernels are launched
WARP, REGISTER_UNIT, RESERVED = 32, 256, 1024  # threads; registers of a warp come in such units; bytes of each block


@dataclass(frozen=True)
class Chip:
    """What a multiprocessor has, by the tables of NVIDIA's programming guide."""

    registers: int
    threads: int
    blocks: int
    shared: int  # bytes


CHIPS = {
    "sm_80": Chip(65536, 2048, 32, 164 << 10),
    "sm_90": Chip(65536, 2048, 32, 228 << 10),
    "sm_100": Chip(65536, 2048, 32, 228 << 10),
    "sm_120": Chip(65536, 1536, 24, 100 << 10),
}

NOTES = f"""\
- One line per kernel, chip and dtypes of its arrays that are compiled for several. "PTX": instructions. "Floats": those
  of them that compute in floats or move them. "16 bytes": loads and stores of so many bytes at once.
- Registers are per thread; spills are bytes stored and loaded. Occupancy is the share of a multiprocessor's threads
  that can be there at once, in blocks of {THREADS}, as registers and shared memory allow: computed, not measured."""


@dataclass(frozen=True)
class Assembled:
    """What ptxas says of a kernel."""

    registers: int
    spilled: int  # bytes, stored and loaded
    stack: int  # bytes
    shared: int  # bytes

    def occupancy(self, chip: Chip) -> float:
        """The share of a multiprocessor's threads that may be resident."""
        per_warp = -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        warps = THREADS // WARP
        by_registers = chip.registers // per_warp // warps
        by_shared = chip.shared // (self.shared + RESERVED)
        return min(by_registers, by_shared, chip.blocks, chip.threads // THREADS) * THREADS / chip.threads


def ptxas() -> str | None:
    """Where ptxas is: on the path, or in the package nvidia-cuda-nvcc."""
    on_path = shutil.which("ptxas")
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found = [str(file) for place in places for file in place.glob("*/bin/ptxas")]
    return on_path or (found[0] if found else None)


def assembled(assembler: str, file: Path, architecture: str) -> Assembled:
    """What ptxas makes of a file of PTX with one kernel."""
    command = [assembler, "-v", "--gpu-name", architecture, str(file), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, said)))

    return Assembled(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
    )


def line(file: Path, assembler: str | None) -> str:
    """One line of the table."""
    architecture, kernel, *dtypes = file.name.removesuffix(".ptx").split(".")
    text = re.sub(r"//.*|_Z\w+", "", file.read_text())
    instructions = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)[\s;]", text, re.MULTILINE)
    floats = [name for name in instructions if re.search(r"\.b?f(16|32|64)", name)]
    wide = [name for name in instructions if re.search(r"\.(v4\.\w(32)|v2\.\w(64))$", name)]
    known: list[str] = ["", "", "", "", ""]
    if assembler is not None:
        found, chip = assembled(assembler, file, architecture), CHIPS[architecture]
        known = [str(x) for x in (found.registers, found.spilled, found.stack, found.shared)]
        known.append(f"{found.occupancy(chip):.0%}")
    local = str(len(re.findall(r"\.local\b", text)))
    counts = [str(len(instructions)), str(len(floats)), local, str(len(wide))]
    return row([kernel, architecture, " ".join(filter(None, dtypes)), *counts, *known])


def report(folder: Path) -> Iterable[str]:
    """The report line by line, each as soon as it is known."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-P", str(PROGRAM), str(folder), ",".join(CHIPS)]
    subprocess.run(command, env=environment | {"PYTHONPATH": str(ROOT)}, check=True)
    assembler = ptxas()
    versions = ", ".join(f"{name} {package_version(name)}" for name in ("numba-cuda", "nvidia-nvvm"))
    yield f"- {versions}, fastmask at commit {commit()}, {date.today().isoformat()}"
    if assembler is None:
        yield "- ptxas is not installed: nothing is said of registers, spills and occupancy"
    else:
        said = subprocess.run([assembler, "--version"], capture_output=True, text=True, check=True).stdout
        yield f"- ptxas {said.split('release ')[1].split(',')[0]}"
    yield from NOTES.splitlines()
    yield from head(
        "kernel", "chip", "dtypes", "PTX", "floats", ".local", "16 bytes", "registers", "spills", "stack", "shared",
        "occupancy",
    )  # fmt: skip
    chips = list(CHIPS)
    for file in sorted(
        folder.glob("*.ptx"), key=lambda file: (file.name.split(".")[1:], chips.index(file.name.split(".")[0]))
    ):
        yield line(file, assembler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        publish(report(Path(folder)), options.markdown)


if __name__ == "__main__":
    main()
