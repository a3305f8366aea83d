"""Files of token ids: `.npy`, or raw `.bin`, read through memory maps that last for one chunk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.cli.errors import RefusedError

IntArray = npt.NDArray[Any]
ID_TYPES = ("uint16", "int16", "int32", "uint32", "int64")


@dataclass(frozen=True)
class Source:
    """A file of `rows` rows of `row_length` ids; where it ends within the last row, `fill` fills that up.

    `shape` is that of the masked arrays: 1-D where the file is one sample.
    """

    path: Path
    dtype: np.dtype[Any]
    start: int  # of the first id, in bytes
    tokens: int  # in the file
    shape: tuple[int, ...]
    fill: int = 0

    @property
    def rows(self) -> int:
        """The number of samples."""
        return self.shape[0] if len(self.shape) == 2 else 1

    @property
    def row_length(self) -> int:
        """Tokens per sample."""
        return self.shape[-1]

    def read(self, row: int, rows: int, first: int = 0, last: int | None = None) -> IntArray:
        """Columns first .. last - 1 of some rows, as an array (rows, columns).

        It lies over the file as long as it is referenced; all columns where `rows` is not 1.
        """
        width = (self.row_length if last is None else last) - first
        begin = row * self.row_length + first
        return self._flat(begin, begin + rows * width).reshape(rows, width)

    def _flat(self, begin: int, end: int) -> IntArray:
        """Ids begin .. end - 1 of the file, filled up behind its end."""
        there = min(end, self.tokens) - begin
        if there <= 0:
            return np.full(end - begin, self.fill, self.dtype)
        at = self.start + begin * self.dtype.itemsize
        mapped = np.memmap(self.path, self.dtype, mode="r", offset=at, shape=(there,))
        ids = np.asarray(mapped)
        if there == end - begin:
            return ids
        return np.concatenate([ids, np.full(end - begin - there, self.fill, self.dtype)])


def open_source(path: Path, dtype: str | None, row_length: int | None, pad_id: int | None) -> Source:
    """The file as rows: its own, or of `row_length`, or one row of everything."""
    if not path.is_file():
        raise RefusedError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
    readers = {".npy": _npy, ".bin": _raw}
    if path.suffix not in readers:
        raise RefusedError(f"{path}: expected a file named .npy (NumPy) or .bin (raw ids with --dtype)")
    found = readers[path.suffix](path, dtype)
    if found.dtype.name not in ID_TYPES:
        raise RefusedError(f"{path} holds {found.dtype.name}: ids must be one of {', '.join(ID_TYPES)}")
    return found if row_length is None else _cut(found, row_length, pad_id)


def _npy(path: Path, dtype: str | None) -> Source:
    if dtype is not None:
        raise RefusedError(f"--dtype is for raw .bin files: {path} names its own")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise RefusedError(f"{path} is not a readable .npy file: {error}") from None
    if array.ndim not in (1, 2):
        raise RefusedError(f"{path} has shape {array.shape}: expected (rows, row length) or (length,)")
    if not array.flags.c_contiguous:
        raise RefusedError(f"{path} is in Fortran order: save np.ascontiguousarray(array) instead")
    return Source(path, array.dtype, array.offset, array.size, array.shape)


def _raw(path: Path, dtype: str | None) -> Source:
    if dtype is None:
        raise RefusedError(f"{path} is raw: name the type of its ids with --dtype")
    kind = np.dtype(dtype).newbyteorder("<")
    size = path.stat().st_size
    if size % kind.itemsize:
        raise RefusedError(f"{path} holds {size} bytes, not a whole number of {dtype} ids")
    tokens = size // kind.itemsize
    return Source(path, kind, 0, tokens, (tokens,))


def _cut(found: Source, row_length: int, pad_id: int | None) -> Source:
    """The ids of a file of one sample as rows of `row_length`, the last one filled up with the pad id."""
    if len(found.shape) == 2:
        raise RefusedError(f"--row-length is for files without rows: {found.path} has shape {found.shape}")
    rows = -(-found.tokens // row_length)
    surplus = found.tokens % row_length
    if surplus and pad_id is None:
        raise RefusedError(
            f"{found.path} holds {found.tokens} ids, {surplus} more than whole rows of {row_length}: "
            "name a --pad-id to fill up the last row"
        )
    return Source(found.path, found.dtype, found.start, found.tokens, (rows, row_length), pad_id or 0)
