"""The CUDA backend gives the bits of the reference: on a GPU where there is one, otherwise in the simulator.

Blocks and grids are made tiny, so that small data crosses their borders and goes round the grid repeatedly.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

numba_cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")
cuda = pytest.importorskip("fastmask.kernels.cuda")
launch = pytest.importorskip("fastmask.kernels.cuda_launch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning"
)  # scalars of the simulator

VOCAB = Vocab(size=60, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3, 30))
NO_PAD = Vocab(size=60, mask_token_id=4, special_token_ids=(0, 30, 59))
HALF_RANDOM = Replace(mask=0.3, random=0.5)
POISONS = (-7, 0x55)

Ints = npt.NDArray[Any]


@pytest.fixture(autouse=True, scope="module")
def _threads_take_turns() -> Iterator[None]:
    """The simulator's main thread polls: with Python's interval of 5 ms it would keep the others waiting."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _tiny_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "THREADS", 8)
    monkeypatch.setattr(launch, "WIDTHS", (2, 4))
    monkeypatch.setattr(launch, "MAX_BLOCKS", 2)


def plan_of(
    vocab: Vocab = VOCAB, *, p: float = 0.5, replace: Replace = HALF_RANDOM, seed: int = 7, ignore: int = -100
) -> Plan:
    return make_plan(vocab, Bernoulli(p), replace, seed, ignore)


def call_of(rows: int, row_length: int, dtype: str = "int64", *, vocab: Vocab = VOCAB, **given: Any) -> Call:
    """A batch of seeded ids, special ones among them, one sample id per row unless given."""
    rng = np.random.default_rng(rows * 1000 + row_length)
    ids = rng.integers(0, vocab.size, rows * row_length).astype(dtype)
    given.setdefault("sample_ids", rng.integers(0, 1 << 64, rows, dtype=np.uint64))
    given.setdefault("lengths", np.full(rows, row_length, np.int64))
    return Call(ids=ids, rows=rows, row_length=row_length, **({"epoch": 3} | given))


def outputs_for(
    call: Call, poison: int, ids: str = "int64", labels: str = "int64", *, all_of: bool = True
) -> Outputs:
    """Outputs full of a value that no kernel leaves."""
    cells = call.rows * call.row_length
    return Outputs(
        input_ids=np.full(cells, poison, ids),
        labels=np.full(cells, poison, labels),
        decisions=np.full(cells, poison & 255, np.uint8) if all_of else None,
        num_masked=np.full(call.rows, poison, np.int64) if all_of else None,
    )


def on_device(parts: Any) -> Any:
    """The same Call or Outputs with its arrays in device memory."""
    arrays = {f.name: getattr(parts, f.name) for f in fields(parts)}
    return replace(
        parts, **{k: numba_cuda.to_device(a) for k, a in arrays.items() if isinstance(a, np.ndarray)}
    )


def same_outputs(got: Outputs, want: Outputs) -> None:
    for field in fields(Outputs):
        device, host = getattr(got, field.name), getattr(want, field.name)
        if host is not None:
            np.testing.assert_array_equal(device.copy_to_host(), host, strict=True, err_msg=field.name)


def check(
    plan: Plan, call: Call, ids: str = "int64", labels: str = "int64", poisons: tuple[int, ...] = POISONS
) -> None:
    """What the reference writes is written, whatever the outputs held before; the call is left alone."""
    for poison in poisons:
        want, got = outputs_for(call, poison, ids, labels), on_device(outputs_for(call, poison, ids, labels))
        assert reference.mask_batch(plan, call, want)
        device_call = on_device(call)
        assert not launch.is_set(cuda.mask_batch(plan, device_call, got))
        same_outputs(got, want)
        np.testing.assert_array_equal(device_call.ids.copy_to_host(), call.ids, strict=True)


@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("out", ["int32", "int64"])
@pytest.mark.parametrize("ids", ["uint16", "int32", "int64"])
def test_every_dtype(ids: str, out: str, labels: str) -> None:
    check(plan_of(), call_of(2, 37, ids), out, labels, poisons=POISONS[:1])


