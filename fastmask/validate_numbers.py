"""What all validation rests on: values per row and per cell, whole numbers, places in messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.arrays import to_host
from fastmask.vocab import integer


def place(cell: int, shape: tuple[int, ...]) -> str:
    """Where a flat cell lies, in words."""
    where = tuple(int(index) for index in np.unravel_index(cell, shape))
    if len(where) == 2:
        return f"in row {where[0]}, column {where[1]}"
    return f"at position {where[0] if len(where) == 1 else where}"


def per_cell(name: str, x: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    values = to_host(name, x)
    if values.shape != tuple(shape):
        raise ValueError(f"{name} has shape {values.shape}, but input_ids has shape {tuple(shape)}")
    return values


def per_row(name: str, values: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    if values.shape != (rows,) and not (rows == 1 and values.shape == ()):
        raise ValueError(f"{name} must hold one value for each of {rows} rows, got shape {values.shape}")
    return values.reshape(rows)


def integers(name: str, x: Any, rows: int) -> npt.NDArray[Any]:
    values = to_host(name, x)
    if values.dtype.kind not in "iu":
        values = _exact_integers(name, x, values)
    return per_row(name, values, rows)


def _exact_integers(name: str, x: Any, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers from a list whose dtype NumPy guessed wrong: an empty one, or one with values of 2^63 and more."""
    if isinstance(x, (list, tuple)):
        if not x:
            return np.empty(0, np.int64)
        integers = [integer(name, value) for value in x]
        for row, value in enumerate(integers):
            if not 0 <= value < 1 << 64:
                raise ValueError(f"{name} must be in [0, 2^64), got {value} in row {row}")
        return np.array(integers, np.uint64)
    raise TypeError(f"{name} must be integers, got {values.dtype}")


def fits(value: int, dtype: np.dtype[Any]) -> bool:
    """True iff the integer dtype can hold the value."""
    bits = 8 * dtype.itemsize
    if dtype.kind == "u":
        return 0 <= value < 1 << bits
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)
