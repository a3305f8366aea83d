"""Masker: an objective that is called on batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import host, validate
from fastmask.batch import MaskedBatch
from fastmask.call import Arguments
from fastmask.dispatch import choose, explain_choice
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.outputs import NOTHING, check_returns, checked_returns
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.validate_numbers import fits
from fastmask.vocab import Vocab, integer

if TYPE_CHECKING:
    from fastmask.explain import Explanation

MASK_ALONE = Replace(1, 0)
PARTS: dict[str, tuple[type, ...]] = {
    "vocab": (Vocab,),
    "select": (Bernoulli, ExactCount, Spans, Diffusion),
    "replace": (Replace, type(None)),
}


@dataclass(frozen=True)
class Masker:
    """The fate of a token is a pure function of (seed, epoch, sample id, position) and of this objective.

    Batch, row, padding, worker, rank, threads and backend do not enter. A masker is immutable, comparable, hashable and
    picklable; calls are thread-safe and leave every global state alone.

    Args:
        vocab: the ids that exist and the special ones.
        select: the law by which candidates become targets.
        replace: what a target becomes; None: Replace(), and Replace(1, 0) for Diffusion, which takes no other.
        seed: 0 <= seed < 2^64.
        ignore_index: the label of what is not a target.
        id_dtype: int32 or int64 for the corrupted ids; None: the input's dtype where it is one of these, else int64.
        label_dtype: int64 or int32.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a seed out of range, a dtype that is not offered, parts that do not fit each other.
        OverflowError: a dtype that cannot hold the vocabulary or ignore_index.

    >>> vocab = Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> masker = Masker(vocab, Bernoulli(0.3), seed=7)
    >>> batch = masker(np.array([[2, 7, 8, 9, 10, 11, 3, 0]]), epoch=0, sample_ids=[5])
    >>> batch.input_ids.tolist(), batch.labels.tolist()
    ([[2, 4, 4, 9, 10, 4, 3, 0]], [[-100, 7, 8, -100, -100, 11, -100, -100]])
    """

    vocab: Vocab
    select: Law
    replace: Replace = None  # type: ignore[assignment]  # set when the masker is made
    seed: int = 0
    ignore_index: int = -100
    id_dtype: Any = None
    label_dtype: Any = np.int64
    _plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, kinds in PARTS.items():
            if not isinstance(getattr(self, name), kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"{name} must be a {names}, got {getattr(self, name)!r}")
        replace = self.replace or (MASK_ALONE if isinstance(self.select, Diffusion) else Replace())
        if isinstance(self.select, Diffusion) and replace != MASK_ALONE:
            raise ValueError(f"replace must be Replace(1, 0) for Diffusion, got {self.replace!r}")
        seed = integer("seed", self.seed)
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in [0, 2^64), got {seed}")
        ignore_index = integer("ignore_index", self.ignore_index)
        id_dtype = None if self.id_dtype is None else _offered("id_dtype", self.id_dtype, self.vocab.size - 1)
        label_dtype = _offered("label_dtype", self.label_dtype, ignore_index)
        for name, value in (
            ("replace", replace),
            ("seed", seed),
            ("ignore_index", ignore_index),
            ("id_dtype", id_dtype),
            ("label_dtype", label_dtype),
            ("_plan", make_plan(self.vocab, self.select, replace, seed, ignore_index)),
        ):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:  # the plan is made anew, not pickled
        return Masker, (
            self.vocab,
            self.select,
            self.replace,
            self.seed,
            self.ignore_index,
            self.id_dtype,
            self.label_dtype,
        )

    @property
    def plan(self) -> Plan:
        """The integers that the kernels read."""
        return self._plan

    def __call__(
        self,
        input_ids: Any,
        *,
        epoch: int,
        sample_ids: Any = None,
        attention_mask: Any = None,
        special_tokens_mask: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        word_ids: Any = None,
        rates: Any = None,
        stratify: Any = None,
        position_offset: Any = 0,
        out: Any = None,
        backend: str | None = None,
        stream: Any = None,
        returns: str | Iterable[str] = (),
        max_predictions: int | None = None,
    ) -> MaskedBatch:
        """The batch with targets replaced, and the labels: arrays of the kind, shape and memory that came in.

        Args:
            input_ids: (rows, columns), or (columns,) for one sample or, with cu_seqlens, several; int64, int32, uint16
                (and int16, uint32) in [0, size), in any layout, read-only or not. Never written unless passed as `out`.
            epoch: 0 <= epoch < 2^24. Required, since a forgotten epoch would freeze the masks. For arrays of a GPU it
                may be one int64 in device memory, which kernels read when they run: a CUDA graph that is replayed goes
                on to whatever epoch stands there.
            sample_ids: one integer in [0, 2^64) per row, or an int, the id of the first row, from which the others
                count up. None: computed from the row's real tokens; equal samples get equal masks within an epoch.
                An array of no dimensions is the id of the first row; in device memory it is read like the epoch.
            attention_mask: the shape of input_ids, 1 for real tokens, one run of ones per row (bool, integers, or
                floats of 0 and 1). Reading it costs memory traffic; `lengths` does not.
            lengths: one integer in [0, columns] per row: real tokens, from column 0. With neither of them a row is real
                less its leading and trailing runs of the pad id.
            special_tokens_mask: the shape of input_ids; where it is not 0 the token is never touched.
            cu_seqlens: for packed 1-D input_ids: sample i is the tokens cu_seqlens[i] .. cu_seqlens[i + 1] - 1. What is
                said of rows here holds for these segments.
            word_ids: the shape of input_ids, integers: neighbouring candidates of equal value are one word (None in
                lists reads as -1). Laws over words need it, or a vocabulary with is_continuation.
            rates: one p per row, in place of the law's; not for Diffusion.
            stratify: (index, total) or (index, total, step) for Diffusion: the place of each row (or of the first one,
                from which the others count up) in a global batch of so many samples, whose rates are spread evenly.
            position_offset: an integer >= 0, or one per row, added to positions: a document cut into chunks keeps its
                masks, given one sample id for all of them, under Bernoulli over tokens and Diffusion.
            out: (input_ids, labels) to write to, int32 or int64 each; the ids may be the input itself. Where an id is
                out of range, what it holds after the error is unspecified.
            backend: "numpy" or "cpu" for arrays in host memory, "cuda" for those of a GPU; None chooses.
            stream: where the kernels are queued, a stream of torch, CuPy or Numba, whatever has `__cuda_stream__`, or
                a handle; for arrays of a GPU. None: the current stream of torch or CuPy on the array's device, and
                for other arrays the one that they name.
            returns: any of "decisions", "num_masked", "compact", and for Diffusion "rates". With "compact" come the
                other two arrays as well.
            max_predictions: the slots per row of compact targets; None: flat. That a row has more selected tokens is
                found after masking: what `out` holds is then unspecified, as for ids out of range.

        Raises:
            TypeError: an argument of the wrong type or dtype, a backend that cannot reach the array.
            ValueError: a value out of range or a shape that does not fit; the message names argument, value and place.
            OverflowError: 16-bit ids with a vocabulary that 16 bits cannot hold.
        """
        chosen = choose(input_ids, backend)
        names = NOTHING if returns == () else checked_returns(returns)
        if max_predictions is not None or "rates" in names:
            check_returns(self.plan, names, max_predictions)
        arguments = Arguments(
            epoch,
            sample_ids,
            attention_mask,
            special_tokens_mask,
            lengths,
            cu_seqlens,
            word_ids,
            rates,
            position_offset,
            stratify,
        )
        if chosen == "cuda":
            from fastmask import device

            return device.mask(self, input_ids, arguments, out, names, max_predictions, stream)
        if stream is not None:
            raise TypeError("stream goes with arrays in device memory")
        return host.mask(self, chosen, input_ids, arguments, out, names, max_predictions)

    def explain(
        self,
        input_ids: Any,
        row: int,
        column: int,
        *,
        epoch: int,
        sample_ids: Any = None,
        attention_mask: Any = None,
        special_tokens_mask: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
        word_ids: Any = None,
        rates: Any = None,
        stratify: Any = None,
        position_offset: Any = 0,
    ) -> Explanation:
        """Why the token at a row and column has its fate: its draws, thresholds, unit, rank, and the reason in words.

        Arguments are those of a call, in host memory. Of packed ids, `row` is the segment and `column` the place in the
        array.

        Raises:
            IndexError: a place outside the batch, or outside the segment.
            TypeError, ValueError: as a call.

        >>> vocab = Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
        >>> masker = Masker(vocab, Bernoulli(0.3), seed=7)
        >>> print(masker.explain([[2, 7, 8, 9, 10, 11, 3, 0]], 0, 6, epoch=0))
        a special id: never touched
        """
        from fastmask.explain import explain  # the reference, which a call need not load

        arguments = Arguments(
            epoch,
            sample_ids,
            attention_mask,
            special_tokens_mask,
            lengths,
            cu_seqlens,
            word_ids,
            rates,
            position_offset,
            stratify,
        )
        return explain(self, input_ids, row, column, arguments)

    def explain_backend(self, input_ids: Any, backend: str | None = None) -> str:
        """Which backend a call on this array runs on, serial or parallel, and why.

        >>> Masker(Vocab(30, 4), Bernoulli(0.15)).explain_backend(np.zeros((1, 8), int))
        'cpu: input_ids is a numpy.ndarray; serial: fewer than 524288 cells'
        """
        return explain_choice(input_ids, backend, int(np.prod(np.shape(input_ids))))


def _offered(name: str, dtype: npt.DTypeLike, extreme: int) -> np.dtype[Any]:
    """A dtype as int32 or int64, whichever it names."""
    try:
        offered = np.dtype("none" if dtype is None else dtype)
    except TypeError:
        raise TypeError(f"{name} must be int32 or int64, got {dtype!r}") from None
    if offered.kind in "iu" and not fits(extreme, offered):
        raise OverflowError(f"{name} = {offered} cannot hold {extreme}")
    if offered not in validate.OUT_DTYPES:
        raise ValueError(f"{name} must be int32 or int64, got {offered}")
    return offered
