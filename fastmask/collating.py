"""collate: ragged samples, masked, in padded rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.batch import CompactTargets
from fastmask.samples import Said, Samples, at_least_one

if TYPE_CHECKING:
    from fastmask.masker import Masker

Array = npt.NDArray[Any]
PAD_TYPE, PAD_MARK = 0, 1  # what token_type_ids and special_tokens_mask are padded with


@dataclass(slots=True, eq=False)
class CollatedBatch:
    """Samples in padded rows, masked. NumPy arrays of B rows and W columns.

    Attributes:
        input_ids: (B, W) int32 or int64, padded with the vocabulary's pad id.
        labels: (B, W): the original id where selected, ignore_index elsewhere.
        attention_mask: (B, W) int64: 1 for real tokens, 0 for padding.
        lengths: (B,) int64: the real tokens of each row.
        token_type_ids: (B, W) int64, padded with 0; None unless given.
        special_tokens_mask: (B, W) int64, padded with 1; None unless given.
        decisions: (B, W) uint8: 0 untouched, 1 MASK, 2 random, 3 kept; None unless asked for.
        num_masked: (B,) int64, the selected tokens of each row; None unless asked for.
        compact: CompactTargets, positions being columns; None unless asked for.
        rates: (B,) float32, the rates that Diffusion drew; None unless asked for.
        weights: (B,) float32, the weights of its loss; along with rates.
    """

    input_ids: Array
    labels: Array
    attention_mask: Array
    lengths: Array
    token_type_ids: Array | None = None
    special_tokens_mask: Array | None = None
    decisions: Array | None = None
    num_masked: Array | None = None
    compact: CompactTargets | None = None
    rates: Array | None = None
    weights: Array | None = None


def collate(
    masker: Masker,
    rows: Any,
    *,
    epoch: int,
    sample_ids: Any = None,
    token_type_ids: Any = None,
    special_tokens_mask: Any = None,
    word_ids: Any = None,
    rates: Any = None,
    stratify: Any = None,
    padding_side: str = "right",
    pad_to_multiple_of: int | None = None,
    max_length: int | None = None,
    returns: str | Iterable[str] = (),
    max_predictions: int | None = None,
    backend: str | None = None,
) -> CollatedBatch:
    """The samples in padded rows, masked: bit for bit what the masker makes of the padded ids and their lengths.

    Args:
        masker: Masker; its vocabulary needs a pad id.
        rows: B >= 1 samples of token ids: a list of 1-D arrays, tensors or lists of integers; a pair (values,
            offsets), sample r being values[offsets[r]:offsets[r + 1]]; or an Arrow array of lists. Never written.
        epoch: as for `Masker`.
        sample_ids: as for `Masker`; content ids are those of the samples as they are cut.
        token_type_ids: integers, ragged as the rows (in any of these kinds).
        special_tokens_mask: likewise; where it is not 0 the token is never touched.
        word_ids: likewise, for laws over words; None in lists reads as -1.
        rates: as for `Masker`.
        stratify: as for `Masker`.
        padding_side: "right" or "left".
        pad_to_multiple_of: the width is rounded up to a multiple of it; None: that of the longest row.
        max_length: rows are cut to their first so many tokens, >= 1; None: none is.
        returns: as for `Masker`.
        max_predictions: as for `Masker`.
        backend: "numpy" or "cpu"; None: "cpu".

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: no samples, no pad id, lengths that differ, ids out of range; the message names the sample.
        OverflowError: 16-bit ids with a vocabulary that 16 bits cannot hold.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> masker = fm.Masker(vocab, fm.Bernoulli(0.3), seed=7)
    >>> batch = collate(masker, [[2, 7, 8, 9, 10, 11, 3], [2, 5, 3]], epoch=0, sample_ids=[5, 6])
    >>> batch.input_ids.tolist()
    [[2, 4, 4, 9, 10, 4, 3], [2, 5, 3, 0, 0, 0, 0]]
    """
    if masker.vocab.pad_token_id is None:
        raise ValueError("padding needs a vocabulary with pad_token_id, and this one has none")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side must be 'right' or 'left', got {padding_side!r}")
    multiple = 1 if pad_to_multiple_of is None else at_least_one("pad_to_multiple_of", pad_to_multiple_of)
    most = None if max_length is None else at_least_one("max_length", max_length)
    said = Said(epoch, sample_ids, token_type_ids, special_tokens_mask, word_ids, rates, stratify)
    samples = Samples(masker, rows, said, backend, most, joined=False)
    samples.ask(returns, max_predictions)
    width, left = -(-samples.call.row_length // multiple) * multiple, padding_side == "left"
    return _padded(samples, width, left, max_predictions)


def _padded(samples: Samples, width: int, left: bool, max_predictions: int | None) -> CollatedBatch:
    kernels, offsets = samples.kernels, samples.offsets
    shape = samples.call.rows, width

    def laid_out(values: Array | None, padding: int) -> Array | None:
        if values is None:
            return None
        out = buffers.empty(shape[0] * width, np.int64)
        kernels.pad_rows(values, offsets, width, left, padding, out)
        return out.reshape(shape)

    out, attention_mask = samples.collated(width, left)
    rates, weights = samples.rates_and_weights()
    return CollatedBatch(
        input_ids=out.input_ids.reshape(shape),
        labels=out.labels.reshape(shape),
        attention_mask=attention_mask.reshape(shape),
        lengths=offsets[1:] - offsets[:-1],
        token_type_ids=laid_out(samples.token_type_ids, PAD_TYPE),
        special_tokens_mask=laid_out(samples.special_tokens_mask, PAD_MARK),
        decisions=None if out.decisions is None else out.decisions.reshape(shape),
        num_masked=out.num_masked,
        compact=samples.compact(out, max_predictions),
        rates=rates,
        weights=weights,
    )
