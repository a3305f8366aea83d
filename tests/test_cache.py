"""The disk cache of compiled kernels: damaged, raced for, read-only, stale or absent, and masks come out right."""

from __future__ import annotations

import os
import py_compile
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
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
    """The files in a cache, without those that a killed process left half written."""
    return sorted(path for path in cache.rglob("*") if path.is_file() and ".tmp." not in path.name)


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


# --- a warm cache


def test_b80_a_process_with_a_warm_cache_compiles_nothing(warm_cache: Path) -> None:
    code = f"""
from numba.core import event
with event.install_recorder("numba:compile") as recorder:
    exec({MASKS!r})
print(len(recorder.buffer))
"""
    assert run(code, env=environment(warm_cache)) == ["right", "0"]


def test_b80_the_import_loads_neither_numba_nor_a_framework(warm_cache: Path) -> None:
    code = "import sys, fastmask; print(sorted({'numba', 'llvmlite', 'torch', 'cupy'} & set(sys.modules)))"
    assert run(code, env=environment(warm_cache)) == ["[]"]


@pytest.mark.parametrize(
    "flags",
    [
        ("-I",),
        ("-B", "-W", "error", "-X", "dev"),
        pytest.param(("-OO",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_flags_of_the_interpreter_change_nothing(flags: tuple[str, ...], warm_cache: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{MASKS}"
    assert run(code, env=environment(warm_cache), flags=flags) == ["right"]


def test_a_process_whose_working_directory_is_gone_masks(warm_cache: Path, tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
os.mkdir({str(tmp_path / "gone")!r})
os.chdir({str(tmp_path / "gone")!r})
os.rmdir(os.getcwd())
"""
    assert run(code + MASKS, env=environment(warm_cache), flags=("-I",)) == ["right"]


def test_a_relative_cache_and_a_working_directory_that_changes_between_calls(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'first')!r})\n{SMALL_KERNELS}"
    code += f"\nos.chdir({str(tmp_path / 'second')!r})\nruns('uint8')"
    assert run(code, "weights", env=environment(Path("cache"))) == ["weights compiled", "uint8 compiled"]


# --- damaged files


def _empty(content: bytes) -> bytes:
    return b""


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _all_but_the_last_byte(content: bytes) -> bytes:
    return content[:-1]


def _zeros(content: bytes) -> bytes:
    return bytes(len(content))


def _zeros_at_the_end(content: bytes) -> bytes:
    return content[:-4096] + bytes(min(4096, len(content)))


def _garbage(content: bytes) -> bytes:
    return random.Random(1).randbytes(len(content))


def _one_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _first_byte(content: bytes) -> bytes:
    return bytes([content[0] ^ 255]) + content[1:]


def _a_pickle_of_an_unknown_module(content: bytes) -> bytes:
    return b"cno_such_module\nName\n."


def _a_pickle_of_another_protocol(content: bytes) -> bytes:
    return b"\x80\x63" + content[2:]


Damage = Callable[[bytes], bytes]
DAMAGES: list[list[Damage]] = [
    [_empty, _half, _all_but_the_last_byte, _zeros, _zeros_at_the_end],
    [_garbage, _one_bit, _first_byte, _a_pickle_of_an_unknown_module, _a_pickle_of_another_protocol],
]


@pytest.mark.parametrize("damages", DAMAGES, ids=["cut", "changed"])
def test_b78_a_damaged_file_is_a_miss_and_is_rebuilt(damages: list[Damage], small_cache: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    names = ["weights", *MASK_DTYPES]
    for name, damage in zip(names, damages, strict=True):
        mark = "content_weights" if name == "weights" else f"real_runs_kernel_{name}_"
        touched = [path for path in files_of(cache) if mark in path.name]
        assert touched
        for path in touched:
            path.write_bytes(damage(path.read_bytes()))
    env = environment(cache)
    assert run(SMALL_KERNELS, *names, env=env) == [f"{name} compiled" for name in names]
    assert run(SMALL_KERNELS, *names, env=env) == [f"{name} loaded" for name in names]


def test_b78_a_folder_in_the_place_of_a_file_does_no_harm(small_cache: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    for path in files_of(cache):
        path.unlink()
        path.mkdir()
    assert run(SMALL_KERNELS, "weights", env=environment(cache)) == ["weights compiled"]


def test_b78_a_full_disk_does_no_harm(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"  # bytes that a file can have
    assert run(limit + SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights compiled"]
    assert run(SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights compiled"]
    assert run(SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights loaded"]


def test_b78_a_cache_that_vanishes_during_the_compilation_does_no_harm(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = f"""
import os, shutil
from numba.core import event
class Vanish(event.Listener):
    def on_start(self, event):
        if os.path.isdir({str(cache)!r}):
            shutil.rmtree({str(cache)!r})
            open({str(cache)!r}, "w").close()
    def on_end(self, event):
        pass
event.register("numba:compile", Vanish())
"""
    assert run(code + SMALL_KERNELS, "weights", env=environment(cache)) == ["weights compiled"]
    assert cache.is_file()


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
(compiled,) = cpu.compiled_content_weights().overloads.values()
code = objects[0] if objects else compiled.library._get_compiled_object()
print(hashlib.sha256(code).hexdigest())
"""


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


# --- no place for a cache


def without_a_place(root: Path) -> dict[str, str]:
    """A package whose __pycache__ is a plain file, and a home below a device: not even root can write."""
    for folder in (root / "fastmask", root / "fastmask" / "kernels"):
        (folder / "__pycache__").write_bytes(b"")
    return environment(None, PYTHONPATH=str(root), HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache")


@pytest.mark.slow
def test_b77_a_package_without_a_place_for_a_cache_imports_and_masks(tmp_path: Path) -> None:
    env = without_a_place(copied_package(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert run(MASKS, env=env, flags=("-W", "error")) == ["right"]
    assert sorted(tmp_path.rglob("*")) == before


def test_b77_each_process_without_a_place_for_a_cache_compiles(tmp_path: Path) -> None:
    env = without_a_place(copied_package(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        lines = run(SMALL_KERNELS, "weights", "uint8", env=env, flags=("-W", "error"))
        assert lines == ["weights compiled", "uint8 compiled"]
    assert sorted(tmp_path.rglob("*")) == before


def unprivileged() -> list[str]:
    """What a command begins with whose process is bound by the modes of files, be it root's or not."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("modes do not bind root, and there is no setpriv to give up its rights")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def test_b77_a_read_only_package_without_a_home_imports_and_runs(tmp_path: Path) -> None:
    prefix, root = unprivileged(), copied_package(tmp_path / "copy")
    for path in (root, *root.rglob("*")):
        path.chmod(0o555)
    code = f"""
try:
    open({str(root / "fastmask" / "kernels" / "new")!r}, "w")
except PermissionError:
    pass
else:
    raise AssertionError
"""
    env = environment(None, PYTHONPATH=str(root), HOME="/proc/nonexistent")
    lines = run(code + SMALL_KERNELS, "weights", env=env, flags=("-W", "error"), prefix=prefix)
    assert lines == ["weights compiled"]


def test_b78_files_that_may_not_be_read_are_misses(small_cache: Path, tmp_path: Path) -> None:
    prefix, cache = unprivileged(), tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    for path in files_of(cache):
        path.chmod(0)
    env = environment(cache)
    assert run(SMALL_KERNELS, "weights", env=env, prefix=prefix) == ["weights compiled"]
    assert run(SMALL_KERNELS, "weights", env=env, prefix=prefix) == ["weights loaded"]


def test_b77_a_package_in_a_zip_file_imports_and_runs(tmp_path: Path) -> None:
    root = copied_package(tmp_path / "plain")
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted((root / "fastmask").rglob("*")):
            file.write(path, path.relative_to(root))
        file.write(root / "fastmask", "fastmask")
    shutil.rmtree(root)
    env = environment(None, PYTHONPATH=str(archive), HOME=str(tmp_path))
    code = SMALL_KERNELS + "\nprint(cpu.__file__)"
    assert run(code, "weights", env=env) == ["weights compiled", f"{archive}/fastmask/kernels/cpu.py"]
    assert run(code, "weights", env=env)[0] == "weights loaded"


def test_b77_a_package_without_its_sources_imports_and_runs(tmp_path: Path) -> None:
    root = copied_package(tmp_path)
    for path in (root / "fastmask").rglob("*.py"):
        py_compile.compile(str(path), str(path.with_suffix(".pyc")), doraise=True)
        path.unlink()
    env = environment(tmp_path / "cache", PYTHONPATH=str(root))
    assert run(SMALL_KERNELS, "weights", env=env) == ["weights compiled"]


# --- no compiler


def test_without_the_compiler_the_error_names_the_backend_that_works(warm_cache: Path) -> None:
    code = """
import numpy as np
import fastmask as fm
masker, ids = fm.Masker(fm.Vocab(1000, 103), fm.Bernoulli(0.5)), np.arange(200)
print(masker(ids, epoch=0, backend="numpy").labels.max() > 0)
try:
    np.testing.assert_array_equal(
        masker(ids, epoch=0).labels, masker(ids, epoch=0, backend="numpy").labels, strict=True
    )
except RuntimeError as error:
    assert "NUMBA_DISABLE_JIT" in str(error) and "backend='numpy'" in str(error), error
print("clear")
"""
    assert run(code, env=environment(warm_cache, NUMBA_DISABLE_JIT="1")) == ["True", "clear"]


def test_the_reference_masks_without_importing_numba(warm_cache: Path) -> None:
    code = """
import sys
import numpy as np
import fastmask as fm
batch = fm.Masker(fm.Vocab(1000, 103), fm.Bernoulli(0.5))(np.arange(200), epoch=0, backend="numpy")
print(type(batch.labels).__name__, "numba" in sys.modules)
"""
    assert run(code, env=environment(warm_cache)) == ["ndarray False"]
