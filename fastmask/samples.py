"""Samples: what `collate` and `pack` were given, side by side and validated, and what a backend makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastmask import buffers, host, validate
from fastmask.batch import CompactTargets
from fastmask.call import Arguments, Outputs
from fastmask.dispatch import choose, host_kernels
from fastmask.outputs import NOTHING, check_returns, checked_returns, fresh_dtypes, fresh_outputs
from fastmask.ragged import INTEGERS, WHOLE, WORDS, place, ragged
from fastmask.vocab import integer

if TYPE_CHECKING:
    from fastmask.masker import Masker

Array = npt.NDArray[Any]
IN_HOST_MEMORY = np.empty(0, np.int64)  # where samples lie, whatever holds them


@dataclass(slots=True)
class Said:
    """What a call was given beside the tokens, not yet looked at."""

    epoch: Any
    sample_ids: Any
    token_type_ids: Any
    special_tokens_mask: Any
    word_ids: Any
    rates: Any
    stratify: Any


def at_least_one(name: str, value: Any) -> int:
    """The value as an int >= 1."""
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


class Samples:
    """The samples of a call, cut to their first `most` tokens.

    Attributes:
        kernels: the module of the backend.
        offsets: (samples + 1,) int64, where each begins in `call.ids`.
        token_type_ids, special_tokens_mask: int64, side by side; None where not given.
        call: Call, packed.
    """

    def __init__(
        self, masker: Masker, rows: Any, said: Said, backend: str | None, most: int | None = None, joined: bool = True
    ) -> None:
        self._masker, self._most = masker, most
        self._backend = choose(IN_HOST_MEMORY, backend, "rows")
        self.kernels = host_kernels(self._backend)
        self._tokens = tokens = ragged("input_ids", rows, self.kernels, INTEGERS, most)
        self.offsets = tokens.offsets
        if self.offsets.size == 1:
            raise ValueError("rows must hold at least one sample, got none")
        self.token_type_ids = self._int64("token_type_ids", said.token_type_ids)
        self.special_tokens_mask = marks = self._int64("special_tokens_mask", said.special_tokens_mask)
        words = self._beside("word_ids", said.word_ids, WORDS)
        given = Arguments(said.epoch, said.sample_ids, None, marks, None, None, words, said.rates, 0, said.stratify)
        hashed = said.sample_ids is None and masker.plan.law == "diffusion"  # rates are drawn ahead, by content ids
        if tokens.addresses is None or joined or hashed:
            ids, addresses = tokens.values, None
        else:
            ids, addresses = np.empty(0, tokens.dtype), tokens.addresses
        self.call = validate.ragged_call(masker.plan, ids, self.offsets, addresses, given)
        self._names = NOTHING

    def _int64(self, name: str, rows: Any) -> Array | None:
        values = self._beside(name, rows, WHOLE)
        return None if values is None else np.ascontiguousarray(values, np.int64)

    def _beside(self, name: str, rows: Any, kinds: str) -> Array | None:
        """The values of an argument that goes along with the tokens; ValueError where a length differs from theirs."""
        if rows is None:
            return None
        given = ragged(name, rows, self.kernels, kinds, self._most)
        if given.offsets.size != self.offsets.size:
            raise ValueError(f"{name} holds {given.offsets.size - 1} samples, but rows hold {self.offsets.size - 1}")
        if (differ := given.offsets != self.offsets).any():
            sample = int(differ.argmax()) - 1
            got, want = (int(offsets[sample + 1] - offsets[sample]) for offsets in (given.offsets, self.offsets))
            raise ValueError(f"{name} of sample {sample} has {got} values, but the sample has {want} tokens")
        return given.values

    def ask(self, returns: Any, max_predictions: Any = None) -> None:
        """What is to be returned beside ids and labels. Errors are those of a call of a masker."""
        if returns == () and max_predictions is None:
            return
        self._names = checked_returns(returns)
        check_returns(self._masker.plan, self._names, max_predictions)
        if "rates" in self._names:
            self.call.thresholds = self.kernels.sample_rates(self._masker.plan, self.call)

    def _fresh(self, cells: int) -> Outputs:
        dtypes = fresh_dtypes(self._masker, self.call.ids, self._tokens.dtype)
        return fresh_outputs(cells, self.call.rows, *dtypes, self._names)

    def masked(self) -> Outputs:
        """The samples, masked, side by side. ValueError where an id is out of range."""
        cells, plan = int(self.offsets[-1]), self._masker.plan
        out = self._fresh(cells)
        if cells and not host.run(self.kernels.mask_batch, self._backend, cells, plan, self.call, out):
            raise self._id_error()
        return out

    def collated(self, width: int, left: bool) -> tuple[Outputs, Array]:
        """The samples, masked, in padded rows, and their attention mask. ValueError where an id is out of range."""
        cells = self.call.rows * width
        out, attention_mask = self._fresh(cells), buffers.empty(cells, np.int64)
        if cells and not self.kernels.collate_batch(self._masker.plan, self.call, width, left, out, attention_mask):
            raise self._id_error()
        return out, attention_mask

    def _id_error(self) -> ValueError:
        ids, size = self._tokens.values, self._masker.plan.size
        cell = int(((ids < 0) | (ids >= size)).argmax())
        return ValueError(f"input_ids must be in [0, {size}), got {ids[cell]} {place(self.offsets, cell)}")

    def compact(self, out: Outputs, most: int | None = None) -> CompactTargets | None:
        """The selected tokens of what was masked; None if not asked for."""
        if "compact" not in self._names:
            return None
        return host.compact_targets(self.kernels, self._masker.plan, out, most)

    def rates_and_weights(self) -> tuple[Array | None, Array | None]:
        """The rates that Diffusion drew and the weights of its loss, if they were asked for."""
        return host.rates_and_weights(self.call.thresholds) if "rates" in self._names else (None, None)
