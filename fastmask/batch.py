"""MaskedBatch: what a masker returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastmask.kernels import fate


@dataclass(slots=True, eq=False)
class MaskedBatch:
    """The corrupted ids and the labels of a batch, arrays of the kind and shape that came in.

    Attributes:
        input_ids: int32 or int64, the shape of the input.
        labels: int64 (or int32 on request): the original id where selected, ignore_index elsewhere.
        decisions: uint8 per position, 0 untouched, 1 MASK, 2 random, 3 kept; None unless asked for.
        num_masked: int64 per row, the number of selected tokens; None unless asked for.
        backend: "numpy", "cpu" or "cuda".
    """

    input_ids: Any
    labels: Any
    decisions: Any = None
    num_masked: Any = None
    backend: str = "cpu"
    _flags: Any = None

    def check(self) -> MaskedBatch:
        """The batch itself, known to be good.

        On a GPU this waits for the kernels and raises ValueError where one of them complained of an argument (an id
        out of range, an attention mask with a hole, ...); on a CPU the call has raised already.
        """
        if self._flags is not None:
            self._flags.check()
        return self

    def shares(self) -> dict[str, float]:
        """The realised shares of MASK, random and kept among the selected tokens (NaN where none is selected).

        Raises ValueError where the decisions were not asked for.
        """
        if self.decisions is None:
            raise ValueError('shares need the decisions: call the masker with returns="decisions"')
        copy = getattr(self.decisions, "copy_to_host", None)  # Numba's device arrays have no arithmetic
        decisions = self.decisions if copy is None else copy()
        counts = np.array([int((decisions == kind).sum()) for kind in (fate.MASKED, fate.RANDOM, fate.KEPT)])
        selected = counts.sum()
        values = counts / selected if selected else np.full(3, np.nan)
        return dict(zip(("mask", "random", "kept"), values.tolist(), strict=True))
