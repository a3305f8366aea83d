"""`fastmask verify`: whether masks belong to samples, of a loader or of two files of batches."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fastmask import verify as library
from fastmask.cli.errors import RefusedError, refusals

DIFFERENT = 1


@dataclass(frozen=True)
class Request:
    """What is to be compared: module:function alone, or two files."""

    target: str
    other: Path | None
    batch_size: int
    sample_id: str | None
    pad_token_id: int | None
    ignore_index: int


def verify(request: Request) -> None:
    """Prints what was compared, and the first difference; fails with status 1 where there is one."""
    console = Console(highlight=False)
    given: dict[str, Any] = {
        "sample_id": request.sample_id,
        "pad_token_id": request.pad_token_id,
        "ignore_index": request.ignore_index,
    }
    if request.other is not None:
        with refusals():
            report = library.files(Path(request.target), request.other, **given)
    else:
        build = _imported(request.target)
        with Console(stderr=True).status("") as status:
            try:
                report = library.loader(build, batch_size=request.batch_size, progress=status.update, **given)
            except library.BatchError as error:  # any other is an error of the loader's, and keeps its traceback
                raise RefusedError(str(error)) from error
    console.print(_table(report))
    if report.difference is not None:
        raise RefusedError(str(report.difference), DIFFERENT)
    if not report.same:
        raise RefusedError("no token is selected: there is nothing to compare", DIFFERENT)
    console.print(f"{report.samples:,} samples, {report.tokens:,} tokens, {report.selected:,} selected: the same masks")


def _table(report: library.Report) -> Table:
    table = Table("run", "masks")
    first, *others = report.runs
    table.add_row(first, "")
    for run in others:
        different = report.difference is not None and report.difference.run == run
        table.add_row(run, "[bold red]different" if different else "[green]the same")
    return table


def _imported(target: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the current folder are found."""
    module, colon, name = target.partition(":")
    if not (colon and module and name):
        raise RefusedError(f"{target!r} is not module:function; to compare files, name two of them")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise RefusedError(f"{target!r}: {error}") from None
    if not callable(found):
        raise RefusedError(f"{target!r}: module {module} has no function {name}")
    build: Callable[..., Any] = found
    return build
