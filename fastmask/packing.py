"""pack: ragged samples, masked, side by side up to a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers
from fastmask.batch import CompactTargets
from fastmask.call import Outputs
from fastmask.samples import Said, Samples, at_least_one

if TYPE_CHECKING:
    from fastmask.masker import Masker

Array = npt.NDArray[Any]
MAX_TOKENS = 1 << 31  # cu_seqlens are int32


@dataclass(slots=True, eq=False)
class PackedBatch:
    """Samples side by side, masked: n tokens of k samples. NumPy arrays; those of one `pack` may share memory.

    Attributes:
        input_ids: (n,) int32 or int64.
        labels: (n,): the original id where selected, ignore_index elsewhere.
        cu_seqlens: (k + 1,) int32: sample i is the tokens cu_seqlens[i] .. cu_seqlens[i + 1] - 1.
        position_ids: (n,) int64: the position of each token in its sample.
        max_seqlen: the length of the longest sample.
        samples: (first, end): the samples of `rows` that lie here.
        token_type_ids, special_tokens_mask: (n,) int64; None unless given.
        decisions: (n,) uint8; None unless asked for.
        num_masked: (k,) int64; None unless asked for.
        compact: flat CompactTargets, positions being places in input_ids; None unless asked for.
        rates, weights: (k,) float32, of Diffusion; None unless asked for.
    """

    input_ids: Array
    labels: Array
    cu_seqlens: Array
    position_ids: Array
    max_seqlen: int
    samples: tuple[int, int]
    token_type_ids: Array | None = None
    special_tokens_mask: Array | None = None
    decisions: Array | None = None
    num_masked: Array | None = None
    compact: CompactTargets | None = None
    rates: Array | None = None
    weights: Array | None = None


def pack(
    masker: Masker,
    rows: Any,
    *,
    epoch: int,
    max_tokens: int,
    sample_ids: Any = None,
    token_type_ids: Any = None,
    special_tokens_mask: Any = None,
    word_ids: Any = None,
    rates: Any = None,
    stratify: Any = None,
    returns: str | Iterable[str] = (),
    backend: str | None = None,
) -> list[PackedBatch]:
    """The samples side by side in as many batches as it takes, each masked as if alone.

    Samples stay in order and whole: a batch ends before the first sample that would take it past max_tokens.

    Args:
        masker: Masker.
        rows: B >= 1 samples of token ids, as for `collate`.
        epoch: as for `Masker`.
        max_tokens: the most tokens of a batch, in [1, 2^31).
        sample_ids: as for `Masker`.
        token_type_ids: as for `collate`.
        special_tokens_mask: as for `collate`.
        word_ids: as for `collate`.
        rates: as for `Masker`.
        stratify: as for `Masker`.
        returns: as for `Masker`.
        backend: as for `collate`.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: no samples, one longer than max_tokens, lengths that differ, ids out of range; the message names
            the sample.
        OverflowError: 16-bit ids with a vocabulary that 16 bits cannot hold.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> masker = fm.Masker(vocab, fm.Bernoulli(0.3), seed=7)
    >>> first, second = pack(masker, [[2, 7, 3], [2, 5, 3], [2, 9, 9, 3]], epoch=0, max_tokens=8)
    >>> first.cu_seqlens.tolist(), first.position_ids.tolist(), second.samples
    ([0, 3, 6], [0, 1, 2, 0, 1, 2], (2, 3))
    """
    budget = at_least_one("max_tokens", max_tokens)
    if budget >= MAX_TOKENS:
        raise ValueError(f"max_tokens must be in [1, 2^31), got {budget}")
    said = Said(epoch, sample_ids, token_type_ids, special_tokens_mask, word_ids, rates, stratify)
    samples = Samples(masker, rows, said, backend)
    samples.ask(returns)
    parts = list(_greedy(samples.offsets, budget))  # before anything is masked
    return list(_cut(samples, samples.masked(), parts))


def _greedy(offsets: npt.NDArray[np.int64], budget: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of samples that fit the budget, each as long as it can be."""
    first, samples = 0, offsets.size - 1
    while first < samples:
        end = int(np.searchsorted(offsets, offsets[first] + budget, side="right")) - 1
        if end == first:
            length = offsets[first + 1] - offsets[first]
            raise ValueError(f"max_tokens = {budget} is too small: sample {first} has {length} tokens")
        yield first, end
        first = end


def _cut(samples: Samples, out: Outputs, parts: list[tuple[int, int]]) -> Iterator[PackedBatch]:
    """What was masked as a whole, part by part."""
    position_ids = buffers.empty(out.input_ids.size, np.int64)
    samples.kernels.count_positions(samples.offsets, position_ids)
    types, marks = _own(samples.token_type_ids), _own(samples.special_tokens_mask)
    rates, weights = samples.rates_and_weights()
    compact = samples.compact(out)
    for first, end in parts:
        offsets = samples.offsets[first : end + 1]
        cells, rows = slice(int(offsets[0]), int(offsets[-1])), slice(first, end)
        yield PackedBatch(
            input_ids=out.input_ids[cells],
            labels=out.labels[cells],
            cu_seqlens=(offsets - offsets[0]).astype(np.int32),
            position_ids=position_ids[cells],
            max_seqlen=int((offsets[1:] - offsets[:-1]).max()),
            samples=(first, end),
            token_type_ids=_at(types, cells),
            special_tokens_mask=_at(marks, cells),
            decisions=_at(out.decisions, cells),
            num_masked=_at(out.num_masked, rows),
            compact=None if compact is None else _compact_at(compact, cells, rows),
            rates=_at(rates, rows),
            weights=_at(weights, rows),
        )


def _own(values: Array | None) -> Array | None:
    """A copy: what is handed out shares no memory with what came in."""
    return None if values is None else values.copy()


def _at(values: Array | None, where: slice) -> Array | None:
    return None if values is None else values[where]


def _compact_at(compact: CompactTargets, cells: slice, rows: slice) -> CompactTargets:
    first, end = np.searchsorted(compact.positions, (cells.start, cells.stop)).tolist()
    slots = slice(first, end)
    positions = compact.positions[slots] - cells.start
    return CompactTargets(positions, compact.ids[slots], compact.weights[slots], compact.counts[rows])
