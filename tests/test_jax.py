"""Arrays of JAX in, arrays of JAX out: on the host as they are, on a GPU with stand-ins for what is not here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import OVERFLOW, on_host, same

import fastmask as fm
from fastmask import arrays, buffers

jax = pytest.importorskip("jax", reason="jax is not installed: pip install jax")

VOCAB = fm.Vocab(60, 4, 0, (0, 1, 2, 3, 4))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.4), seed=7)
IDS = np.random.default_rng(0).integers(5, 60, (4, 16))
EVERYTHING = ("decisions", "num_masked", "compact")
FIELDS = ("input_ids", "labels", "decisions", "num_masked", "rates", "weights")


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def x64(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether JAX knows numbers of 64 bits."""
    with jax.enable_x64(request.param):
        yield request.param


def equal(got: Any, want: Any, x64: bool) -> None:
    """Arrays of JAX on the host, equal to NumPy's, in 32 bits where JAX knows no more."""
    assert arrays.is_jax(got)
    if not x64 and want.dtype == np.int64:
        want = want.astype(np.int32)
    same(np.asarray(got), want)


@on_host
@pytest.mark.parametrize("law", [fm.Bernoulli(0.4), fm.Diffusion()], ids=str)
def test_a_batch_is_of_jax_and_equal_to_that_of_numpy(law: Any, backend: str, x64: bool) -> None:
    masker = fm.Masker(VOCAB, law, seed=7)
    returns = (*EVERYTHING, "rates") if isinstance(law, fm.Diffusion) else EVERYTHING
    given: dict[str, Any] = {"epoch": 3, "returns": returns}
    lengths = np.array([16, 0, 3, 9])
    got = masker(jax.numpy.asarray(IDS), lengths=jax.numpy.asarray(lengths), backend=backend, **given)
    want = masker(IDS, lengths=lengths, backend="numpy", **given)
    for name in FIELDS:
        if getattr(want, name) is not None:
            equal(getattr(got, name), getattr(want, name), x64)
    for one, other in zip(got.compact or (), want.compact or (), strict=True):
        equal(one, other, x64)


def test_ids_are_read_where_they_lie_and_outputs_are_not_copied(monkeypatch: pytest.MonkeyPatch, x64: bool) -> None:
    ids, read, made = jax.numpy.asarray(IDS), [], []
    to_host, empty = arrays.to_host, buffers.empty

    def read_from(*arguments: Any) -> Any:
        read.append(to_host(*arguments))
        return read[-1]

    def made_by(*arguments: Any) -> Any:
        made.append(empty(*arguments))
        return made[-1]

    monkeypatch.setattr("fastmask.validate.to_host", read_from)
    monkeypatch.setattr(buffers, "empty", made_by)
    batch = MASKER(ids, epoch=3, sample_ids=5, backend="numpy")
    assert read[0].ctypes.data == ids.unsafe_buffer_pointer()
    places = [batch.input_ids.unsafe_buffer_pointer(), batch.labels.unsafe_buffer_pointer()]
    assert places == [x.ctypes.data for x in made]


def test_a_batch_of_jax_keeps_its_memory() -> None:
    """The blocks of a batch that is alive are not handed out to another."""
    with jax.enable_x64(True):
        batch = MASKER(jax.numpy.asarray(IDS), epoch=3, backend="numpy")
        others = [MASKER(IDS, epoch=epoch, backend="numpy") for epoch in range(4, 8)]
        same(np.asarray(batch.input_ids), MASKER(IDS, epoch=3, backend="numpy").input_ids)
        assert len(others) == 4


def test_an_ignore_index_that_jax_cannot_hold_is_refused() -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.4), ignore_index=1 << 40)
    with jax.enable_x64(False), pytest.raises(OverflowError, match="labels are int32, too narrow for ignore_index"):
        masker(jax.numpy.asarray(IDS), epoch=3)
    with jax.enable_x64(True):
        equal(masker(jax.numpy.asarray(IDS), epoch=3).labels, masker(IDS, epoch=3).labels, True)


