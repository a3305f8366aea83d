"""What the command line promises: the masks of one call, whole files or none, errors of one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fastmask as fm
from fastmask.cli import mask as mask_module
from fastmask.cli import timing
from fastmask.cli.app import run

SIZE, MASK_ID, PAD_ID, SPECIAL_IDS = 1000, 103, 0, (0, 100, 101, 102, 103)
VOCAB = ("--vocab-size", "1000", "--mask-id", "103", "--pad-id", "0", "--special-ids", "0,100-103")
LAW = ("--p", "0.2", "--mask", "0.7", "--random", "0.2", "--seed", "5", "--epoch", "3")


class Result(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]
IntArray = npt.NDArray[Any]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process."""

    def call(*arguments: object) -> Result:
        status = run([str(argument) for argument in arguments])
        return Result(status, *capfd.readouterr())

    return call


def spawn(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Starts a command in a process of its own."""
    command = [sys.executable, "-m", "fastmask", *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def some_ids(shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> IntArray:
    """Ids with special ones among them, and rows that begin and end with padding."""
    ids = np.random.default_rng(1).integers(1, SIZE, shape).astype(dtype)
    ids[..., :3] = PAD_ID
    ids[..., -5:] = PAD_ID
    return ids


def one_call(ids: IntArray, first: int = 0) -> tuple[IntArray, IntArray]:
    """What the library makes of all ids at once, by the law LAW."""
    masker = fm.Masker(
        fm.Vocab(SIZE, MASK_ID, PAD_ID, SPECIAL_IDS),
        select=fm.Bernoulli(0.2),
        replace=fm.Replace(mask=0.7, random=0.2),
        seed=5,
    )
    batch = masker(ids, epoch=3, sample_ids=first, backend="numpy")
    return batch.input_ids, batch.labels


def assert_files_hold(folder: Path, expected: tuple[IntArray, IntArray]) -> None:
    for name, want in zip(("input_ids", "labels"), expected, strict=True):
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), want, strict=True)
    assert sorted(os.listdir(folder)) == ["input_ids.npy", "labels.npy"]


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.status == 2
    assert result.err.startswith("fastmask: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.err


# --- demo


def test_the_demo_masks_the_default_text_and_backends_agree(cli: Cli) -> None:
    result = cli("demo", "--seconds", 0.2)
    assert result.status == 0, result.err
    assert result.err == ""
    here = [name for name, backend in fm.backends().items() if backend.available]
    assert len(here) > 1
    assert "they agree bit for bit on all" in result.out
    for sign in ("[MASK]", "→", "=", "plain NumPy", "15.0%", "tokens/s"):
        assert sign in result.out
    assert "\x1b" not in result.out


def test_the_demo_masks_a_small_file(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "small.txt"
    text.write_text("The cat sat on the mat. [Is this/] markup? Nobody knows, and nobody cares at all!\n" * 3)
    result = cli("demo", text, "--seconds", 0, "--row-length", 16, "--sentences", 2, "--p", 0.4)
    assert result.status == 0, result.err
    assert "agree bit for bit" in result.out
    assert "40.0%" in result.out


@pytest.mark.parametrize("environment", [{"COLUMNS": "20"}, {"PYTHONIOENCODING": "ascii"}])
def test_the_demo_works_in_narrow_and_in_ascii_terminals(tmp_path: Path, environment: dict[str, str]) -> None:
    text = tmp_path / "small.txt"
    text.write_text("Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du kaum einen Hauch. " * 4)
    process = spawn("demo", text, "--seconds", 0, env=os.environ | environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "gipfeln" in out
    assert "kept=" in out


def test_the_demo_reads_a_tokenizer_and_its_special_tokens(cli: Cli, tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    text = tmp_path / "small.txt"
    text.write_text("the cat sat on the mat and the dog sat on the cat. " * 10)
    result = cli("demo", text, "--tokenizer", tokenizer, "--seconds", 0)
    assert result.status == 0, result.err
    assert "agree bit for bit" in result.out


def test_the_demo_refuses_a_tokenizer_without_a_mask_token(cli: Cli, tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    assert_one_line(cli("demo", "--tokenizer", tokenizer), "no mask token", "<pad>")


def _tokenizer(folder: Path, special: list[str]) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = ["the", "cat", "sat", "on", "mat", "and", "dog", "."]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="the")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_the_demo_fails_with_status_1_where_backends_differ(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(setting: timing.Setting, place: Any) -> timing.Masked:
        masked = timing.mask_all(setting, place)
        if place.label == "cpu":
            masked.labels[2, 7] += 1
        return masked

    monkeypatch.setattr("fastmask.cli.demo.mask_all", disturbed)
    result = cli("demo", "--seconds", 0)
    assert result.status == 1
    assert result.err.startswith("fastmask: cpu and numpy (reference) differ in labels, first at row 2, column 7: ")
    assert "they agree" not in result.out


# --- mask


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
    _wait_until(lambda: unfinished.exists() and unfinished.stat().st_size > 1 << 16, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
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


# --- info


def test_info_names_versions_backends_and_threads(cli: Cli) -> None:
    result = cli("info")
    assert result.status == 0, result.err
    for name in (fm.__version__, "numpy", "cpu", "cuda", "threading layer", "kernel cache", "python"):
        assert name in result.out


def test_info_as_json_is_json(cli: Cli) -> None:
    report = json.loads(cli("info", "--json").out)
    assert report["stream version"] == fm.STREAM_VERSION
    assert report["packages"]["numpy"] == np.__version__
    assert report["backends"]["numpy"] == "available"


# --- errors


def _npy(folder: Path, array: npt.NDArray[Any]) -> Path:
    np.save(folder / "in.npy", array)
    return folder / "in.npy"


def _file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


BAD_FILES: dict[str, tuple[Callable[[Path], Path], tuple[object, ...], str]] = {
    "missing": (lambda d: d / "none.npy", (), "no such file"),
    "folder": (lambda d: d, (), "not a file"),
    "unknown type": (lambda d: _file(d, "in.txt", b"1 2 3"), (), ".npy"),
    "floats": (lambda d: _npy(d, np.ones((2, 3))), (), "float64"),
    "bytes": (lambda d: _npy(d, np.ones((2, 3), np.uint8)), (), "uint8"),
    "three axes": (lambda d: _npy(d, np.ones((2, 3, 4), np.int64)), (), "(2, 3, 4)"),
    "no axis": (lambda d: _npy(d, np.array(3)), (), "shape ()"),
    "Fortran order": (lambda d: _npy(d, np.ones((4, 3), np.int64, order="F")), (), "Fortran"),
    "objects": (lambda d: _npy(d, np.array([None, 1])), (), "in.npy"),
    "no npy": (lambda d: _file(d, "in.npy", b"nothing of the kind"), (), "not a readable .npy file"),
    "cut short": (lambda d: _file(d, "in.npy", _npy(d, some_ids((9, 9))).read_bytes()[:-8]), (), "in.npy"),
    "empty npy": (lambda d: _file(d, "in.npy", b""), (), "in.npy"),
    "raw without type": (lambda d: _file(d, "in.bin", b"1234"), (), "--dtype"),
    "half an id": (lambda d: _file(d, "in.bin", b"12345"), ("--dtype", "uint16"), "5 bytes"),
    "npy with type": (lambda d: _npy(d, some_ids((9, 9))), ("--dtype", "int64"), "--dtype"),
    "rows of rows": (lambda d: _npy(d, some_ids((9, 9))), ("--row-length", 3), "--row-length"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(cli: Cli, tmp_path: Path, kind: str) -> None:
    make, options, part = BAD_FILES[kind]
    result = cli("mask", make(tmp_path), "--out", tmp_path / "out", *VOCAB, *options)
    assert_one_line(result, part)
    assert not (tmp_path / "out").exists()


def test_a_surplus_of_ids_is_refused_without_a_pad_id(cli: Cli, tmp_path: Path) -> None:
    source = _npy(tmp_path, np.ones(10, np.int64))
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
    source = _npy(tmp_path, some_ids((2, 9)))
    assert_one_line(cli("mask", source, "--out", tmp_path / "out", *VOCAB, *options), part)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("demo", "/nowhere/text"), "/nowhere/text"),
        (("demo", "--row-length", "2"), "--row-length"),
        (("demo", "--p", "2"), "2"),
        (("demo", "--epoch", "-1"), "-1"),
        (("demo", "--tokenizer", "/nowhere/tokenizer.json"), "/nowhere/tokenizer.json"),
        (("mask",), "IN"),
        (("mask", "in.npy"), "--out"),
        (("unmask",), "unmask"),
        (("--unheard-of",), "--unheard-of"),
        (("info", "--xml"), "--xml"),
    ],
)
def test_a_bad_command_is_refused_in_one_line(cli: Cli, arguments: tuple[str, ...], part: str) -> None:
    assert_one_line(cli(*arguments), part)


@pytest.mark.parametrize(("content", "part"), [(b"", "no words"), (b" \n\n ", "no words"), (b"caf\xe9", "not UTF-8")])
def test_a_bad_text_is_refused_in_one_line(cli: Cli, tmp_path: Path, content: bytes, part: str) -> None:
    assert_one_line(cli("demo", _file(tmp_path, "text.txt", content)), part)


def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    assert_one_line(cli("demo", "--tokenizer", _file(tmp_path, "t.json", b"{}")), "not a tokenizer.json")


def test_a_missing_extra_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert_one_line(cli("demo", "--tokenizer", tmp_path), "fastmask-kernels[tokenizer]")


def test_an_output_that_is_no_folder_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    source = _npy(tmp_path, some_ids((2, 9)))
    assert_one_line(cli("mask", source, "--out", source, *VOCAB), "not a folder")
    assert_one_line(cli("mask", source, "--out", source / "below", *VOCAB), "below")


def test_a_closed_pipe_is_silent() -> None:
    with spawn("info") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_help_and_version_are_answers_not_errors(cli: Cli) -> None:
    assert cli().out.startswith("Usage: fastmask")
    assert cli("mask", "--help").out.startswith("Usage: fastmask mask")
    assert cli("--version") == Result(0, f"{fm.__version__}\n", "")


def test_importing_the_library_imports_no_command_line() -> None:
    code = "import sys, fastmask; print({'typer', 'rich', 'fastmask.cli'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout == "set()\n"
