"""A call on arrays in device memory: the same steps as on the host, with what only the device can see left to flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastmask import validate
from fastmask.arrays import describe, kind_of
from fastmask.batch import MaskedBatch
from fastmask.call import Call, Outputs
from fastmask.kernels import cuda as kernels
from fastmask.kernels import cuda_launch as launch
from fastmask.memory import NumbaMemory, dtype_of, memory_of, read_dtype
from fastmask.outputs import OUT_DTYPES, parts_of
from fastmask.supplied import check_arrays

if TYPE_CHECKING:
    from fastmask.masker import Masker


class DeviceCall:
    """A public call on device arrays, with the flags that its kernels may set."""

    def __init__(self, masker: Masker, input_ids: Any) -> None:
        self.plan = masker.plan
        self.memory = memory_of(input_ids)
        self.shape = tuple(input_ids.shape)
        self.rows, self.row_length = validate.ids_shape(self.shape)
        self.flags: list[tuple[str, Any]] = []

    def allocate(self, size: int, dtype: Any) -> Any:
        """Scratch for kernels, from the allocator of the caller's framework."""
        return self.memory.kernel_array("scratch", self.memory.empty((int(size),), dtype))

    def call(self, input_ids: Any, **given: Any) -> Call:
        """The Call; what the host can check is checked."""
        dtype = read_dtype("input_ids", input_ids)
        validate.refuse_narrow(dtype_of(input_ids), self.plan.size)
        ids = self.memory.kernel_array("input_ids", input_ids).view(dtype)
        call = Call(ids, self.rows, self.row_length, validate.checked_epoch(given["epoch"]))
        if given["lengths"] is not None and given["attention_mask"] is not None:
            raise ValueError("lengths and attention_mask both say what is real: give one of them")
        if given["sample_ids"] is not None:
            call.sample_ids = self._sample_ids(given["sample_ids"])
        if given["lengths"] is not None:
            call.lengths = self._lengths(given["lengths"])
        if given["attention_mask"] is not None:
            call.starts, call.lengths = self._real_runs(given["attention_mask"])
        if given["special_tokens_mask"] is not None:
            call.special_tokens_mask = self._marks(given["special_tokens_mask"])
        if given["rates"] is not None:
            call.thresholds = self._thresholds(given["rates"])
        call.offsets = self._offsets(given["position_offset"])
        return call

    def _sample_ids(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("sample_ids", x, validate.checked_sample_ids, self.rows)
        if dtype_of(x) == np.uint64:
            self._require("sample_ids", x, (self.rows,))
            return self.memory.kernel_array("sample_ids", x)
        return self._integers("sample_ids", x, (1 << 63) - 1).view(np.dtype(np.uint64))

    def _lengths(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("lengths", x, validate.checked_lengths, self.rows, self.row_length)
        return self._integers("lengths", x, self.row_length)

    def _offsets(self, x: Any) -> Any:
        if kind_of(x) == "cuda":
            limit = validate.MAX_POSITION - self.row_length
            return self._integers("position_offset", x, limit).view(np.dtype(np.uint64))
        if type(x) is int and x == 0:
            return None
        return self._upload("position_offset", x, validate.checked_offsets, self.rows, self.row_length)

    def _thresholds(self, x: Any) -> Any:
        if kind_of(x) != "cuda":
            return self._upload("rates", x, validate.checked_rates, self.rows)
        self._require("rates", x, (self.rows,), np.float64)
        rates = self.memory.kernel_array("rates", x)
        thresholds, flag = kernels.rate_thresholds(rates, self.memory.stream, self.allocate)
        self.flags.append(("rates must lie in [0, 1] and not round to 0, but one does not", flag))
        return thresholds

    def _real_runs(self, x: Any) -> tuple[Any, Any]:
        self._require("attention_mask", x, self.shape)
        mask = self.memory.kernel_array("attention_mask", x)
        starts, lengths, flag = kernels.real_runs(
            mask, self.rows, self.row_length, self.memory.stream, self.allocate
        )
        self.flags.append(("attention_mask must be one run of ones per row and 0 elsewhere, but is not", flag))
        return starts, lengths

    def _marks(self, x: Any) -> Any:
        self._require("special_tokens_mask", x, self.shape)
        if dtype_of(x).itemsize != 1:
            raise TypeError(f"special_tokens_mask must be bool, uint8 or int8 on a GPU, got {dtype_of(x)}")
        return self.memory.kernel_array("special_tokens_mask", x).view(np.dtype(np.uint8))

    def _integers(self, name: str, x: Any, limit: int) -> Any:
        """int64 per row in [0, limit]; the flag is set, and the value clamped, where it is not."""
        self._require(name, x, (self.rows,), np.int64)
        values = self.memory.kernel_array(name, x)
        checked, flag = kernels.checked_integers(values, limit, self.memory.stream, self.allocate)
        self.flags.append((f"{name} must be in [0, {limit}], but one is not", flag))
        return checked

    def _upload(self, name: str, x: Any, check: Any, *arguments: Any) -> Any:
        """A list or a number, checked on the host and copied over; arrays are not moved unasked."""
        if not isinstance(x, (int, float, list, tuple, np.integer)):
            raise TypeError(f"{name} is a {describe(x)} in host memory while input_ids is in device memory")
        values = check(x, *arguments)
        return None if values is None else self.memory.upload(values)

    def _require(self, name: str, x: Any, shape: tuple[int, ...], dtype: Any = None) -> None:
        if kind_of(x) != "cuda":
            raise TypeError(f"{name} is a {describe(x)} in host memory while input_ids is in device memory")
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}")
        if dtype is not None and dtype_of(x) != dtype:
            raise TypeError(f"{name} must be {np.dtype(dtype)} on a GPU, got {dtype_of(x)}")

    def outputs(self, masker: Masker, input_ids: Any, out: Any, names: frozenset[str]) -> list[Any]:
        """input_ids, labels, decisions and num_masked in the caller's framework; None for what is not asked for."""
        if out is None:
            dtype = dtype_of(input_ids)
            id_dtype = masker.id_dtype or (dtype if dtype in OUT_DTYPES else OUT_DTYPES[1])
            ids = self.memory.empty(self.shape, id_dtype)
            labels = self.memory.empty(self.shape, masker.label_dtype)
        else:
            ids, labels = parts_of(out)
            for name, part in (("out's input_ids", ids), ("out's labels", labels)):
                self._require(name, part, self.shape)
                if dtype_of(part) not in OUT_DTYPES:
                    raise TypeError(f"{name} must be int32 or int64, got {dtype_of(part)}")
        decisions = self.memory.empty(self.shape, np.uint8) if "decisions" in names else None
        num_masked = self.memory.empty((self.rows,), np.int64) if "num_masked" in names else None
        return [ids, labels, decisions, num_masked]


def mask(
    masker: Masker, input_ids: Any, arguments: dict[str, Any], out: Any, names: frozenset[str]
) -> MaskedBatch:
    """The masked batch, queued on the caller's stream; nothing waits for the device."""
    this = DeviceCall(masker, input_ids)
    call = this.call(input_ids, **arguments)
    arrays = this.outputs(masker, input_ids, out, names)
    memory = this.memory
    target = Outputs(*(None if x is None else memory.kernel_array("out", x) for x in arrays))
    flag = kernels.mask_batch(this.plan, call, target, memory.stream, this.allocate)
    this.flags.append((f"input_ids must be in [0, {this.plan.size}), but an id is not", flag))
    return MaskedBatch(*arrays, "cuda", Flags(this.flags, memory.stream))


class Flags:
    """What the kernels of a call may have complained of."""

    def __init__(self, flags: list[tuple[str, Any]], stream: int) -> None:
        self._flags, self._stream = flags, stream

    def check(self) -> None:
        """Waits for the kernels. ValueError where one of them has complained."""
        for message, flag in self._flags:
            if launch.is_set(flag, self._stream):
                raise ValueError(message)


def apply_supplied(
    arrays: dict[str, Any], mask_token_id: int, borders: tuple[float, float], check: bool
) -> dict[str, Any]:
    """The decisions carried out on the device; with check, waits and raises for a probability outside [0, 1]."""
    for name, x in arrays.items():
        if kind_of(x) != "cuda":
            raise TypeError(f"{name} is a {describe(x)} in host memory while token_ids is in device memory")
    check_arrays({name: _Typed(x) for name, x in arrays.items()})
    memory = memory_of(arrays["token_ids"])
    shape = tuple(arrays["token_ids"].shape)
    done = {name: memory.empty(shape, np.int64) for name in ("masked_ids", "labels")}
    flat = [memory.kernel_array(name, x) for name, x in arrays.items()]
    targets = [memory.kernel_array(name, x) for name, x in done.items()]
    flag = kernels.apply_supplied(*flat, mask_token_id, borders, *targets, stream=memory.stream)
    if check:
        Flags([("replace_probs must lie in [0, 1], but one does not", flag)], memory.stream).check()
    return done


class _Typed:
    """The shape and the NumPy dtype of an array of any framework."""

    def __init__(self, x: Any) -> None:
        self.shape, self.dtype = tuple(x.shape), dtype_of(x)