@pytest.mark.parametrize("row_length", [0, 1, 3, 4, 5, 255, 257])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_sizes(rows: int, row_length: int) -> None:
    check(plan_of(), call_of(rows, row_length))


@pytest.mark.parametrize("row_length", [1, 60, 130])
def test_the_launch_as_it_is(monkeypatch: pytest.MonkeyPatch, row_length: int) -> None:
    monkeypatch.undo()
    assert (launch.THREADS, launch.WIDTHS) == (128, (8, 16, 32))
    offsets = np.array([0, 5, 2], np.uint64)
    check(
        plan_of(), call_of(3, row_length, sample_ids=None, lengths=None, offsets=offsets), poisons=POISONS[:1]
    )


@pytest.mark.parametrize(
    ("quads", "pieces"),
    [
        (1, (8, 1)),
        (8, (8, 1)),
        (9, (16, 1)),
        (24, (8, 3)),
        (32, (32, 1)),
        (33, (8, 5)),
        (48, (16, 3)),
        (128, (32, 4)),
    ],
)
def test_pieces_cover_a_row_with_few_idle_threads(
    monkeypatch: pytest.MonkeyPatch, quads: int, pieces: tuple[int, int]
) -> None:
    monkeypatch.undo()
    assert launch.pieces_of(quads) == pieces


def test_many_short_rows() -> None:
    check(plan_of(), call_of(67, 2))


