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

import fastmask as fm
from fastmask.call import Arguments

memory = pytest.importorskip("fastmask.memory")

pytestmark = OVERFLOW

STREAM = 77
VOCAB = fm.Vocab(size=60, mask_token_id=4, pad_token_id=0)
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.5), fm.Replace(0.4, 0.4), seed=7)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(launch, "_stream", lambda device, handle: handle)


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


# torch


class Tensor:
    """Stands for a tensor of torch on a GPU, its memory in the host."""

    def __init__(self, array: Ints, index: int = 1) -> None:
        self.array, self.device = array, SimpleNamespace(type="cuda", index=index)
        self.dtype, self.shape = f"torch.{array.dtype}", array.shape

    def detach(self) -> Tensor:
        return self

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else Tensor(np.ascontiguousarray(self.array))

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return self.array.size

    def pin_memory(self) -> Pinned:
        return Pinned(self.array)


class Pinned:
    """Stands for a tensor in pinned host memory."""

    def __init__(self, array: Ints) -> None:
        self.array = array

    def to(self, device: Any, non_blocking: bool) -> Tensor:
        assert non_blocking
        return Tensor(self.array, device.index)


Tensor.__module__ = "torch"


def empty(shape: Any, dtype: str, device: Any) -> Tensor:
    return Tensor(np.zeros(shape, dtype), device.index)


@pytest.fixture
def torch_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=STREAM + device.index))
    torch.empty, torch.from_numpy = empty, Tensor
    for name in ("int32", "int64", "uint8", "uint32", "uint64"):
        setattr(torch, name, name)
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, list[Any]]]:
    """The launches of kernels, which do not run: name, queue and addresses of arrays."""
    launches: list[Any] = []

    def record(kernel: Any, queue: Any, blocks: int, arrays: list[Any], scalars: list[Any]) -> None:
        launches.append((kernel.function.__name__, queue, [getattr(x, "address", None) for x in arrays]))

    monkeypatch.setattr(launch.Kernel, "launch", record)
    monkeypatch.setattr(launch.cuda, "gpus", [launch.cuda.gpus[0]] * 2)
    return launches


@pytest.mark.usefixtures("torch_of_a_gpu")
def test_kernels_take_the_memory_of_tensors_on_their_current_stream(queued: list[Any]) -> None:
    ids, runs, out, labels = (Tensor(np.ones((2, 8), dtype)) for dtype in ("int32", "bool", "int32", "int64"))
    names, lengths = (Tensor(np.ones(2, dtype)) for dtype in ("uint64", "int64"))
    from fastmask.device import mask

    given: dict[str, Any] = {"epoch": 0, "sample_ids": names, "attention_mask": runs, "special_tokens_mask": runs}
    rest = dict.fromkeys(("lengths", "cu_seqlens", "word_ids", "rates", "stratify")) | {"position_offset": lengths}
    batch = mask(MASKER, ids, Arguments(**given | rest), (out, labels), frozenset({"num_masked"}))
    assert batch.input_ids is out
    assert batch.labels is labels
    assert [name for name, _, _ in queued] == ["find_runs", "clamp_integers", "clear", "mask_tokens"]
    assert {queue for _, queue, _ in queued} == {(1, STREAM + 1)}
    assert queued[0][2][0] == runs.data_ptr()
    assert queued[1][2][0] == lengths.data_ptr()
    addresses = queued[3][2]
    assert addresses[:3] == [x.data_ptr() for x in (ids, out, labels)]
    assert addresses[6] == names.data_ptr()
    assert addresses[8:10] == queued[0][2][1:3]
    assert addresses[10:12] == [None, runs.data_ptr()]


