"""Errors of outputs that a caller gives, and of arrays on a GPU (the simulator's where there is none)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support import OVERFLOW, POISON, Array, on_host, same, small_ids, small_launches, small_outputs

import fastmask as fm

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.9), seed=7)


def read_only() -> Array:
    array = small_outputs()[0]
    array.flags.writeable = False
    return array


VALUE_OF_OUT: list[tuple[str, Callable[[], Any]]] = [
    ("out's input_ids has shape (4, 3)", lambda: (np.empty((4, 3), int), small_outputs()[1])),
    ("out's labels has shape (12,)", lambda: (small_outputs()[0], np.empty(12, int))),
    ("out's input_ids is read-only", lambda: (read_only(), small_outputs()[1])),
    ("out's labels is read-only", lambda: (small_outputs()[0], read_only())),
    (
        "out must hold input_ids and labels, got ['ids', 'labels']",
        lambda: dict(zip(("ids", "labels"), small_outputs(), strict=True)),
    ),
    ("out's labels and out's input_ids share memory", lambda: (small_outputs()[0],) * 2),
]

TYPE_OF_OUT: list[tuple[str, Callable[[], Any]]] = [
    ("out's input_ids must be int32 or int64", lambda: (np.empty((3, 4)), small_outputs()[1])),
    ("out's labels must be int32 or int64, got uint16", lambda: (small_outputs()[0], np.empty((3, 4), np.uint16))),
    ("out's input_ids must be int32 or int64, got >i8", lambda: small_outputs(">i8")),
    ("out's input_ids must be an array, got list", lambda: ([[0] * 4] * 3, small_outputs()[1])),
    ("out must be a pair (input_ids, labels)", lambda: small_outputs()[0]),
    ("out must be a pair (input_ids, labels)", lambda: (*small_outputs(), small_outputs()[0])),
]


@on_host
@pytest.mark.parametrize(
    ("error", "message", "make"),
    [(ValueError, *row) for row in VALUE_OF_OUT] + [(TypeError, *row) for row in TYPE_OF_OUT],
)
def test_outputs_that_cannot_be_written_are_refused(
    backend: str, error: type[Exception], message: str, make: Callable[[], Any]
) -> None:
    ids, out = small_ids(), make()
    with pytest.raises(error, match=re.escape(message)):
        MASKER(ids, epoch=0, out=out, backend=backend)
    same(ids, small_ids())
    for array in out.values() if isinstance(out, dict) else out:
        if isinstance(array, np.ndarray) and array.shape == (3, 4) and array.dtype == np.int64:
            same(array, np.full((3, 4), POISON))


def test_outputs_that_overlap_the_input_without_being_it_are_refused() -> None:
    memory = np.arange(5, 18)
    ids, shifted, copy = memory[:12].reshape(3, 4), memory[1:].reshape(3, 4), memory.copy()
    with pytest.raises(ValueError, match="out's input_ids and input_ids overlap without being the same array"):
        MASKER(ids, epoch=0, out=(shifted, small_outputs()[1]))
    with pytest.raises(ValueError, match="overlap without being the same array"):
        MASKER(ids[:, ::-1], epoch=0, out=(ids, small_outputs()[1]))
    with pytest.raises(ValueError, match="overlap without being the same array"):
        MASKER(ids.view(np.int32)[:, :4], epoch=0, out=(ids, small_outputs()[1]))
    with pytest.raises(ValueError, match="out's labels and input_ids share memory"):
        MASKER(ids, epoch=0, out=(small_outputs()[0], ids))
    same(memory, copy)


def test_empty_views_share_no_memory_and_may_all_be_one() -> None:
    empty = np.arange(8).reshape(2, 4)[:0]
    assert MASKER(empty, epoch=0, out=(empty, empty)).labels is empty


@on_host
def test_int64_sample_ids_count_as_they_came_though_labels_are_written_over_them(backend: str) -> None:
    ids, (out, labels) = small_ids(), small_outputs()
    sample_ids = labels.reshape(-1)[1:4]
    sample_ids[:] = 7, 8, 9
    MASKER(ids, epoch=0, sample_ids=sample_ids, out=(out, labels), backend=backend)
    want = MASKER(ids, epoch=0, sample_ids=[7, 8, 9], backend="numpy")
    same(out, want.input_ids)
    same(labels, want.labels)


def test_outputs_of_another_dtype_than_id_dtype_are_refused() -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.9), id_dtype=np.int32)
    out = small_outputs()
    with pytest.raises(TypeError, match="out's input_ids is int64, but id_dtype is int32"):
        masker(small_ids(), epoch=0, out=out)
    same(out[0], np.full((3, 4), POISON))


@on_host
def test_labels_too_narrow_for_ignore_index_are_refused(backend: str) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.9), ignore_index=2**40)
    labels = np.full((3, 4), POISON, np.int32)
    with pytest.raises(OverflowError, match=f"out's labels .*{2**40}"):
        masker(small_ids(), epoch=0, out=(small_outputs()[0], labels), backend=backend)
    same(labels, np.full((3, 4), POISON, np.int32))


@on_host
@pytest.mark.parametrize("kind", ["pair", "list", "mapping", "batch"])
def test_outputs_may_be_a_pair_a_mapping_or_an_earlier_batch(backend: str, kind: str) -> None:
    ids, labels = small_outputs()
    make: dict[str, Callable[[], Any]] = {
        "pair": lambda: (ids, labels),
        "list": lambda: [ids, labels],
        "mapping": lambda: MappingProxyType({"labels": labels, "input_ids": ids}),
        "batch": lambda: fm.MaskedBatch(ids, labels),
    }
    batch = MASKER(small_ids(), epoch=0, out=make[kind](), backend=backend)
    want = MASKER(small_ids(), epoch=0, backend="numpy")
    assert batch.input_ids is ids
    assert batch.labels is labels
    same(ids, want.input_ids)
    same(labels, want.labels)


# Arrays on a GPU.


@pytest.fixture
def to_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """Copies an array to the GPU, whose launches are small."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: pip install numba-cuda")
    from numba import cuda

    with small_launches(monkeypatch):
        yield cuda.to_device


