"""Forks, workers, threads, signals and exits: never a crash, a hang or other bits, whatever Numba's threads run on."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
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
SMALL, LARGE = (16, 128), (1024, 512)  # the second is masked by the parallel twin where that is allowed
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

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
            ctypes.CDLL("libtbb.so.12")
        except OSError:
            pytest.skip("libtbb.so.12 is not installed")
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


# --- forks


@repeated
def test_b73_b75_forked_children_mask_after_the_parent_masked_in_parallel(
    script: Runner, layer: str, repeats: int
) -> None:
    code = """
must_be_parallel()
check()
for _ in range(int(sys.argv[3])):
    ended_well(forked(check))
    children = [forked(check) for _ in range(2)]  # at the same time
    check()
    for child in children:
        ended_well(child)
    ended_well(forked(lambda: ended_well(forked(check))))  # a child of a child
must_be_parallel()
check()
"""
    script(code, repeats, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


@repeated
def test_b75_children_forked_by_a_helper_thread_mask(script: Runner, layer: str, repeats: int) -> None:
    code = """
check()
children = []
def fork_some():
    for _ in range(int(sys.argv[3])):
        children.append(forked(lambda: (check(), sys.stdout.flush())))
        check()
helper = threading.Thread(target=fork_some)
helper.start()
check()
helper.join()
for child in children:
    ended_well(child)
check()
"""
    script(code, repeats, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


@repeated
def test_children_forked_while_threads_mask_mask_too(script: Runner, layer: str, repeats: int) -> None:
    code = """
check()
stop = threading.Event()
def mask_on(shape):
    while not stop.is_set():
        check(shape)
threads = [threading.Thread(target=mask_on, args=(shape,)) for shape in (SMALL, LARGE, SMALL, LARGE)]
for thread in threads:
    thread.start()
for _ in range(int(sys.argv[3])):
    ended_well(forked(check))
stop.set()
for thread in threads:
    thread.join()
check()
"""
    script(code, repeats, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


def test_a_child_that_imports_the_package_after_others_ran_numbas_threads_masks(script: Runner, layer: str) -> None:
    if layer == "tbb" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("on one core any process that ran Numba's tbb threads and forked hangs at its exit")
    code = """
import numba
for name in [name for name in sys.modules if name.split(".")[0] == "fastmask"]:
    del sys.modules[name]

@numba.njit(parallel=True)
def count(a):
    for i in numba.prange(a.size):
        a[i] += 1

count(np.zeros(1000))
def first_import():
    import fastmask
    masker = fastmask.Masker(fastmask.Vocab(30522, 103, 0, (0, 100, 101, 102, 103)), fastmask.Bernoulli(0.15), seed=7)
    assert digest(masker(some_ids(LARGE), epoch=3)) == WANTED[LARGE]
ended_well(forked(first_import))
"""
    script(code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


@repeated
def test_a_fork_while_another_thread_compiles_leaves_a_child_that_masks_and_compiles(
    script: Runner, repeats: int
) -> None:
    code = """
from fastmask.dispatch import host_kernels
from numba import njit
cpu = host_kernels("cpu")
check()
stop = threading.Event()
compiled = []
def compile_on():
    while not stop.is_set():
        function = njit(lambda a, b: (a + b) * 3 - a / (b + 1))
        for kind in (np.int8, np.int16, np.int32, np.float32):
            function(kind(1), kind(2))
            compiled.append(kind)
compiler = threading.Thread(target=compile_on)
compiler.start()
def work():
    check()
    cpu.real_runs(np.ones((2, 3), np.uint8))  # compiled, or loaded, in the child
for k in range(int(sys.argv[3])):
    time.sleep(0.013 * (k % 7))
    ended_well(forked(work))
stop.set()
compiler.join()
assert compiled
"""
    script(code, repeats)


@pytest.mark.parametrize("milliseconds", [10, 60, 150, 300])
def test_a_fork_while_another_thread_makes_the_first_call_leaves_a_child_that_masks(
    script: Runner, milliseconds: int
) -> None:
    code = """
