"""MaskedBatch: what a masker returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastmask.kernels import fate


class CompactTargets(NamedTuple):
    """The selected tokens alone: what a head needs that computes logits nowhere else.

    Flat, (total,), row after row in rising order of position; or (rows, max_predictions), where unused slots hold
    position 0, id ignore_index and weight 0. On a GPU the flat ones have a slot for every token of the batch, so that
    nothing waits for their number: those behind the last selected token are not used.
    """

    positions: Any  # int64: the column of a 2-D batch, the place in a 1-D one
    ids: Any  # the labels at these positions
    weights: Any  # float32: 1, and 0 in unused slots
    counts: Any  # int64: the selected tokens of each row or segment


@dataclass(slots=True, eq=False)
class MaskedBatch:
    """The corrupted ids and the labels of a batch, arrays of the kind and shape that came in.

    Attributes:
        input_ids: int32 or int64, the shape of the input.
        labels: int64 (or int32 on request): the original id where selected, ignore_index elsewhere.
        decisions: uint8 per position, 0 untouched, 1 MASK, 2 random, 3 kept; None unless asked for.
        num_masked: int64 per row or segment, the number of selected tokens; None unless asked for.
        compact: CompactTargets; None unless asked for.
        rates: float32 per row or segment, the rate T / 2^24 that Diffusion drew; None unless asked for.
        weights: float32 per row or segment, 2^24 / T, which makes the loss of Diffusion unbiased; along with rates.
        backend: "numpy", "cpu" or "cuda".
    """

    input_ids: Any
    labels: Any
    decisions: Any = None
    num_masked: Any = None
    compact: CompactTargets | None = None
    rates: Any = None
    weights: Any = None
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

    def mapped(self, function: Callable[[Any], Any]) -> MaskedBatch:
        """The batch itself, each of its arrays replaced by what the function makes of it."""
        for name in ("input_ids", "labels", "decisions", "num_masked", "rates", "weights"):
            if (array := getattr(self, name)) is not None:
                setattr(self, name, function(array))
        if self.compact is not None:
            positions, ids, weights, _ = self.compact
            self.compact = CompactTargets(function(positions), function(ids), function(weights), self.num_masked)
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
