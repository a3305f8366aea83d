"""apply_mlm_mask: decisions that the caller drew are carried out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastmask import buffers
from fastmask.arrays import as_kind_of, to_host
from fastmask.dispatch import choose, host_kernels
from fastmask.threads import parallel_region, plan_ranges
from fastmask.thresholds import probability
from fastmask.validate import place
from fastmask.vocab import integer

DTYPES = {
    "token_ids": "int64",
    "mask_positions": "bool",
    "replace_probs": "float64",
    "random_tokens": "int64",
}


def apply_mlm_mask(
    token_ids: Any,
    mask_positions: Any,
    replace_probs: Any,
    random_tokens: Any,
    mask_token_id: int = 103,
    *,
    borders: tuple[float, float] = (0.8, 0.9),
    check: bool = True,
    backend: str | None = None,
) -> dict[str, Any]:
    """{"masked_ids", "labels"}, int64 of the shape of token_ids; nothing is drawn and no input changed.

    Where mask_positions is true, replace_probs < borders[0] gives mask_token_id, < borders[1] the random token of the
    position, else the original; the label is the original id. Elsewhere the original and -100.

    Args:
        token_ids: (rows, columns) or any other shape, int64.
        mask_positions: the same shape, bool.
        replace_probs: the same shape, float64 in [0, 1] at every position.
        random_tokens: the same shape, int64.
        mask_token_id: the id of MASK.
        borders: 0 <= first <= second <= 1.
        check: False skips the look at the values of replace_probs (on a GPU it waits for the device).
        backend: as for `Masker`.

    Raises:
        TypeError: another dtype.
        ValueError: shapes that differ; a probability that is NaN or outside [0, 1]; borders out of order.

    >>> ids = np.array([[101, 2023, 2003, 102]])
    >>> chosen = np.array([[False, True, True, False]])
    >>> probs, other = np.array([[0.0, 0.35, 0.87, 0.0]]), np.array([[0, 0, 7592, 0]])
    >>> done = apply_mlm_mask(ids, chosen, probs, other)
    >>> done["masked_ids"].tolist(), done["labels"].tolist()
    ([[101, 103, 7592, 102]], [[-100, 2023, 2003, -100]])
    """
    arrays = {
        "token_ids": token_ids,
        "mask_positions": mask_positions,
        "replace_probs": replace_probs,
        "random_tokens": random_tokens,
    }
    first, second = (probability("borders", border) for border in borders)
    if first > second:
        raise ValueError(f"borders must not fall, got {borders!r}")
    mask_token_id = integer("mask_token_id", mask_token_id)
    chosen = choose(token_ids, backend, "token_ids")
    if chosen == "cuda":
        from fastmask import device

        return device.apply_supplied(arrays, mask_token_id, (first, second), check)
    return _apply_on_host(chosen, arrays, mask_token_id, (first, second), check)


def _apply_on_host(
    backend: str, arrays: dict[str, Any], mask_token_id: int, borders: tuple[float, float], check: bool
) -> dict[str, Any]:
    host = {name: to_host(name, x) for name, x in arrays.items()}
    shape = host["token_ids"].shape
    check_arrays(host)
    if check:
        _check_probabilities(host["replace_probs"])
    flat = [np.ascontiguousarray(x, x.dtype.newbyteorder("=")).reshape(-1) for x in host.values()]
    size = flat[0].size
    masked_ids, labels = buffers.empty(size, np.int64), buffers.empty(size, np.int64)
    kernels = host_kernels(backend)
    arguments = (*flat, mask_token_id, borders, masked_ids, labels)
    ranges = plan_ranges(size)[0] if backend == "cpu" else 1
    if ranges == 1:
        kernels.apply_supplied(*arguments)
    else:
        with parallel_region() as entered:
            kernels.apply_supplied(*arguments, ranges if entered else 1)
    done = {"masked_ids": masked_ids.reshape(shape), "labels": labels.reshape(shape)}
    return {name: as_kind_of(arrays["token_ids"], x) for name, x in done.items()}


def check_arrays(arrays: dict[str, Any]) -> None:
    """TypeError for a wrong dtype, ValueError for shapes that differ."""
    for name, x in arrays.items():
        if x.dtype.newbyteorder("=") != np.dtype(DTYPES[name]):
            raise TypeError(f"{name} must be {DTYPES[name]}, got {x.dtype}")
        if tuple(x.shape) != tuple(arrays["token_ids"].shape):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, but token_ids {tuple(arrays['token_ids'].shape)}")


def _check_probabilities(replace_probs: Any) -> None:
    good = (replace_probs >= 0) & (replace_probs <= 1)
    if not good.all():
        cell = int(good.argmin())
        value = float(replace_probs.reshape(-1)[cell])
        raise ValueError(f"replace_probs must lie in [0, 1], got {value} {place(cell, replace_probs.shape)}")