some_ids(SMALL)  # NumPy imports its random module late
first = threading.Thread(target=check, args=(SMALL,))
first.start()
time.sleep(int(sys.argv[3]) / 1000)
child = forked(lambda: check(SMALL))
first.join()
ended_well(child)
"""
    script(code, milliseconds)


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", range(0, 500, 25))
def test_a_fork_at_any_moment_of_the_first_call_leaves_a_child_that_masks(script: Runner, milliseconds: int) -> None:
    test_a_fork_while_another_thread_makes_the_first_call_leaves_a_child_that_masks(script, milliseconds)


def test_forks_by_many_threads_do_not_wait_for_each_other_for_ever(script: Runner) -> None:
    code = """
def fork_some(done):
    for _ in range(5):
        ended_well(forked(lambda: None))
    done.append(True)
done = []
threads = [threading.Thread(target=fork_some, args=(done,)) for _ in range(6)]
for thread in threads:
    thread.start()
check()
for thread in threads:
    thread.join()
assert len(done) == 6
import subprocess
subprocess.run(["true"], preexec_fn=lambda: None, check=True)
check()
"""
    script(code)


# --- multiprocessing


@once_or_often
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing_mask(script: Runner, costly_layer: str, method: str, repeats: int) -> None:
    code = """
def work(k):
    check()
    return is_parallel()

