"""Forked children mask: never a crash, a hang or other bits, whatever Numba's threads run on."""

from __future__ import annotations

import os

import pytest
from support_processes import Runner, repeated


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


FIRST = """
{before}
some_ids(SMALL)  # NumPy imports its random module late
first = threading.Thread(target=lambda: {work})
first.start()
time.sleep(int(sys.argv[3]) / 1000)
child = forked(lambda: check(SMALL))
first.join()
ended_well(child)
"""


@pytest.mark.parametrize("milliseconds", [0, 1, 4, 16, 64])
def test_a_fork_while_another_thread_compiles_numbas_first_function_leaves_a_child_that_masks(
    script: Runner, milliseconds: int
) -> None:
    script(FIRST.format(before="from numba import njit", work="njit(lambda a: a + 1)(1)"), milliseconds)


@pytest.mark.parametrize("milliseconds", [10, 60, 150, 300])
def test_a_fork_while_another_thread_makes_the_first_call_leaves_a_child_that_masks(
    script: Runner, milliseconds: int
) -> None:
    script(FIRST.format(before="", work="check(SMALL)"), milliseconds)


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


def test_first_calls_import_only_where_no_fork_can_happen(script: Runner, layer: str) -> None:
    code = """
from fastmask import threads
some_ids(SMALL)
unguarded = []
class Watcher:
    def find_spec(self, name, path=None, target=None):
        lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
        if not (threads._loading._is_owned() or lock is not None and lock.is_locked()):
            unguarded.append(name)  # its lock would be held for ever in a child
sys.meta_path.insert(0, Watcher())
check()
print(*unguarded)
"""
    assert script(code, NUMBA_THREADING_LAYER=layer, noise=layer == "tbb") == [""]
