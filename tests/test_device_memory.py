"""How arrays of each framework are read, allocated and queued behind: stand-ins play the GPU that is not here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support_cuda import OVERFLOW, Ints, launch
from support_device_memory import MASKER, STREAM
from support_device_memory import as_on_a_gpu as as_on_a_gpu

import fastmask as fm

memory = pytest.importorskip("fastmask.memory")

pytestmark = OVERFLOW


class Exported:
    """An array that tells of its memory by the interface alone."""

    def __init__(self, array: Ints, *, device: int = 0, read_only: bool = False, **interface: Any) -> None:
        self.array, self.shape, self.dtype, self.device_index = array, array.shape, array.dtype, device
        data = (array.ctypes.data, read_only)
        known = {"shape": array.shape, "typestr": array.dtype.str, "data": data, "version": 3}
        self.__cuda_array_interface__ = known | interface


def where(array: Any) -> tuple[int, int, str, int]:
    """Address, size, dtype and device of a flat array."""
    return array.address, array.size, array.dtype.str, array.device_index


@pytest.mark.parametrize("shape", [(3, 4), (5,), (0, 4), (3, 0), ()])
@pytest.mark.parametrize("dtype", ["bool", "uint16", "int32", "int64", "uint64", "float64"])
def test_the_interface_says_where_memory_lies(shape: tuple[int, ...], dtype: str) -> None:
    x = np.zeros(shape, dtype)
    for strides in (None, x.strides):
        like = Exported(x, strides=strides)
        got = memory.memory_of("input_ids", like).flat("x", like)
        assert where(got) == (x.ctypes.data, x.size, x.dtype.str, 0)
        assert launch._place(got) == (x.ctypes.data, x.dtype.str.replace("b", "u"))
        assert got.owner is like


def test_a_view_is_the_same_memory() -> None:
    x = Exported(np.zeros((3, 4), np.int64), device=2)
    got = memory.memory_of("input_ids", x).flat("x", x).view(np.dtype(np.uint16))
    assert where(got) == (x.array.ctypes.data, 48, "<u2", 2)


@pytest.mark.parametrize(
    "x",
    [np.zeros((3, 4)).T, np.zeros((3, 4))[:, ::2], np.zeros((3, 4))[::-1], np.broadcast_to(np.zeros(4), (3, 4))],
)
def test_arrays_that_are_not_contiguous_are_refused(x: Ints) -> None:
    like = Exported(x, strides=x.strides)
    with pytest.raises(ValueError, match=r"x must be contiguous: a .*\.Exported cannot be copied"):
        memory.memory_of("input_ids", like).flat("x", like)


def test_rows_of_numba_that_lie_on_top_of_each_other_are_not_contiguous() -> None:
    x = Exported(np.zeros((3, 4)), strides=None)
    like = memory.memory_of("input_ids", x)
    x.gpu_data, x.strides = None, (0, 8)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="must be contiguous"):
        like.flat("x", x)


def test_an_array_of_another_device_is_refused() -> None:
    here = memory.memory_of("input_ids", Exported(np.zeros(4), device=1))
    with pytest.raises(ValueError, match="lengths is on device 0, but input_ids is on device 1"):
        here.flat("lengths", Exported(np.zeros(4)))


@pytest.mark.parametrize("stream", [None, 1, 2, 4096])
def test_kernels_are_queued_on_the_stream_that_an_array_names(stream: int | None) -> None:
    assert memory.memory_of("input_ids", Exported(np.zeros(4), stream=stream)).stream == (stream or 0)


def test_a_read_only_output_is_refused() -> None:
    ids = Exported(np.full((2, 8), 9))
    with pytest.raises(ValueError, match="out's labels is read-only"):
        MASKER(ids, epoch=0, out=(ids, Exported(np.full((2, 8), 9), read_only=True)), backend="cuda")


# Streams and devices


class Protocol:
    """Stands for a stream of whatever has the protocol."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 4096


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (4096, 4096),
        (Protocol(), 4096),
        (SimpleNamespace(cuda_stream=78), 78),
        (SimpleNamespace(ptr=79), 79),
    ],
)
def test_kernels_are_queued_on_the_stream_that_is_given(
    monkeypatch: pytest.MonkeyPatch, stream: Any, handle: int
) -> None:
    queues: list[Any] = []
    monkeypatch.setattr(launch.Kernel, "launch", lambda self, queue, *_: queues.append(queue))
    monkeypatch.setattr(launch, "is_capturing", lambda stream: False)
    ids, labels = (Exported(np.full((2, 8), 9), stream=33) for _ in range(2))
    masker = fm.Masker(fm.Vocab(60, 4), fm.Bernoulli(0.5))
    for given, queue in ({"stream": stream}, (0, handle)), ({}, (0, 33)):
        masker(ids, epoch=0, sample_ids=3, out=(ids, labels), **given)
        assert queues.pop() == queue


@pytest.mark.parametrize("stream", ["a stream", 1.5, True])
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(TypeError, match="stream must be a stream or its handle"):
        MASKER(Exported(np.full((2, 8), 9)), epoch=0, stream=stream)


def test_arrays_of_the_host_have_no_stream() -> None:
    with pytest.raises(TypeError, match="stream goes with arrays in device memory"):
        MASKER(np.full((2, 8), 9), epoch=0, stream=0)


def test_the_device_of_the_array_is_current_for_a_launch_and_the_one_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = [0]

    @contextmanager
    def entered(number: int) -> Iterator[None]:
        before, current[0] = current[0], number
        try:
            yield
        finally:
            current[0] = before

    monkeypatch.setattr(launch.cuda, "gpus", [entered(0), entered(1)])
    with launch.on_device(SimpleNamespace(device_index=1), 77) as queue:
        assert (current, queue) == ([1], (1, 77))
    assert current == [0]


# CuPy


class ndarray(Exported):  # noqa: N801
    """Stands for an array of CuPy."""

    def __init__(self, array: Ints, device: Any) -> None:
        super().__init__(array, strides=None if array.flags.c_contiguous else array.strides)
        self.device = device


ndarray.__module__ = "cupy"


class Device:
    """Stands for a device of CuPy; it knows whether it is the current one."""

    def __init__(self, number: int) -> None:
        self.id, self.current = number, False

    def __enter__(self) -> None:
        self.current = True

    def __exit__(self, *_: object) -> None:
        self.current = False


def test_arrays_of_cupy_are_made_on_their_device_and_queued_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(1)

    def on_it(array: Ints) -> ndarray:
        assert device.current
        return ndarray(array, device)

    cupy: Any = ModuleType("cupy")
    cupy.ndarray, cupy.asarray = ndarray, on_it
    cupy.empty = lambda shape, dtype: on_it(np.empty(shape, dtype))
    cupy.ascontiguousarray = lambda x: on_it(np.ascontiguousarray(x.array))
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=STREAM if device.current else 0))
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    x = ndarray(np.arange(12).reshape(3, 4).T, device)
    like = memory.memory_of("input_ids", x)
    assert (like.stream, like.device_index) == (STREAM, 1)
    np.testing.assert_array_equal(like.readable("input_ids", x).owner.array, x.array, strict=True)
    assert like.empty((2, 3), np.int32).shape == (2, 3)
    values = np.array([0, (1 << 64) - 1], np.uint64)
    got = like.upload(values)
    assert where(got) == (values.ctypes.data, 2, "<u8", 1)
    with pytest.raises(ValueError, match="rates is on device 0, but input_ids is on device 1"):
        like.readable("rates", ndarray(np.zeros(4), Device(0)))