if __name__ == "__main__":
    import multiprocessing
    check()
    context = multiprocessing.get_context(sys.argv[3])
    with context.Pool(2) as pool:
        assert pool.map(work, range(2 * int(sys.argv[4])), 1) == [False] * 2 * int(sys.argv[4])
    process = context.Process(target=work, args=(0,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    check()
"""
    script(code, method, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


def test_masking_in_parallel_leaves_the_start_method_to_the_caller(script: Runner, layer: str) -> None:
    code = """
import multiprocessing
check()
must_be_parallel()
fm.warmup(["int64"], parallel=True)
assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("spawn")
check()
assert multiprocessing.get_start_method() == "spawn"
"""
    script(code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


def test_a_start_method_that_was_chosen_stays(script: Runner) -> None:
    code = """
import multiprocessing
multiprocessing.set_start_method("fork")
check()
assert multiprocessing.get_start_method(allow_none=True) == "fork"
"""
    script(code)


# --- torch


LOADER = """
import warnings
warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")  # on one core
import torch
from torch.utils.data import DataLoader

class Collate:
    def __init__(self, masker):
        self.masker = masker

    def __call__(self, rows):
        batch = self.masker(torch.stack(rows), epoch=3)
        return batch.input_ids, batch.labels

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * LARGE[0]

    def __getitem__(self, k):
        return torch.from_numpy(some_ids_once()[k % LARGE[0]])

def some_ids_once(kept=[]):
    if not kept:
        kept.append(some_ids(LARGE))
    return kept[0]

def loader(method):
    return DataLoader(
        Rows(), LARGE[0], num_workers=2, collate_fn=Collate(masker), multiprocessing_context=method, pin_memory=False
    )

def check_loader(batches):
    batches = [fm.MaskedBatch(ids.numpy(), labels.numpy()) for ids, labels in batches]
    assert [digest(batch) for batch in batches] == [WANTED[LARGE]] * len(batches)
    return len(batches)

if __name__ == "__main__":
    check()
    batch = Collate(masker)(list(torch.from_numpy(some_ids(LARGE))))  # masked in the parent, on torch's own threads
    check_loader([batch])
    torch.ones(1 << 20).sum()
    for _ in range(int(sys.argv[4])):
        assert check_loader(loader(sys.argv[3])) == 4
    check()
"""


@needs_torch
@once_or_often
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_b73_workers_of_a_torch_loader_mask(script: Runner, layer: str, method: str, repeats: int) -> None:
    repeats = min(repeats, 5) if method == "spawn" else repeats  # each worker imports torch
    script(LOADER, method, repeats, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb", seconds=300)


@needs_torch
@pytest.mark.slow
def test_b104_workers_that_a_torch_loader_spawns_mask(script: Runner) -> None:
    script(LOADER, "spawn", 1)


@needs_torch
def test_b104_two_torch_loaders_are_read_in_turns(script: Runner, costly_layer: str) -> None:
    code = """
if __name__ == "__main__":
    pairs = list(zip(loader("fork"), loader("fork"), strict=True))
    assert check_loader([batch for pair in pairs for batch in pair]) == 8
"""
    script(LOADER + code, "fork", 0, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


# --- threads


@once_or_often
def test_b74_eight_threads_mask_small_and_large_batches_at_once(script: Runner, layer: str, repeats: int) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
huge = (2048, 512)
ids = {shape: some_ids(shape) for shape in (SMALL, LARGE, huge)}
want = masker(ids[huge], epoch=3, backend="numpy")
barrier = threading.Barrier(8)
def mask_small(k):
    barrier.wait()
    for _ in range(100):
        check(SMALL)
def mask_huge(k):
    barrier.wait()
    for _ in range(2):
        got = masker(ids[huge], epoch=3)
        assert np.array_equal(got.input_ids, want.input_ids) and np.array_equal(got.labels, want.labels)
def mask_both(k):
    (mask_small, mask_huge)[k % 2](k)
def set_threads(k):
    barrier.wait()
    for n in range(1, 20):
        fm.set_num_threads(1 + (n + k) % 7)
        check(LARGE if n % 10 == 0 else SMALL)
with ThreadPoolExecutor(8) as pool:  # before the main thread has masked anything
    for _ in range(int(sys.argv[3])):
        for work in (mask_small, mask_huge, mask_both, set_threads):
            list(pool.map(work, range(8)))
            check()
check()
"""
    script(code, repeats, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb", seconds=300)


def test_b74_raw_threads_that_python_does_not_list_mask_large_batches_at_once(script: Runner, layer: str) -> None:
    code = """
import _thread
left = threading.Semaphore(0)
failed = []
def work():
    try:
        for _ in range(5):
            check(LARGE)
    except BaseException as error:
        failed.append(error)
    finally:
        left.release()
for _ in range(4):
    _thread.start_new_thread(work, ())
for _ in range(4):
    assert left.acquire(timeout=60)
assert not failed, failed
"""
    script(code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


def test_threads_that_make_the_first_call_together_compile_once(script: Runner) -> None:
    code = """
from fastmask.dispatch import host_kernels
from numba.core import event
results, barrier = [], threading.Barrier(8)
def first_call():
    barrier.wait()
    results.append(host_kernels("cpu").compiled_real_runs(np.dtype(np.uint16), cache=False))
with event.install_recorder("numba:compile") as recorder:
    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert len(results) == 8
starts = [e for _, e in recorder.buffer if e.is_start and "real_runs" in e.data["dispatcher"].py_func.__name__]
assert len(starts) == 1, len(starts)
"""
    script(code)


@pytest.mark.parametrize("kilobytes", [pytest.param(128, marks=pytest.mark.slow), 256])
def test_a_thread_with_a_small_stack_masks(script: Runner, costly_layer: str, kilobytes: int) -> None:
    code = """
fm.warmup(parallel=True)
threading.stack_size(int(sys.argv[3]) << 10)
done = []
thread = threading.Thread(target=lambda: done.append(check()))
thread.start()
thread.join()
assert done == [None]
"""
    script(code, kilobytes, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


# --- exits and signals


@repeated
def test_b75_a_process_ends_while_daemon_threads_mask(script: Runner, layer: str, repeats: int) -> None:
    code = """
check()
def mask_on(shape):
    ids = some_ids(shape)
    while True:
        masker(ids, epoch=3)
for shape in (LARGE, SMALL, LARGE, SMALL, LARGE):
    threading.Thread(target=mask_on, args=(shape,), daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(repeats if repeats > 3 else 1):
        script(code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb", seconds=30)


def test_b75_one_thread_of_tbb_is_enough(script: Runner, layer: str) -> None:
    code = """
check()
ended_well(forked(check))
thread = threading.Thread(target=check)
thread.start()
thread.join()
"""
    script(code, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="1", noise=layer == "tbb")


def test_a_batch_can_be_masked_at_exit(script: Runner, costly_layer: str) -> None:
    code = """
import atexit
atexit.register(lambda: (check(), print("right")))
check()
"""
    assert script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb") == ["right"]


AT_EACH_LINE = """
import os
FOLDER = os.path.dirname(fm.__file__) + os.sep

def at_each_line(act):
    '''act(n) is called at the n-th line of the package that the thread runs, as a signal handler might be.'''
    state = {"busy": False, "lines": 0}
    def trace(frame, what, argument):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if what == "line" and not state["busy"]:
            state["busy"] = True
            try:
                state["lines"] += 1
                act(state["lines"])
            finally:
                state["busy"] = False
        return trace
    sys.settrace(trace)
    return state
"""


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["serial", "parallel"])
def test_a_signal_handler_may_mask_at_any_line(script: Runner, costly_layer: str, shape: tuple[int, int]) -> None:
    code = """
import faulthandler
faulthandler.dump_traceback_later(40, exit=True)
shape = eval(sys.argv[3])
check(shape)
ids, want, kept = some_ids(shape), masker(some_ids(shape), epoch=3), []
inner = {epoch: masker(ids, epoch=epoch, backend="numpy").labels for epoch in range(4, 7)}
def handler(n):
    if n <= 150 or n % 10 == 0:
        kept.append((4 + n % 3, masker(ids, epoch=4 + n % 3)))
        if len(kept) > 6:
            epoch, batch = kept.pop(0)
            assert np.array_equal(batch.labels, inner[epoch])
at_each_line(handler)
got = masker(ids, epoch=3)
sys.settrace(None)
assert kept
assert np.array_equal(got.input_ids, want.input_ids) and np.array_equal(got.labels, want.labels)
for epoch, batch in kept:  # no memory was given out twice
    assert np.array_equal(batch.labels, inner[epoch])
faulthandler.cancel_dump_traceback_later()
"""
    script(AT_EACH_LINE + code, shape, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


def test_a_signal_handler_may_fork_at_any_line(script: Runner) -> None:
    code = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
check()
ids = some_ids(LARGE)
def handler(n):
    if n % 8 == 0:
        ended_well(forked(lambda: check(SMALL)))
state = at_each_line(handler)
got = masker(ids, epoch=3)
sys.settrace(None)
assert state["lines"] > 20
assert digest(got) == WANTED[LARGE]
"""
    script(AT_EACH_LINE + code)


def test_an_interrupt_at_any_line_leaves_later_calls_right_and_parallel(script: Runner, layer: str) -> None:
    code = """
import faulthandler
from fastmask import threads
faulthandler.dump_traceback_later(60, exit=True)
check()
ids, line, done = some_ids(LARGE), 0, False
while not done:
    line += 1
    def interrupt(n):
        if n == line:
            raise KeyboardInterrupt
    at_each_line(interrupt)
    try:
        masker(ids, epoch=3)
        done = True
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    check(SMALL)
    with threads.parallel_region() as entered:
        assert entered, line
assert line > 20
check()
"""
    script(AT_EACH_LINE + code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb")


def test_after_a_recursion_error_later_calls_are_right(script: Runner) -> None:
    code = """
check()
ids = some_ids(LARGE)
def deep(n):
    return masker(ids, epoch=3) if n == 0 else deep(n - 1)
errors = 0
for room in range(1, 60):
    try:
        deep(sys.getrecursionlimit() - room)
    except RecursionError:
        errors += 1
assert 0 < errors < 59, errors
check()
"""
    script(code)


# --- settings


@pytest.mark.parametrize(
    "changes",
    [
        {"NUMBA_NUM_THREADS": "1"},
        {"FASTMASK_NUM_THREADS": "1"},
        {"FASTMASK_NUM_THREADS": "7"},
        {"FASTMASK_NUM_THREADS": "7", "NUMBA_NUM_THREADS": "7"},
        {"NUMBA_THREADING_LAYER": "safe"},
        {"NUMBA_THREADING_LAYER": "threadsafe"},
        {"NUMBA_THREADING_LAYER": "forksafe"},
        {"NUMBA_THREADING_LAYER": "tbb"},
        {"NUMBA_THREADING_LAYER": "OMP"},
        {"NUMBA_THREADING_LAYER": "nonsense"},
        {"NUMBA_THREADING_LAYER_PRIORITY": "omp"},
        {"NUMBA_THREADING_LAYER_PRIORITY": "workqueue tbb omp"},
        {"NUMBA_THREADING_LAYER_PRIORITY": "one two three"},
    ],
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
