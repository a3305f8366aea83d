"""The CPU backend: each operation from one source; those that gain from threads are compiled twice, as twins."""

import functools

import numpy as np
from numba import from_dtype, prange, types

from fastmask.kernels import layout, philox
from fastmask.kernels.cpu_batch import mask_batch_kernel, mask_rows_kernel
from fastmask.kernels.cpu_collate import collate_batch_kernel, collate_rows_kernel
from fastmask.kernels.cpu_compact import spread_kernel
from fastmask.kernels.cpu_compile import compile_kernel, entry_point
from fastmask.kernels.cpu_compile import read_array as _read
from fastmask.kernels.cpu_compile import write_array as _write
from fastmask.kernels.cpu_layout import (
    compiled_count_positions,
    compiled_pad_rows,
    count_positions,
    pad_rows,
)
from fastmask.kernels.cpu_objects import compiled_find_arrays, compiled_read_lists, find_arrays, read_lists
from fastmask.kernels.cpu_range import content_id, content_weight, locate
from fastmask.kernels.cpu_tile import rate_of
from fastmask.kernels.cpu_words import first_word

__all__ = ["count_positions", "find_arrays", "pad_rows", "read_lists"]  # operations that have modules of their own

LAYOUT_KERNELS = compiled_pad_rows, compiled_count_positions, compiled_read_lists, compiled_find_arrays
WEIGHTS_KEPT = 1 << 17  # content weights held in memory; those of later positions are computed
NO_BYTES, NO_WORDS = np.empty(0, np.uint8), np.empty(0, np.uint32)  # stand for arrays that are not there
NO_LABELS = {np.dtype(dtype): np.empty(0, dtype) for dtype in (np.int32, np.int64)}
NO_LONGS, NO_INTEGERS, NO_FLOATS = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.float64)


def sample_rates_kernel(epoch, seed, least, sample_ids, strata, step, thresholds):
    """thresholds[r]: the T of Diffusion for sample r."""
    counter3 = epoch << philox.PURPOSE_BITS
    shared = first_word(step, counter3 | philox.PURPOSE_STRATA, seed) if strata.size > 0 else np.uint64(0)
    for r in range(thresholds.size):
        if strata.size > 0:
            word = (shared + np.uint64(strata[r])) & philox.LOW
        else:
            word = first_word(sample_ids[r], counter3 | philox.PURPOSE_RATE, seed)
        thresholds[r] = np.uint32(rate_of(word, least))


def content_ids_kernel(ids, row_length, pad_id, boundaries, starts, lengths, weights, sample_ids):
    """sample_ids[r] is the content id of row r."""
    firsts, ends = np.empty(sample_ids.size, np.int64), np.empty(sample_ids.size, np.int64)
    locate(ids, row_length, pad_id, boundaries, starts, lengths, firsts, ends)
    for r in range(sample_ids.size):
        sample_ids[r] = content_id(ids[firsts[r] : ends[r]], weights)


def content_weights_kernel(weights):
    """weights[j] is the content weight of position j."""
    for j in range(weights.size):
        weights[j] = content_weight(np.uint64(j))


def real_runs_kernel(attention_mask, row_length, starts, lengths):
    """starts[r], lengths[r]: the run of ones of row r. The flat index of the first cell that belongs to none, or -1."""
    padding, real = attention_mask.dtype.type(0), attention_mask.dtype.type(1)
    for r in range(starts.size):
        first = np.int64(r) * row_length
        start = first
        while start < first + row_length and attention_mask[start] == padding:
            start += 1
        end = start
        while end < first + row_length and attention_mask[end] == real:
            end += 1
        for j in range(end, first + row_length):
            if attention_mask[j] != padding:
                return j
        starts[r] = start - first if end > start else np.int64(0)
        lengths[r] = end - start
    return np.int64(-1)


def apply_supplied_kernel(
    token_ids, mask_positions, replace_probs, random_tokens, mask_token_id, first_border, second_border, masked_ids,
    labels,
):  # fmt: skip
    """Supplied decisions are carried out: MASK below the first border, random below the second, kept above."""
    for j in prange(token_ids.size):
        original, u = token_ids[j], replace_probs[j]
        moved = random_tokens[j] if u < second_border else original
        replaced = mask_token_id if u < first_border else moved
        masked_ids[j] = replaced if mask_positions[j] else original
        labels[j] = original if mask_positions[j] else np.int64(-100)


