"""`python -m benchmarks.memory`: the memory that one call on 2^26 tokens takes beyond its arrays."""

from __future__ import annotations

import argparse
import resource
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fastmask as fm
from benchmarks.cases import Case, Prepared
from benchmarks.measure import machine

COLUMNS = 512
BASELINE_TOKENS = 1 << 22
MIB = 1 << 20


def peak_resident() -> int:
    """The most bytes of physical memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    """The bytes of physical memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def traced(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held during a call beyond what they held before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        result = call()
        _, peak = tracemalloc.get_traced_memory()
        del result
        return peak - before
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("int64", "int32"), default="int64", help="of all arrays")
    parser.add_argument("--quick", action="store_true", help="2^22 tokens instead of 2^26")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    fm.set_num_threads(options.threads)
    print("\n".join(f"- {line}" for line in machine(options.threads)))
    case = Case(options.dtype, ids=options.dtype, ids_out=options.dtype, labels=options.dtype)
    Prepared(case).check()  # compiles as well, so that what the compiler holds is not counted

    large = Prepared(replace(case, rows=(1 << (22 if options.quick else 26)) // COLUMNS))
    tokens, before = large.tokens, resident()
    large.fastmask()
    grown = max(0, peak_resident() - before)  # at most: the peak may be an earlier one
    allocated = traced(large.fastmask)
    print(f"\n{tokens:,} tokens, {options.dtype}: the three arrays hold {large.bytes_moved / MIB:,.0f} MiB.")
    print(f"Resident before the call: {before / MIB:,.0f} MiB.")
    print(f"Peak of the process above that: {grown / MIB:.2f} MiB, {grown / tokens:.4f} bytes per token.")
    print(f"Allocated by Python and NumPy: {allocated:,} bytes, {allocated / tokens:.6f} bytes per token.")
    del large

    small = Prepared(replace(case, rows=BASELINE_TOKENS // COLUMNS))
    print(f"Beyond its outputs, on {small.tokens:,} tokens, for comparison:")
    for name, call, results in (("banded", small.banded, small.out), ("sparse", small.sparse, ())):
        spent = traced(call) - sum(array.nbytes for array in results)
        print(f"  {name} NumPy: {spent / small.tokens:.1f} bytes per token")


if __name__ == "__main__":
    main()
