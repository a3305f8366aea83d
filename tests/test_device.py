"""A public call on arrays in device memory gives the bits of backend="numpy", and complaints wait for check()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support_cuda import OVERFLOW, Ints, launch, numba_cuda
from support_cuda import tiny_launches as tiny_launches

import fastmask as fm

pytestmark = OVERFLOW

VOCAB = fm.Vocab(size=60, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3, 30))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.5), fm.Replace(0.4, 0.4), seed=7)
EVERYTHING = ("input_ids", "labels", "decisions", "num_masked")
IDS = np.random.default_rng(0).integers(0, 60, (3, 21))
IDS[:, :2], IDS[1, 15:] = 0, 0
RUNS = np.zeros((3, 21), np.int64)
RUNS[0, 2:], RUNS[2, :9] = 1, 1
MARKS = np.random.default_rng(1).choice([0, 0, 1, 127], (3, 21))
LENGTHS = np.array([21, 0, 14])
RATES = np.array([0.9, 0.0, 0.3])


def device(x: Any) -> Any:
    """Arrays in device memory, anything else as it is."""
    return numba_cuda.to_device(x) if isinstance(x, np.ndarray) else x


def same(got: Any, want: fm.MaskedBatch) -> None:
    """Every array of a batch in device memory equals that of one in host memory."""
    for name in EVERYTHING:
        host = getattr(want, name)
        if host is None:
            assert getattr(got, name) is None
        else:
            np.testing.assert_array_equal(getattr(got, name).copy_to_host(), host, strict=True, err_msg=name)


def agree(masker: fm.Masker, ids: Ints, **given: Any) -> None:
    """The call in device memory gives what backend="numpy" gives in host memory; no argument is written."""
    host: dict[str, Any] = {"input_ids": ids, "epoch": 5, "returns": EVERYTHING[2:]} | given
    on_device: dict[str, Any] = {name: device(x) for name, x in host.items()}
    got = masker(**on_device)
    assert got.check() is got
    assert got.backend == "cuda"
    same(got, masker(**host, backend="numpy"))
    for name, x in host.items():
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(on_device[name].copy_to_host(), x, strict=True)


GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one sample id": {"sample_ids": (1 << 64) - 3},
    "a NumPy sample id": {"sample_ids": np.uint64(9)},
    "listed sample ids": {"sample_ids": [1 << 63, 0, (1 << 64) - 1]},
    "a range of sample ids": {"sample_ids": range(3)},
    "int64 sample ids": {"sample_ids": np.array([5, 0, (1 << 63) - 1])},
    "uint64 sample ids": {"sample_ids": np.array([5, 0, (1 << 64) - 1], np.uint64)},
    "listed lengths": {"lengths": [21, 0, 14]},
    "lengths": {"lengths": LENGTHS},
    "lengths and sample ids": {"lengths": LENGTHS, "sample_ids": 3},
    "bool attention mask": {"attention_mask": RUNS.astype(bool)},
    "uint8 attention mask": {"attention_mask": RUNS.astype(np.uint8)},
    "int32 attention mask": {"attention_mask": RUNS.astype(np.int32)},
    "int64 attention mask": {"attention_mask": RUNS, "sample_ids": 3},
    "float16 attention mask": {"attention_mask": RUNS.astype(np.float16)},
    "float32 attention mask": {"attention_mask": RUNS.astype(np.float32)},
    "bool special tokens": {"special_tokens_mask": MARKS.astype(bool)},
    "uint8 special tokens": {"special_tokens_mask": MARKS.astype(np.uint8), "attention_mask": RUNS},
    "int8 special tokens": {"special_tokens_mask": MARKS.astype(np.int8), "lengths": LENGTHS},
    "listed rates": {"rates": [0.9, 0.0, 0.3]},
    "rates": {"rates": RATES},
    "one offset": {"position_offset": 5, "sample_ids": [9, 9, 9]},
    "a NumPy offset": {"position_offset": np.int64(6)},
    "listed offsets": {"position_offset": [0, 3, (1 << 34) - 21]},
    "offsets": {"position_offset": np.array([0, 3, (1 << 34) - 21])},
    "offsets that short rows allow": {"position_offset": [0, 1 << 34, (1 << 34) - 14], "lengths": [21, 0, 14]},
    "everything": {
        "sample_ids": np.array([7, 8, 9]),
        "lengths": LENGTHS,
        "special_tokens_mask": MARKS.astype(bool),
        "rates": RATES,
        "position_offset": np.array([1, 2, 3]),
    },
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_every_argument_gives_the_bits_of_numpy(given: dict[str, Any]) -> None:
    agree(MASKER, IDS, **given)


@pytest.mark.parametrize("returns", [(), "decisions", ("num_masked",)])
def test_only_what_is_asked_for_is_returned(returns: Any) -> None:
    agree(MASKER, IDS, returns=returns)


@pytest.mark.parametrize("id_dtype", [None, "int32", "int64"])
@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32", "int64"])
def test_dtypes_of_ids_and_outputs(dtype: str, id_dtype: str | None) -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.5), id_dtype=id_dtype, label_dtype=id_dtype or "int64")
    agree(masker, IDS.astype(dtype))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (0,), (1, 1), (1,), (33,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    ids = np.random.default_rng(0).integers(0, 60, shape)
    rows = shape[0] if len(shape) == 2 else 1
    agree(MASKER, ids)
    agree(MASKER, ids, sample_ids=2, rates=[0.5] * rows, lengths=np.zeros(rows, np.int64))
    real = np.ones(shape, bool)
    agree(MASKER, ids, attention_mask=real, rates=np.full(rows, 0.5), position_offset=3)


# Outputs that the caller gives.


def outputs(shape: Any = IDS.shape, ids: str = "int64", labels: str = "int64") -> tuple[Any, Any]:
    """Two arrays in device memory, full of a value that no kernel leaves."""
    return device(np.full(shape, -7, ids)), device(np.full(shape, -7, labels))


@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("kind", ["pair", "mapping", "batch"])
def test_out_is_written_and_returned(kind: str, ids: str, labels: str) -> None:
    pair = outputs(ids=ids, labels=labels)
    mapping = dict(zip(EVERYTHING[:2], pair, strict=True))
    out = {"pair": pair, "mapping": mapping, "batch": fm.MaskedBatch(*pair)}[kind]
    batch = MASKER(device(IDS), epoch=5, out=out)
    assert batch.input_ids is pair[0]
    assert batch.labels is pair[1]
    host = (np.empty_like(IDS, dtype=ids), np.empty_like(IDS, dtype=labels))
    same(batch.check(), MASKER(IDS, epoch=5, out=host, backend="numpy"))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("given", [{}, {"attention_mask": RUNS}, {"position_offset": [1, 2, 3], "sample_ids": 0}])
def test_in_place(dtype: str, given: dict[str, Any]) -> None:
    ids = device(IDS.astype(dtype))
    batch = MASKER(ids, epoch=5, out=(ids, outputs()[1]), **{name: device(x) for name, x in given.items()})
    assert batch.input_ids is ids
    same(batch.check(), MASKER(IDS.astype(dtype), epoch=5, backend="numpy", **given))


APART = "overlap without being the same array"


@pytest.mark.parametrize(
    ("ids", "out_ids", "labels", "message"),
    [
        (0, 3, 3, "out's labels and out's input_ids share memory"),
        (6, 0, 2, "out's labels and out's input_ids share memory"),
        (0, 3, 0, "out's labels and input_ids share memory"),
        (0, 0, 0, "out's labels and out's input_ids share memory"),
        (0, 1, 6, APART),
        (2, 0, 6, APART),
    ],
)
def test_outputs_that_share_memory_are_refused(ids: int, out_ids: int, labels: int, message: str) -> None:
    block = device(np.full((9, 21), 9))
    given, *out = (block[first : first + 3] for first in (ids, out_ids, labels))
    with pytest.raises(ValueError, match=message):
        MASKER(given, epoch=0, out=out)
    np.testing.assert_array_equal(block.copy_to_host(), np.full((9, 21), 9), strict=True)


def test_outputs_may_adjoin_the_input_and_each_other() -> None:
    block = device(np.concatenate([IDS, np.full((6, 21), -7)]))
    batch = MASKER(block[:3], epoch=5, out=(block[3:6], block[6:])).check()
    same(batch, MASKER(IDS, epoch=5, backend="numpy"))
    np.testing.assert_array_equal(block[:3].copy_to_host(), IDS, strict=True)


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_the_input_read_as_another_dtype_is_no_output(dtype: str) -> None:
    ids = device(np.full(16, 9, dtype))
    with pytest.raises(ValueError, match=APART):
        MASKER(ids, epoch=0, out=(ids.view(np.dtype(np.int32))[:16], device(np.zeros(16, np.int64))))


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ((IDS[:, 1:].copy(), IDS), ValueError, r"out's input_ids has shape \(3, 20\), expected \(3, 21\)"),
        ((IDS.astype("uint16"), IDS), TypeError, "out's input_ids must be int32 or int64, got uint16"),
        ((IDS, IDS.astype("float64")), TypeError, "out's labels must be int32 or int64, got float64"),
        ((np.asfortranarray(IDS), IDS), ValueError, "out's input_ids must be contiguous: a .* cannot be copied"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(
    out: tuple[Ints, Ints], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MASKER(device(IDS), epoch=0, out=[device(x) for x in out])


def test_outputs_in_host_memory_are_refused() -> None:
    with pytest.raises(TypeError, match=r"out's input_ids is a numpy\.ndarray in host memory"):
        MASKER(device(IDS), epoch=0, out=(IDS, IDS))
    with pytest.raises(TypeError, match=r"out's labels is a numpy\.ndarray in host memory"):
        MASKER(device(IDS), epoch=0, out=(device(IDS), IDS))


def test_outputs_of_another_dtype_than_id_dtype_are_refused() -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.5), id_dtype="int32")
    with pytest.raises(TypeError, match="out's input_ids is int64, but id_dtype is int32"):
        masker(device(IDS), epoch=0, out=outputs())


def test_labels_too_narrow_for_ignore_index_are_refused() -> None:
    masker = fm.Masker(VOCAB, fm.Bernoulli(0.5), ignore_index=1 << 31)
    with pytest.raises(OverflowError, match="out's labels are int32, too narrow for ignore_index = 2147483648"):
        masker(device(IDS), epoch=0, out=outputs(labels="int32"))


# What the device alone can see waits for check().

HOLE = np.ones((3, 21))
HOLE[1, 5] = 0
BAD: dict[str, tuple[str, Any, str]] = {
    "a negative sample id": ("sample_ids", np.array([0, -1, 2]), r"sample_ids must be in \[0, 9223372036854775807\]"),
    "a negative length": ("lengths", np.array([21, 14, -1]), r"lengths must be in \[0, 21\]"),
    "a length past the row": ("lengths", np.array([22, 14, 3]), r"lengths must be in \[0, 21\]"),
    "a length beyond all bounds": ("lengths", np.array([1 << 62, 14, 3]), r"lengths must be in \[0, 21\]"),
    "a hole in a mask": ("attention_mask", HOLE, "attention_mask must be one run of ones per row"),
    "a 2 in a mask": ("attention_mask", HOLE.astype(int) * 2, "attention_mask must be one run of ones per row"),
    "a rate above 1": ("rates", np.array([0.1, 1.5, 0.1]), r"rates must lie in \[0, 1\]"),
    "a rate that rounds to 0": ("rates", np.array([0.1, 1e-9, 0.1]), r"rates must lie in \[0, 1\]"),
    "a rate of NaN": ("rates", np.array([0.1, np.nan, 0.1]), r"rates must lie in \[0, 1\]"),
    "a negative offset": ("position_offset", np.array([0, 0, -1]), "position_offset must be in"),
    "an offset too far": ("position_offset", np.array([0, 0, 1 << 34]), "position_offset must be in"),
}


@pytest.mark.parametrize(("name", "value", "message"), BAD.values(), ids=BAD)
def test_a_bad_value_on_the_device_is_found_by_check_alone(name: str, value: Ints, message: str) -> None:
    batch = MASKER(device(IDS), epoch=5, **{name: device(value)})
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            batch.check()


@pytest.mark.parametrize("bad", [-1, 60, 1 << 31, -(1 << 63)])
def test_an_id_out_of_range_is_found_by_check_alone(bad: int) -> None:
    ids = IDS.copy()
    ids[2, 20] = bad
    batch = MASKER(device(ids), epoch=5)
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 60\), but an id is not"):
        batch.check()
    MASKER(device(IDS), epoch=5).check()


def test_rows_beside_a_bad_length_are_masked_as_ever() -> None:
    got = MASKER(device(IDS), epoch=5, lengths=device(np.array([1 << 62, 14, 3])), sample_ids=0)
    want = MASKER(IDS, epoch=5, lengths=[21, 14, 3], sample_ids=0, backend="numpy")
    same(got, want)


# What the host can see is refused at once.


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"epoch": 1 << 24}, ValueError, r"epoch must be in \[0, 2\^24\)"),
        ({"sample_ids": [0, -1, 2]}, ValueError, "sample_ids must be >= 0, got -1 in row 1"),
        ({"sample_ids": True}, TypeError, "sample_ids must be integers, got bool"),
        ({"sample_ids": np.zeros(4, int)}, ValueError, r"sample_ids has shape \(4,\), expected \(3,\)"),
        ({"sample_ids": np.zeros(4, np.uint64)}, ValueError, "sample_ids has shape"),
        ({"sample_ids": np.zeros(3, np.int32)}, TypeError, "sample_ids must be int64 on a GPU, got int32"),
        ({"lengths": [1, 2, 22]}, ValueError, r"lengths must be in \[0, 21\], got 22 in row 2"),
        ({"lengths": [1, 2, 3], "attention_mask": RUNS}, ValueError, "give one of them"),
        ({"attention_mask": RUNS[:, 1:].copy()}, ValueError, r"attention_mask has shape \(3, 20\)"),
        ({"attention_mask": RUNS.astype(complex)}, TypeError, "attention_mask must be bool, integers or"),
        ({"special_tokens_mask": MARKS}, TypeError, "special_tokens_mask must be bool, uint8 or int8"),
        ({"special_tokens_mask": MARKS[0].astype(bool)}, ValueError, "special_tokens_mask has shape"),
        ({"rates": [0.5, 2.0, 0.5]}, ValueError, "rates.* in row 1"),
        ({"rates": RATES.astype(np.float32)}, TypeError, "rates must be float64 on a GPU, got float32"),
        ({"position_offset": [0, 0, 1 << 34]}, ValueError, "position_offset must be >= 0"),
    ],
)
def test_what_the_host_can_see_is_refused_before_a_kernel_runs(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    def runs(*_: object) -> None:
        raise AssertionError("a kernel ran")

    monkeypatch.setattr(launch.Kernel, "launch", runs)
    with pytest.raises(error, match=message):
        MASKER(device(IDS), **{"epoch": 5} | {name: device(x) for name, x in given.items()})


@pytest.mark.parametrize("name", ["sample_ids", "lengths", "rates", "position_offset"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_in_host_memory_are_not_moved_unasked(kind: str, name: str) -> None:
    values: Any = np.zeros(3, np.float64 if name == "rates" else np.int64)
    if kind == "torch":
        values = pytest.importorskip("torch", reason="torch is not installed").from_numpy(values)
    with pytest.raises(TypeError, match=rf"{name} is a {kind}\..* in host memory while input_ids is in device memory"):
        MASKER(device(IDS), epoch=5, **{name: values})


@pytest.mark.parametrize("name", ["attention_mask", "special_tokens_mask"])
@pytest.mark.parametrize("given", [np.ones((3, 21), bool), [[1] * 21] * 3])
def test_masks_in_host_memory_are_not_moved_unasked(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is a .* in host memory while input_ids is in device memory"):
        MASKER(device(IDS), epoch=5, **{name: given})


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (np.zeros((2, 2, 2), int), ValueError, "input_ids must have 1 or 2 dimensions"),
        (np.zeros((2, 2)), TypeError, "input_ids must be int64, int32, uint16, uint32 or int16, got float64"),
        (np.zeros((2, 2), ">i8"), TypeError, "input_ids must be int64, .* got >i8"),
        (np.asfortranarray(IDS), ValueError, "input_ids must be contiguous: a .* cannot be copied"),
        (np.broadcast_to(IDS[0], (3, 21)), ValueError, "input_ids must be contiguous: a .* cannot be copied"),
    ],
)
def test_ids_that_kernels_cannot_read_are_refused(ids: Ints, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MASKER(device(ids), epoch=0)


def test_ids_too_narrow_for_the_vocabulary_are_refused() -> None:
    masker = fm.Masker(fm.Vocab(1 << 16, 4), fm.Bernoulli(0.5))
    with pytest.raises(OverflowError, match="input_ids is int16, too narrow"):
        masker(device(IDS.astype(np.int16)), epoch=0)


# Supplied decisions.


def supplied(shape: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids, tokens = rng.integers(0, 1 << 40, (2, *shape))
    probs = rng.choice([0.0, 0.8, 0.85, 0.9, 1.0], shape)
    return {
        "token_ids": ids,
        "mask_positions": rng.random(shape) < 0.5,
        "replace_probs": probs,
        "random_tokens": tokens,
    }


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("shape", [(3, 21), (5,), (2, 3, 4), (0, 4)])
def test_supplied_decisions_give_the_bits_of_numpy(shape: tuple[int, ...], check: bool) -> None:
    arrays = supplied(shape)
    on_device = {name: device(x) for name, x in arrays.items()}
    got = fm.apply_mlm_mask(**on_device, borders=(0.7, 0.85), check=check)
    want = fm.apply_mlm_mask(**arrays, borders=(0.7, 0.85), backend="numpy")
    assert list(got) == list(want)
    for name, x in want.items():
        np.testing.assert_array_equal(got[name].copy_to_host(), x, strict=True)
    for name, x in arrays.items():
        np.testing.assert_array_equal(on_device[name].copy_to_host(), x, strict=True)


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan])
def test_a_supplied_probability_outside_is_found_unless_nobody_looks(bad: float) -> None:
    arrays = supplied((3, 21))
    arrays["replace_probs"][2, 20] = bad
    given = {name: device(x) for name, x in arrays.items()}
    with pytest.raises(ValueError, match=r"replace_probs must lie in \[0, 1\], but one does not"):
        fm.apply_mlm_mask(**given)
    fm.apply_mlm_mask(**given, check=False)


@pytest.mark.parametrize("name", ["mask_positions", "replace_probs", "random_tokens"])
def test_supplied_arrays_of_another_place_shape_or_dtype_are_refused(name: str) -> None:
    arrays = supplied((3, 21))
    given = {key: device(x) for key, x in arrays.items()}
    with pytest.raises(TypeError, match=f"{name} is a .* in host memory while token_ids is in device memory"):
        fm.apply_mlm_mask(**given | {name: arrays[name]})
    with pytest.raises(ValueError, match=rf"{name} has shape \(2, 21\)"):
        fm.apply_mlm_mask(**given | {name: device(arrays[name][:2])})
    with pytest.raises(TypeError, match=f"{name} must be .*, got float32"):
        fm.apply_mlm_mask(**given | {name: device(arrays[name].astype(np.float32))})