@pytest.mark.parametrize("kind", [np.zeros_like, jax.numpy.zeros_like])
def test_out_is_refused(kind: Any) -> None:
    ids = jax.numpy.asarray(IDS)
    with pytest.raises(TypeError, match="out cannot be given with arrays of JAX, which are immutable"):
        MASKER(ids, epoch=3, out=(kind(IDS), kind(IDS)))


def test_an_array_that_jax_traces_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        jax.jit(lambda ids: MASKER(ids, epoch=3).input_ids)(jax.numpy.asarray(IDS))


def test_supplied_decisions_come_back_as_arrays_of_jax() -> None:
    probs = np.random.default_rng(1).random(IDS.shape)
    given = (IDS, probs < 0.5, probs, IDS[::-1])
    want = fm.apply_mlm_mask(*given, backend="numpy")
    with jax.enable_x64(True):
        got = fm.apply_mlm_mask(*map(jax.numpy.asarray, given), backend="numpy")
        for name in want:
            equal(got[name], want[name], True)


# On a GPU


class Array:
    """Stands for an array of CuPy; those of JAX export one."""

    def __init__(self, array: Any, device: Any) -> None:
        self.array, self.device, self.shape, self.dtype = array, device, array.shape, array.dtype
        data = (array.ctypes.data, False)
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "data": data, "version": 3}


class ArrayImpl(Array):
    """Stands for an array of JAX on a GPU."""


class Entered:
    """Stands for a device or a stream of CuPy."""

    def __init__(self, number: int) -> None:
        self.id, self.entered = number, 0

    def __enter__(self) -> None:
        self.entered += 1

    def __exit__(self, *_: object) -> None:
        self.entered -= 1


Array.__module__, ArrayImpl.__module__ = "cupy", "jaxlib._jax"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of CuPy, with JAX's and CuPy's modules as they would be on a GPU; kernels do not run."""
    launch = pytest.importorskip("fastmask.kernels.cuda_launch")
    device = Entered(0)
    cupy: Any = ModuleType("cupy")
    cupy.ndarray = Array
    cupy.empty = lambda shape, dtype: Array(np.empty(shape, dtype), device)
    cupy.from_dlpack = lambda x: Array(x.array, x.device)
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0), ExternalStream=lambda *_: Entered(9))
    jaxlike: Any = ModuleType("jax")
    jaxlike.dlpack = SimpleNamespace(from_dlpack=lambda x: ArrayImpl(x.array, x.device))
    jaxlike.dtypes = SimpleNamespace(canonicalize_dtype=lambda dtype: np.int32 if dtype == np.int64 else dtype)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "jax", jaxlike)
    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(launch, "_stream", lambda device, handle: handle)
    return SimpleNamespace(device=device, launch=launch, queued=[])


@OVERFLOW
def test_on_a_gpu_memory_goes_from_jax_to_kernels_and_back_without_a_copy(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(kernel: Any, queue: Any, blocks: int, arrays: list[Any], scalars: list[Any]) -> None:
        gpu.queued.append((kernel.function.__name__, [getattr(x, "address", None) for x in arrays]))

    monkeypatch.setattr(gpu.launch.Kernel, "launch", record)
    ids = ArrayImpl(IDS.astype(np.int32), gpu.device)
    batch = fm.Masker(fm.Vocab(60, 4), fm.Bernoulli(0.4))(ids, epoch=3, sample_ids=5)
    (name, addresses) = gpu.queued[-1]
    assert name in ("mask_tokens", "mask_quads")  # as the arrays happen to lie
    assert addresses[:3] == [x.array.ctypes.data for x in (ids, batch.input_ids, batch.labels)]
    assert [type(x) for x in (batch.input_ids, batch.labels)] == [ArrayImpl] * 2
    assert [x.dtype for x in (batch.input_ids, batch.labels)] == [np.int32] * 2
    assert gpu.device.entered == 0
    with pytest.raises(TypeError, match="out cannot be given with arrays of JAX"):
        MASKER(ids, epoch=3, out=(ids, ids))


def test_on_a_gpu_jax_needs_cupy(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match="arrays of JAX on a GPU need CuPy"):
        MASKER(ArrayImpl(IDS, gpu.device), epoch=3)
