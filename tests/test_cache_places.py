"""The disk cache of compiled kernels: warm, and where there is no place for one, or no compiler."""

from __future__ import annotations

import os
import py_compile
import shutil
import zipfile
from pathlib import Path

import pytest
from support_cache import MASKS, ROOT, SMALL_KERNELS, copied_package, environment, files_of, run

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
