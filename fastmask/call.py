"""Call and Outputs: what every backend's operations take, once the Arguments of a public call have been validated.

A padded batch is a flat array of rows * row_length cells. In row r the cells starts[r] .. starts[r] + lengths[r] - 1
are real tokens, positions 0, 1, ... of sample r; the other cells are padding. A packed batch has boundaries: the cells
boundaries[r] .. boundaries[r + 1] - 1 are sample r, a row, and no cell is padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    cu_seqlens: Any
    word_ids: Any
    rates: Any
    position_offset: Any
    stratify: Any

    def __post_init__(self) -> None:
        if self.lengths is None and self.cu_seqlens is None:
            return
        said = [name for name in ("lengths", "attention_mask", "cu_seqlens") if getattr(self, name) is not None]
        if len(said) > 1:
            raise ValueError(f"{' and '.join(said)} both say what is real: give one of them")


@dataclass(slots=True)
class Call:
    """One batch, validated and flat. Arrays are 1-D, contiguous, native-endian and never written."""

    ids: Array  # (cells,) uint16, int32 or int64; none where there are addresses
    rows: int
    row_length: int  # of a packed batch: that of the longest row, or more
    epoch: int
    sample_ids: Array | None = None  # (rows,) uint64; None: the id is computed from the content
    first_sample: int | None = None  # on a GPU in place of sample_ids: that of row 0, from which the others count up
    first_sample_at: Array | None = None  # likewise, (1,) int64 in device memory, read when kernels run
    epoch_at: Array | None = None  # likewise in place of epoch
    starts: Array | None = None  # (rows,) int64; with lengths None: the pad id's runs at both ends are padding
    lengths: Array | None = None  # (rows,) int64; alone: rows start at column 0
    boundaries: Array | None = None  # (rows + 1,) int64, from 0 to the number of cells; starts and lengths are None
    addresses: Array | None = None  # (rows,) int64: where the ids of each sample of a packed batch lie, if not in `ids`
    special_tokens_mask: Array | None = None  # (cells,) uint8, non-zero: never selected
    word_ids: Array | None = None  # (cells,) int32 or int64; None: the plan's table of continuations tells words
    offsets: Array | None = None  # (rows,) uint64, added to the position in the stream (not in the content id)
    thresholds: Array | None = None  # (rows,) uint32, a select threshold per sample; None: the plan's
    rates: Array | None = None  # (rows,) float64 in [0, 1], the p of a counting law per sample; None: the plan's
    strata: Array | None = None  # (rows,) uint32, floor(index * 2^32 / total) of Diffusion; with `step`
    step: int = 0
    in_place: bool = False  # the ids are the memory of Outputs.input_ids


@dataclass(slots=True)
class Outputs:
    """Where a batch is written. Arrays are 1-D and contiguous; `input_ids` may be the very memory of `Call.ids`."""

    input_ids: Array  # (cells,) int32 or int64
    labels: Array  # (cells,) int32 or int64
    decisions: Array | None = None  # (cells,) uint8: 0 untouched, 1 MASK, 2 random, 3 kept
    num_masked: Array | None = None  # (rows,) int64: selected tokens per row
    # The selected tokens side by side, row after row; what follows the last is unspecified. Host backends only.
    selected_positions: Array | None = None  # (cells,) int64: the column of a padded batch, the cell of a packed one
    selected_ids: Array | None = None  # (cells,) of the labels' dtype: the original ids


@dataclass(slots=True)
class Compact:
    """The selected tokens of a batch, side by side: flat, row after row, or `width` slots a row."""

    positions: Array  # (slots,) int64: the column of a padded batch, the cell of a packed one
    ids: Array  # (slots,) of the labels' dtype: the original ids
    weights: Array  # (slots,) float32: 1 for a selected token, 0 in a slot that is not used
    width: int | None = None  # None: flat


def row_of(call: Call, row: int) -> Call:
    """The call of one row alone, whose fates are the same. Host arrays only; `ids` become views."""
    if call.boundaries is None:
        first, last = row * call.row_length, (row + 1) * call.row_length
        boundaries = None
    else:
        first, last = int(call.boundaries[row]), int(call.boundaries[row + 1])
        boundaries = call.boundaries[row : row + 2] - first
    parts: dict[str, Any] = {"rows": 1, "row_length": last - first, "boundaries": boundaries}
    for name in ("ids", "special_tokens_mask", "word_ids"):
        array = getattr(call, name)
        parts[name] = None if array is None else array[first:last]
    for name in ("sample_ids", "starts", "lengths", "offsets", "thresholds", "rates", "strata"):
        array = getattr(call, name)
        parts[name] = None if array is None else array[row : row + 1]
    return replace(call, **parts)
