"""Plain NumPy masking, as a careful user would write it: what the demo and the benchmarks compare with."""

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
    padding: npt.NDArray[np.bool_] | None = None,  # True: not a candidate; needless where the pad id is special
    double: bool = False,
) -> tuple[IntArray, IntArray]:
    """Corrupted ids and labels: one uniform number per token, cut into the bands MASK, random and kept.

    The numbers are float32, 24 bits, as many as fastmask compares; double=True draws float64, as most do. Special
    ids are found in a table of booleans, which was faster than np.isin and than comparing with each id.
    """
    draw = rng.random(input_ids.shape, np.float64 if double else np.float32)
    draw[special[input_ids]] = 1.0
    if padding is not None:
        draw[padding] = 1.0
    labels = np.where(draw < p, input_ids, -100)
    corrupted = np.where(draw < p * mask, mask_id, input_ids)
    swapped = (draw >= p * mask) & (draw < p * (mask + random))
    corrupted[swapped] = pool[rng.integers(pool.size, size=np.count_nonzero(swapped))]
    return corrupted, labels
