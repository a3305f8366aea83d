"""Serial or parallel: how many ranges a batch is cut into, and why.

The parallel twin runs on Numba's threads, and those are not safe everywhere: under OpenMP a forked child that enters a
parallel region is killed, and under workqueue two Python threads that enter one at once abort the process. So it runs
only where it gains and cannot harm; the serial twin gives the same bits everywhere else.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator

from fastmask.vocab import integer

LEAST_CELLS = 1 << 19  # below, starting the threads costs more than it gains
CELLS_PER_RANGE = 1 << 17
TOO_FEW = 1, f"fewer than {LEAST_CELLS} cells"

_chosen: int | None = None
_parallel_region = threading.RLock()  # a signal handler may mask in the thread that holds it: no kernel runs then
_loading = threading.RLock()  # held while Numba and the kernels are imported
_held: list[contextlib.ExitStack] = []  # locks of ours and of Numba, while this process forks


def _inherited_threads() -> bool:
    """True where a process that may have run Numba's threads was forked, and the child imports this module."""
    started = getattr(sys.modules.get("numba.np.ufunc.parallel"), "_is_initialized", False)
    try:
        with open("/proc/self/stat") as file:
            flags = int(file.read().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return False
    return bool(started and flags & 0x40)  # PF_FORKNOEXEC


_forked = _inherited_threads()


def _before_fork() -> None:
    """No fork while a thread imports, compiles or drops code: the child would inherit locks that are held for ever."""
    with contextlib.ExitStack() as locks:
        locks.enter_context(_loading)
        if "numba" in sys.modules:
            _settle_numba()
            locks.enter_context(sys.modules["numba.core.compiler_lock"].global_compiler_lock)
            locks.enter_context(sys.modules["llvmlite.binding.ffi"].lib._lock)  # finalizers take it alone
        _held.append(locks.pop_all())


def _settle_numba() -> None:
    """What Numba does once, outside its compiler lock, is done: no thread is in the middle of it."""
    importlib.import_module("numba")
    importlib.import_module("numpy.ma")  # which Numba imports at its first call
    _ = sys.modules["numba.core.registry"].cpu_target.target_context


def _after_fork() -> None:
    _held.pop().close()


def _after_fork_in_child() -> None:
    global _forked, _parallel_region
    _forked = True
    _parallel_region = threading.RLock()
    _after_fork()


# Handlers run in the reverse order before a fork: logging's come after ours, so that who imports or compiles can log.
assert logging
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def set_num_threads(n: int) -> None:
    """At most n threads mask a batch from now on, in this process; 1 never leaves the calling thread.

    The environment variable FASTMASK_NUM_THREADS sets the same at the start; without it, all cores that the process
    may use. Numba's own setting is neither read nor changed, but caps the number.

    Raises:
        TypeError: n is not an integer.
        ValueError: n < 1.
    """
    global _chosen
    n = integer("n", n)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    _chosen = n


def get_num_threads() -> int:
    """The most threads that mask a batch."""
    if _chosen is not None:
        return _chosen
    text = os.environ.get("FASTMASK_NUM_THREADS", "")
    if text:
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ValueError(f"FASTMASK_NUM_THREADS must be a whole number above 0, got {text!r}")
        return int(text)
    return _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_ranges(cells: int) -> tuple[int, str]:
    """In how many ranges a batch of so many cells is masked (1: by the serial twin), and why."""
    if cells < LEAST_CELLS:
        return TOO_FEW
    threads = get_num_threads()
    if threads == 1:
        return 1, "one thread is allowed"
    if _forked:
        return 1, "this process was forked"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return 1, "this process is a multiprocessing worker"
    threads = min(threads, _numba_threads())
    if threads == 1:
        return 1, "Numba has one thread"
    layer = threading_layer()
    if layer is None:
        return 1, "Numba finds no threading layer"
    if layer == "workqueue" and threading.active_count() > 1:
        return 1, "the workqueue layer is not safe with several Python threads"
    if layer == "tbb" and _cores() == 1:
        return 1, "the tbb layer hangs at exit after a fork on one core"
    return min(threads, cells // CELLS_PER_RANGE), f"{threads} threads of the {layer} layer"


@contextlib.contextmanager
def parallel_region() -> Iterator[bool]:
    """True for one thread at a time; False, at once, for any other that comes meanwhile."""
    region, entered = _parallel_region, False
    try:
        entered = region.acquire(blocking=False)
        yield entered
    finally:
        if entered:
            region.release()


def _numba_threads() -> int:
    from numba import config

    return int(config.NUMBA_NUM_THREADS)


def threading_layer() -> str | None:
    """The threading layer that Numba runs or would choose; None where it has none. No thread is started."""
    import numba

    try:
        return str(numba.threading_layer())
    except ValueError:  # not started yet: look for the one that Numba will choose
        wanted = str(numba.config.THREADING_LAYER).lower()
        order = [str(name) for name in numba.config.THREADING_LAYER_PRIORITY]
        if sorted(order) != ["omp", "tbb", "workqueue"]:
            return None  # Numba would raise
        allowed = {
            "default": order,
            "safe": ["tbb"],
            "threadsafe": [name for name in order if name != "workqueue"],
            "forksafe": [name for name in order if name != "omp"],
        }.get(wanted, [wanted])
        return next((name for name in allowed if _importable(name)), None)


def _importable(layer: str) -> bool:
    module = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}.get(layer)
    try:
        with _loading:
            importlib.import_module(f"numba.np.ufunc.{module}")
    except ImportError:
        return False
    return True


def load_cpu_kernels() -> None:
    """Numba and the CPU kernels are imported; no fork happens meanwhile."""
    with _loading:
        importlib.import_module("fastmask.kernels.cpu")
        importlib.import_module("numpy.ma")  # which Numba would import at its first call, where a fork may happen
