"""A call on arrays in device memory, in the same steps as on the host.

What only the device can see is left to flags that `MaskedBatch.check` reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fastmask import validate
from fastmask.arrays import kind_of, refuse_out
from fastmask.batch import CompactTargets, MaskedBatch
from fastmask.call import Arguments, Call, Compact, Outputs
from fastmask.kernels import cuda as kernels
from fastmask.memory import dtype_of, memory_of, overlap, read_dtype, span_of
from fastmask.outputs import fresh_dtypes, parts_of, refuse_narrow_labels
from fastmask.validate_samples import (
    check_law,
    check_offset,
    checked_boundaries,
    checked_count_rates,
    checked_strata,
)

if TYPE_CHECKING:
    from fastmask.masker import Masker

# What is copied to the device; whole arrays are not moved unasked.
NUMBERS = (int, float, list, tuple, range, np.generic)

OF_SCALARS = ("epoch must be in [0, 2^24), but is not", "sample_ids must be in [0, 2^63), but the first is not")


class Flags:
    """What the kernels of a call may have complained of."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._flags: list[tuple[tuple[str, ...], Any]] = []

    def add(self, message: str, flag: Any, further: Sequence[str] = ()) -> None:
        """The message is that of the error where the flag is 1, a further one where it is 2 or more."""
        self._flags.append(((message, *further), flag))

    def check(self) -> None:
        """Waits for the kernels. ValueError where one of them has complained."""
        for messages, flag in self._flags:
            if (said := kernels.read_flag(flag, self._stream)) != 0:
                raise ValueError(messages[said - 1])


