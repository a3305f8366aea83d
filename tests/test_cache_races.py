"""The disk cache of compiled kernels, raced for, stale, or left by a process that was killed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support_cache import (
    MASK_DTYPES,
    MASKS,
    SMALL_KERNELS,
    copied_package,
    end,
    environment,
    files_of,
    run,
    start,
)

# --- killed


KILLS = {
    "in the compiler": """
from numba.core import event
class Kill(event.Listener):
    def on_start(self, event):
        Kill.passes += 1
        if Kill.passes == 30:
            os.kill(os.getpid(), signal.SIGKILL)
    def on_end(self, event):
        pass
Kill.passes = 0
event.register("numba:run_pass", Kill())
""",
    "before a file is in place": "os.replace = lambda old, new: os.kill(os.getpid(), signal.SIGKILL)",
    "after a file is in place": """
replace = os.replace
def kill(old, new):
    replace(old, new)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = kill
""",
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_process_killed_in_its_first_compilation_leaves_a_cache_that_works(moment: str, tmp_path: Path) -> None:
    env = environment(tmp_path)
    killed = end(start(f"import os, signal\n{KILLS[moment]}\n{SMALL_KERNELS}", "weights", env=env))
    assert killed.status == -9, killed.err
    assert run(SMALL_KERNELS, "weights", env=env)[0] in ("weights compiled", "weights loaded")
    assert len(files_of(tmp_path)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.8, 4.0])
def test_a_process_killed_while_it_compiles_masks_leaves_a_cache_that_works(seconds: float, tmp_path: Path) -> None:
    env = environment(tmp_path)
    process = start(MASKS, env=env)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    assert run(MASKS, env=env) == ["right"]


# --- raced for


def start_together(code: str, arguments: Sequence[Sequence[str]], env: dict[str, str]) -> list[list[str]]:
    """What processes print that run this code at the same time."""
    processes = [start(code, *args, env=env) for args in arguments]
    results = [end(process, 500) for process in processes]
    for result in results:
        assert (result.status, result.err) == (0, ""), result.err[-3000:]
    return [result.out.splitlines() for result in results]


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_b78_eight_processes_start_together_on_an_empty_cache(rounds: int, tmp_path: Path) -> None:
    for k in range(rounds):
        env = environment(tmp_path / str(k))
        start_together(SMALL_KERNELS, [(MASK_DTYPES[j % 4],) for j in range(8)], env)
        assert run(SMALL_KERNELS, *MASK_DTYPES, env=env) == [f"{dtype} loaded" for dtype in MASK_DTYPES]


@pytest.mark.slow
def test_b78_eight_processes_start_masking_together_on_an_empty_cache(tmp_path: Path) -> None:
    env = environment(tmp_path)
    kinds = [(ids, labels) for ids in ("uint16", "int32", "int64", "uint32") for labels in ("int32", "int64")]
    assert start_together(MASKS, kinds, env) == [["right"]] * 8
    files = files_of(tmp_path)
    for kind in kinds:
        assert run(MASKS, *kind, env=env) == ["right"]
    assert files_of(tmp_path) == files


# Two processes that have both seen an empty cache before either writes to it.
MEET = """
import os, sys, time
from pathlib import Path
from numba.core.caching import IndexDataCacheFile
write = IndexDataCacheFile._open_for_write
def meet(self, path):
    (meeting / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return write(self, path)
if len(sys.argv) > 2:
    IndexDataCacheFile._open_for_write = meet
    meeting = Path(sys.argv.pop())
"""
CODE_DIGEST = """
import hashlib
from numba.core.codegen import CPUCodegen
objects, unserialize = [], CPUCodegen.unserialize_library
def note(self, serialized):
    objects.append(serialized[2][0])
    return unserialize(self, serialized)
CPUCodegen.unserialize_library = note
"""
PRINT_DIGEST = """
from operator import attrgetter
(compiled,) = cpu.compiled_content_weights().overloads.values()
code = objects[0] if objects else attrgetter("library")(compiled)._get_compiled_object()
print(hashlib.sha256(code).hexdigest())
"""


@pytest.mark.slow
def test_processes_for_two_processors_never_load_each_others_code(tmp_path: Path) -> None:
    cache, meeting = tmp_path / "cache", tmp_path / "meeting"
    meeting.mkdir()
    code = MEET + CODE_DIGEST + SMALL_KERNELS + PRINT_DIGEST
    environments = [environment(cache), environment(cache, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")]
    processes = [start(code, "weights", str(meeting), env=env) for env in environments]
    compiled = [end(process) for process in processes]
    for result in compiled:
        assert (result.status, result.err) == (0, ""), result.err[-3000:]
    digests = [result.out.splitlines()[-1] for result in compiled]
    assert digests[0] != digests[1]
    for env, digest in zip(environments, digests, strict=True):
        assert run(code, "weights", env=env) == ["weights loaded", digest]


@pytest.mark.slow
def test_code_for_a_generic_processor_masks_alike(tmp_path: Path) -> None:
    env = environment(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert run(MASKS, env=env) == ["right"]
    assert run(MASKS, env=env) == ["right"]


# --- stale


def test_every_module_that_the_kernels_import_is_in_the_digest_of_their_sources(warm_cache: Path) -> None:
    code = """
import sys
from fastmask.dispatch import host_kernels
host_kernels("cpu")
from fastmask.kernels.cpu_compile import SOURCES
prefix = "fastmask.kernels."
print(sorted({name.removeprefix(prefix) + ".py" for name in sys.modules if name.startswith(prefix)} - set(SOURCES)))
"""
    assert run(code, env=environment(warm_cache)) == ["[]"]


def test_no_code_is_loaded_that_was_compiled_from_an_older_source(tmp_path: Path) -> None:
    root, cache = copied_package(tmp_path / "copy"), tmp_path / "cache"
    env = environment(cache, PYTHONPATH=str(root))
    code = SMALL_KERNELS + "\nprint(cpu.content_weights(512)[:9].tolist(), fate.__file__)"
    first = run(code, "weights", env=env)
    assert first[0] == "weights compiled"
    assert str(root) in first[1]
    assert run(code, "weights", env=env) == ["weights loaded", first[1]]
    source = root / "fastmask" / "kernels" / "fate.py"
    text = source.read_text()
    assert "0xBF58476D1CE4E5B9" in text
    source.write_text(text.replace("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB"))
    second = run(code, "weights", env=env)  # the script compares the weights with those of the changed source
    assert second[0] == "weights compiled"
    assert second[1] != first[1]
    source.write_text(text)
    assert run(code, "weights", env=env) == ["weights loaded", first[1]]