HOST_INTS, HOST_FLOATS = np.full(3, 2), np.full(3, 0.5)
VALUE_ON_A_GPU: list[tuple[str, dict[str, Any]]] = [
    ("epoch must be in [0, 2^24), got -1", {"epoch": -1}),
    ("sample_ids must be >= 0, got -3 in row 2", {"sample_ids": [1, 2, -3]}),
    ("sample_ids must be in [0, 2^64), got -1", {"sample_ids": -1}),
    ("lengths must be in [0, 4], got 5 in row 1", {"lengths": [4, 5, 4]}),
    ("lengths must hold one value for each of 3 rows", {"lengths": [4]}),
    ("rates", {"rates": [0.1, 0.2, 1.5]}),
    ("position_offset must be >= 0", {"position_offset": -1}),
    ("returns may hold decisions, num_masked, compact, rates, got 'loss'", {"returns": "loss"}),
    ("backend must be one of numpy, cpu, cuda, got 'gpu'", {"backend": "gpu"}),
]
TYPE_ON_A_GPU: list[tuple[str, dict[str, Any]]] = [
    ("epoch must be an integer, got 1.5", {"epoch": 1.5}),
    ("sample_ids is a numpy.ndarray in host memory", {"sample_ids": HOST_INTS}),
    ("lengths is a numpy.ndarray in host memory", {"lengths": HOST_INTS}),
    ("rates is a numpy.ndarray in host memory", {"rates": HOST_FLOATS}),
    ("position_offset is a numpy.ndarray in host memory", {"position_offset": HOST_INTS}),
    ("attention_mask is a numpy.ndarray in host memory", {"attention_mask": np.ones((3, 4))}),
    ("special_tokens_mask is a numpy.ndarray in host memory", {"special_tokens_mask": np.ones((3, 4))}),
    ("out's input_ids is a numpy.ndarray in host memory", {"out": small_outputs()}),
    ("cannot reach input_ids", {"backend": "cpu"}),
]


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [(ValueError, *row) for row in VALUE_ON_A_GPU] + [(TypeError, *row) for row in TYPE_ON_A_GPU],
)
def test_a_call_on_a_gpu_refuses_what_the_host_can_see(
    to_device: Any, error: type[Exception], message: str, given: dict[str, Any]
) -> None:
    out = tuple(map(to_device, small_outputs()))
    call: dict[str, Any] = {"epoch": 0, "out": out, **given}
    with pytest.raises(error, match=re.escape(message)):
        MASKER(to_device(small_ids()), **call)
    for array in out:
        same(array.copy_to_host(), np.full((3, 4), POISON))


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [
        (ValueError, "lengths has shape (2,), expected (3,)", {"lengths": np.full(2, 2)}),
        (ValueError, "attention_mask has shape (3, 3), expected (3, 4)", {"attention_mask": np.ones((3, 3))}),
        (TypeError, "lengths must be int64 on a GPU, got int32", {"lengths": np.full(3, 2, np.int32)}),
        (TypeError, "rates must be float64 on a GPU, got float32", {"rates": np.full(3, 0.5, np.float32)}),
        (TypeError, "sample_ids must be int64 on a GPU", {"sample_ids": np.full(3, 0.5)}),
        (
            TypeError,
            "special_tokens_mask must be bool, uint8 or int8",
            {"special_tokens_mask": np.ones((3, 4))},
        ),
    ],
)
def test_arrays_on_a_gpu_of_another_shape_or_dtype_are_refused(
    to_device: Any, error: type[Exception], message: str, given: dict[str, Array]
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        MASKER(to_device(small_ids()), epoch=0, **{name: to_device(x) for name, x in given.items()})


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (ValueError, "out's input_ids has shape (4, 3)", lambda: (np.empty((4, 3), np.int64), small_outputs()[1])),
        (ValueError, "out's labels has shape (4, 3)", lambda: (small_outputs()[0], np.empty((4, 3), np.int64))),
        (TypeError, "out's input_ids must be int32 or int64", lambda: (np.empty((3, 4)), small_outputs()[1])),
    ],
)
def test_outputs_on_a_gpu_of_another_shape_or_dtype_are_refused(
    to_device: Any, error: type[Exception], message: str, make: Callable[[], Any]
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        MASKER(to_device(small_ids()), epoch=0, out=tuple(map(to_device, make())))


def test_outputs_on_a_gpu_of_another_dtype_than_id_dtype_are_refused(to_device: Any) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.9), id_dtype=np.int32)
    with pytest.raises(TypeError, match="out's input_ids is int64, but id_dtype is int32"):
        masker(to_device(small_ids()), epoch=0, sample_ids=0, out=tuple(map(to_device, small_outputs())))


