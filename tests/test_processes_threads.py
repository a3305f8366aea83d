"""Threads, exits, signals and interrupts: never a crash, a hang or other bits."""

from __future__ import annotations

import pytest
from support_processes import LARGE, SMALL, Runner, once_or_often, repeated

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


def test_b74_raw_threads_that_python_does_not_list_mask_large_batches_at_once(
    script: Runner, costly_layer: str
) -> None:
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
    script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


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
def test_b75_a_process_ends_while_daemon_threads_mask(script: Runner, costly_layer: str, repeats: int) -> None:
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
        script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=30)


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


def test_an_interrupt_at_any_line_leaves_later_calls_right_and_parallel(script: Runner, costly_layer: str) -> None:
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
    script(AT_EACH_LINE + code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


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