@functools.cache
def compiled_mask_batch(id_dtype, out_dtype, label_dtype, parallel, cache=True):
    """The kernel of `mask_batch` for ids, corrupted ids and labels of three dtypes."""
    ids, out, labels = (from_dtype(dtype) for dtype in (id_dtype, out_dtype, label_dtype))
    signature = types.boolean(
        types.int64, _read(ids), types.int64, types.int64, *(_read(types.int64),) * 3,
        types.uint64, _read(types.uint64), _read(types.uint8), _read(types.uint64), _read(types.uint32),
        _read(types.uint64), _read(types.uint64), _read(types.uint32, 2), _read(types.uint32), _read(types.uint64),
        _write(out), _write(labels), _write(types.uint8), _write(types.int64),
        _write(types.int64), _write(labels), types.boolean,
    )  # fmt: skip
    tag = f"{ids}_{out}_{labels}"
    return compile_kernel(mask_batch_kernel, signature, tag, parallel=parallel, cache=cache)


@functools.cache
def compiled_mask_rows(id_dtype, out_dtype, label_dtype, parallel, cache=True):
    """The kernel of `mask_batch` for laws that look at whole rows."""
    ids, out, labels = (from_dtype(dtype) for dtype in (id_dtype, out_dtype, label_dtype))
    longs, integers = _read(types.uint64), _read(types.int64)
    signature = types.boolean(
        types.int64, _read(ids), types.int64, types.int64, integers, integers, integers,
        types.uint64, longs, _read(types.uint8), longs, _read(types.uint32), longs, _read(types.float64),
        integers, integers, longs, _read(types.uint32, 2), _read(types.uint32), longs, longs, _read(types.uint8),
        _write(out), _write(labels), _write(types.uint8), _write(types.int64),
        _write(types.int64), _write(labels), types.boolean,
    )  # fmt: skip
    tag = f"{ids}_{out}_{labels}"
    return compile_kernel(mask_rows_kernel, signature, tag, parallel=parallel, cache=cache)


@functools.cache
def compiled_collate_batch(out_dtype, label_dtype, cache=True):
    """The kernel of `collate_batch` for corrupted ids and labels of two dtypes."""
    out, labels = from_dtype(out_dtype), from_dtype(label_dtype)
    longs, integers = _read(types.uint64), _read(types.int64)
    signature = types.boolean(
        types.int64, types.boolean, integers, types.int64, integers,
        types.uint64, longs, _read(types.uint8), longs, _read(types.uint32), longs,
        longs, _read(types.uint32, 2), _read(types.uint32), longs,
        _write(types.int64), _write(out), _write(labels), _write(types.uint8), _write(types.int64), _write(types.int64),
        _write(labels),
    )  # fmt: skip
    return compile_kernel(collate_batch_kernel, signature, f"{out}_{labels}", parallel=False, cache=cache)


@functools.cache
def compiled_collate_rows(out_dtype, label_dtype, cache=True):
    """The kernel of `collate_batch` for laws that look at whole rows."""
    out, labels = from_dtype(out_dtype), from_dtype(label_dtype)
    longs, integers = _read(types.uint64), _read(types.int64)
    signature = types.boolean(
        types.int64, types.boolean, integers, types.int64, integers,
        types.uint64, longs, _read(types.uint8), longs, _read(types.uint32), longs, _read(types.float64), integers,
        integers, longs, _read(types.uint32, 2), _read(types.uint32), longs, longs, _read(types.uint8),
        _write(types.int64), _write(out), _write(labels), _write(types.uint8), _write(types.int64), _write(types.int64),
        _write(labels),
    )  # fmt: skip
    return compile_kernel(collate_rows_kernel, signature, f"{out}_{labels}", parallel=False, cache=cache)


@functools.cache
def compiled_sample_rates(cache=True):
    """The kernel of `sample_rates`."""
    longs = types.uint64
    words = _read(types.uint32)
    signature = types.void(longs, longs, longs, _read(longs), words, longs, _write(types.uint32))
    return compile_kernel(sample_rates_kernel, signature, "uint32", parallel=False, cache=cache)


