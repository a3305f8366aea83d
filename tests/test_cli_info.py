"""What `fastmask info` promises, and every command: errors of one line, help, silence where nobody reads."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support_cli import (
    Cli,
    Result,
    assert_one_line,
    spawn,
)
from support_cli import cli as cli

import fastmask as fm


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


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("demo", "/nowhere/text"), "/nowhere/text"),
        (("demo", "--row-length", "2"), "--row-length"),
        (("demo", "--p", "2"), "2"),
        (("demo", "--epoch", "-1"), "--epoch"),
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
