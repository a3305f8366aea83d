"""apply_mlm_mask carries out decisions that the caller drew, on every backend alike."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import HOST, Array, all_same, on_cuda, on_every_backend, on_host, same
from support import tiny_launches as tiny_launches

import fastmask as fm
from fastmask import host


def apply(backend: str, *inputs: Any, **options: Any) -> tuple[Array, Array]:
    """masked_ids and labels in host memory; the inputs are what they were."""
    if backend == "cuda":
        from numba import cuda

        inputs = tuple(cuda.to_device(np.ascontiguousarray(x)) for x in inputs)
    before = [np.array(x) if backend != "cuda" else x.copy_to_host() for x in inputs]
    done = fm.apply_mlm_mask(*inputs, backend=backend, **options)
    assert list(done) == ["masked_ids", "labels"]
    for x, copy in zip(inputs, before, strict=True):
        same(np.asarray(x) if backend != "cuda" else x.copy_to_host(), copy)
    masked_ids, labels = done.values()
    return (masked_ids, labels) if backend != "cuda" else (masked_ids.copy_to_host(), labels.copy_to_host())


def some_inputs(shape: tuple[int, ...] = (3, 7)) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(shape)
    ids, tokens = rng.integers(0, 30522, (2, *shape))
    return ids, rng.random(shape) < 0.5, rng.random(shape), tokens


EXAMPLE = np.array([[101, 2023, 2003, 1037, 6251, 2005, 9543, 4083, 1012, 102]])


def example_inputs() -> tuple[Array, Array, Array, Array]:
    positions, probs, tokens = np.zeros((1, 10), bool), np.zeros((1, 10)), np.zeros((1, 10), np.int64)
    positions[0, [4, 6]] = True
    probs[0, [4, 6]] = 0.35, 0.87
    tokens[0, 6] = 7592
    return EXAMPLE, positions, probs, tokens


@on_every_backend
def test_the_worked_example(backend: str) -> None:
    masked_ids, labels = apply(backend, *example_inputs())
    same(masked_ids, np.array([[101, 2023, 2003, 1037, 103, 2005, 7592, 4083, 1012, 102]]))
    same(labels, np.array([[-100, -100, -100, -100, 6251, -100, 9543, -100, -100, -100]]))


@on_every_backend
def test_where_no_position_is_chosen_nothing_changes(backend: str) -> None:
    ids, positions, probs, tokens = some_inputs()
    masked_ids, labels = apply(backend, ids, np.zeros_like(positions), probs, tokens)
    same(masked_ids, ids)
    same(labels, np.full(ids.shape, -100))


@on_every_backend
def test_a_probability_at_a_border_belongs_to_the_next_interval(backend: str) -> None:
    probs = np.array([[0.0, np.nextafter(0.8, 0), 0.8, np.nextafter(0.9, 0), 0.9, 1.0]])
    ids = np.arange(1, 7)[None]
    masked_ids, labels = apply(backend, ids, np.ones((1, 6), bool), probs, ids + 50)
    same(masked_ids, np.array([[103, 103, 53, 54, 5, 6]]))
    same(labels, ids)


@on_every_backend
@pytest.mark.parametrize(
    ("borders", "want"),
    [
        ((0, 0), [1, 2, 3]),
        ((0, 1), [51, 52, 3]),
        ((1, 1), [103, 103, 3]),
        ((0.5, 0.5), [103, 2, 3]),
        ((0.25, 0.75), [103, 52, 3]),
    ],
)
def test_borders_may_meet_each_other_and_the_ends(backend: str, borders: tuple[float, float], want: list[int]) -> None:
    ids = np.array([[1, 2, 3]])
    masked_ids, _ = apply(backend, ids, ids > 0, np.array([[0.0, 0.5, 1.0]]), ids + 50, borders=borders)
    same(masked_ids, np.array([want]))


@on_every_backend
@pytest.mark.parametrize("mask_token_id", [4, -1, 2**62, np.int32(50264)])
def test_the_id_of_mask_is_the_callers(backend: str, mask_token_id: Any) -> None:
    ids = np.array([[9, 8]])
    masked_ids, _ = apply(backend, ids, np.array([[True, False]]), np.zeros((1, 2)), ids, mask_token_id=mask_token_id)
    same(masked_ids, np.array([[int(mask_token_id), 8]]))


@on_every_backend
def test_all_64_bits_of_ids_come_through(backend: str) -> None:
    ids = np.array([[2**63 - 1, -(2**63), 2**53 + 1, -1]])
    positions = np.array([[False, True, True, True]])
    masked_ids, labels = apply(backend, ids, positions, np.array([[0, 0.95, 0.85, 0.85]]), ids[:, ::-1].copy())
    same(masked_ids, np.array([[2**63 - 1, -(2**63), -(2**63), 2**63 - 1]]))
    same(labels, np.array([[-100, -(2**63), 2**53 + 1, -1]]))


@on_every_backend
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0,), (9,), (1, 1), (2, 3, 4)])
def test_any_shape_comes_back(backend: str, shape: tuple[int, ...]) -> None:
    inputs = some_inputs(shape)
    got = apply(backend, *inputs)
    assert got[0].shape == got[1].shape == shape
    all_same(got, plain(*inputs))


def plain(ids: Array, positions: Array, probs: Array, tokens: Array) -> tuple[Array, Array]:
    """One token at a time."""
    masked_ids, labels = ids.copy(), np.full(ids.shape, -100)
    for cell in np.ndindex(ids.shape):
        if positions[cell]:
            labels[cell] = ids[cell]
            if probs[cell] < 0.8:
                masked_ids[cell] = 103
            elif probs[cell] < 0.9:
                masked_ids[cell] = tokens[cell]
    return masked_ids, labels


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=st.tuples(st.integers(0, 4), st.integers(0, 9)))
def test_any_decisions_are_carried_out_one_by_one(data: st.DataObject, shape: tuple[int, int]) -> None:
    ids = data.draw(arrays(np.int64, shape))
    positions = data.draw(arrays(np.bool_, shape))
    probs = data.draw(arrays(np.float64, shape, elements=st.one_of(st.floats(0, 1), st.sampled_from([0.8, 0.9]))))
    tokens = data.draw(arrays(np.int64, shape))
    want = plain(ids, positions, probs, tokens)
    for backend in HOST:
        all_same(apply(backend, ids, positions, probs, tokens), want)


def test_ranges_of_a_big_batch_give_the_bits_of_a_serial_one(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = some_inputs((512, 1031))
    want = apply("numpy", *inputs)
    for ranges in (1, 2, 8):
        monkeypatch.setattr(host, "plan_ranges", lambda cells, ranges=ranges: (ranges, "for the test"))
        all_same(apply("cpu", *inputs), want)


def test_numbas_thread_mask_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(host, "plan_ranges", lambda cells: (2, "for the test"))
    before = numba.get_num_threads()
    apply("cpu", *some_inputs((64, 128)))
    assert numba.get_num_threads() == before


# Kinds and layouts of arrays.


@on_host
@pytest.mark.parametrize("layout", ["strided", "reversed", "Fortran", "read-only", "big-endian", "list"])
def test_the_layout_does_not_matter(backend: str, layout: str) -> None:
    inputs = some_inputs((6, 11))
    want = apply("numpy", *inputs)

    def laid_out(x: Array) -> Any:
        if layout == "strided":
            return np.repeat(x, 2, axis=1)[:, ::2]
        if layout == "reversed":
            return x[::-1, ::-1].copy()[::-1, ::-1]
        if layout == "Fortran":
            return np.asfortranarray(x)
        if layout == "big-endian":
            return x.astype(x.dtype.newbyteorder(">"))
        if layout == "list":
            return x.tolist()
        x = x.copy()
        x.flags.writeable = False
        return x

    all_same(apply(backend, *map(laid_out, inputs)), want)


@on_host
def test_the_result_is_fresh_and_aligned(backend: str) -> None:
    inputs = some_inputs()
    got = apply(backend, *inputs) + apply(backend, *inputs)
    for i, array in enumerate(got):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0
        assert not any(np.shares_memory(array, other) for other in (*inputs, *got[:i]))


@on_host
def test_tensors_come_back_as_tensors(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    inputs = some_inputs()
    tensors = [torch.from_numpy(x) for x in inputs]
    tensors[2] = tensors[2].requires_grad_()
    done = fm.apply_mlm_mask(*tensors, backend=backend)
    assert {type(x) for x in done.values()} == {torch.Tensor}
    assert {x.dtype for x in done.values()} == {torch.int64}
    all_same(tuple(x.numpy() for x in done.values()), apply("numpy", *inputs))


def test_the_backend_is_that_of_the_ids() -> None:
    inputs = some_inputs()
    all_same(tuple(fm.apply_mlm_mask(*inputs).values()), apply("cpu", *inputs))


# Errors.

NAMES = ("token_ids", "mask_positions", "replace_probs", "random_tokens")
NEIGHBOURS = [np.int32, np.uint64, np.uint8, np.bool_, np.int64, np.float32, np.float64]
DTYPES = (np.int64, np.bool_, np.float64, np.int64)


@on_every_backend
@pytest.mark.parametrize(
    ("place", "dtype"), [(i, d) for i, own in enumerate(DTYPES) for d in NEIGHBOURS if d is not own]
)
def test_another_dtype_is_a_type_error(backend: str, place: int, dtype: Any) -> None:
    inputs = list(some_inputs((2, 3)))
    inputs[place] = inputs[place].astype(dtype)
    message = f"{NAMES[place]} must be {np.dtype(DTYPES[place])}, got {np.dtype(dtype)}"
    with pytest.raises(TypeError, match=message):
        apply(backend, *inputs)


@on_every_backend
@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 4), (1, 3), (6,), (3, 2)])
def test_shapes_that_differ_are_a_value_error(backend: str, place: int, shape: tuple[int, ...]) -> None:
    inputs = list(some_inputs((2, 3)))
    inputs[place] = some_inputs(shape)[place]
    with pytest.raises(
        ValueError, match=re.escape(f"{NAMES[place]} has shape {shape}, but token_ids has shape (2, 3)")
    ):
        apply(backend, *inputs)


BAD = [float("nan"), -1e-300, np.nextafter(1, 2), float("inf"), float("-inf")]


@on_host
@pytest.mark.parametrize("bad", BAD)
def test_a_probability_outside_0_to_1_is_named_even_where_no_position_is_chosen(backend: str, bad: float) -> None:
    ids, positions, probs, tokens = some_inputs((3, 4))
    positions[:] = False
    probs[1, 2] = probs[2, 0] = bad
    with pytest.raises(ValueError, match=rf"replace_probs must lie in \[0, 1\], got {bad} in row 1, column 2"):
        apply(backend, ids, positions, probs, tokens)


@on_cuda
@pytest.mark.parametrize("bad", BAD)
def test_a_probability_outside_0_to_1_is_found_on_a_gpu(backend: str, bad: float) -> None:
    ids, positions, probs, tokens = some_inputs((3, 4))
    probs[1, 2] = bad
    with pytest.raises(ValueError, match=r"replace_probs must lie in \[0, 1\]"):
        apply(backend, ids, positions, probs, tokens)


@on_every_backend
@pytest.mark.parametrize("bad", BAD)
def test_without_the_check_values_are_compared_as_they_are(backend: str, bad: float) -> None:
    ids = np.array([[7, 8]])
    probs = np.array([[bad, 0.85]])
    masked_ids, labels = apply(backend, ids, np.ones((1, 2), bool), probs, ids + 50, check=False)
    same(masked_ids, np.array([[103 if bad < 0.8 else 7, 58]]))
    same(labels, ids)


@pytest.mark.parametrize(
    ("borders", "message"),
    [
        ((0.9, 0.8), "borders must not fall, got (0.9, 0.8)"),
        ((-0.1, 0.9), "borders must lie in [0, 1], got -0.1"),
        ((0.8, 1.1), "borders must lie in [0, 1], got 1.1"),
        ((float("nan"), 0.9), "borders must lie in [0, 1], got nan"),
    ],
)
def test_borders_that_fall_or_leave_0_to_1_are_refused(borders: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fm.apply_mlm_mask(*some_inputs(), borders=borders)


def test_other_arguments_are_named() -> None:
    inputs = some_inputs()
    with pytest.raises(TypeError, match=r"mask_token_id must be an integer, got 103\.0"):
        fm.apply_mlm_mask(*inputs, mask_token_id=103.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend must be one of numpy, cpu, cuda, got 'gpu'"):
        fm.apply_mlm_mask(*inputs, backend="gpu")
    with pytest.raises(TypeError, match=r"backend='cuda' cannot reach token_ids, a numpy\.ndarray in host memory"):
        fm.apply_mlm_mask(*inputs, backend="cuda")


@on_cuda
@pytest.mark.parametrize("place", [1, 2, 3])
def test_arrays_in_other_memory_than_the_ids_are_refused(backend: str, place: int) -> None:
    from numba import cuda

    host = some_inputs((2, 3))
    device = [cuda.to_device(x) for x in host]
    mixed: list[Any] = list(device)
    mixed[place] = host[place]
    with pytest.raises(TypeError, match=f"{NAMES[place]} is a numpy.ndarray in host memory"):
        fm.apply_mlm_mask(*mixed, backend=backend)
    mixed = list(host)
    mixed[place] = device[place]
    with pytest.raises(TypeError, match=f"{NAMES[place]} is in device memory"):
        fm.apply_mlm_mask(*mixed)