def test_outputs_on_a_gpu_that_share_memory_are_refused(to_device: Any) -> None:
    ids, array = to_device(small_ids()), to_device(small_outputs()[0])
    with pytest.raises(ValueError, match="share memory"):
        MASKER(ids, epoch=0, sample_ids=0, out=(array, array))
    with pytest.raises(ValueError, match="share memory"):
        MASKER(ids, epoch=0, sample_ids=0, out=(array, ids))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bool", "uint64", "uint8"])
def test_ids_on_a_gpu_of_other_dtypes_are_refused(to_device: Any, dtype: str) -> None:
    with pytest.raises(TypeError, match=f"input_ids must be .*, got {dtype}"):
        MASKER(to_device(np.ones((3, 4), dtype)), epoch=0)


@pytest.mark.parametrize("shape", [(2, 3, 4), ()])
def test_ids_on_a_gpu_of_other_dimensions_are_refused(to_device: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="input_ids must have 1 or 2 dimensions"):
        MASKER(to_device(np.ones(shape, np.int64)), epoch=0)


@OVERFLOW
@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("lengths must be in [0, 4]", {"lengths": np.array([4, 5, 4])}),
        ("lengths must be in [0, 4]", {"lengths": np.array([4, 4, -1])}),
        ("sample_ids must be in", {"sample_ids": np.array([0, -1, 2])}),
        ("position_offset must be in", {"position_offset": np.array([0, 0, 2**34 - 3])}),
        ("rates must lie in [0, 1]", {"rates": np.array([0.1, 1.5, 0.2])}),
        ("rates must lie in [0, 1]", {"rates": np.array([0.1, np.nan, 0.2])}),
        ("attention_mask must be one run of ones", {"attention_mask": np.array([[1, 1, 0, 1]] * 3)}),
        ("attention_mask must be one run of ones", {"attention_mask": np.array([[1, 1, 2, 0]] * 3)}),
    ],
)
def test_what_only_the_gpu_can_see_is_told_by_the_check(to_device: Any, message: str, given: dict[str, Array]) -> None:
    arrays = {"sample_ids": 0} | {name: to_device(x) for name, x in given.items()}
    batch = MASKER(to_device(small_ids()), epoch=0, **arrays)
    with pytest.raises(ValueError, match=re.escape(message)):
        batch.check()


@pytest.mark.parametrize("value", [-1, 30, 2**31, -(2**63)])
def test_an_id_out_of_range_on_a_gpu_is_told_by_the_check(to_device: Any, value: int) -> None:
    ids = small_ids()
    ids[1, 2] = value
    copy, device_ids = ids.copy(), to_device(ids)
    batch = MASKER(device_ids, epoch=0, sample_ids=0, lengths=[4] * 3)
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 30\), but an id is not"):
        batch.check()
    same(device_ids.copy_to_host(), copy)


def test_a_good_batch_is_what_its_check_returns(to_device: Any) -> None:
    for ids in (small_ids(), to_device(small_ids())):
        batch = MASKER(ids, epoch=0, sample_ids=0, lengths=[4] * 3)
        assert batch.check() is batch