@functools.cache
def compiled_spread(label_dtype, cache=True):
    """The kernel of `spread`."""
    labels, integer = from_dtype(label_dtype), types.int64
    signature = types.void(
        _read(integer), _read(labels), _read(integer), integer, labels,
        _write(integer), _write(labels), _write(types.float32),
    )  # fmt: skip
    return compile_kernel(spread_kernel, signature, str(labels), parallel=False, cache=cache)


@functools.cache
def compiled_content_ids(id_dtype, cache=True):
    """The kernel of `content_ids` for an id dtype."""
    ids, integers = from_dtype(id_dtype), _read(types.int64)
    longs = types.uint64
    signature = types.void(_read(ids), types.int64, longs, *(integers,) * 3, _read(longs), _write(longs))
    return compile_kernel(content_ids_kernel, signature, str(ids), parallel=False, cache=cache)


@functools.cache
def compiled_content_weights(cache=True):
    """The kernel of `content_weights`."""
    signature = types.void(_write(types.uint64))
    return compile_kernel(content_weights_kernel, signature, "uint64", parallel=False, cache=cache)


@functools.cache
def compiled_real_runs(mask_dtype, cache=True):
    """The kernel of `real_runs` for an unsigned dtype."""
    mask, integers = from_dtype(mask_dtype), _write(types.int64)
    signature = types.int64(_read(mask), types.int64, integers, integers)
    return compile_kernel(real_runs_kernel, signature, str(mask), parallel=False, cache=cache)


@functools.cache
def compiled_apply_supplied(parallel, cache=True):
    """The kernel of `apply_supplied`."""
    ids, out = _read(types.int64), _write(types.int64)
    signature = types.void(
        ids, _read(types.boolean), _read(types.float64), ids,
        types.int64, types.float64, types.float64, out, out,
    )  # fmt: skip
    return compile_kernel(apply_supplied_kernel, signature, "int64", parallel=parallel, cache=cache)


@functools.lru_cache(maxsize=8)
def _content_weights(size):
    weights = np.empty(size, np.uint64)
    compiled_content_weights()(weights)
    return weights


def content_weights(row_length):
    """At least the first `row_length` content weights, but no more than a megabyte of them."""
    return _content_weights(min(1 << max(row_length - 1, 511).bit_length(), WEIGHTS_KEPT))


def content_ids(plan, call):
    """The content id of each row, uint64."""
    sample_ids = np.empty(call.rows, np.uint64)
    compiled_content_ids(call.ids.dtype)(
        call.ids,
        call.row_length,
        int(plan.words[layout.PAD_ID]),
        _or(NO_INTEGERS, call.boundaries),
        NO_INTEGERS if call.starts is None else call.starts,
        NO_INTEGERS if call.lengths is None else call.lengths,
        content_weights(call.row_length),
        sample_ids,
    )
    return sample_ids


def sample_rates(plan, call):
    """The threshold of each sample under Diffusion, uint32."""
    return _rates_of(plan, call, content_ids(plan, call) if call.sample_ids is None else call.sample_ids)


def _rates_of(plan, call, sample_ids):
    thresholds = np.empty(call.rows, np.uint32)
    compiled_sample_rates()(
        call.epoch, plan.seed, plan.least_rate, sample_ids, _or(NO_WORDS, call.strata), call.step, thresholds
    )
    return thresholds


def _samples_of(plan, call, named):
    """What is said of each sample, as kernels take it. named: content ids are computed beforehand."""
    sample_ids, thresholds = call.sample_ids, call.thresholds
    drawn = thresholds is None and plan.law == "diffusion"
    if sample_ids is None and (drawn or named):
        sample_ids = content_ids(plan, call)
    if drawn:
        thresholds = _rates_of(plan, call, sample_ids)
    return (
        call.epoch,
        NO_LONGS if sample_ids is None else sample_ids,
        NO_BYTES if call.special_tokens_mask is None else call.special_tokens_mask,
        NO_LONGS if call.offsets is None else call.offsets,
        NO_WORDS if thresholds is None else thresholds,
        content_weights(call.row_length) if sample_ids is None else NO_LONGS,
    )


