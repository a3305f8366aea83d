"""apply_mlm_mask: decisions that the caller drew are carried out."""

from __future__ import annotations

from typing import Any

from fastmask import host
from fastmask.dispatch import choose
from fastmask.thresholds import probability
from fastmask.vocab import integer


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

    >>> import numpy as np
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
    if not isinstance(borders, (tuple, list)) or len(borders) != 2:
        raise TypeError(f"borders must be two numbers, got {borders!r}")
    first, second = (probability("borders", border) for border in borders)
    if first > second:
        raise ValueError(f"borders must not fall, got {borders!r}")
    mask_token_id = integer("mask_token_id", mask_token_id)
    if not -(1 << 63) <= mask_token_id < 1 << 63:
        raise ValueError(f"mask_token_id must fit int64, got {mask_token_id}")
    chosen = choose(token_ids, backend, "token_ids")
    if chosen == "cuda":
        from fastmask import device

        return device.apply_supplied(arrays, mask_token_id, (first, second), check)
    return host.apply_supplied(chosen, arrays, mask_token_id, (first, second), check)
