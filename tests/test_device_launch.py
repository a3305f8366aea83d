"""Numbers that stand in device memory, graphs that are replayed, and what a call allocates or launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support_cuda import OVERFLOW, Ints, cuda, launch, numba_cuda
from support_cuda import tiny_launches as tiny_launches

import fastmask as fm

memory = pytest.importorskip("fastmask.memory")

pytestmark = OVERFLOW

VOCAB = fm.Vocab(60, 4, None, (1, 2, 3, 30))  # without a pad id rows are full
IDS = np.random.default_rng(0).integers(5, 60, (3, 21))
LAWS = {
    "tokens": fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7),
    "count": fm.Masker(VOCAB, fm.ExactCount(0.4), seed=7),
    "spans": fm.Masker(VOCAB, fm.Spans(0.4, fm.Geometric(0.2, 10)), seed=7),
    "diffusion": fm.Masker(VOCAB, fm.Diffusion(0.1), seed=7),
}
MASKER = LAWS["tokens"]
every_law = pytest.mark.parametrize("masker", LAWS.values(), ids=LAWS)


def device(x: Any) -> Any:
    return numba_cuda.to_device(np.asarray(x))


def same(got: Any, masker: fm.Masker, ids: Ints = IDS, **given: Any) -> None:
    """The ids and labels of a batch in device memory are those of the reference."""
    want = masker(ids, backend="numpy", **given)
    for name in ("input_ids", "labels"):
        np.testing.assert_array_equal(getattr(got, name).copy_to_host(), getattr(want, name), strict=True)


# Numbers in device memory


@every_law
@pytest.mark.parametrize("shape", [(), (1,)])
def test_an_epoch_in_device_memory_is_an_epoch(masker: fm.Masker, shape: tuple[int, ...]) -> None:
    epoch = (1 << 24) - 1
    batch = masker(device(IDS), epoch=device(np.full(shape, epoch)), sample_ids=9).check()
    same(batch, masker, epoch=epoch, sample_ids=9)


@every_law
@pytest.mark.parametrize("first", [0, 9, (1 << 63) - 1])
def test_a_first_sample_id_in_device_memory_is_that_of_the_first_row(masker: fm.Masker, first: int) -> None:
    batch = masker(device(IDS), epoch=5, sample_ids=device(first)).check()
    same(batch, masker, epoch=5, sample_ids=first)


@every_law
def test_the_first_of_counted_sample_ids_may_be_any(masker: fm.Masker) -> None:
    for first in (0, (1 << 64) - 3, np.array(77), np.uint64(1 << 63)):
        same(masker(device(IDS), epoch=5, sample_ids=first).check(), masker, epoch=5, sample_ids=first)


@every_law
def test_numbers_in_device_memory_go_with_packed_samples(masker: fm.Masker) -> None:
    ids, bounds = IDS.reshape(-1), np.array([0, 30, 30, 41, 63])
    given: dict[str, Any] = {"epoch": device(5), "sample_ids": device(9), "cu_seqlens": device(bounds)}
    same(masker(device(ids), **given).check(), masker, ids, epoch=5, sample_ids=9, cu_seqlens=bounds)


@pytest.mark.parametrize("masker", [LAWS["tokens"], LAWS["count"], LAWS["diffusion"]])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 1 << 24}, r"epoch must be in \[0, 2\^24\), but is not"),
        ({"epoch": -1}, r"epoch must be in \[0, 2\^24\), but is not"),
        ({"sample_ids": -1}, r"sample_ids must be in \[0, 2\^63\), but the first is not"),
    ],
)
def test_a_bad_number_in_device_memory_is_found_by_check_alone(
    masker: fm.Masker, given: dict[str, Any], message: str
) -> None:
    batch = masker(device(IDS), **{"epoch": 5} | {name: device(x) for name, x in given.items()})
    with pytest.raises(ValueError, match=message):
        batch.check()
    masker(device(IDS), epoch=device(5), sample_ids=device(0)).check()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"epoch": np.zeros(1, np.int32)}, TypeError, "epoch must be int64 on a GPU, got int32"),
        ({"epoch": np.zeros(2, np.int64)}, ValueError, r"epoch has shape \(2,\), expected \(1,\)"),
        ({"sample_ids": np.array(0, np.uint64)}, TypeError, "sample_ids must be int64 on a GPU, got uint64"),
    ],
)
def test_numbers_in_device_memory_are_single_int64(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MASKER(device(IDS), **{"epoch": 5} | {name: device(x) for name, x in given.items()})


# Graphs


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a call queues, so that it can be queued once more, as the replay of a graph does."""
    launches: list[Any] = []
    run = launch.Kernel.launch

    def record(*arguments: Any) -> None:
        launches.append(lambda: run(*arguments))
        run(*arguments)

    monkeypatch.setattr(launch.Kernel, "launch", record)
    return launches


