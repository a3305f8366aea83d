"""Fresh outputs: aligned, recycled, bounded, and never shared by two that are alive."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Array, on_host, same

import fastmask as fm
from fastmask.buffers import FreeList

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)


def test_batches_that_are_alive_never_share_memory() -> None:
    ids = np.full((4, 64), 9)
    alive: list[tuple[fm.MaskedBatch, Array]] = []
    for step in range(60):
        batch = MASKER(ids, epoch=step, returns="decisions")
        alive.append((batch, batch.labels.copy()))
        if step % 3 == 0:
            del alive[step // 7 % len(alive)]
    arrays = [x for batch, _ in alive for x in (batch.input_ids, batch.labels, batch.decisions)]
    spans = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for x in arrays)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for batch, labels in alive:
        same(batch.labels, labels)


def test_a_view_or_a_tensor_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pool: Any = FreeList()
    view, tensor = pool.empty(1000, np.int64)[10:20], torch.from_numpy(pool.empty(1000, np.int64))[10:20]
    raw = memoryview(pool.empty(1000, np.int64))[10:20]
    view[:], tensor[:], raw[:] = 1, 2, np.full(10, 3).data
    for _ in range(5):
        pool.empty(1000, np.int64)[:] = 9
    same(view, np.full(10, 1))
    same(tensor.numpy(), np.full(10, 2))
    same(np.asarray(raw), np.full(10, 3))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 511, 512, 513, 100_003])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_outputs_start_on_a_line_of_the_cache(size: int, dtype: str) -> None:
    pool = FreeList()
    held = [pool.empty(size, dtype) for _ in range(3)]
    for array in held:
        assert array.shape == (size,)
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0


@on_host
def test_every_output_of_a_call_starts_on_a_line_of_the_cache(backend: str) -> None:
    for columns in (1, 7, 64, 1025):
        batch = MASKER(np.full((3, columns), 9), epoch=0, backend=backend, returns="decisions")
        assert [x.ctypes.data % 64 for x in (batch.input_ids, batch.labels, batch.decisions)] == [0, 0, 0]


def test_memory_that_nobody_holds_is_handed_out_again() -> None:
    pool = FreeList()
    first = pool.empty(5000, np.int64)
    address = first.ctypes.data
    del first
    assert pool.empty(5000, np.int64).ctypes.data == address
    assert pool.empty(9999, np.int32).ctypes.data == address  # of the same class of sizes


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200_000), st.booleans()), max_size=40))
def test_the_memory_held_is_bounded_and_never_shared(steps: list[tuple[int, bool]]) -> None:
    pool = FreeList(kept_bytes=1 << 19, largest_kept=1 << 17)
    alive: list[tuple[Array, int]] = []
    for number, (size, keep) in enumerate(steps):
        array = pool.empty(size, np.uint8)
        array[:] = number % 256
        assert 0 <= pool.held_bytes <= 1 << 19
        if keep:
            alive.append((array, number % 256))
    for array, number in alive:
        same(array, np.full(array.size, number, np.uint8))


def test_large_blocks_are_left_to_the_allocator() -> None:
    pool = FreeList(kept_bytes=1 << 20, largest_kept=1 << 12)
    pool.empty(1 << 16, np.uint8)
    assert pool.held_bytes == 0


def test_more_than_the_bound_may_be_alive_but_is_not_held() -> None:
    pool = FreeList(kept_bytes=1 << 16, largest_kept=1 << 15)
    alive = [pool.empty(4096, np.uint8) for _ in range(100)]
    assert pool.held_bytes == 1 << 16
    assert len({array.ctypes.data for array in alive}) == 100


def test_memory_of_one_size_makes_room_for_that_of_another() -> None:
    pool = FreeList(kept_bytes=1 << 16, largest_kept=1 << 15)
    small = [pool.empty(4096, np.uint8) for _ in range(16)]
    del small
    large = pool.empty(1 << 15, np.uint8)
    assert pool.held_bytes == 1 << 15
    address = large.ctypes.data
    del large
    assert pool.empty(1 << 15, np.uint8).ctypes.data == address
