"""What tests of the command line need: commands in this process and in their own, files, what they must hold."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fastmask as fm
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
    """Starts a command in a process of its own, which Ctrl-C ends even where the tests run in the background."""
    command = [sys.executable, "-m", "fastmask", *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_heed_ctrl_c, **options
    )


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets what it starts in the background ignore it


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


def said_on_a_terminal(*arguments: object, **options: Any) -> str:
    """What a command writes to stderr where that is a terminal; it ends well."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fastmask", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, **options)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # raised at the end, where a pipe would give nothing
        while part := os.read(ours, 1 << 16):
            said += part
    os.close(ours)
    assert process.wait(timeout=120) == 0, said
    return said.decode()


def npy_file(folder: Path, array: IntArray) -> Path:
    np.save(folder / "in.npy", array)
    return folder / "in.npy"


def a_file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name
