"""At the borders: draws that equal a threshold, numbers that equal a cumulative width, the last position, odd masks."""

from __future__ import annotations

import numpy as np
import pytest
from support import BERT, SMALL, assert_same, expected, plan_of, poisoned

import fastmask as fm
from fastmask import threads
from fastmask.call import Call
from fastmask.kernels import cpu, cpu_range, fate, layout, reference
from fastmask.kernels.cpu_tile import TILE
from fastmask.kernels.cpu_words import GROUP
from fastmask.thresholds import threshold


@pytest.mark.parametrize("own_rates", [False, True])
@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_a_draw_at_a_threshold_is_not_below_it(shares: tuple[float, float], own_rates: bool) -> None:
    call = Call(np.full(40, 9), 1, 40, 3, sample_ids=np.array([5], np.uint64))
    block = reference.words(7, call.epoch, 5, np.arange(40), reference.SELECT)
    for draw in reference.draw(block, np.arange(40)).tolist():
        plan = plan_of(SMALL, draw / 2**24, fm.Replace(*shares))
        assert plan.select == draw
        if own_rates:
            call.thresholds = np.array([draw], np.uint32)
        out = poisoned(call)
        assert cpu.mask_batch(plan, call, out)
        assert_same(out, expected(plan, call))


def test_thresholds_are_rounded_and_nested_alike_everywhere() -> None:
    assert threshold("p", 0.8) == 13421773  # 13421772.8
    selects = np.random.default_rng(0).integers(0, 1 << 24, 200, endpoint=True)
    for select in [0, 1, 2, 3, 5, 2516582, *selects.tolist()]:
        plan = plan_of(SMALL, select / 2**24, fm.Replace(0.3, 0.45))
        call = Call(np.empty(0, np.int64), 1, 0, 0, thresholds=np.array([select], np.uint32))
        want = tuple(int(t[0]) for t in reference.thresholds(plan, call))
        assert (*(int(plan.words[i]) for i in (layout.MASK, layout.RANDOM)), plan.select) == want
        shares = [int(fate.nest(np.uint64(select), np.uint64(s))) for s in (plan.mask_share, plan.random_share)]
        assert (*shares, select) == want


def test_without_the_original_every_border_of_the_weights_is_where_the_reference_has_it() -> None:
    pick = fate.pick_function(fate.count_not_above, fate.uniform)
    plan = plan_of(SMALL, 1, fm.Replace(0, 1, pool=(5, 6, 7), weights=(1, 1, 2), exclude_original=True))
    cumulative = [0, *plan.cumulative.tolist()]
    for original in (5, 6, 7, 8):
        rank = [5, 6, 7].index(original) if original < 8 else 0
        room = (1 << 32) - (cumulative[rank + 1] - cumulative[rank] if original < 8 else 0)
        borders = {-(-(b << 32) // room) + step for b in cumulative for step in (-1, 0, 1)}
        for x in sorted(x for x in borders if 0 <= x < 1 << 32):
            mixed = np.array([x * pow(0x9E3779B1, -1, 2**32) % 2**32], np.uint32)
            want = reference.drawn_tokens(plan, np.array([original]), mixed)
            got = pick(np.uint64(x), np.uint64(original), plan.pool, plan.cumulative, np.uint64(3), True, True)
            assert int(got) == int(want[0]) != original


def test_content_ids_of_rows_longer_than_the_table_of_weights() -> None:
    length = cpu.WEIGHTS_KEPT + 5
    ids = np.random.default_rng(0).integers(0, 30522, length)
    call = Call(ids, 1, length, 0, lengths=np.array([length]))
    want = reference.content_ids(ids[None], np.array([0]), np.array([length]))
    np.testing.assert_array_equal(cpu.content_ids(plan_of(BERT), call), want, strict=True)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("mark", [256, 0.5, -1, float("nan")])
def test_any_value_but_0_marks_a_special_token(backend: str, mark: float) -> None:
    marks = np.array([[0, mark, 0, mark]])
    batch = fm.Masker(SMALL, fm.Bernoulli(1))(np.full((1, 4), 9), epoch=0, special_tokens_mask=marks, backend=backend)
    np.testing.assert_array_equal(batch.labels != -100, marks == 0, strict=True)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("dtype", [">i2", ">i4", ">u8", ">f4"])
def test_attention_masks_of_foreign_byte_order_are_read(backend: str, dtype: str) -> None:
    ids, real = np.full((2, 6), 9), np.array([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    batch = fm.Masker(SMALL, fm.Bernoulli(1))(ids, epoch=0, attention_mask=real.astype(dtype), backend=backend)
    np.testing.assert_array_equal(batch.labels != -100, real == 1, strict=True)


def test_an_output_of_another_dtype_over_the_input_is_an_overlap() -> None:
    ids = np.full((2, 6), 9)
    with pytest.raises(ValueError, match="overlap without being the same array"):
        fm.Masker(SMALL, fm.Bernoulli(1))(ids, epoch=0, out=(ids.view(np.int32)[:, ::2], np.empty_like(ids)))


def test_offsets_reach_the_last_position_of_short_rows() -> None:
    masker = fm.Masker(SMALL, fm.Bernoulli(0.5))
    lengths, offsets = [3, 0], [2**34 - 3, 2**34]
    batches = [
        masker(np.full((2, 8), 9), epoch=0, lengths=lengths, position_offset=offsets, backend=backend)
        for backend in ("numpy", "cpu")
    ]
    np.testing.assert_array_equal(batches[0].labels, batches[1].labels, strict=True)


def test_ranges_are_capped_by_cells_and_workqueue_stays_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_numba_threads", lambda: 64)
    monkeypatch.setattr(threads, "get_num_threads", lambda: 64)
    monkeypatch.setattr(threads, "threading_layer", lambda: "omp")
    assert threads.plan_ranges(threads.LEAST_CELLS)[0] == threads.LEAST_CELLS // threads.CELLS_PER_RANGE
    monkeypatch.setattr(threads, "threading_layer", lambda: "workqueue")
    monkeypatch.setattr("threading.active_count", lambda: 2)
    assert threads.plan_ranges(threads.LEAST_CELLS)[0] == 1


def test_the_words_of_a_tile_have_room_however_it_is_cut_into_samples() -> None:
    nothing = np.empty(0, np.int64)
    target = cpu_range.Target(nothing, nothing, np.empty(0, np.uint8), nothing, nothing, nothing, False)
    for length in range(1, TILE + 1):
        for rows in (TILE // length, -(-TILE // length), TILE):
            pieces = [length] * min(rows, TILE // length)
            if rows * length > TILE > sum(pieces):
                pieces.append(TILE - sum(pieces))
            used = sum((3 + piece + 4 * GROUP - 1) // (4 * GROUP) for piece in pieces)  # each in the last lane
            assert used * 4 * GROUP <= cpu_range.make_scratch(target, rows).words.size, (length, rows)
