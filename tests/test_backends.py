"""The CPU kernels, serial and in ranges, in place and not, leave the bits of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import (
    BERT,
    EPOCHS,
    ID_DTYPES,
    OUT_DTYPES,
    PROBABILITIES,
    SCATTERED,
    SEEDS,
    SIZES,
    SMALL,
    assert_same,
    in_place,
    plan_of,
    poisoned,
    random_ids,
    with_lists,
)

import fastmask as fm
from fastmask.call import Call, Outputs
from fastmask.kernels import cpu, reference
from fastmask.plan import Plan

RANGES = (1, 2, 3)  # the serial twin, and the parallel one
LAST_ID = (1 << 64) - 1


def listed(*arguments: Any, **given: Any) -> Outputs:
    """Poisoned outputs, the lists of selected tokens among them."""
    return with_lists(poisoned(*arguments, **given))


def wanted(plan: Plan, *arguments: Any) -> Outputs:
    """What the reference says, the lists of selected tokens included."""
    out = listed(*arguments)
    assert reference.mask_batch(plan, arguments[0], out)
    return out


def call_of(rows: int, row_length: int, dtype: str = "int64", vocab: fm.Vocab = BERT, **given: Any) -> Call:
    rng = np.random.default_rng((rows, row_length))
    ids = random_ids(rng, vocab, (rows, row_length), dtype).reshape(-1)
    given.setdefault("sample_ids", rng.integers(0, LAST_ID, rows, dtype=np.uint64, endpoint=True))
    return Call(ids, rows, row_length, **({"epoch": 3} | given))


USUAL = [
    ("int64", "int64", "int64", 1),
    ("int32", "int32", "int64", 1),
    ("int32", "int32", "int32", 1),
    ("uint16", "int64", "int64", 1),
    ("int64", "int64", "int64", 2),
]
OTHERS = [(a, b, c, 1) for a in ID_DTYPES for b in OUT_DTYPES for c in OUT_DTYPES if (a, b, c, 1) not in USUAL]
OTHERS += [("int32", "int32", "int64", 3), ("uint16", "int64", "int32", 2)]
MIXES = [*USUAL, *(pytest.param(*mix, marks=pytest.mark.slow) for mix in OTHERS)]  # each compiles a kernel


@pytest.mark.parametrize(("dtype", "out_dtype", "label_dtype", "ranges"), MIXES)
def test_every_mix_of_dtypes_gives_the_bits_of_the_reference(
    dtype: str, out_dtype: str, label_dtype: str, ranges: int
) -> None:
    plan = plan_of()
    for row_length in SIZES:
        call = call_of(3, row_length, dtype)
        out = listed(call, out_dtype, label_dtype)
        assert cpu.mask_batch(plan, call, out, ranges)
        assert_same(out, wanted(plan, call, out_dtype, label_dtype))


def test_in_place_ranges_take_content_ids_before_any_of_them_writes() -> None:
    plan = plan_of(BERT, 1.0)
    call = call_of(1, 5000, sample_ids=None)
    want = wanted(plan, call)
    for _ in range(20):
        out = listed(call)
        assert cpu.mask_batch(plan, in_place(call, out), out, 3)
        assert_same(out, want)


@pytest.mark.parametrize("poison", [-7, 0x55])
@pytest.mark.parametrize("rows", [0, 1, 2, 129])
def test_every_cell_is_written_whatever_was_there(rows: int, poison: int) -> None:
    plan = plan_of(SMALL, 0.5)
    for row_length in (0, 1, 2, 7, 127):
        call = call_of(rows, row_length, vocab=SMALL)
        out = listed(call, poison=poison)
        assert cpu.mask_batch(plan, call, out)
        assert_same(out, wanted(plan, call))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_extreme_seeds_epochs_probabilities_and_sample_ids_are_no_exception(seed: int, epoch: int, p: float) -> None:
    plan = plan_of(BERT, p, seed=seed)
    call = call_of(4, 1030, epoch=epoch, sample_ids=np.array([0, 1, 1 << 32, LAST_ID], np.uint64))
    out = listed(call)
    assert cpu.mask_batch(plan, call, out)
    assert_same(out, wanted(plan, call))


@st.composite
def objectives(draw: st.DrawFn) -> Any:
    vocab = draw(st.sampled_from([BERT, SMALL, SCATTERED, fm.Vocab(30522, 103)]))
    weights = draw(st.none() | st.integers(0, 1 << 32))
    pool = draw(st.sampled_from([None, "vocab", range(5, 25), (29, 7, 20)]))
    mask = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    how: dict[str, Any] = {"pool": pool, "exclude_original": draw(st.booleans())}
    if weights is not None:
        count = vocab.size if pool in (None, "vocab") else len(pool)
        how["weights"] = np.random.default_rng(weights).random(count) + (pool is not None)
    replace = fm.Replace(mask, draw(st.sampled_from([0.0, (1 - mask) / 2, 1 - mask])), **how)
    p = draw(st.sampled_from(PROBABILITIES) | st.floats(2.0**-24, 1))
    return vocab, plan_of(vocab, p, replace, draw(st.integers(0, LAST_ID)), draw(st.sampled_from([-100, -1, 0])))


@st.composite
def calls(draw: st.DrawFn, vocab: fm.Vocab) -> Call:
    rows, row_length = draw(st.sampled_from([(1, 1), (1, 600), (2, 513), (5, 128), (40, 16), (300, 3), (9, 61)]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    ids = random_ids(rng, vocab, (rows, row_length)).reshape(-1)
    call = Call(ids, rows, row_length, draw(st.integers(0, (1 << 24) - 1)))
    if draw(st.booleans()):
        call.sample_ids = rng.integers(0, LAST_ID, rows, dtype=np.uint64, endpoint=True)
    if draw(st.booleans()):
        call.lengths = rng.integers(0, row_length, rows, endpoint=True)
        if draw(st.booleans()):
            call.starts = rng.integers(0, row_length - call.lengths, endpoint=True)
    if draw(st.booleans()):
        call.special_tokens_mask = rng.integers(0, 3, rows * row_length).astype(np.uint8)
    if draw(st.booleans()):
        call.offsets = rng.integers(0, (1 << 34) - 1000, rows).astype(np.uint64)
    if draw(st.booleans()):
        call.thresholds = rng.integers(0, 1 << 24, rows, endpoint=True).astype(np.uint32)
    return call


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_objective_on_any_batch_gives_the_bits_of_the_reference(data: st.DataObject) -> None:
    vocab, plan = data.draw(objectives())
    call = data.draw(calls(vocab))
    dtype, out_dtype, label_dtype, ranges = data.draw(st.sampled_from(USUAL))
    call.ids = call.ids.astype(dtype)
    want = wanted(plan, call, out_dtype, label_dtype)
    out = listed(call, out_dtype, label_dtype)
    if call.ids.dtype == out_dtype and data.draw(st.booleans()):
        call = in_place(call, out)
    assert cpu.mask_batch(plan, call, out, ranges)
    assert_same(out, want)


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("column", [0, 511, 512, 1029])
@pytest.mark.parametrize("wrong", [-1, 30522, 1 << 31, -(1 << 40)])
def test_an_id_out_of_range_is_found_wherever_it_stands(wrong: int, column: int, ranges: int) -> None:
    plan = plan_of()
    call = call_of(3, 1030)
    call.ids[1030 + column] = wrong
    assert not cpu.mask_batch(plan, call, poisoned(call), ranges)


@pytest.mark.parametrize(("dtype", "out_dtype"), [("uint16", "int64"), ("int32", "int32")])
def test_an_id_out_of_range_is_found_in_narrow_ids(dtype: str, out_dtype: str) -> None:
    plan = plan_of()
    for wrong in (30522, np.iinfo(dtype).max, np.iinfo(dtype).min):
        call = call_of(2, 100, dtype)
        call.ids[150] = wrong
        assert bool(cpu.mask_batch(plan, call, poisoned(call, out_dtype))) == (0 <= wrong < 30522)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_attention_masks_are_read_as_the_reference_reads_them(dtype: str) -> None:
    from fastmask.kernels import reference

    rng = np.random.default_rng(0)
    for _ in range(200):
        mask = np.zeros((4, int(rng.integers(1, 9))), dtype)
        for row in mask:
            a, b = sorted(rng.integers(0, mask.shape[1], 2, endpoint=True))
            row[a:b] = 1
        if rng.random() < 0.5:
            mask[rng.integers(4), rng.integers(mask.shape[1])] = rng.choice([0, 1, 2])
        starts, lengths, wrong = cpu.real_runs(mask)
        want_starts, want_lengths, want_wrong = reference.real_runs(mask)
        assert wrong == want_wrong
        if wrong < 0:
            np.testing.assert_array_equal(lengths, want_lengths, strict=True)
            np.testing.assert_array_equal(starts, want_starts, strict=True)


def test_threads_never_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    from fastmask import threads

    if numba.config.NUMBA_NUM_THREADS == 1:
        pytest.skip("Numba has one thread here")
    monkeypatch.setattr(threads, "LEAST_CELLS", 1)
    monkeypatch.setattr(threads, "CELLS_PER_RANGE", 1)
    masker = fm.Masker(BERT, fm.Bernoulli(0.15), seed=7)
    ids = random_ids(np.random.default_rng(0), BERT, (257, 513))
    batches = []
    for n in (1, 2):
        fm.set_num_threads(n)
        assert ("parallel" in masker.explain_backend(ids)) == (n > 1)
        batches.append(masker(ids, epoch=1, returns=("decisions", "num_masked")))
    for name in ("input_ids", "labels", "decisions", "num_masked"):
        np.testing.assert_array_equal(getattr(batches[0], name), getattr(batches[1], name), strict=True)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda x: x,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_and_dtype_of_the_input_do_not_matter(layout: str, dtype: str) -> None:
    masker = fm.Masker(BERT, fm.Bernoulli(0.15), seed=7, id_dtype="int64")
    ids = random_ids(np.random.default_rng(0), BERT, (5, 130))
    want = masker(ids, epoch=1, backend="numpy")
    given = LAYOUTS[layout](ids.astype(dtype))
    given.flags.writeable = False
    before = given.tobytes()
    got = masker(given, epoch=1)
    np.testing.assert_array_equal(got.input_ids, want.input_ids, strict=True)
    np.testing.assert_array_equal(got.labels, want.labels, strict=True)
    assert given.tobytes() == before


def test_memory_maps_are_read_and_never_written(tmp_path: Any) -> None:
    masker = fm.Masker(BERT, fm.Bernoulli(0.15), seed=7)
    ids = random_ids(np.random.default_rng(0), BERT, (5, 130))
    np.save(tmp_path / "ids.npy", ids)
    got = masker(np.load(tmp_path / "ids.npy", mmap_mode="r"), epoch=1)
    want = masker(ids, epoch=1, backend="numpy")
    np.testing.assert_array_equal(got.input_ids, want.input_ids, strict=True)
    np.testing.assert_array_equal(np.load(tmp_path / "ids.npy"), ids, strict=True)