def _rows_of(plan, call):
    """What laws over whole rows read besides."""
    return _or(NO_FLOATS, call.rates), _or(NO_INTEGERS, call.word_ids), plan.counts(call.row_length)


def _objective_of(plan):
    law = () if plan.by_token else (plan.length_sums, _or(NO_BYTES, plan.is_continuation))
    return plan.words, plan.special_runs, plan.pool, plan.cumulative, *law


def _target_of(out):
    return (
        out.input_ids,
        out.labels,
        NO_BYTES if out.decisions is None else out.decisions,
        NO_INTEGERS if out.num_masked is None else out.num_masked,
        NO_INTEGERS if out.selected_positions is None else out.selected_positions,
        NO_LABELS[out.labels.dtype] if out.selected_ids is None else out.selected_ids,
    )


def mask_batch(plan, call, out, ranges=1):
    """True iff every id of a Call is in range; the Outputs then hold the masked batch.

    With ranges > 1 so many ranges of tiles (or rows) are the work of Numba's threads; the bits are the same.
    """
    batch = (
        ranges,
        call.ids,
        call.rows,
        call.row_length,
        NO_INTEGERS if call.boundaries is None else call.boundaries,
        NO_INTEGERS if call.starts is None else call.starts,
        NO_INTEGERS if call.lengths is None else call.lengths,
    )
    samples = _samples_of(plan, call, call.in_place and ranges > 1)  # before one range overwrites what another reads
    of_rows = () if plan.by_token else _rows_of(plan, call)
    mask = _mask_entry(plan.by_token, call.ids.dtype, out.input_ids.dtype, out.labels.dtype, ranges > 1)
    return mask(*batch, *samples, *of_rows, *_objective_of(plan), *_target_of(out), call.in_place)


@functools.cache
def _mask_entry(by_token, *dtypes_and_parallel):
    return entry_point((compiled_mask_batch if by_token else compiled_mask_rows)(*dtypes_and_parallel))


def collate_batch(plan, call, width, left, out, attention_mask):
    """True iff every id of a packed Call is in range; the Outputs then hold its samples, masked, in padded rows."""
    ids, boundaries, addresses = call.ids, call.boundaries, call.addresses
    if addresses is None:
        addresses = ids.ctypes.data + boundaries[:-1] * ids.itemsize
    batch = width, left, addresses, ids.itemsize, boundaries, *_samples_of(plan, call, False)
    target = *_objective_of(plan), attention_mask, *_target_of(out)
    dtypes = out.input_ids.dtype, out.labels.dtype
    if plan.by_token:
        return compiled_collate_batch(*dtypes)(*batch, *target)
    return compiled_collate_rows(*dtypes)(*batch, *_rows_of(plan, call), *target)


def spread(plan, out, compact):
    """The selected tokens that masked Outputs list, in `compact.width` slots a row, which must do."""
    compiled_spread(out.labels.dtype)(
        out.selected_positions,
        out.selected_ids,
        out.num_masked,
        compact.width,
        plan.ignore_index,
        compact.positions,
        compact.ids,
        compact.weights,
    )


def _or(empty, array):
    """An empty array stands for one that is not there."""
    return empty if array is None else array


def real_runs(attention_mask):
    """The start and length (int64) of each row's run of ones, and the flat index of the first cell in no run, or -1.

    attention_mask: 2-D, contiguous, of an unsigned dtype.
    """
    rows, row_length = attention_mask.shape
    starts, lengths = np.empty(rows, np.int64), np.empty(rows, np.int64)
    kernel = compiled_real_runs(attention_mask.dtype)
    return starts, lengths, kernel(attention_mask.reshape(-1), row_length, starts, lengths)


def apply_supplied(
    token_ids,
    mask_positions,
    replace_probs,
    random_tokens,
    mask_token_id,
    borders,
    masked_ids,
    labels,
    ranges=1,
):
    """Decisions that the caller drew are carried out into masked_ids and labels (flat arrays of one size)."""
    compiled_apply_supplied(ranges > 1)(
        token_ids, mask_positions, replace_probs, random_tokens, mask_token_id, *borders, masked_ids, labels
    )
