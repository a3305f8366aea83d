"""`python -m benchmarks.cold_start`: imports, first calls, eight processes on one empty cache."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from typing import Any

from benchmarks.first_call import Config, digest, one_batch
from benchmarks.measure import ROOT, machine

DTYPES = (
    ("int64", "int64", "int64"),
    ("int32", "int32", "int64"),
    ("int32", "int32", "int32"),
    ("uint16", "int64", "int64"),
)
CONFIGS: tuple[Config, ...] = tuple((*dtypes, given) for dtypes, given in product(DTYPES, (True, False)))
REPEATS = 5

Result = dict[str, Any]


def start(config: Config, cache: str, wait: bool = False) -> subprocess.Popen[str]:
    """A new process that makes the first call of a configuration, with its compiled code in `cache`."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
    file = str(ROOT / "benchmarks" / "first_call.py")
    command = [sys.executable, "-P", file, *map(str, config)] + ["--wait"] * wait
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> Result:
    """What the process measured. Raises RuntimeError with its messages where it failed."""
    output, errors = process.communicate("\n")
    if process.returncode:
        raise RuntimeError(f"a process ended with status {process.returncode}:\n{errors}")
    if errors:
        print(f"a process wrote to its standard error:\n{errors}", file=sys.stderr)
    result: Result = json.loads(output.splitlines()[-1])
    return result


def first_calls(config: Config, repeats: int) -> dict[str, float]:
    """Medians in seconds: the imports, the first call on an empty and on a filled cache, a second call."""
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(finish(start(config, cache))["times"])
            warm.append(finish(start(config, cache))["times"])

    def median(times: list[dict[str, float]], name: str) -> float:
        return statistics.median(t[name] for t in times)

    return {
        "numpy": median(cold + warm, "numpy"),
        "fastmask": median(cold + warm, "fastmask"),
        "compiled": median(cold, "first"),
        "loaded": median(warm, "first"),
        "second": median(cold + warm, "second"),
    }


def together(cache: str) -> list[Result]:
    """Eight processes, one per configuration, that make their first call at the same moment."""
    processes = [start(config, cache, wait=True) for config in CONFIGS]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # "ready", or nothing where the process failed; `finish` tells
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def race(rounds: int) -> None:
    """Rounds of eight processes on an empty cache, then eight on what they left; every result is compared."""
    want = []
    for config in CONFIGS:
        masker, ids, arguments = one_batch(config)
        want.append(digest(masker(ids, backend="numpy", **arguments)))
    calls = wrong = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for moment in ("an empty cache", "the cache those left"):
                for config, expected, result in zip(CONFIGS, want, together(cache), strict=True):
                    bad = sum(got != expected for got in result["digests"])
                    if bad:
                        print(f"WRONG: {config} on {moment}: {bad} of 2 calls differ from the NumPy backend")
                    wrong += bad
                    calls += len(result["digests"])
    print(
        f"{len(CONFIGS)} processes of different dtypes at once on one empty cache, then as many on what they "
        f"left; {rounds} round(s): {calls - wrong} of {calls} results right."
    )
    if wrong:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat and one round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of eight processes (default 5)")
    options = parser.parse_args()
    repeats = 1 if options.quick else REPEATS
    print("\n".join(f"- {line}" for line in machine(threads=1)))
    print(f"\nMedians of {repeats} new processes (imports and second calls: of {2 * repeats}).\n")
    print("| ids, ids out, labels | sample ids | first call, compiling | first call, cached | second call |")
    print("|---|---|---|---|---|")
    imports = []
    for config in CONFIGS[: 1 if options.quick else None]:
        times = first_calls(config, repeats)
        imports.append(times)
        sample_ids = "given" if config[3] else "from content"
        print(
            f"| {', '.join(config[:3])} | {sample_ids} | {times['compiled'] * 1e3:.0f} ms "
            f"| {times['loaded'] * 1e3:.0f} ms | {times['second'] * 1e3:.2f} ms |",
            flush=True,
        )
    numpy, fastmask = (statistics.median(t[name] for t in imports) * 1e3 for name in ("numpy", "fastmask"))
    print(f"\n`import fastmask` takes {fastmask:.0f} ms after `import numpy`, which takes {numpy:.0f} ms.\n")
    race(1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