@every_law
def test_a_replay_goes_on_to_the_epoch_and_the_samples_that_stand_in_device_memory(
    masker: fm.Masker, captured: list[Any]
) -> None:
    epoch, first, ids = device(5), device(9), device(IDS)
    out = device(np.zeros_like(IDS)), device(np.zeros_like(IDS))
    batch = masker(ids, epoch=epoch, sample_ids=first, out=out)
    same(batch, masker, epoch=5, sample_ids=9)
    for step in (1, 2):
        epoch[...] = 5 + step
        first[...] = 9 + 3 * step
        for queued in captured[:]:
            queued()
        same(batch, masker, epoch=5 + step, sample_ids=9 + 3 * step)


def test_with_out_a_law_of_tokens_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("memory was allocated")

    ids, out = device(IDS), (device(np.zeros_like(IDS)), device(np.zeros_like(IDS)))
    for given in ({"sample_ids": 9}, {"sample_ids": device(9)}):
        MASKER(ids, epoch=5, out=out, **given)  # tables of the masker, and flags
        with monkeypatch.context() as patch:
            for name in ("device_array", "to_device"):
                patch.setattr(launch.cuda, name, refuse)
            same(MASKER(ids, epoch=6, out=out, **given), MASKER, epoch=6, sample_ids=9)


@pytest.mark.parametrize(
    "given",
    [
        {"sample_ids": [1, 2, 3]},
        {"lengths": [21, 3, 0]},
        {"rates": [0.1, 0.2, 0.3]},
        {"position_offset": 5},
    ],
)
def test_numbers_of_the_host_that_would_be_copied_are_refused_in_a_capture(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(memory.NumbaMemory, "is_capturing", lambda self: True)
    with pytest.raises(RuntimeError, match=f"{next(iter(given))} must be in device memory while a graph is captured"):
        MASKER(device(IDS), epoch=5, **given)
    same(MASKER(device(IDS), epoch=5, sample_ids=9), MASKER, epoch=5, sample_ids=9)


def test_a_capture_takes_flags_from_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_flags", {})
    pages: list[int] = []
    to_device = launch.to_device

    def counted(table: Ints, device: int) -> Any:
        pages.append(device)
        return to_device(table, device)

    monkeypatch.setattr(launch, "to_device", counted)
    monkeypatch.setattr(launch, "is_capturing", lambda stream: stream == "a capturing one")
    capturing, other = launch.Queue(0, "a capturing one"), launch.Queue(0, "another")
    launch.new_flag(other)
    assert pages == [0]
    for _ in range(launch.FLAGS - 1):
        launch.new_flag(capturing)
    assert pages == [0]
    launch.new_flag(other)
    assert pages == [0, 0]
    for _ in range(launch.FLAGS // 2 - 1):
        launch.new_flag(other)
    assert pages == [0, 0]
    launch.new_flag(other)
    assert pages == [0, 0, 0]


# Nothing


@every_law
@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,)])
def test_nothing_is_launched_for_an_empty_batch(
    monkeypatch: pytest.MonkeyPatch, masker: fm.Masker, shape: tuple[int, ...]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(cuda.Kernel, "launch", refuse)
    batch = masker(device(np.zeros(shape, np.int64)), epoch=0).check()
    assert batch.input_ids.shape == batch.labels.shape == shape
