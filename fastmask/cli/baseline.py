"""Plain NumPy masking, as a careful user would write it: what the table of the demo compares with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.signedinteger[Any]]


def mask_plain(
    input_ids: IntArray,
    *,
    special: npt.NDArray[np.bool_],  # (vocabulary size,)
    pool: IntArray,  # ids that a random token is drawn from
    mask_id: int,
    p: float,
    mask: float,
    random: float,
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Corrupted ids and labels: one uniform number per token, cut into the bands MASK, random and kept."""
    draw = rng.random(input_ids.shape, dtype=np.float32)
    draw[special[input_ids]] = 1.0
    labels = np.where(draw < p, input_ids, -100)
    corrupted = input_ids.copy()
    corrupted[draw < p * mask] = mask_id
    swapped = (draw >= p * mask) & (draw < p * (mask + random))
    corrupted[swapped] = pool[rng.integers(pool.size, size=np.count_nonzero(swapped))]
    return corrupted, labels