@pytest.mark.parametrize("seed", [0, 1, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("epoch", [0, (1 << 24) - 1])
def test_the_whole_range_of_the_key(seed: int, epoch: int) -> None:
    samples = np.array([0, 1, 1 << 32, (1 << 64) - 1], np.uint64)
    check(plan_of(seed=seed), call_of(4, 9, epoch=epoch, sample_ids=samples), poisons=POISONS[:1])


OFFSETS = np.array([0, 1, 2, 3, 4, 7, (1 << 34) - 64], np.uint64)
LENGTHS = np.array([40, 0, 1, 39, 5, 17, 33], np.int64)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_on_any_side_and_offsets(side: str, with_offsets: bool) -> None:
    rest = 40 - LENGTHS
    starts = {"left": rest, "right": None, "both": rest // 2}[side]
    offsets = OFFSETS if with_offsets else None
    check(plan_of(), call_of(7, 40, starts=starts, lengths=LENGTHS, offsets=offsets))


def test_offsets_shift_the_stream_by_whole_tokens() -> None:
    """A document cut in two keeps its masks: positions 5.. of one row, and a row with offset 5."""
    plan = plan_of(p=0.6)
    whole = call_of(1, 70)
    part = replace(
        whole, ids=whole.ids[5:].copy(), row_length=65, lengths=None, offsets=np.array([5], np.uint64)
    )
    results = []
    for call in (whole, replace(part, lengths=np.array([65], np.int64))):
        out = on_device(outputs_for(call, -7))
        cuda.mask_batch(plan, on_device(call), out)
        results.append(out.input_ids.copy_to_host())
    np.testing.assert_array_equal(results[0][5:], results[1], strict=True)


@pytest.mark.parametrize("row", [[0] * 5, [0, 0, 5, 0, 6, 0], [5, 6, 7], [0, 0, 9], [9, 0, 0]])
@pytest.mark.parametrize("pads", [0, 70])
def test_padding_is_found_at_both_ends(row: list[int], pads: int) -> None:
    ids = np.array([0] * pads + row + [0] * pads + [5] + [0] * (len(row) + 2 * pads - 1), np.int64)
    call = Call(ids=ids, rows=2, row_length=len(row) + 2 * pads, epoch=0)
    check(plan_of(p=1.0), call, poisons=POISONS[:1])


@pytest.mark.parametrize("vocab", [VOCAB, NO_PAD], ids=["trimmed", "whole"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_content_ids(dtype: str, vocab: Vocab) -> None:
    check(
        plan_of(vocab), call_of(3, 70, dtype, vocab=vocab, sample_ids=None, lengths=None), poisons=POISONS[:1]
    )


def test_content_ids_do_not_depend_on_padding_nor_on_the_offset() -> None:
    given: dict[str, Any] = {
        "sample_ids": None,
        "lengths": np.array([0, 3, 40], np.int64),
        "offsets": OFFSETS[[0, 3, 6]],
    }
    check(plan_of(), call_of(3, 40, starts=np.array([0, 36, 0], np.int64), **given))


def test_thresholds_of_ones_own() -> None:
    thresholds = np.array([0, 1, 1 << 23, 1 << 24], np.uint32)
    check(plan_of(), call_of(4, 50, thresholds=thresholds))


PHILOX_ZERO = (
    0x6627E8D5,
    0xE169C58D,
    0xBC57AC4C,
    0x9B00DBD8,
)  # Random123, kat_vectors: philox4x32 10, all zeros


@pytest.mark.parametrize("shares", [(1, 0), (0, 1), (0, 0)])
def test_selected_is_exactly_a_draw_below_the_threshold(shares: tuple[float, float]) -> None:
    draws = np.array(PHILOX_ZERO) >> 8
    thresholds = np.concatenate([draws, draws + 1]).astype(np.uint32)
    call = Call(
        ids=np.tile(np.array([5, 6, 7, 8]), 8),
        rows=8,
        row_length=4,
        epoch=0,
        sample_ids=np.zeros(8, np.uint64),
        thresholds=thresholds,
    )
    plan = plan_of(replace=Replace(*shares), seed=0)
    out = on_device(outputs_for(call, -7))
    cuda.mask_batch(plan, on_device(call), out)
    selected = draws < thresholds[:, None]
    np.testing.assert_array_equal(out.labels.copy_to_host().reshape(8, 4) != -100, selected, strict=True)
    decision = 1 if shares[0] else 2 if shares[1] else 3
    want = np.where(selected, np.uint8(decision), np.uint8(0))
    np.testing.assert_array_equal(out.decisions.copy_to_host().reshape(8, 4), want, strict=True)
    check(plan, call, poisons=POISONS[:1])


def test_a_draw_on_a_border_lies_above_it() -> None:
    draws = np.array(PHILOX_ZERO) >> 8
    law = Replace(mask=draws[3] / (1 << 24), random=(draws[1] - draws[3]) / (1 << 24))
    call = Call(ids=np.array([5, 6, 7, 8]), rows=1, row_length=4, epoch=0, sample_ids=np.zeros(1, np.uint64))
    out = on_device(outputs_for(call, -7))
    cuda.mask_batch(plan_of(p=1.0, replace=law, seed=0), on_device(call), out)
    np.testing.assert_array_equal(out.decisions.copy_to_host(), np.array([1, 3, 2, 2], np.uint8), strict=True)


def test_special_tokens_mask() -> None:
    mask = np.random.default_rng(0).choice(np.array([0, 0, 1, 255], np.uint8), 3 * 50)
    check(plan_of(p=1.0), call_of(3, 50, special_tokens_mask=mask))


WEIGHTS = tuple([0.0, 5.0, 0.0] + [1.0, 0.5, 3.0] * 19)
POOLS = {
    "all": Replace(0, 1),
    "vocab": Replace(0.0, 1.0, pool="vocab"),
    "list": Replace(0.0, 1.0, pool=(59, 7, 20)),
    "weights": Replace(0.0, 1.0, pool="vocab", weights=WEIGHTS),
}


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, exclude: bool) -> None:
    chosen = POOLS[name]
    law = Replace(0.0, 1.0, pool=chosen.pool, weights=chosen.weights, exclude_original=exclude)
    check(plan_of(p=1.0, replace=law), call_of(2, 60), poisons=POISONS[:1])


@pytest.mark.parametrize("shares", [(1, 0), (0, 0), (0.8, 0.1)])
@pytest.mark.parametrize("p", [0.0, 0.15, 1.0])
def test_rates_and_shares(p: float, shares: tuple[float, float]) -> None:
    check(plan_of(p=p, replace=Replace(*shares)), call_of(2, 40), poisons=POISONS[:1])


@pytest.mark.parametrize("ignore", [-1, 0, 5, -(1 << 31)])
def test_ignore_index(ignore: int) -> None:
    check(plan_of(ignore=ignore), call_of(1, 20), labels="int32", poisons=POISONS[:1])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("content", [False, True])
def test_in_place(dtype: str, content: bool) -> None:
    call = call_of(3, 45, dtype, offsets=OFFSETS[1:4])
    if content:
        call.sample_ids = None
    want = outputs_for(call, 0, dtype)
    assert reference.mask_batch(plan_of(), call, want)
    device_call, got = on_device(call), on_device(outputs_for(call, 0, dtype))
    got.input_ids = device_call.ids
    cuda.mask_batch(plan_of(), device_call, got)
    same_outputs(got, want)


def test_outputs_that_may_be_left_out() -> None:
    call = call_of(2, 30)
    want, got = outputs_for(call, 0, all_of=False), on_device(outputs_for(call, 1, all_of=False))
    assert reference.mask_batch(plan_of(), call, want)
    cuda.mask_batch(plan_of(), on_device(call), got)
    same_outputs(got, want)


@pytest.mark.parametrize("bad", [-1, 60, 1 << 31, (1 << 32) + 5])
@pytest.mark.parametrize("cell", [0, 49])
def test_ids_out_of_range_raise_the_flag(bad: int, cell: int) -> None:
    call = call_of(1, 50, lengths=np.array([45], np.int64), sample_ids=None)
    call.ids[cell] = bad
    law = Replace(0.0, 1.0, pool="vocab", exclude_original=True)
    out = on_device(outputs_for(call, -7))
    assert launch.is_set(cuda.mask_batch(plan_of(p=1.0, replace=law), on_device(call), out))


def test_a_flag_is_of_one_call() -> None:
    call = call_of(1, 4)
    bad = replace(call, ids=np.array([5, 6, 60, 7]))
    first = cuda.mask_batch(plan_of(), on_device(bad), on_device(outputs_for(call, 0)))
    second = cuda.mask_batch(plan_of(), on_device(call), on_device(outputs_for(call, 0)))
    assert launch.is_set(first)
    assert not launch.is_set(second)


def test_flags_do_not_run_out() -> None:
    flags = [launch.new_flag(0) for _ in range(launch.FLAGS + 1)]
    assert not any(launch.is_set(flag) for flag in flags[-2:])


def test_an_array_of_another_dtype_is_refused() -> None:
    call = call_of(1, 4, sample_ids=np.array([1], np.int64))
    with pytest.raises(TypeError, match="mask_tokens takes an array of <u8, got <i8"):
        cuda.mask_batch(plan_of(), on_device(call), on_device(outputs_for(call, 0)))


def test_tables_live_as_long_as_their_plan() -> None:
    plan, call = plan_of(), call_of(1, 4)
    before = len(launch._tables)
    for _ in range(2):
        cuda.mask_batch(plan, on_device(call), on_device(outputs_for(call, 0)))
    assert len(launch._tables) == before + 1
    del plan
    gc.collect()
    assert len(launch._tables) == before


ONE_RUN = [[1, 1, 1, 0], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_real_runs(dtype: str) -> None:
    mask = np.repeat(np.array(ONE_RUN), 11, axis=1).astype(dtype)
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *mask.shape)
    want_starts, want_lengths, _ = reference.real_runs(mask)
    np.testing.assert_array_equal(starts.copy_to_host(), want_starts, strict=True)
    np.testing.assert_array_equal(lengths.copy_to_host(), want_lengths, strict=True)
    assert not launch.is_set(flag)


BAD_MASKS = [
    np.array([[1, 1, 1], [1, 0, 1]]),
    np.array([[1] * 40 + [0] + [1] * 30]),
    np.array([[1, 2, 1]]),
    np.array([[1, -1]], np.int8),
    np.array([[0.5, 1.0]]),
    np.array([[np.nan, 1.0]], np.float32),
]


@pytest.mark.parametrize("mask", BAD_MASKS, ids=str)
def test_real_runs_flags_holes_and_other_values(mask: Ints) -> None:
    assert reference.real_runs(mask)[2] >= 0
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *mask.shape)
    assert launch.is_set(flag)
    ends = starts.copy_to_host() + lengths.copy_to_host()
    assert (starts.copy_to_host() >= 0).all()
    assert (ends <= mask.shape[1]).all()


def test_real_runs_takes_minus_zero_for_zero() -> None:
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(np.array([-0.0, 1.0, 1.0, -0.0])), 1, 4)
    assert not launch.is_set(flag)
    assert (starts.copy_to_host()[0], lengths.copy_to_host()[0]) == (1, 2)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_real_runs_of_nothing(shape: tuple[int, int]) -> None:
    mask = np.zeros(shape, np.int64)
    starts, lengths, flag = cuda.real_runs(numba_cuda.to_device(mask.reshape(-1)), *shape)
    np.testing.assert_array_equal(starts.copy_to_host(), np.zeros(shape[0], np.int64), strict=True)
    np.testing.assert_array_equal(lengths.copy_to_host(), np.zeros(shape[0], np.int64), strict=True)
    assert not launch.is_set(flag)


def supplied(n: int) -> list[Ints]:
    rng = np.random.default_rng(n)
    ids, tokens = rng.integers(-(1 << 40), 1 << 40, (2, n))
    return [ids, rng.random(n) < 0.5, rng.choice([0.0, 0.8, 0.85, 0.9, 1.0, rng.random()], n), tokens]


@pytest.mark.parametrize("borders", [(0.8, 0.9), (0.0, 0.0), (1.0, 1.0), (0.8, 0.8)])
@pytest.mark.parametrize("n", [0, 1, 130])
def test_apply_supplied(n: int, borders: tuple[float, float]) -> None:
    arrays = supplied(n)
    want_ids, want_labels = np.full(n, -7), np.full(n, -7)
    tokens, chosen, probabilities, drawn = arrays
    reference.apply_supplied(tokens, chosen, probabilities, drawn, 103, borders, want_ids, want_labels)
    ids, labels = numba_cuda.to_device(np.full(n, 5)), numba_cuda.to_device(np.full(n, 5))
    device = [numba_cuda.to_device(array) for array in arrays]
    assert not launch.is_set(cuda.apply_supplied(*device, 103, borders, ids, labels))
    np.testing.assert_array_equal(ids.copy_to_host(), want_ids, strict=True)
    np.testing.assert_array_equal(labels.copy_to_host(), want_labels, strict=True)
    for on_gpu, on_cpu in zip(device, arrays, strict=True):
        np.testing.assert_array_equal(on_gpu.copy_to_host(), on_cpu, strict=True)


@pytest.mark.parametrize("bad", [-1e-9, 1.0000001, np.nan, np.inf])
def test_supplied_probabilities_outside_raise_the_flag(bad: float) -> None:
    arrays = [numba_cuda.to_device(array) for array in supplied(40)]
    probabilities = arrays[2].copy_to_host()
    probabilities[39] = bad
    arrays[2] = numba_cuda.to_device(probabilities)
    outputs = [numba_cuda.to_device(np.zeros(40, np.int64)) for _ in range(2)]
    assert launch.is_set(cuda.apply_supplied(*arrays, 103, (0.8, 0.9), *outputs))


def test_nothing_is_launched_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(launch.Kernel, "launch", refuse)
    for rows, row_length in [(0, 128), (4, 0), (0, 0)]:
        call = call_of(rows, row_length, sample_ids=None, lengths=None)
        out = on_device(outputs_for(call, 0, all_of=False))
        assert not launch.is_set(cuda.mask_batch(plan_of(), on_device(call), out))
