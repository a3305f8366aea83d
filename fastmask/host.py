"""A call on arrays in host memory: by the NumPy reference, or by the CPU kernels, serial or parallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastmask import buffers, validate
from fastmask.arrays import as_kind_of, refuse_out, to_host
from fastmask.batch import CompactTargets, MaskedBatch
from fastmask.call import Arguments, Outputs
from fastmask.dispatch import host_kernels
from fastmask.outputs import GivenOutputs, fresh_dtypes, fresh_outputs, fresh_slots, listed, parts_of
from fastmask.plan import Plan
from fastmask.threads import parallel_region, plan_ranges
from fastmask.thresholds import ALWAYS

if TYPE_CHECKING:
    from fastmask.masker import Masker


def mask(
    masker: Masker,
    backend: str,
    input_ids: Any,
    arguments: Arguments,
    out: Any,
    names: frozenset[str],
    max_predictions: int | None,
) -> MaskedBatch:
    """The masked batch; ValueError where an id is out of range, or a row has more selected tokens than slots."""
    plan, kernels = masker.plan, host_kernels(backend)
    ids = validate.checked_ids(input_ids)
    call = validate.host_call(plan, ids, kernels.real_runs, arguments)
    given = None
    if out is None:
        outputs = fresh_outputs(ids.size, call.rows, *fresh_dtypes(masker, input_ids, ids.dtype), names)
    else:
        refuse_out(input_ids)
        given = GivenOutputs(parts_of(out), ids, masker.id_dtype, masker.ignore_index)
        outputs = given.outputs(call, names)
        call.in_place = given.in_place and ids.flags.c_contiguous
    if "rates" in names:
        call.thresholds = kernels.sample_rates(plan, call)
    good = not call.in_place or validate.ids_in_range(ids, plan.size)  # before they are overwritten
    if ids.size and not (good and run(kernels.mask_batch, backend, ids.size, plan, call, outputs)):
        raise validate.id_error(ids, plan.size)
    if given is not None:
        given.fill(outputs)
    batch = _batch_of(given, ids.shape, outputs, backend)
    if "compact" in names:
        batch.compact = compact_targets(kernels, plan, outputs, max_predictions)
    if "rates" in names:
        batch.rates, batch.weights = rates_and_weights(call.thresholds)
    return batch if type(input_ids) is np.ndarray else batch.mapped(partial(as_kind_of, input_ids))


def rates_and_weights(thresholds: Any) -> tuple[Any, Any]:
    """T / 2^24, exact, and 2^24 / T, a division in float64; both then float32."""
    rates, weights = thresholds / np.float64(ALWAYS), np.float64(ALWAYS) / thresholds
    return rates.astype(np.float32), weights.astype(np.float32)


def compact_targets(kernels: Any, plan: Plan, outputs: Outputs, max_predictions: int | None) -> CompactTargets:
    """The selected tokens of masked outputs; ValueError where a row has more of them than slots."""
    if max_predictions is None:
        flat = listed(outputs)
        return CompactTargets(flat.positions, flat.ids, flat.weights, outputs.num_masked)
    compact = fresh_slots(outputs, max_predictions)
    kernels.spread(plan, outputs, compact)
    shape = np.asarray(outputs.num_masked).size, max_predictions
    positions, ids, weights = (x.reshape(shape) for x in (compact.positions, compact.ids, compact.weights))
    return CompactTargets(positions, ids, weights, outputs.num_masked)


def run(operation: Callable[..., Any], backend: str, cells: int, *arguments: Any) -> Any:
    """What the operation of a backend returns, run in ranges where that gains and is safe."""
    ranges = plan_ranges(cells)[0] if backend == "cpu" else 1
    if ranges == 1:
        return operation(*arguments)
    with parallel_region() as entered:
        return operation(*arguments, ranges if entered else 1)


def _batch_of(given: GivenOutputs | None, shape: tuple[int, ...], done: Outputs, backend: str) -> MaskedBatch:
    """The outputs in the shape that came in, or the very arrays that were given as `out`."""
    ids, labels = given.parts if given is not None else (done.input_ids.reshape(shape), done.labels.reshape(shape))
    decisions = None if done.decisions is None else done.decisions.reshape(shape)
    return MaskedBatch(ids, labels, decisions, done.num_masked, backend=backend)


def apply_supplied(
    backend: str, arrays: dict[str, Any], mask_token_id: int, borders: tuple[float, float], check: bool
) -> dict[str, Any]:
    """The decisions carried out; with check, ValueError where a probability is not in [0, 1]."""
    host = {name: to_host(name, x, "token_ids") for name, x in arrays.items()}
    validate.check_supplied(host)
    if check:
        validate.check_probabilities("replace_probs", host["replace_probs"])
    flat = [np.ascontiguousarray(x, x.dtype.newbyteorder("=")).reshape(-1) for x in host.values()]
    size, shape = flat[0].size, host["token_ids"].shape
    done = {name: buffers.empty(size, np.int64) for name in ("masked_ids", "labels")}
    run(host_kernels(backend).apply_supplied, backend, size, *flat, mask_token_id, borders, *done.values())
    return {name: as_kind_of(arrays["token_ids"], x.reshape(shape)) for name, x in done.items()}
