"""What `fastmask demo` promises: every backend compared on real text, errors of one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support_cli import (
    Cli,
    Result,
    a_file,
    assert_one_line,
    said_on_a_terminal,
    spawn,
)
from support_cli import cli as cli

import fastmask as fm
from fastmask.cli import places as places_module
from fastmask.cli import timing


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


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, pytest.param({"COLUMNS": "20"}, marks=pytest.mark.slow)]
)
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


def test_the_demo_says_on_a_terminal_that_it_compiles(tmp_path: Path) -> None:
    text = tmp_path / "small.txt"
    text.write_text("The cat sat on the mat, and nobody cares. " * 4)
    said = said_on_a_terminal("demo", text, "--seconds", 0)
    assert "masking with cpu: compiling kernels, once" in said
    assert "masking with plain NumPy" in said


def test_threads_have_a_row_of_their_own_where_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, labels in ((1, ["numpy (reference)", "cpu"]), (3, ["numpy (reference)", "cpu", "cpu, 3 threads"])):
        monkeypatch.setattr(places_module, "plan_ranges", lambda cells, threads=threads: (threads, "for the test"))
        here, _ = places_module.places(1 << 20)
        assert [place.label for place in here if place.backend != "cuda"] == labels


def test_the_demo_refuses_in_one_line_where_the_compiler_is_switched_off(tmp_path: Path) -> None:
    text = tmp_path / "small.txt"
    text.write_text("The cat sat on the mat. " * 4)
    process = spawn("demo", text, "--seconds", 0, env=os.environ | {"NUMBA_DISABLE_JIT": "1"})
    out, err = process.communicate(timeout=120)
    assert_one_line(Result(process.returncode, out, err), "NUMBA_DISABLE_JIT")


@pytest.mark.parametrize(("content", "part"), [(b"", "no words"), (b" \n\n ", "no words"), (b"caf\xe9", "not UTF-8")])
def test_a_bad_text_is_refused_in_one_line(cli: Cli, tmp_path: Path, content: bytes, part: str) -> None:
    assert_one_line(cli("demo", a_file(tmp_path, "text.txt", content)), part)


def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    assert_one_line(cli("demo", "--tokenizer", a_file(tmp_path, "t.json", b"{}")), "not a tokenizer.json")


def test_a_missing_extra_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert_one_line(cli("demo", "--tokenizer", tmp_path), "fastmask-kernels[tokenizer]")
