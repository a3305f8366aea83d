"""How tensors of torch are read, allocated and queued behind: stand-ins play the GPU that is not here."""

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

from fastmask.call import Arguments

memory = pytest.importorskip("fastmask.memory")

pytestmark = OVERFLOW


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
