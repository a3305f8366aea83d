"""What `fastmask mask` promises: the masks of one call, whole files or none, errors of one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support_cli import (
    LAW,
    PAD_ID,
    SIZE,
    VOCAB,
    Cli,
    Result,
    a_file,
    assert_files_hold,
    assert_one_line,
    npy_file,
    one_call,
    said_on_a_terminal,
    some_ids,
    spawn,
)
from support_cli import cli as cli

from fastmask.cli import mask as mask_module
from fastmask.cli.app import run


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64", ">i4"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_masking_an_npy_file_equals_one_call(cli: Cli, tmp_path: Path, dtype: str, chunk_rows: int) -> None:
    ids = some_ids((50, 33), dtype)
    np.save(tmp_path / "in.npy", ids)
    out = tmp_path / "deep" / "out"
    options = ("--first-sample-id", 11, "--chunk-rows", chunk_rows)
    result = cli("mask", tmp_path / "in.npy", "--out", out, *VOCAB, *LAW, *options)
    assert result.status == 0, result.err
    assert_files_hold(out, one_call(ids, 11))
    assert "selected" in result.out


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_masking_a_raw_file_equals_one_call(cli: Cli, tmp_path: Path, dtype: str) -> None:
    ids = some_ids((50, 32), dtype)
    ids.tofile(tmp_path / "in.bin")
    options = ("--dtype", dtype, "--row-length", 32, "--chunk-rows", 9)
    result = cli("mask", tmp_path / "in.bin", "--out", tmp_path / "out", *VOCAB, *LAW, *options)
    assert result.status == 0, result.err
    assert_files_hold(tmp_path / "out", one_call(ids))


def test_the_last_row_of_a_file_is_filled_up_with_the_pad_id(cli: Cli, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(104, SIZE, 1000)
    ids.tofile(tmp_path / "in.bin")
    options = ("--dtype", "int64", "--row-length", 64, "--chunk-rows", 3)
    assert cli("mask", tmp_path / "in.bin", "--out", tmp_path / "out", *VOCAB, *LAW, *options).status == 0
    rows = np.full(16 * 64, PAD_ID)
    rows[:1000] = ids
    assert_files_hold(tmp_path / "out", one_call(rows.reshape(16, 64)))


@pytest.mark.parametrize("shape", [(1000,), (3, 1000)])
@pytest.mark.parametrize("chunk", [1, 2, 64, 999])
def test_long_rows_in_parts_equal_one_call(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunk: int
) -> None:
    monkeypatch.setattr(mask_module, "CHUNK_TOKENS", chunk)
    ids = some_ids(shape)
    ids[..., 70:140] = PAD_ID  # padding in the middle of a row is no border of it
    np.save(tmp_path / "in.npy", ids)
    assert cli("mask", tmp_path / "in.npy", "--out", tmp_path / "out", *VOCAB, *LAW).status == 0
    assert_files_hold(tmp_path / "out", one_call(ids))


@pytest.mark.parametrize("shape", [(0,), (0, 8), (3, 0)])
def test_empty_files_give_empty_files(cli: Cli, tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "in.npy", np.empty(shape, np.int32))
    result = cli("mask", tmp_path / "in.npy", "--out", tmp_path / "out", *VOCAB, *LAW)
    assert result.status == 0, result.err
    assert_files_hold(tmp_path / "out", (np.empty(shape, np.int32), np.empty(shape, np.int64)))


def test_files_have_the_types_asked_for(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.empty((0, 8), np.int64))
    types = ("--id-dtype", "int32", "--label-dtype", "int32")
    assert cli("mask", tmp_path / "in.npy", "--out", tmp_path / "out", *VOCAB, *LAW, *types).status == 0
    assert_files_hold(tmp_path / "out", (np.empty((0, 8), np.int32), np.empty((0, 8), np.int32)))


def test_rows_of_padding_alone_come_back(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_module, "CHUNK_TOKENS", 16)
    ids = np.full((2, 50), PAD_ID)
    np.save(tmp_path / "in.npy", ids)
    assert cli("mask", tmp_path / "in.npy", "--out", tmp_path / "out", *VOCAB, *LAW).status == 0
    assert_files_hold(tmp_path / "out", (ids, np.full_like(ids, -100)))


def test_final_files_are_replaced_only_with_force(cli: Cli, tmp_path: Path) -> None:
    ids = some_ids((4, 16))
    np.save(tmp_path / "in.npy", ids)
    out = tmp_path / "out"
    out.mkdir()
    (out / "labels.npy").write_text("mine")
    command = ("mask", tmp_path / "in.npy", "--out", out, *VOCAB, *LAW)
    assert_one_line(cli(*command), "labels.npy exists", "--force")
    assert (out / "labels.npy").read_text() == "mine"
    assert cli(*command, "--force").status == 0
    assert_files_hold(out, one_call(ids))


def test_the_input_is_never_replaced(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "input_ids.npy", some_ids((4, 16)))
    result = cli("mask", tmp_path / "input_ids.npy", "--out", tmp_path, *VOCAB, "--force")
    assert_one_line(result, "is the input")


def test_an_id_out_of_range_is_named_with_its_place_in_the_file(cli: Cli, tmp_path: Path) -> None:
    ids = some_ids((40, 16))
    ids[33, 9] = SIZE
    np.save(tmp_path / "in.npy", ids)
    result = cli("mask", tmp_path / "in.npy", "--out", tmp_path / "out", *VOCAB, "--chunk-rows", 10)
    assert_one_line(result, "holds 1000 at row 33, column 9", "[0, 1000)")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_leaves_no_final_file_and_the_next_run_works(tmp_path: Path, number: signal.Signals) -> None:
    source, out = tmp_path / "in.bin", tmp_path / "out"
    _sparse(source, 1 << 28)
    options = ("--dtype", "uint16", "--row-length", 64, "--vocab-size", 1000, "--mask-id", 103)
    process = spawn("mask", source, "--out", out, *options, "--chunk-rows", 1)
    unfinished = out / ".labels.npy.unfinished"
    try:
        _wait_until(lambda: unfinished.exists() and unfinished.stat().st_size > 1 << 16, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in {-number, 128 + number}
    assert "Traceback" not in err
    left = sorted(os.listdir(out))
    assert left == ([".input_ids.npy.unfinished", ".labels.npy.unfinished"] if number == signal.SIGKILL else [])

    ids = some_ids((4, 16))
    np.save(tmp_path / "in.npy", ids)
    assert run([str(a) for a in ("mask", tmp_path / "in.npy", "--out", out, *VOCAB, *LAW)]) == 0
    assert_files_hold(out, one_call(ids))


def test_two_runs_do_not_write_to_one_folder(cli: Cli, tmp_path: Path) -> None:
    source, out = tmp_path / "in.bin", tmp_path / "out"
    _sparse(source, 1 << 28)
    options = ("--dtype", "uint16", "--row-length", 64, "--vocab-size", 1000, "--mask-id", 103)
    first = spawn("mask", source, "--out", out, *options, "--chunk-rows", 1)
    try:
        _wait_until((out / ".labels.npy.unfinished").exists, first)
        assert_one_line(cli("mask", source, "--out", out, *options), "another run")
    finally:
        first.kill()
        first.communicate()


def _sparse(path: Path, size: int) -> None:
    """A file of zeros that takes no room."""
    with path.open("wb") as file:
        file.truncate(size)


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


PEAK = """
import re, sys
from fastmask.cli.app import run
status = run(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(status)
"""


def _peak(*arguments: object) -> int:
    """The largest resident memory of a run, in bytes."""
    command = [sys.executable, "-c", PEAK, *map(str, arguments)]
    done = subprocess.run(command, text=True, capture_output=True, check=True, timeout=300)
    return int(done.stdout.split()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("rows", [("--row-length", 512), ()], ids=["rows", "one sample"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, rows: tuple[object, ...]) -> None:
    types = ("--dtype", "int64", "--id-dtype", "int32", "--label-dtype", "int32")
    options = (*types, "--vocab-size", 1000, "--mask-id", 103, "--chunk-rows", 1 << 30, *rows)
    peaks = []
    for name, size in (("small", 1 << 12), ("large", 5 << 28)):
        _sparse(tmp_path / f"{name}.bin", size)
        peaks.append(_peak("mask", tmp_path / f"{name}.bin", "--out", tmp_path / name, *options))
    assert peaks[1] - peaks[0] < 300e6
    assert (tmp_path / "large" / "labels.npy").stat().st_size > 5 << 27


def test_a_terminal_is_told_that_kernels_are_compiled(tmp_path: Path) -> None:
    source = npy_file(tmp_path, some_ids((50, 33)))
    said = said_on_a_terminal("mask", source, "--out", tmp_path / "out", *VOCAB, "--chunk-rows", 10)
    assert said.index("compiling kernels, once") < said.rindex("masking")


BAD_FILES: dict[str, tuple[Callable[[Path], Path], tuple[object, ...], str]] = {
    "missing": (lambda d: d / "none.npy", (), "no such file"),
    "folder": (lambda d: d, (), "not a file"),
    "unknown type": (lambda d: a_file(d, "in.txt", b"1 2 3"), (), ".npy"),
    "floats": (lambda d: npy_file(d, np.ones((2, 3))), (), "float64"),
    "bytes": (lambda d: npy_file(d, np.ones((2, 3), np.uint8)), (), "uint8"),
    "three axes": (lambda d: npy_file(d, np.ones((2, 3, 4), np.int64)), (), "(2, 3, 4)"),
    "no axis": (lambda d: npy_file(d, np.array(3)), (), "shape ()"),
    "Fortran order": (lambda d: npy_file(d, np.ones((4, 3), np.int64, order="F")), (), "Fortran"),
    "objects": (lambda d: npy_file(d, np.array([None, 1])), (), "in.npy"),
    "no npy": (lambda d: a_file(d, "in.npy", b"nothing of the kind"), (), "not a readable .npy file"),
    "cut short": (lambda d: a_file(d, "in.npy", npy_file(d, some_ids((9, 9))).read_bytes()[:-8]), (), "in.npy"),
    "empty npy": (lambda d: a_file(d, "in.npy", b""), (), "in.npy"),
    "raw without type": (lambda d: a_file(d, "in.bin", b"1234"), (), "--dtype"),
    "half an id": (lambda d: a_file(d, "in.bin", b"12345"), ("--dtype", "uint16"), "5 bytes"),
    "npy with type": (lambda d: npy_file(d, some_ids((9, 9))), ("--dtype", "int64"), "--dtype"),
    "rows of rows": (lambda d: npy_file(d, some_ids((9, 9))), ("--row-length", 3), "--row-length"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(cli: Cli, tmp_path: Path, kind: str) -> None:
    make, options, part = BAD_FILES[kind]
    result = cli("mask", make(tmp_path), "--out", tmp_path / "out", *VOCAB, *options)
    assert_one_line(result, part)
    assert not (tmp_path / "out").exists()


def test_a_surplus_of_ids_is_refused_without_a_pad_id(cli: Cli, tmp_path: Path) -> None:
    source = npy_file(tmp_path, np.ones(10, np.int64))
    options = ("--vocab-size", 1000, "--mask-id", 103, "--row-length", 4)
    result = cli("mask", source, "--out", tmp_path / "out", *options)
    assert_one_line(result, "10 ids, 2 more", "--pad-id")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--p", "1.5"), "1.5"),
        (("--p", "nan"), "nan"),
        (("--p", "often"), "--p"),
        (("--mask", "0.9", "--random", "0.2"), "0.9"),
        (("--seed", "-1"), "seed"),
        (("--epoch", "16777216"), "epoch"),
        (("--mask-id", "1000"), "1000"),
        (("--mask-id", "0"), "0"),
        (("--special-ids", "4-"), "'4-'"),
        (("--special-ids", "7-3"), "'7-3'"),
        (("--special-ids", "x"), "'x'"),
        (("--special-ids", "0-99999999999"), "99999999999"),
        (("--first-sample-id", "-1"), "-1"),
        (("--first-sample-id", str((1 << 64) - 1)), "2^64"),
        (("--chunk-rows", "0"), "--chunk-rows"),
        (("--id-dtype", "int8"), "int8"),
        (("--unheard-of",), "--unheard-of"),
        (("another.npy",), "another.npy"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(cli: Cli, tmp_path: Path, options: tuple[str, ...], part: str) -> None:
    source = npy_file(tmp_path, some_ids((2, 9)))
    assert_one_line(cli("mask", source, "--out", tmp_path / "out", *VOCAB, *options), part)


def test_a_type_too_narrow_for_the_vocabulary_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    source = npy_file(tmp_path, some_ids((2, 9), np.uint16))
    options = ("--vocab-size", 70000, "--mask-id", 103)
    assert_one_line(cli("mask", source, "--out", tmp_path / "out", *options), "uint16", "70000")


def test_a_compiler_that_is_switched_off_is_named_in_one_line(tmp_path: Path) -> None:
    source = npy_file(tmp_path, some_ids((2, 9)))
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    process = spawn("mask", source, "--out", tmp_path / "out", *VOCAB, env=environment)
    out, err = process.communicate(timeout=120)
    assert_one_line(Result(process.returncode, out, err), "NUMBA_DISABLE_JIT")
    assert os.listdir(tmp_path / "out") == []


def test_an_output_that_is_no_folder_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    source = npy_file(tmp_path, some_ids((2, 9)))
    assert_one_line(cli("mask", source, "--out", source, *VOCAB), "not a folder")
    assert_one_line(cli("mask", source, "--out", source / "below", *VOCAB), "below")
