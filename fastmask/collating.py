"""collate and pack: ragged samples, masked and laid out as padded rows, or side by side up to a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers, host, validate
from fastmask.batch import CompactTargets
from fastmask.call import Arguments, Call, Outputs
from fastmask.dispatch import choose, host_kernels
from fastmask.outputs import check_returns, checked_returns, fresh_outputs
from fastmask.ragged import WHOLE, WORDS, Ragged, place, ragged
from fastmask.vocab import integer

if TYPE_CHECKING:
    from fastmask.masker import Masker

Array = npt.NDArray[Any]
SIDES = ("right", "left")
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
        raise ValueError("padding needs a vocabulary with pad_token_id: this one has none")
    if padding_side not in SIDES:
        raise ValueError(f"padding_side must be 'right' or 'left', got {padding_side!r}")
    most = None if max_length is None else _at_least_one("max_length", max_length)
    multiple = 1 if pad_to_multiple_of is None else _at_least_one("pad_to_multiple_of", pad_to_multiple_of)
    given = Arguments(epoch, sample_ids, None, special_tokens_mask, None, None, word_ids, rates, 0, stratify)
    samples = _Samples(masker, rows, token_type_ids, given, backend, most)
    names = samples.checked(returns, max_predictions)
    width, left = -(-samples.call.row_length // multiple) * multiple, padding_side == "left"
    done = samples.collated(names, width, left)
    padded = replace(samples.call, boundaries=None, row_length=width)
    kernels, shape, offsets = samples.kernels, (padded.rows, width), samples.offsets

    def laid_out(values: Array | None, fill: int) -> Array | None:
        if values is None:
            return None
        out = buffers.empty(padded.rows * width, np.int64)
        kernels.pad_rows(values, offsets, width, left, fill, out)
        return out.reshape(shape)

    attention_mask = buffers.empty(padded.rows * width, np.int64)
    kernels.mark_real(offsets, width, left, attention_mask)
    batch = CollatedBatch(
        done.input_ids.reshape(shape),
        done.labels.reshape(shape),
        attention_mask.reshape(shape),
        np.diff(offsets),
        laid_out(samples.token_type_ids, PAD_TYPE),
        laid_out(samples.special_tokens_mask, PAD_MARK),
        None if done.decisions is None else done.decisions.reshape(shape),
        done.num_masked,
    )
    if "compact" in names:
        batch.compact = host.compact_targets(kernels, masker.plan, padded, done, max_predictions)
    if "rates" in names:
        batch.rates, batch.weights = host.rates_and_weights(samples.call.thresholds)
    return batch


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
    budget = _at_least_one("max_tokens", max_tokens)
    if budget >= 1 << 31:
        raise ValueError(f"max_tokens must be in [1, 2^31), got {budget}")
    given = Arguments(epoch, sample_ids, None, special_tokens_mask, None, None, word_ids, rates, 0, stratify)
    samples = _Samples(masker, rows, token_type_ids, given, backend)
    names = samples.checked(returns)
    parts = list(_greedy(samples.offsets, budget))
    done = samples.masked(names)
    positions = buffers.empty(done.input_ids.size, np.int64)
    samples.kernels.count_positions(samples.offsets, positions)
    targets = ends = drawn = weights = None
    if "compact" in names:
        targets = host.compact_targets(samples.kernels, masker.plan, samples.call, done, None)
        ends = np.cumsum([0, *targets.counts])
    if "rates" in names:
        drawn, weights = host.rates_and_weights(samples.call.thresholds)
    packed = []
    for first, end in parts:
        bounds = samples.offsets[first : end + 1]
        cells, inside = slice(int(bounds[0]), int(bounds[-1])), slice(first, end)
        batch = PackedBatch(
            done.input_ids[cells],
            done.labels[cells],
            (bounds - bounds[0]).astype(np.int32),
            positions[cells],
            int(np.diff(bounds).max()),
            (first, end),
            _part(samples.token_type_ids, cells),
            _part(samples.special_tokens_mask, cells),
            _part(done.decisions, cells),
            _part(done.num_masked, inside),
            None,
            _part(drawn, inside),
            _part(weights, inside),
        )
        if targets is not None and ends is not None:
            slots = slice(int(ends[first]), int(ends[end]))
            batch.compact = CompactTargets(
                targets.positions[slots] - cells.start,
                targets.ids[slots],
                targets.weights[slots],
                targets.counts[inside],
            )
        packed.append(batch)
    return packed


def _part(values: Array | None, where: slice) -> Array | None:
    return None if values is None else values[where]


def _at_least_one(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


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


class _Samples:
    """The samples of a call, side by side and validated, and what a backend makes of them."""

    def __init__(
        self,
        masker: Masker,
        rows: Any,
        token_type_ids: Any,
        given: Arguments,
        backend: str | None,
        most: int | None = None,
    ) -> None:
        tokens = ragged("input_ids", rows, most=most)
        if tokens.offsets.size == 1:
            raise ValueError("rows must hold at least one sample, got none")
        ids = validate.checked_ids(tokens.values)
        self.masker, self.ids, self.offsets = masker, ids, tokens.offsets
        self.backend = choose(ids, backend, "rows")
        self.kernels = host_kernels(self.backend)
        self.token_type_ids = self._beside("token_type_ids", token_type_ids, WHOLE, most)
        self.special_tokens_mask = self._beside("special_tokens_mask", given.special_tokens_mask, WHOLE, most)
        given.special_tokens_mask = self.special_tokens_mask
        given.word_ids = self._beside("word_ids", given.word_ids, WORDS, most)
        given.cu_seqlens = tokens.offsets
        self.call: Call = validate.host_call(masker.plan, ids, self.kernels.real_runs, given)

    def _beside(self, name: str, rows: Any, kinds: str, most: int | None) -> Array | None:
        """The values of an argument that goes along with the tokens. ValueError where a length differs."""
        if rows is None:
            return None
        values = ragged(name, rows, kinds, most)
        self._check_lengths(name, values)
        if kinds is WORDS:
            return values.values
        return np.ascontiguousarray(values.values, np.int64)

    def _check_lengths(self, name: str, values: Ragged) -> None:
        if np.array_equal(values.offsets, self.offsets):
            return
        got, want = values.lengths, np.diff(self.offsets)
        if got.size != want.size:
            raise ValueError(f"{name} holds {got.size} samples, but input_ids holds {want.size}")
        sample = int((got != want).argmax())
        raise ValueError(f"{name} of sample {sample} has length {got[sample]}, but input_ids has {want[sample]}")

    def checked(self, returns: Any, max_predictions: Any = None) -> frozenset[str]:
        """The names of further outputs; the rates are drawn where they are asked for."""
        names = checked_returns(returns)
        check_returns(self.masker.plan, names, max_predictions)
        if "rates" in names:
            self.call.thresholds = self.kernels.sample_rates(self.masker.plan, self.call)
        return names

    def _outputs(self, cells: int, names: frozenset[str]) -> Outputs:
        ids = host.output_dtype(self.masker, self.ids.dtype)
        return fresh_outputs(cells, self.call.rows, ids, self.masker.label_dtype, names)

    def collated(self, names: frozenset[str], width: int, left: bool) -> Outputs:
        """The samples masked, in padded rows. ValueError where an id is out of range."""
        plan, out = self.masker.plan, self._outputs(self.call.rows * width, names)
        if width and not self.kernels.collate_batch(plan, self.call, width, left, out):
            raise self._id_error()
        return out

    def masked(self, names: frozenset[str]) -> Outputs:
        """The samples masked, side by side. ValueError where an id is out of range."""
        plan, cells = self.masker.plan, self.ids.size
        out = self._outputs(cells, names)
        if cells and not host.run(self.kernels.mask_batch, self.backend, cells, plan, self.call, out):
            raise self._id_error()
        return out

    def _id_error(self) -> ValueError:
        cell = int(((self.ids < 0) | (self.ids >= self.masker.plan.size)).argmax())
        where = place(self.offsets, cell)
        return ValueError(f"input_ids must be in [0, {self.masker.plan.size}), got {self.ids[cell]} {where}")
