"""How process tests run their scripts: in a process group and with the settings of their own, timed and watched."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastmask as fm

ROOT = Path(fm.__file__).parents[1]
LIBRARIES = f"{sys.prefix}/lib"
SMALL, LARGE = (16, 128), (1024, 512)  # the second is masked by the parallel twin where that is allowed

# What every script begins with. Arguments: what the digests of a small and of a large batch must be, then its own.
PRELUDE = """
import hashlib, os, signal, sys, threading, time
import numpy as np
import fastmask as fm

SMALL, LARGE = (16, 128), (1024, 512)
WANTED = {SMALL: sys.argv[1], LARGE: sys.argv[2]}
masker = fm.Masker(fm.Vocab(30522, 103, 0, (0, 100, 101, 102, 103)), fm.Bernoulli(0.15), seed=7)

def some_ids(shape):
    return np.random.default_rng(1).integers(1, 30522, shape)

def digest(batch):
    digest = hashlib.sha256(repr((batch.input_ids.dtype, batch.labels.dtype, batch.labels.shape)).encode())
    for array in (batch.input_ids, batch.labels):
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()

def check(*shapes):
    for shape in shapes or (SMALL, LARGE):
        assert digest(masker(some_ids(shape), epoch=3)) == WANTED[shape], shape

def is_parallel():
    return "parallel" in masker.explain_backend(np.empty(LARGE, np.int64))

def must_be_parallel():
    one_core_of_tbb = os.environ.get("NUMBA_THREADING_LAYER") == "tbb" and len(os.sched_getaffinity(0)) == 1
    assert is_parallel() or one_core_of_tbb

def ended_well(pid, seconds=30):
    '''The child ended, in time and with status 0.'''
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, f"a child ended with wait status {status}"
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("a child hung")

def forked(work):
    '''The id of a child that does the work and ends.'''
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid
"""


def environment(**changes: str) -> dict[str, str]:
    """The variables of a process with two threads, the cache of this run and no other setting of Numba's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "FASTMASK_"))}
    kept |= {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"]}
    if changes.get("NUMBA_THREADING_LAYER") == "tbb":
        kept["LD_LIBRARY_PATH"] = LIBRARIES  # where pip puts libtbb, and no loader looks
    return kept | {"NUMBA_NUM_THREADS": "2", "FASTMASK_NUM_THREADS": "2"} | changes


def digest(batch: fm.MaskedBatch) -> str:
    """As in the scripts."""
    digest = hashlib.sha256(repr((batch.input_ids.dtype, batch.labels.dtype, batch.labels.shape)).encode())
    for array in (batch.input_ids, batch.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def wanted() -> list[str]:
    """The digests of a small and of a large batch, from the reference; the kernels are in the cache."""
    masker = fm.Masker(fm.Vocab(30522, 103, 0, (0, 100, 101, 102, 103)), fm.Bernoulli(0.15), seed=7)
    code = "import fastmask; fastmask.warmup(parallel=True)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd="/", timeout=300, check=False)
    assert done.returncode == 0
    digests = []
    for shape in (SMALL, LARGE):
        ids = np.random.default_rng(1).integers(1, 30522, shape)
        digests.append(digest(masker(ids, epoch=3, backend="numpy")))
    return digests


class Runner:
    """Runs scripts, each in a process group of its own, of which nothing is left at the end."""

    def __init__(self, folder: Path, digests: Sequence[str]) -> None:
        self.folder, self.digests = folder, digests

    def __call__(
        self, code: str, *arguments: object, seconds: float = 100, noise: bool = False, **changes: Any
    ) -> list[str]:
        """The lines that the script printed: it ended well and in time, and said nothing on stderr (unless noise)."""
        script = self.folder / "script.py"
        script.write_text(PRELUDE + code)
        process = subprocess.Popen(
            [sys.executable, str(script), *self.digests, *map(str, arguments)],
            env=environment(**changes),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            pytest.fail(f"the process hung: {process.communicate()[1][-2000:]}")
        assert process.returncode == 0, err[-3000:]
        assert noise or not err, err[-3000:]
        return out.splitlines()


@pytest.fixture
def script(tmp_path: Path, wanted: list[str]) -> Runner:
    """Runs a script after PRELUDE."""
    return Runner(tmp_path, wanted)


def _layer(name: str) -> str:
    if name == "tbb":
        try:
            ctypes.CDLL(f"{LIBRARIES}/libtbb.so.12")
        except OSError:
            pytest.skip("libtbb.so.12 is not installed: pip install tbb")
    return name


@pytest.fixture(params=["omp", "tbb", "workqueue"])
def layer(request: pytest.FixtureRequest) -> str:
    """The name of one of Numba's threading layers, where it is here."""
    return _layer(request.param)


@pytest.fixture(params=["omp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tbb", "workqueue"))])
def costly_layer(request: pytest.FixtureRequest) -> str:
    """The same, for tests of which one layer is enough in a quick run."""
    return _layer(request.param)


repeated = pytest.mark.parametrize("repeats", [3, pytest.param(20, marks=pytest.mark.slow)])
once_or_often = pytest.mark.parametrize("repeats", [1, pytest.param(20, marks=pytest.mark.slow)])
