"""Call and Outputs: what every backend's operations take, once the Arguments of a public call have been validated.

A batch is a flat array of rows * row_length cells. In row r the cells starts[r] .. starts[r] + lengths[r] - 1 are real
tokens, positions 0, 1, ... of sample r; the other cells are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # of the backend's own kind: NumPy, or an array in device memory


@dataclass(slots=True)
class Arguments:
    """What a public call was given beside the ids, not yet looked at. ValueError for two that say the same thing."""

    epoch: Any
    sample_ids: Any
    attention_mask: Any
    special_tokens_mask: Any
    lengths: Any
    rates: Any
    position_offset: Any

    def __post_init__(self) -> None:
        if self.lengths is not None and self.attention_mask is not None:
            raise ValueError("lengths and attention_mask both say what is real: give one of them")


@dataclass(slots=True)
class Call:
    """One batch, validated and flat. Arrays are 1-D, contiguous, native-endian and never written."""

    ids: Array  # (rows * row_length,) uint16, int32 or int64
    rows: int
    row_length: int
    epoch: int
    sample_ids: Array | None = None  # (rows,) uint64; None: the id is computed from the content
    starts: Array | None = None  # (rows,) int64; with lengths None: the pad id's runs at both ends are padding
    lengths: Array | None = None  # (rows,) int64; alone: rows start at column 0
    special_tokens_mask: Array | None = None  # (rows * row_length,) uint8, non-zero: never selected
    offsets: Array | None = None  # (rows,) uint64, added to the position in the stream (not in the content id)
    thresholds: Array | None = None  # (rows,) uint32, a select threshold per sample; None: the plan's
    in_place: bool = False  # the ids are the memory of Outputs.input_ids


@dataclass(slots=True)
class Outputs:
    """Where a batch is written. Arrays are 1-D and contiguous; `input_ids` may be the very memory of `Call.ids`."""

    input_ids: Array  # (rows * row_length,) int32 or int64
    labels: Array  # (rows * row_length,) int32 or int64
    decisions: Array | None = None  # (rows * row_length,) uint8: 0 untouched, 1 MASK, 2 random, 3 kept
    num_masked: Array | None = None  # (rows,) int64: selected tokens per row
