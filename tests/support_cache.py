"""How tests of the disk cache start processes: what they run, which cache they get, what they report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import fastmask as fm

ROOT = Path(fm.__file__).parents[1]
MASK_DTYPES = ("uint8", "uint16", "uint32", "uint64")

# Small kernels, cached as the large ones are. Each line that `report` prints: kernel, hits or misses, what came out.
SMALL_KERNELS = """
import sys
import numpy as np
from fastmask.dispatch import host_kernels
from fastmask.kernels import fate

cpu = host_kernels("cpu")

def weights():
    with np.errstate(over="ignore"):
        want = np.array([fate.mix(fate.spread(np.uint64(j))) for j in range(512)], np.uint64)
    np.testing.assert_array_equal(cpu.content_weights(512), want, strict=True)
    report("weights", cpu.compiled_content_weights())

def runs(dtype):
    mask = np.array([[0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype)
    starts, lengths, bad = cpu.real_runs(mask[:3])
    np.testing.assert_array_equal(starts, np.array([1, 0, 0]), strict=True)
    np.testing.assert_array_equal(lengths, np.array([2, 5, 0]), strict=True)
    assert bad == -1
    assert cpu.real_runs(mask)[2] == 17
    report(dtype, cpu.compiled_real_runs(mask.dtype))

def report(name, kernel):
    hits, misses = sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())
    print(name, "loaded" if (hits, misses) == (1, 0) else "compiled" if hits == 0 else "both")

for name in sys.argv[1:]:
    weights() if name == "weights" else runs(name)
"""

# The masks of a small batch equal the reference bit for bit.
MASKS = """
import sys
import numpy as np
import fastmask as fm

def check(dtype="int64", label_dtype="int64", shape=(8, 96)):
    masker = fm.Masker(fm.Vocab(1000, 103, 0, (0, 100, 101)), fm.Bernoulli(0.2), seed=7, label_dtype=label_dtype)
    ids = np.random.default_rng(1).integers(1, 1000, shape).astype(dtype)
    got, want = masker(ids, epoch=3), masker(ids, epoch=3, backend="numpy")
    np.testing.assert_array_equal(got.input_ids, want.input_ids, strict=True)
    np.testing.assert_array_equal(got.labels, want.labels, strict=True)
    print("right")

check(*sys.argv[1:])
"""


class Result(NamedTuple):
    """What a process left behind."""

    status: int
    out: str
    err: str


def environment(cache: Path | None, **changes: str) -> dict[str, str]:
    """The variables of a process that finds this checkout, with this cache or none, and no other setting of Numba's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "FASTMASK_", "XDG_"))}
    kept |= {"PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "2", "FASTMASK_NUM_THREADS": "2"}
    if cache is not None:
        kept["NUMBA_CACHE_DIR"] = str(cache)
    return kept | changes


def start(
    code: str, *arguments: str, env: dict[str, str], flags: Sequence[str] = (), prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A process that runs this code, in a working directory without Python files."""
    command = [*prefix, sys.executable, *flags, "-c", code, *arguments]
    return subprocess.Popen(command, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str], seconds: float = 120) -> Result:
    """What the process left behind; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the process hung: {process.communicate()[1][-2000:]}")
    return Result(process.returncode, out, err)


def run(
    code: str, *arguments: str, env: dict[str, str], flags: Sequence[str] = (), prefix: Sequence[str] = ()
) -> list[str]:
    """The lines that the process printed. It ended well and said nothing on stderr."""
    result = end(start(code, *arguments, env=env, flags=flags, prefix=prefix))
    assert (result.status, result.err) == (0, ""), result.err[-3000:]
    return result.out.splitlines()


def copied_package(folder: Path) -> Path:
    """A copy of the package that no other test reads, on its own path."""
    shutil.copytree(ROOT / "fastmask", folder / "fastmask", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def files_of(cache: Path) -> list[Path]:
    """The files in a cache, without what a killed process left: half written files, and the sign that it compiled."""
    return sorted(path for path in cache.rglob("*") if path.is_file() and not {".tmp", ".turn"} & set(path.suffixes))


@pytest.fixture(scope="session")
def warm_cache() -> Path:
    """The cache of this test run, with the kernel of int64 masks in it."""
    cache = Path(os.environ["NUMBA_CACHE_DIR"])
    result = end(start("import fastmask; fastmask.warmup()", env=environment(cache)))
    assert result.status == 0, result.err
    return cache


@pytest.fixture(scope="module")
def small_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the small kernels alone."""
    cache = tmp_path_factory.mktemp("small")
    run(SMALL_KERNELS, "weights", *MASK_DTYPES, env=environment(cache))
    return cache
