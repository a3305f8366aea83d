"""`fastmask mask`: a file of any size is masked in chunks, with the masks of one single call."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

import fastmask as fm
from fastmask.cli.errors import REFUSALS, RefusedError
from fastmask.cli.source import IntArray, Source
from fastmask.cli.target import NAMES, Target, target
from fastmask.cli.units import amount

CHUNK_TOKENS = 1 << 18  # at most: a few MB of ids and labels, below the size at which threads would pay
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Piece:
    """Columns first .. last - 1 of some rows; their first token has position `offset` in its sample."""

    row: int
    rows: int
    first: int
    last: int
    offset: int | None = None  # None: whole rows

    @property
    def tokens(self) -> int:
        """The number of ids."""
        return self.rows * (self.last - self.first)


@dataclass(frozen=True)
class Job:
    """A source and the law that masks it: row r has the sample id first_sample_id + r."""

    source: Source
    masker: fm.Masker
    epoch: int
    first_sample_id: int
    chunk_rows: int | None = None

    def run(self, folder: Path, *, force: bool) -> int:
        """Masks everything into `folder` and returns the number of selected tokens."""
        self._check(folder)
        tokens = self.source.rows * self.source.row_length
        with (
            termination_as_exit(),
            target(folder, self.source.shape, force=force) as files,
            _progress() as progress,
        ):
            task = progress.add_task("compiling kernels, once", total=tokens)  # within the first call
            selected = 0
            for piece in self._pieces():
                selected += self._mask(piece, files)
                progress.update(task, advance=piece.tokens, description="masking")
        return selected

    def _check(self, folder: Path) -> None:
        if self.first_sample_id < 0 or self.first_sample_id + self.source.rows > 1 << 64:
            span = f"--first-sample-id {self.first_sample_id} with {self.source.rows} rows"
            raise RefusedError(f"{span}: sample ids must be in [0, 2^64)")
        for name in NAMES:
            if (folder / name).exists() and (folder / name).samefile(self.source.path):
                raise RefusedError(f"{self.source.path} is the input: name another --out")

    def _mask(self, piece: Piece, files: Target) -> int:
        """Appends the masks of a piece and returns the number of its selected tokens."""
        ids = self.source.read(piece.row, piece.rows, piece.first, piece.last)
        try:
            batch = self.masker(
                ids,
                epoch=self.epoch,
                sample_ids=self.first_sample_id + piece.row,
                lengths=None if piece.offset is None else np.array([piece.last - piece.first]),
                position_offset=piece.offset or 0,
                returns=("num_masked",),
            )
        except REFUSALS as error:
            raise self._refusal(piece, ids, error) from error
        files.append(batch.input_ids, batch.labels)
        return int(batch.num_masked.sum())

    def _refusal(self, piece: Piece, ids: IntArray, error: Exception) -> RefusedError:
        """Names the row and the column in the file of an id that the library refused."""
        size = self.masker.vocab.size
        outside = np.argwhere((ids < 0) | (ids >= size))
        if not outside.size:
            return RefusedError(str(error))
        row, column = (int(index) for index in outside[0])
        return RefusedError(
            f"{self.source.path} holds {ids[row, column]} at row {piece.row + row}, "
            f"column {piece.first + column}: ids must be in [0, {size})"
        )

    def _pieces(self) -> Iterator[Piece]:
        """Everything in order: whole rows while a row fits a chunk, else every row in parts."""
        rows, row_length = self.source.rows, self.source.row_length
        if rows * row_length == 0:
            yield Piece(0, rows, 0, row_length)
        elif row_length <= CHUNK_TOKENS:
            step = min(self.chunk_rows or rows, CHUNK_TOKENS // row_length)
            for row in range(0, rows, step):
                yield Piece(row, min(step, rows - row), 0, row_length)
        else:
            for row in range(rows):
                yield from self._parts(row)

    def _parts(self, row: int) -> Iterator[Piece]:
        """One long row in parts. Padding on the left is cut off first: position 0 lies behind it."""
        left = self._left_padding(row)
        for first in range(0, left, CHUNK_TOKENS):
            yield Piece(row, 1, first, min(first + CHUNK_TOKENS, left), 0)
        for first in range(left, self.source.row_length, CHUNK_TOKENS):
            last = min(first + CHUNK_TOKENS, self.source.row_length)
            yield Piece(row, 1, first, last, first - left)

    def _left_padding(self, row: int) -> int:
        """The number of pad ids with which a row begins."""
        pad = self.masker.vocab.pad_token_id
        if pad is None:
            return 0
        for first in range(0, self.source.row_length, CHUNK_TOKENS):
            last = min(first + CHUNK_TOKENS, self.source.row_length)
            real = np.flatnonzero(self.source.read(row, 1, first, last)[0] != pad)
            if real.size:
                return first + int(real[0])
        return self.source.row_length


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that temporary files are removed, and ends with status 143."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Rate(ProgressColumn):
    """Tokens per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{amount(task.speed)} tokens/s" if task.speed else "")


def _progress() -> Progress:
    """A bar on stderr where that is a terminal, else nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