@pytest.mark.usefixtures("torch_of_a_gpu")
def test_torch_allocates_and_copies_for_the_stream_that_is_given() -> None:
    torch, entered = sys.modules["torch"], []

    @contextmanager
    def stream(other: Any) -> Iterator[None]:
        entered.append(other)
        yield

    torch.cuda.ExternalStream = lambda handle, device: (handle, device.index)  # type: ignore[attr-defined]
    torch.cuda.stream = stream  # type: ignore[attr-defined]
    like = memory.memory_of("input_ids", Tensor(np.zeros(4)), 4096)
    assert like.stream == 4096
    like.empty((2, 3), np.int32)
    like.upload(np.zeros(3, np.uint64))
    like.readable("x", Tensor(np.zeros((3, 4)).T))
    assert entered == [(4096, 1)] * 3
    current = memory.memory_of("input_ids", Tensor(np.zeros(4)), STREAM + 1)
    current.empty((2, 3), np.int32)
    assert len(entered) == 3


@pytest.mark.usefixtures("torch_of_a_gpu", "queued")
def test_new_outputs_are_tensors_of_the_same_device() -> None:
    from fastmask.device import mask

    given: dict[str, Any] = dict.fromkeys(
        ("attention_mask", "special_tokens_mask", "lengths", "cu_seqlens", "word_ids", "rates", "stratify")
    )
    given |= {"epoch": 0, "sample_ids": [3, 4], "rates": [0.5, 0.5], "position_offset": 0}
    batch = mask(MASKER, Tensor(np.full((2, 8), 9, np.int16)), Arguments(**given), None, frozenset({"decisions"}))
    got = [batch.input_ids, batch.labels, batch.decisions]
    assert [(x.dtype, x.shape, x.device.index) for x in got] == [
        ("torch.int64", (2, 8), 1),
        ("torch.int64", (2, 8), 1),
        ("torch.uint8", (2, 8), 1),
    ]


@pytest.mark.usefixtures("torch_of_a_gpu")
@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int64"])
def test_numbers_of_the_host_are_copied_to_tensors_bit_by_bit(dtype: str) -> None:
    values = np.array([0, 1, np.iinfo(dtype).max], dtype)
    got = memory.memory_of("input_ids", Tensor(np.zeros(4))).upload(values)
    assert (got.size, got.dtype, got.device_index) == (3, values.dtype, 1)
    np.testing.assert_array_equal(got.owner.array.view(dtype), values, strict=True)


@pytest.mark.usefixtures("torch_of_a_gpu")
def test_strided_tensors_are_copied_to_be_read_and_refused_to_be_written() -> None:
    x = Tensor(np.arange(12).reshape(3, 4).T)
    like = memory.memory_of("input_ids", x)
    read = like.readable("input_ids", x)
    np.testing.assert_array_equal(read.owner.array, x.array, strict=True)
    assert read.address != x.data_ptr()
    with pytest.raises(ValueError, match=r"out must be contiguous: a torch\.Tensor"):
        like.flat("out", x)


@pytest.mark.usefixtures("torch_of_a_gpu")
def test_a_tensor_of_another_device_is_refused() -> None:
    like = memory.memory_of("input_ids", Tensor(np.zeros(4)))
    with pytest.raises(ValueError, match="rates is on device 0, but input_ids is on device 1"):
        like.readable("rates", Tensor(np.zeros(4), 0))


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64"])
def test_dtypes_of_real_tensors_are_those_of_numpy(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert memory.dtype_of("x", torch.zeros(1, dtype=getattr(torch, dtype))) == np.dtype(dtype)


def test_a_dtype_that_numpy_lacks_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(TypeError, match="attention_mask is of dtype bfloat16, which kernels do not read"):
        memory.dtype_of("attention_mask", torch.zeros(1, dtype=torch.bfloat16))


def test_real_tensors_have_what_is_asked_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    like = memory.memory_of("input_ids", torch.zeros((2, 3), dtype=torch.float64, requires_grad=True))
    assert like.stream == STREAM
    x = torch.arange(6).reshape(2, 3).to(torch.float64).requires_grad_().T
    got = like.readable("x", x)
    assert (got.size, got.dtype, got.owner.requires_grad) == (6, np.float64, False)
    assert got.owner.tolist() == x.tolist()
    for dtype in (np.uint8, np.uint32, np.int32, np.int64, np.uint64):
        assert like.empty((2, 3), dtype).dtype == getattr(torch, np.dtype(dtype).name)
        values = np.array([0, np.iinfo(dtype).max], dtype)
        assert like.upload(values).owner.numpy().tobytes() == values.tobytes()


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