class DeviceCall:
    """A public call on device arrays, with the flags that its kernels may set."""

    def __init__(self, masker: Masker, input_ids: Any, stream: Any = None) -> None:
        self.masker, self.plan, self.input_ids = masker, masker.plan, input_ids
        self.shape = tuple(map(int, input_ids.shape))
        self.rows, self.row_length = validate.ids_shape(self.shape)
        self.dtype = dtype_of("input_ids", input_ids)
        self.memory = memory_of("input_ids", input_ids, stream)
        self.flags = Flags(self.memory.stream)

    def allocate(self, size: int, dtype: Any) -> Any:
        """Scratch for kernels, from the allocator of the caller's framework."""
        return self.memory.flat("scratch", self.memory.empty((int(size),), dtype))

    def call(self, input_ids: Any, given: Arguments) -> Call:
        """The Call; what the host can check is checked."""
        check_law(self.plan, given)
        boundaries = None if given.cu_seqlens is None else self._boundaries(given.cu_seqlens)
        call = Call(self._ids(input_ids), self.rows, self.row_length, epoch=0)
        call.boundaries = boundaries
        if kind_of(given.epoch) == "cuda":
            call.epoch_at = self._scalar("epoch", given.epoch)
        else:
            call.epoch = validate.checked_epoch(given.epoch)
        if given.sample_ids is not None:
            self._name_samples(call, given.sample_ids)
        if given.lengths is not None:
            call.lengths = self._lengths(given.lengths)
        if given.attention_mask is not None:
            call.starts, call.lengths = self._real_runs(given.attention_mask)
        if given.special_tokens_mask is not None:
            call.special_tokens_mask = self._marks(given.special_tokens_mask)
        if given.rates is not None and self.plan.law == "bernoulli":
            call.thresholds = self._thresholds(given.rates)
        elif given.rates is not None:
            call.rates = self._shares(given.rates)
        if given.word_ids is not None:
            call.word_ids = self._word_ids(given.word_ids)
        if given.stratify is not None:
            strata, call.step = checked_strata(given.stratify, self.rows)
            call.strata = self._copied("stratify", strata)
        call.offsets = self._offsets(given.position_offset, given.lengths)
        if call.offsets is not None:
            check_offset(self.plan)
        return call

    def _boundaries(self, x: Any) -> Any:
        """The boundaries of a packed batch; from here on its segments are the rows."""
        if kind_of(x) != "cuda":
            if not isinstance(x, NUMBERS):
                self.memory.require("cu_seqlens", x)
            values = checked_boundaries(x, self.shape)
            self.rows, self.row_length = values.size - 1, int(np.diff(values).max(initial=0))
            return self._copied("cu_seqlens", values)
        if len(self.shape) != 1:
            raise ValueError(f"cu_seqlens go with input_ids of 1 dimension, got shape {self.shape}")
        if len(x.shape) != 1 or x.shape[0] == 0:
            raise ValueError(f"cu_seqlens must be 1-D, from 0 to {self.shape[0]}, got shape {tuple(x.shape)}")
        if dtype_of("cu_seqlens", x) not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise TypeError(f"cu_seqlens must be int32 or int64 on a GPU, got {x.dtype}")
        self.rows = int(x.shape[0]) - 1  # the longest row is unknown: it may be as long as all
        values = self.memory.readable("cu_seqlens", x)
        checked, flag = kernels.checked_boundaries(values, self.shape[0], self.memory.stream, self.allocate)
        self.flags.add(f"cu_seqlens must begin with 0, not fall, and end with {self.shape[0]}, but do not", flag)
        return checked

    def _word_ids(self, x: Any) -> Any:
        self.memory.require("word_ids", x, self.shape)
        dtype = dtype_of("word_ids", x)
        if dtype.kind not in "iu" or dtype.itemsize < 4:
            raise TypeError(f"word_ids must be int32 or int64 on a GPU, got {dtype}")
        return self.memory.readable("word_ids", x)

    def _shares(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("rates", x, checked_count_rates, self.rows)
        self.memory.require("rates", x, (self.rows,), np.float64)
        rates = self.memory.readable("rates", x)
        shares, flag = kernels.checked_shares(rates, self.memory.stream, self.allocate)
        self.flags.add("rates must lie in [0, 1], but one does not", flag)
        return shares

    def _ids(self, x: Any) -> Any:
        read_as = read_dtype("input_ids", x)
        validate.refuse_narrow(self.dtype, self.plan.size)
        return self.memory.readable("input_ids", x).view(read_as)

    def _name_samples(self, call: Call, x: Any) -> None:
        """The sample ids of the call: the first one, of the host or in device memory, or one per row."""
        if kind_of(x) != "cuda":
            if validate.is_single(x):
                call.first_sample = validate.checked_first_sample(x, self.rows)
            else:
                call.sample_ids = self._upload("sample_ids", x, validate.checked_sample_ids, self.rows)
        elif len(x.shape) == 0:
            call.first_sample_at = self._scalar("sample_ids", x)
        elif dtype_of("sample_ids", x) == np.uint64:
            self.memory.require("sample_ids", x, (self.rows,))
            call.sample_ids = self.memory.readable("sample_ids", x)
        else:
            call.sample_ids = self._integers("sample_ids", x, (1 << 63) - 1).view(np.dtype(np.uint64))

    def _scalar(self, name: str, x: Any) -> Any:
        """An int64 that kernels read when they run, (1,)."""
        self.memory.require(name, x, () if len(x.shape) == 0 else (1,), np.int64)
        return self.memory.readable(name, x)

    def _lengths(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("lengths", x, validate.checked_lengths, self.rows, self.row_length)
        return self._integers("lengths", x, self.row_length)

    def _offsets(self, x: Any, lengths: Any) -> Any:
        """Offsets per row, None for 0; where the host does not know the lengths, each row counts as full."""
        if kind_of(x) == "cuda":
            limit = validate.MAX_POSITION - self.row_length
            return self._integers("position_offset", x, limit).view(np.dtype(np.uint64))
        known = lengths is not None and kind_of(lengths) != "cuda"
        room = lengths if known else self.row_length
        return self._upload("position_offset", x, validate.checked_offsets, self.rows, room)

    def _thresholds(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("rates", x, validate.checked_rates, self.rows)
        self.memory.require("rates", x, (self.rows,), np.float64)
        rates = self.memory.readable("rates", x)
        thresholds, flag = kernels.rate_thresholds(rates, self.memory.stream, self.allocate)
        self.flags.add("rates must lie in [0, 1] and not round to 0, but one does not", flag)
        return thresholds

    def _real_runs(self, x: Any) -> tuple[Any, Any]:
        self.memory.require("attention_mask", x, self.shape)
        if dtype_of("attention_mask", x).kind not in "biuf":
            raise TypeError(f"attention_mask must be bool, integers or floats of 0 and 1, got {x.dtype}")
        mask = self.memory.readable("attention_mask", x)
        starts, lengths, flag = kernels.real_runs(mask, self.rows, self.row_length, self.memory.stream, self.allocate)
        self.flags.add("attention_mask must be one run of ones per row and 0 elsewhere, but is not", flag)
        return starts, lengths

    def _marks(self, x: Any) -> Any:
        self.memory.require("special_tokens_mask", x, self.shape)
        dtype = dtype_of("special_tokens_mask", x)
        if dtype.itemsize != 1:
            raise TypeError(f"special_tokens_mask must be bool, uint8 or int8 on a GPU, got {dtype}")
        return self.memory.readable("special_tokens_mask", x).view(np.dtype(np.uint8))

    def _integers(self, name: str, x: Any, limit: int) -> Any:
        """int64 per row in [0, limit]; the flag is set, and the value clamped, where it is not."""
        self.memory.require(name, x, (self.rows,), np.int64)
        values = self.memory.readable(name, x)
        checked, flag = kernels.checked_integers(values, limit, self.memory.stream, self.allocate)
        self.flags.add(f"{name} must be in [0, {limit}], but one is not", flag)
        return checked

    def _upload(self, name: str, x: Any, check: Callable[..., Any], *arguments: Any) -> Any:
        """Numbers of the host, checked there and copied over; None for what needs no array."""
        if not isinstance(x, NUMBERS):
            self.memory.require(name, x)
        values = check(x, *arguments)
        return None if values is None else self._copied(name, values)

    def _copied(self, name: str, values: Any) -> Any:
        """A copy on the device. RuntimeError while a graph is captured: a replay would read memory that is gone."""
        if self.memory.is_capturing():
            raise RuntimeError(f"{name} must be in device memory while a graph is captured, not numbers of the host")
        return self.memory.upload(values)

    def outputs(self, out: Any, names: frozenset[str]) -> Outputs:
        """The arrays that the caller gets, of the caller's framework: `out` where given, else new ones."""
        if out is None:
            dtypes = fresh_dtypes(self.masker, self.input_ids, self.dtype)
            ids, labels = (self.memory.empty(self.shape, dtype) for dtype in dtypes)
        else:
            refuse_out(self.input_ids)
            ids, labels = self._checked(out)
        compact = "compact" in names  # made from both
        decisions = self.memory.empty(self.shape, np.uint8) if compact or "decisions" in names else None
        num_masked = self.memory.empty((self.rows,), np.int64) if compact or "num_masked" in names else None
        return Outputs(ids, labels, decisions, num_masked)

    def _checked(self, out: Any) -> tuple[Any, Any]:
        ids, labels = parts_of(out)
        wanted = self.masker.id_dtype
        for name, part in (("out's input_ids", ids), ("out's labels", labels)):
            self.memory.require(name, part, self.shape)
            if dtype_of(name, part) not in validate.OUT_DTYPES:
                raise TypeError(f"{name} must be int32 or int64, got {dtype_of(name, part)}")
        if wanted is not None and (dtype := dtype_of("out", ids)) != wanted:
            raise TypeError(f"out's input_ids is {dtype}, but id_dtype is {wanted}")
        refuse_narrow_labels(dtype_of("out", labels), self.masker.ignore_index)
        return ids, labels

    def target(self, call: Call, done: Outputs) -> Outputs:
        """The outputs as kernels write them. ValueError where one is read-only or overlaps another."""
        flat = Outputs(*(self._writable(field.name, getattr(done, field.name)) for field in fields(Outputs)))
        for name, array in (("out's input_ids", flat.input_ids), ("input_ids", call.ids)):
            if overlap(flat.labels, array):
                raise ValueError(f"out's labels and {name} share memory")
        same = span_of(flat.input_ids) == span_of(call.ids) and flat.input_ids.dtype == self.dtype
        if overlap(flat.input_ids, call.ids) and not same:
            raise ValueError("out's input_ids and input_ids overlap without being the same array")
        return flat

    def compact(self, call: Call, target: Outputs, done: Outputs, width: int | None) -> CompactTargets:
        """The selected tokens alone, (rows, width); flat with a slot for each token, since their number is unknown."""
        shape = (math.prod(self.shape),) if width is None else (self.rows, width)
        positions, weights = self.memory.empty(shape, np.int64), self.memory.empty(shape, np.float32)
        ids = self.memory.empty(shape, dtype_of("labels", done.labels))
        one, other, third = (self.memory.flat("compact", x) for x in (positions, ids, weights))
        listed = Compact(one, other, third, width)
        flag = kernels.compact(self.plan, call, target, listed, self.memory.stream, self.allocate)
        self.flags.add(f"max_predictions = {width} is too small: in a row more tokens are selected", flag)
        return CompactTargets(positions, ids, weights, done.num_masked)

    def _writable(self, name: str, x: Any) -> Any:
        array = None if x is None else self.memory.flat(f"out's {name}", x)
        if getattr(array, "read_only", False):
            raise ValueError(f"out's {name} is read-only")
        return array


def mask(
    masker: Masker,
    input_ids: Any,
    arguments: Arguments,
    out: Any,
    names: frozenset[str],
    max_predictions: int | None = None,
    stream: Any = None,
) -> MaskedBatch:
    """The masked batch, queued on the given stream or the framework's current one; nothing waits for the device."""
    given = DeviceCall(masker, input_ids, stream)
    call = given.call(input_ids, arguments)
    done = given.outputs(out, names)
    target = given.target(call, done)
    queued = given.memory.stream
    batch = MaskedBatch(
        done.input_ids, done.labels, done.decisions, done.num_masked, backend="cuda", _flags=given.flags
    )
    if "rates" in names:
        call.thresholds = kernels.sample_rates(given.plan, call, queued, given.allocate)
        batch.rates, batch.weights = (given.memory.empty((given.rows,), np.float32) for _ in range(2))
        rates, weights = (given.memory.flat("rates", x) for x in (batch.rates, batch.weights))
        kernels.rates_and_weights(call.thresholds, rates, weights, queued)
    flag = kernels.mask_batch(given.plan, call, target, queued, given.allocate)
    given.flags.add(f"input_ids must be in [0, {given.plan.size}), but an id is not", flag, OF_SCALARS)
    if "compact" in names:
        batch.compact = given.compact(call, target, done, max_predictions)
    return batch.mapped(given.memory.returned)


def apply_supplied(
    arrays: dict[str, Any], mask_token_id: int, borders: tuple[float, float], check: bool
) -> dict[str, Any]:
    """The decisions carried out on the device.

    With `check` it waits for the device, and raises ValueError where a probability is not in [0, 1].
    """
    memory = memory_of("token_ids", arrays["token_ids"])
    for name, x in arrays.items():
        memory.require(name, x)
    validate.check_supplied({name: _Typed(name, x) for name, x in arrays.items()})
    ids, chosen, probs, tokens = (memory.readable(name, x) for name, x in arrays.items())
    shape = tuple(map(int, arrays["token_ids"].shape))
    done = {name: memory.empty(shape, np.int64) for name in ("masked_ids", "labels")}
    masked_ids, labels = (memory.flat(name, x) for name, x in done.items())
    flag = kernels.apply_supplied(ids, chosen, probs, tokens, mask_token_id, borders, masked_ids, labels, memory.stream)
    if check:
        flags = Flags(memory.stream)
        flags.add("replace_probs must lie in [0, 1], but one does not", flag)
        flags.check()
    return {name: memory.returned(x) for name, x in done.items()}


class _Typed:
    """The shape and the NumPy dtype of an array of any framework."""

    def __init__(self, name: str, x: Any) -> None:
        self.shape, self.dtype = tuple(x.shape), dtype_of(name, x)
