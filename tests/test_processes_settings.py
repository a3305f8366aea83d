"""Settings of threads change no bit, masking changes no setting, and no driver is touched."""

from __future__ import annotations

from typing import Any

import pytest
from support_processes import Runner

# --- settings


SETTINGS = [
    {"FASTMASK_NUM_THREADS": "7", "NUMBA_NUM_THREADS": "7"},
    {"NUMBA_THREADING_LAYER": "nonsense"},
    {"NUMBA_THREADING_LAYER_PRIORITY": "workqueue tbb omp"},
]
MORE_SETTINGS = [
    {"NUMBA_NUM_THREADS": "1"},
    {"FASTMASK_NUM_THREADS": "1"},
    {"FASTMASK_NUM_THREADS": "7"},
    {"NUMBA_THREADING_LAYER": "safe"},
    {"NUMBA_THREADING_LAYER": "threadsafe"},
    {"NUMBA_THREADING_LAYER": "forksafe"},
    {"NUMBA_THREADING_LAYER": "tbb"},
    {"NUMBA_THREADING_LAYER": "OMP"},
    {"NUMBA_THREADING_LAYER_PRIORITY": "omp"},
    {"NUMBA_THREADING_LAYER_PRIORITY": "one two three"},
]


@pytest.mark.parametrize(
    "changes",
    [*SETTINGS, *(pytest.param(changes, marks=pytest.mark.slow) for changes in MORE_SETTINGS)],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()),
)
def test_no_setting_of_threads_raises_or_changes_a_bit(script: Runner, changes: dict[str, Any]) -> None:
    code = """
import numba
described = masker.explain_backend(np.empty(LARGE, np.int64))
check()
assert masker.explain_backend(np.empty(LARGE, np.int64)) == described  # what ran is what was foreseen
if "parallel" in described:
    assert numba.threading_layer() in described
print(described)
"""
    noisy = "tbb" in str(changes) or changes.get("NUMBA_THREADING_LAYER") in (
        "safe",
        "threadsafe",
        "forksafe",
    )
    (described,) = script(code, noise=noisy, **changes)
    if "1" in changes.values() or "nonsense" in changes.values():
        assert "serial" in described
    if changes.get("FASTMASK_NUM_THREADS") == "7":
        assert (
            f"{min(int(changes['FASTMASK_NUM_THREADS']), int(changes.get('NUMBA_NUM_THREADS', 2)))} threads"
            in described
        )


def test_masking_changes_no_setting_of_numba(script: Runner, costly_layer: str) -> None:
    code = """
import numba
check()
numba.set_num_threads(1)
fm.set_num_threads(2)
check()
assert numba.get_num_threads() == 1
"""
    script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


# --- the driver of a GPU


def test_b97_masking_on_the_cpu_never_looks_for_a_driver(script: Runner) -> None:
    code = """
import ctypes
class Refused(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        assert "cuda" not in str(name), name
        super().__init__(name, *arguments, **options)
ctypes.CDLL = Refused
check()
fm.warmup(parallel=True)
masker.explain_backend(some_ids(SMALL))
loaded = [line for line in open("/proc/self/maps") if "libcuda" in line or "libnvidia" in line]
assert not loaded, loaded
assert not [name for name in sys.modules if name.startswith(("numba.cuda", "numba_cuda", "cupy"))]
"""
    script(code)


def test_b97_asking_for_backends_loads_the_driver_and_calls_nothing_in_it(script: Runner) -> None:
    code = """
import ctypes, importlib.util
names = []
class Library:
    def __init__(self, name, *arguments, **options):
        names.append(name)
    def __getattr__(self, name):
        raise AssertionError(f"{name} was looked up")
    def __getitem__(self, name):
        raise AssertionError(f"{name} was looked up")
genuine, ctypes.CDLL = ctypes.CDLL, Library
state = fm.backends()["cuda"]
if importlib.util.find_spec("numba_cuda") is not None:
    assert state.available and names == ["libcuda.so.1"], (state, names)
assert not [name for name in sys.modules if name.startswith(("numba.cuda", "cupy"))]
ctypes.CDLL = genuine
check()
ended_well(forked(check))
"""
    script(code)


def test_b97_children_forked_after_backends_was_asked_mask(script: Runner, costly_layer: str) -> None:
    code = """
fm.backends()
check()
ended_well(forked(lambda: (fm.backends(), check())))
"""
    script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")
