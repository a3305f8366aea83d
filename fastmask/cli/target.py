"""Two `.npy` files that appear under their names together, complete and on disk, or not at all."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastmask.cli.errors import RefusedError

NAMES = ("labels.npy", "input_ids.npy")  # in the order in which they appear


class Target:
    """A folder in which `append` grows the arrays input_ids and labels, and `commit` names them."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.folder = folder
        self.shape = shape
        self.files: dict[str, BinaryIO] = {}

    def append(self, input_ids: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Writes the next tokens of both arrays; the first call fixes their types."""
        for name, array in zip(NAMES, (labels, input_ids), strict=True):
            if name not in self.files:
                self.files[name] = self._begin(name, array.dtype)
            self.files[name].write(np.ascontiguousarray(array).data)

    def commit(self) -> None:
        """Both files are on disk under their names. `input_ids.npy` appears last and leaves first."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        with _signals_ignored():
            (self.folder / NAMES[-1]).unlink(missing_ok=True)
            for name in NAMES:
                os.replace(self._temporary(name), self.folder / name)
        _sync_folder(self.folder)

    def abandon(self) -> None:
        """No temporary file is left."""
        for name in NAMES:
            if name in self.files:
                with suppress(OSError):
                    self.files[name].close()
            self._temporary(name).unlink(missing_ok=True)

    def _begin(self, name: str, dtype: np.dtype[Any]) -> BinaryIO:
        file = self._temporary(name).open("wb")
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(file, header)
        return file

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.unfinished"


@contextmanager
def target(folder: Path, shape: tuple[int, ...], *, force: bool) -> Iterator[Target]:
    """A Target of this process alone, committed where the block ends well, and no file where it raises."""
    there = [folder / name for name in NAMES if (folder / name).exists()]
    if there and not force:
        raise RefusedError(f"{there[0]} exists: name another --out or give --force")
    if folder.exists() and not folder.is_dir():
        raise RefusedError(f"{folder}: not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        files = Target(folder, shape)
        try:
            yield files
            files.commit()
        except BaseException:
            files.abandon()
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other run writes to the folder meanwhile (on file systems that can lock a folder)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RefusedError(f"{folder}: another run of fastmask is writing there") from None
    except OSError:
        pass  # some network file systems refuse; the lock only guards against a mistake
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Interrupts and requests to end do nothing for the moment that the block takes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
