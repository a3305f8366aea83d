"""The public surface: objectives are values; which arrays come in, and which go out."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HOST, Array, on_host, same, same_batches, some_ids

import fastmask as fm

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)
IGNORED = -100


# Objectives are values.

VALUES: list[tuple[Any, Any, Any]] = [  # a value, an equal one, another one
    (VOCAB, fm.Vocab(30, 4, 0, [3, 2, 1, 0, 4, 4]), fm.Vocab(30, 4, 0, (1, 2))),
    (fm.Vocab(30, 4), fm.Vocab(np.int32(30), np.uint16(4), None, np.array([4])), fm.Vocab(31, 4)),  # type: ignore[arg-type]
    (fm.Bernoulli(1), fm.Bernoulli(float(np.float32(1))), fm.Bernoulli(0.99)),
    (fm.Replace(), fm.Replace(0.8, np.float64(0.1)), fm.Replace(0.8, 0.2)),
    (fm.Replace(pool=[9, 5]), fm.Replace(pool=np.array([9, 5])), fm.Replace(pool=[5, 9])),
    (fm.Replace(pool=range(5, 9)), fm.Replace(pool=range(5, 9)), fm.Replace(pool="vocab")),
    (fm.Replace(weights=range(30)), fm.Replace(weights=np.arange(30.0)), fm.Replace(weights=[1] * 30)),
    (MASKER, dataclasses.replace(MASKER), dataclasses.replace(MASKER, seed=8)),
    (
        fm.Masker(VOCAB, fm.Bernoulli(0.1), id_dtype="int32", label_dtype=np.int32),
        fm.Masker(VOCAB, fm.Bernoulli(0.1), id_dtype=np.dtype("i4"), label_dtype="i4"),
        fm.Masker(VOCAB, fm.Bernoulli(0.1), id_dtype="int64", label_dtype=np.int32),
    ),
    (fm.Masker(VOCAB, fm.Bernoulli(0.1), seed=0), fm.Masker(VOCAB, fm.Bernoulli(0.1)), MASKER),
]


@pytest.mark.parametrize(("value", "equal", "other"), VALUES)
def test_objectives_are_compared_and_hashed_by_value(value: Any, equal: Any, other: Any) -> None:
    assert value == equal
    assert hash(value) == hash(equal)
    assert value != other
    assert {value, equal, other} == {value, other}


@pytest.mark.parametrize("value", [row[0] for row in VALUES])
def test_objectives_survive_pickling_and_copying(value: Any) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert repr(value) == repr(copy.deepcopy(value))


@pytest.mark.parametrize("value", [row[0] for row in VALUES])
def test_objectives_cannot_be_changed(value: Any) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, getattr(value, field.name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, field.name)


def test_what_kernels_read_cannot_be_changed() -> None:
    plan = fm.Masker(VOCAB, fm.Bernoulli(0.1), fm.Replace(weights=range(30))).plan
    for array in (plan.words, plan.pool, plan.cumulative, plan.special_runs):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_an_argument_that_is_changed_later_changes_no_objective() -> None:
    pool, weights = [5, 6], np.array([1.0, 3.0])
    replace = fm.Replace(pool=pool, weights=weights)
    pool[0], weights[0] = 9, 9
    assert replace == fm.Replace(pool=(5, 6), weights=(1.0, 3.0))


@on_host
def test_a_masker_that_was_pickled_gives_the_same_bits(backend: str) -> None:
    weighted = fm.Masker(VOCAB, fm.Bernoulli(0.9), fm.Replace(0, 1, weights=range(30)), seed=2**64 - 1)
    for masker in (MASKER, weighted):
        again = pickle.loads(pickle.dumps(masker))
        same_batches(again(some_ids(), epoch=5, backend=backend), masker(some_ids(), epoch=5, backend=backend))


@on_host
def test_threads_may_share_a_masker(backend: str) -> None:
    ids = some_ids(8, 64)
    want = [MASKER(ids, epoch=epoch, backend=backend) for epoch in range(40)]
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda epoch: MASKER(ids, epoch=epoch, backend=backend), range(40)))
    for one, other in zip(got, want, strict=True):
        same_batches(one, other)


# Arrays that come in.


@on_host
def test_numpy_integers_are_integers(backend: str) -> None:
    parts = (VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4))
    numbers: list[Any] = [np.uint64(7), np.int8(-1), np.int16(3)]
    seed, ignored, epoch = numbers
    given: dict[str, Any] = {"sample_ids": np.uint64(2**63), "position_offset": np.int64(5)}
    got = fm.Masker(*parts, seed, ignored)(some_ids(), epoch=epoch, backend=backend, **given)
    masker = fm.Masker(*parts, 7, -1)
    same_batches(got, masker(some_ids(), epoch=3, sample_ids=2**63, position_offset=5, backend=backend))


@on_host
@pytest.mark.parametrize("kind", ["list", "tuple", "int32", "uint8", "strided", ">u8"])
def test_one_value_per_row_may_be_any_kind_of_integers(backend: str, kind: str) -> None:
    def made(values: list[int]) -> Any:
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](values)
        return np.repeat(values, 2)[::2] if kind == "strided" else np.array(values, kind)

    ids, lengths, samples, offsets = (
        some_ids(),
        [20, 0, 1, 7, 19, 13],
        [9, 200, 0, 1, 255, 7],
        [0, 1, 2, 3, 4, 50],
    )
    given = {"lengths": lengths, "sample_ids": samples, "position_offset": offsets}
    plain: dict[str, Any] = {name: np.array(x) for name, x in given.items()}
    want = MASKER(ids, epoch=1, backend="numpy", **plain)
    other: dict[str, Any] = {name: made(x) for name, x in given.items()}
    same_batches(MASKER(ids, epoch=1, backend=backend, **other), want)


@on_host
def test_lists_give_arrays(backend: str) -> None:
    ids = some_ids()
    got = MASKER(ids.tolist(), epoch=1, sample_ids=list(range(6)), backend=backend)
    same_batches(got, MASKER(ids, epoch=1, sample_ids=0, backend=backend))
    same(MASKER([], epoch=1, backend=backend).labels, np.empty(0, np.int64))


LAYOUTS = (
    "Fortran",
    "every other column",
    "reversed",
    "transposed",
    "read-only",
    "big-endian",
    "a memory map",
)


@on_host
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_layouts_decide_nothing(backend: str, layout: str, dtype: str, tmp_path: Path) -> None:
    ids = some_ids(dtype=dtype)
    marks = np.random.default_rng(1).random(ids.shape) < 0.3

    def laid_out(x: Array) -> Array:
        if layout == "Fortran":
            return np.asfortranarray(x)
        if layout == "every other column":
            return np.repeat(x, 2, axis=1)[:, ::2]
        if layout == "reversed":
            return x[::-1, ::-1].copy()[::-1, ::-1]
        if layout == "transposed":
            return x.T.copy().T
        if layout == "big-endian":
            return x.astype(x.dtype.newbyteorder(">"))
        if layout == "a memory map":
            path = tmp_path / str(len(list(tmp_path.iterdir())))
            x.tofile(path)
            return np.memmap(path, x.dtype, "r", shape=x.shape)
        x = x.copy()
        x.flags.writeable = False
        return x

    given = {"attention_mask": ids != 0, "special_tokens_mask": marks}
    want = MASKER(ids, epoch=1, backend="numpy", **given)
    other: dict[str, Any] = {name: laid_out(x) for name, x in given.items()}
    got = MASKER(laid_out(ids), epoch=1, backend=backend, **other)
    same_batches(got, want)
    assert {type(got.input_ids), type(got.labels)} == {np.ndarray}
    assert got.input_ids.flags.c_contiguous


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_view_is_masked_like_its_copy(data: st.DataObject) -> None:
    base = some_ids(9, 17)
    cut = [data.draw(st.slices(size)) for size in base.shape]
    view = base[cut[0], cut[1]]
    if data.draw(st.booleans()):
        view = view.T
    same_batches(MASKER(view, epoch=2), MASKER(view.copy(), epoch=2, backend="numpy"))


@on_host
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float32", "float64"])
def test_any_dtype_marks_special_tokens_by_not_being_0(backend: str, dtype: str) -> None:
    ids = np.full((2, 6), 9)
    marks = np.array([[0, 1, 0, 0, 1, 0]] * 2).astype(dtype) * (1 if dtype == "bool" else 3)
    everything = fm.Masker(VOCAB, fm.Bernoulli(1.0))
    batch = everything(ids, epoch=0, special_tokens_mask=marks.astype(dtype), backend=backend)
    same(batch.labels == 9, marks == 0)


# Arrays that go out.


@pytest.mark.parametrize(
    ("given", "want"),
    [("int32", "int32"), ("int64", "int64"), ("uint16", "int64"), ("int16", "int64"), ("uint32", "int64"),
     (">i4", "int32"), (">i8", "int64"), (">u2", "int64")],
)  # fmt: skip
def test_ids_keep_int32_and_int64_and_become_int64_otherwise(given: str, want: str) -> None:
    ids = some_ids().astype(given)
    batch = MASKER(ids, epoch=1, backend="numpy")
    same(batch.input_ids, MASKER(some_ids(), epoch=1, backend="numpy").input_ids.astype(want))
    assert batch.labels.dtype == np.int64


@pytest.mark.parametrize("given", ["int32", "int64", "uint16"])
@pytest.mark.parametrize("id_dtype", ["int32", np.int64])
@pytest.mark.parametrize("label_dtype", ["int32", np.int64])
def test_output_dtypes_are_those_asked_for(given: str, id_dtype: Any, label_dtype: Any) -> None:
    masker = dataclasses.replace(MASKER, id_dtype=id_dtype, label_dtype=label_dtype)
    batch, want = masker(some_ids(dtype=given), epoch=1, backend="numpy"), MASKER(some_ids(), epoch=1)
    same(batch.input_ids, want.input_ids.astype(id_dtype))
    same(batch.labels, want.labels.astype(label_dtype))


@on_host
def test_decisions_and_counts_say_what_was_done(backend: str) -> None:
    ids = some_ids(40, 50)
    replace = fm.Replace(0.4, 0.4, exclude_original=True)
    batch = fm.Masker(VOCAB, fm.Bernoulli(0.5), replace)(
        ids, epoch=0, backend=backend, returns=("decisions", "num_masked")
    )
    selected = batch.labels != IGNORED
    changed = np.where(batch.input_ids == 4, 1, np.where(batch.input_ids != ids, 2, 3))
    same(batch.decisions, np.where(selected, changed, 0).astype(np.uint8))
    same(batch.num_masked, np.count_nonzero(selected, axis=1))
    same(batch.labels[selected], ids[selected])
    same(batch.input_ids[~selected], ids[~selected])
    counts = np.bincount(batch.decisions.reshape(-1), minlength=4)[1:]
    assert batch.shares() == dict(zip(("mask", "random", "kept"), (counts / counts.sum()).tolist(), strict=True))


@on_host
def test_only_what_is_asked_for_is_returned(backend: str) -> None:
    batch = MASKER(some_ids(), epoch=0, backend=backend)
    assert (batch.decisions, batch.num_masked, batch.backend) == (None, None, backend)
    assert MASKER(some_ids(), epoch=0, backend=backend, returns="num_masked").decisions is None
    assert MASKER(some_ids(), epoch=0, backend=backend, returns={"decisions"}).num_masked is None
    with pytest.raises(ValueError, match='returns="decisions"'):
        batch.shares()


@on_host
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "Fortran"])
def test_ids_may_be_masked_in_place(backend: str, dtype: str, layout: str) -> None:
    ids = some_ids(dtype=dtype)
    ids = {"contiguous": ids, "strided": np.repeat(ids, 2, 1)[:, ::2], "Fortran": np.asfortranarray(ids)}[layout]
    want = MASKER(ids.copy(), epoch=1, backend="numpy")
    labels = np.full_like(ids, 77, np.int64)
    batch = MASKER(ids, epoch=1, backend=backend, out=(ids, labels))
    assert batch.input_ids is ids
    assert batch.labels is labels
    same_batches(batch, want)


def test_a_row_may_be_masked_in_place_through_another_view_of_the_same_cells() -> None:
    ids = some_ids(3, 20)
    want = MASKER(ids[1:2].copy(), epoch=1)
    MASKER(ids[1:2], epoch=1, out=(ids[1][None], np.empty((1, 20), np.int64)))
    same(ids[1:2], want.input_ids)


@on_host
def test_strided_outputs_are_filled_and_their_gaps_left_alone(backend: str) -> None:
    ids = some_ids()
    wide = np.full((2, 6, 40), 77)
    MASKER(ids, epoch=1, backend=backend, out=(wide[0, :, ::2], wide[1, ::-1, ::-2]))
    want = MASKER(ids, epoch=1, backend="numpy")
    same(wide[0, :, ::2], want.input_ids)
    same(wide[1, ::-1, ::-2], want.labels)
    same(np.concatenate([wide[0, :, 1::2], wide[1, :, ::2]]), np.full((12, 20), 77))


# Tensors of torch.


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*product(HOST, ("int32", "int64")), ("numpy", "uint16"), ("numpy", "int16")],
)  # the CPU reads both of the last through one view: a kernel less to compile
def test_tensors_give_fresh_tensors_with_int64_labels(backend: str, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ids = some_ids(dtype=dtype)
    tensor = torch.from_numpy(ids.copy())
    returns = ("decisions", "num_masked")
    batch = MASKER(tensor, epoch=1, lengths=torch.full((6,), 18), backend=backend, returns=returns)
    want = MASKER(ids, epoch=1, lengths=[18] * 6, backend="numpy", returns=returns)
    for name in ("input_ids", "labels", *returns):
        assert type(getattr(batch, name)) is torch.Tensor
        same(getattr(batch, name).numpy(), getattr(want, name))
        assert not np.shares_memory(getattr(batch, name).numpy(), tensor.numpy())
    assert batch.labels.dtype == torch.int64
    same(tensor.numpy(), ids)
    assert batch.shares() == want.shares()


@on_host
def test_tensors_may_be_strided_views(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ids = some_ids()
    same_batches(
        MASKER(torch.from_numpy(ids).t()[::2], epoch=1, backend=backend),
        MASKER(ids.T[::2].copy(), epoch=1, backend="numpy"),
    )


@on_host
def test_tensors_given_as_out_are_what_is_returned(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    want = MASKER(some_ids(), epoch=1, backend="numpy")
    ids = torch.from_numpy(some_ids())
    labels = torch.zeros((6, 40), dtype=torch.int64)[:, ::2]
    batch = MASKER(ids, epoch=1, backend=backend, out={"input_ids": ids, "labels": labels})
    assert batch.input_ids is ids
    assert batch.labels is labels
    same_batches(batch, want)
