"""Failures of other systems, boiled down: which positions may be chosen, what they become, how many.

Each test carries the id of its case. The small vocabulary: PAD 0, UNK 1, CLS 2, SEP 3, MASK 4, others 5..29.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from support import on_every_backend, on_host, same, same_batches
from support import tiny_launches as tiny_launches

import fastmask as fm

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
IGNORED = -100
ALL_MASK, ALL_RANDOM = fm.Replace(mask=1.0, random=0.0), fm.Replace(mask=0.0, random=1.0)


def masker_of(p: float, replace: fm.Replace | None = None, vocab: fm.Vocab = VOCAB, **given: Any) -> fm.Masker:
    return fm.Masker(vocab, fm.Bernoulli(p), replace or fm.Replace(), **{"seed": 7, **given})


def mask(masker: fm.Masker, ids: Any, backend: str, **given: Any) -> fm.MaskedBatch:
    """The batch of epoch 0 (unless given), its decisions and counts too, in host memory."""
    call = {"epoch": 0, "backend": backend, "returns": ("decisions", "num_masked"), **given}
    ids = np.asarray(ids)
    if backend != "cuda":
        return masker(ids, **call)
    from numba import cuda

    arrays = {name: cuda.to_device(x) for name, x in call.items() if isinstance(x, np.ndarray)}
    batch = masker(cuda.to_device(np.ascontiguousarray(ids)), **(call | arrays)).check()
    parts = ("input_ids", "labels", "decisions", "num_masked")
    return dataclasses.replace(batch, **{name: getattr(batch, name).copy_to_host() for name in parts})


def untouched(batch: fm.MaskedBatch, ids: Any) -> None:
    """Ids as they were, no label, no decision, no count."""
    ids = np.asarray(ids)
    same(batch.input_ids, ids)
    same(batch.labels, np.full(ids.shape, IGNORED))
    same(batch.decisions, np.zeros(ids.shape, np.uint8))
    same(batch.num_masked, np.zeros(len(ids), np.int64))


# Which positions may be chosen.


@on_every_backend
@pytest.mark.parametrize("said", ["attention_mask", "lengths", "nothing"])
def test_b01_padding_is_never_masked(backend: str, said: str) -> None:
    ids = np.array([[2, 7, 8, 3, 0, 0, 0, 0]])
    given: dict[str, dict[str, Any]] = {
        "attention_mask": {"attention_mask": np.array([[1, 1, 1, 1, 0, 0, 0, 0]])},
        "lengths": {"lengths": [4]},
        "nothing": {},
    }
    batch = mask(masker_of(1.0, ALL_MASK), ids, backend, **given[said])
    same(batch.labels, np.array([[-100, 7, 8, -100, -100, -100, -100, -100]]))
    same(batch.input_ids, np.array([[2, 4, 4, 3, 0, 0, 0, 0]]))
    same(batch.num_masked, np.array([2]))


@on_every_backend
def test_b01_padding_whose_ids_are_not_the_pad_id_is_never_masked(backend: str) -> None:
    batch = mask(masker_of(1.0, ALL_MASK), [[2, 7, 8, 3, 9, 9]], backend, lengths=[4])
    same(batch.input_ids, np.array([[2, 4, 4, 3, 9, 9]]))
    same(batch.labels, np.array([[-100, 7, 8, -100, -100, -100]]))


@on_host
def test_b02_cls_and_sep_are_never_masked_under_any_of_a_thousand_seeds(backend: str) -> None:
    ids = np.array([[2, 7, 8, 9, 3]])
    for seed in range(1000):
        batch = mask(masker_of(1.0, seed=seed), ids, backend)
        same(batch.input_ids[:, [0, 4]], ids[:, [0, 4]])
        same(batch.labels, np.array([[-100, 7, 8, 9, -100]]))


@on_host
def test_b04_special_tokens_and_pad_cells_come_back_bit_for_bit(backend: str) -> None:
    ids = np.tile([[2, 7, 3, 0, 0, 0]], (500, 1))
    batch = mask(masker_of(0.9, fm.Replace(0.3, 0.7, pool="vocab")), ids, backend, sample_ids=0)
    same(batch.input_ids[:, [0, 2, 3, 4, 5]], ids[:, [0, 2, 3, 4, 5]])
    same(batch.labels[:, [0, 2, 3, 4, 5]], np.full((500, 5), IGNORED))
    assert (batch.input_ids[:, 1] != 7).any()


@on_every_backend
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float64"])
def test_b05_one_means_real_in_every_dtype_of_the_attention_mask(backend: str, dtype: str) -> None:
    ids = np.array([[2, 7, 8, 9, 10, 3]])
    batch = mask(masker_of(1.0), ids, backend, attention_mask=np.ones(ids.shape, dtype))
    same(batch.num_masked, np.array([4]))
    same(batch.labels, np.array([[-100, 7, 8, 9, 10, -100]]))


@on_every_backend
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float64"])
def test_b05_zero_means_padding_in_every_dtype_of_the_attention_mask(backend: str, dtype: str) -> None:
    ids = np.array([[2, 7, 8, 9, 10, 3]])
    untouched(mask(masker_of(1.0), ids, backend, attention_mask=np.zeros(ids.shape, dtype)), ids)


@on_every_backend
@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, np.nan, 1e-300])
def test_b05_a_float_mask_of_other_values_than_0_and_1_is_refused(backend: str, value: float) -> None:
    attention = np.array([[1.0, 1.0, value, 0.0]])
    with pytest.raises(ValueError, match="attention_mask"):
        mask(masker_of(1.0), [[2, 7, 8, 3]], backend, attention_mask=attention)


@on_every_backend
def test_b07_with_pad_equal_to_eos_the_lengths_say_what_is_padding(backend: str) -> None:
    """DESIGN, section 4, holds: without lengths the trailing run of the pad id is padding, by rule."""
    ids = np.array([[5, 7, 8, 3, 3, 3]])
    shared = fm.Vocab(size=30, mask_token_id=4, pad_token_id=3, special_token_ids=(0, 1, 2))
    ordinary = fm.Vocab(size=30, mask_token_id=4, special_token_ids=(0, 1, 2))
    batch = mask(masker_of(1.0, ALL_MASK, shared), ids, backend, lengths=[4])
    same(batch.labels, np.array([[5, 7, 8, -100, -100, -100]]))
    batch = mask(masker_of(1.0, ALL_MASK, ordinary), ids, backend, lengths=[4])
    same(batch.labels, np.array([[5, 7, 8, 3, -100, -100]]))
    same(batch.input_ids, np.array([[4, 4, 4, 4, 3, 3]]))


@on_host
def test_b07_a_real_eos_that_equals_the_pad_id_belongs_to_the_content(backend: str) -> None:
    shared = fm.Vocab(size=30, mask_token_id=4, pad_token_id=3)
    masker = masker_of(0.5, vocab=shared)
    row = np.arange(5, 29).tolist()
    named = mask(masker, [[*row, 3, 3]], backend, lengths=[25])
    alone = mask(masker, [[*row, 3]], backend, lengths=[25])
    guessed = mask(masker, [[*row, 3, 3]], backend)
    same(named.labels[:, :25], alone.labels)
    assert not np.array_equal(named.labels, guessed.labels)  # another content, so another sample


@on_host
def test_b08_a_random_token_is_never_the_pad_id(backend: str) -> None:
    ids = np.tile([[2, 7, 8, 3]], (20_000, 1))
    batch = mask(masker_of(1.0, ALL_RANDOM), ids, backend, sample_ids=0)
    assert not (batch.input_ids == 0).any()
    same(batch.num_masked, np.full(20_000, 2))


@on_every_backend
def test_b08_padding_is_read_from_the_input_and_not_from_what_was_written(backend: str) -> None:
    """Every token at the ends becomes the pad id, by force: it is still labelled and counted."""
    ids = np.array([[7, 8, 9, 0], [7, 0, 0, 0], [5, 6, 7, 8]])
    batch = mask(masker_of(1.0, fm.Replace(0.0, 1.0, pool=[0])), ids, backend)
    same(batch.input_ids, np.zeros((3, 4), np.int64))
    same(batch.labels, np.where(ids > 0, ids, IGNORED))
    same(batch.num_masked, np.array([3, 1, 4]))


@on_host
def test_b08_padding_is_read_before_it_is_written_in_place(backend: str) -> None:
    ids = np.array([[7, 8, 9, 0], [7, 0, 0, 0], [5, 6, 7, 8]])
    labels = np.empty_like(ids)
    mask(masker_of(1.0, fm.Replace(0.0, 1.0, pool=[0])), ids, backend, out=(ids, labels))
    same(ids, np.zeros((3, 4), np.int64))
    same(labels, np.array([[7, 8, 9, -100], [7, -100, -100, -100], [5, 6, 7, 8]]))


@on_host
@pytest.mark.parametrize("pad", [29, None])
def test_b08_no_pad_id_is_assumed(backend: str, pad: int | None) -> None:
    vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=pad)
    batch = mask(masker_of(1.0, ALL_MASK, vocab), [[7, 0, 29, 29]], backend)
    same(batch.input_ids, np.array([[4, 4, 29, 29] if pad == 29 else [4, 4, 4, 4]]))


@on_every_backend
def test_b09_cells_that_the_user_excluded_are_never_touched(backend: str) -> None:
    ids = np.array([[2, 7, 8, 9, 10, 3]])
    loss_mask = np.array([[0, 0, 0, 1, 1, 0]], np.uint8)
    batch = mask(masker_of(1.0, ALL_MASK), ids, backend, special_tokens_mask=np.uint8(1) - loss_mask)
    same(batch.labels, np.array([[-100, -100, -100, 9, 10, -100]]))
    same(batch.input_ids, np.array([[2, 7, 8, 4, 4, 3]]))


# What a chosen position is replaced by.


@on_host
def test_b12_random_tokens_are_uniform_over_the_ids_that_are_not_special(backend: str) -> None:
    ids = np.full((1000, 1000), 9, np.int64)
    batch = mask(masker_of(1.0, ALL_RANDOM), ids, backend, sample_ids=0, returns="decisions")
    same(batch.decisions, np.full(ids.shape, 2, np.uint8))
    drawn = np.bincount(batch.input_ids.reshape(-1), minlength=30)
    same(drawn[:5], np.zeros(5, np.int64))
    assert np.abs(drawn[5:] - 40_000).max() <= 980


@on_host
def test_b12_drawing_from_every_id_is_a_named_option(backend: str) -> None:
    ids = np.full((300, 1000), 9, np.int64)
    batch = mask(masker_of(1.0, fm.Replace(0.0, 1.0, pool="vocab")), ids, backend, sample_ids=0)
    drawn = np.bincount(batch.input_ids.reshape(-1))
    assert drawn.size == 30
    assert np.abs(drawn - 10_000).max() <= 5 * 98.3


@on_host
def test_b13_the_pool_of_random_tokens_is_what_the_caller_names(backend: str) -> None:
    vocab = fm.Vocab(size=33, mask_token_id=32, pad_token_id=1, special_token_ids=(0, 2, 3))
    ids = np.full((20, 1000), 30)
    for pool in (range(4, 24), list(range(23, 3, -1))):
        batch = mask(masker_of(1.0, fm.Replace(0.0, 1.0, pool=pool), vocab), ids, backend, sample_ids=0)
        same(np.unique(batch.input_ids), np.arange(4, 24))


@pytest.mark.parametrize("pool", [range(24, 4), range(4, 4), []])
def test_b13_an_empty_pool_is_refused_where_random_tokens_are_drawn(pool: Any) -> None:
    with pytest.raises(ValueError, match=r"pool holds 0 ids: random = 0\.1"):
        masker_of(0.15, fm.Replace(0.8, 0.1, pool=pool))
    masker_of(0.15, fm.Replace(0.8, 0.0, pool=pool))


@pytest.mark.parametrize(("pool", "first"), [(range(4, 34), 33), ([5, -1], -1), (range(31, 40, 3), 34)])
def test_b13_a_pool_that_leaves_the_vocabulary_is_refused(pool: Any, first: int) -> None:
    vocab = fm.Vocab(size=33, mask_token_id=32)
    with pytest.raises(ValueError, match=rf"pool holds {first}, outside the vocabulary \[0, 33\)"):
        masker_of(0.15, fm.Replace(0.8, 0.1, pool=pool), vocab)


def test_b15_the_size_of_the_vocabulary_is_required() -> None:
    assert inspect.signature(fm.Vocab).parameters["size"].default is inspect.Parameter.empty


@on_host
@pytest.mark.parametrize(("value", "row", "column"), [(30, 0, 2), (31, 1, 0), (-1, 1, 3), (2**31, 0, 0)])
def test_b15_an_id_outside_the_vocabulary_is_named_with_its_place(
    backend: str, value: int, row: int, column: int
) -> None:
    ids = np.full((2, 4), 9)
    ids[row, column] = value
    message = rf"input_ids must be in \[0, 30\), got {value} in row {row}, column {column}"
    with pytest.raises(ValueError, match=message):
        mask(masker_of(0.15), ids, backend)


@on_host
def test_b15_rows_of_the_embedding_without_a_token_are_left_out_of_the_pool(backend: str) -> None:
    padded = fm.Vocab(size=32, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    ids = np.full((50, 1000), 9)
    batch = mask(masker_of(1.0, fm.Replace(0.0, 1.0, pool=range(5, 30)), padded), ids, backend, sample_ids=0)
    same(np.unique(batch.input_ids), np.arange(5, 30))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask_token_id": 30}, "mask_token_id holds 30, outside the vocabulary"),
        ({"mask_token_id": -1}, "mask_token_id holds -1, outside the vocabulary"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"mask_token_id": 0, "pad_token_id": 0}, "mask_token_id and pad_token_id are both 0"),
    ],
)
def test_b16_a_vocabulary_without_a_mask_token_of_its_own_is_refused(given: Any, message: str) -> None:
    """DESIGN, section 7, holds for ids shared with other special tokens: the mask id may stand among them."""
    with pytest.raises(ValueError, match=message):
        fm.Vocab(size=30, **given)


@on_host
def test_b17_no_special_id_is_assumed(backend: str) -> None:
    parameters = inspect.signature(fm.Vocab).parameters
    assert parameters["mask_token_id"].default is inspect.Parameter.empty
    assert (parameters["pad_token_id"].default, parameters["special_token_ids"].default) == (None, ())
    vocab = fm.Vocab(size=1200, mask_token_id=5, pad_token_id=0, special_token_ids=(3, 4))
    batch = mask(masker_of(1.0, ALL_MASK, vocab), [[3, 101, 102, 103, 999, 100, 4, 0]], backend)
    same(batch.input_ids, np.array([[3, 5, 5, 5, 5, 5, 4, 0]]))
    same(batch.labels, np.array([[-100, 101, 102, 103, 999, 100, -100, -100]]))


@on_host
def test_b19_shares_are_unconditional_and_the_batch_tells_what_became_of_them(backend: str) -> None:
    ids = np.full((100, 1000), 9)
    shares = mask(masker_of(1.0, fm.Replace(0.8, 0.1)), ids, backend, sample_ids=0).shares()
    assert list(shares) == ["mask", "random", "kept"]
    for name, want in {"mask": 0.8, "random": 0.1, "kept": 0.1}.items():
        assert abs(shares[name] - want) <= 0.005
    assert fm.Replace(0.8, 0.1).kept == 0.1


@on_host
def test_b20_the_three_outcomes_exclude_each_other_and_keep_their_shares(backend: str) -> None:
    ids = np.full((100, 1000), 9)
    batch = mask(masker_of(1.0, fm.Replace(0.8, 0.1, exclude_original=True)), ids, backend, sample_ids=0)
    same(batch.num_masked, np.full(100, 1000))
    outcome = np.where(batch.input_ids == 4, 1, np.where(batch.input_ids == 9, 3, 2)).astype(np.uint8)
    same(batch.decisions, outcome)
    assert abs(np.count_nonzero(outcome == 2) / ids.size - 0.1) <= 0.005


@pytest.mark.parametrize("p", [15, -0.1, float("nan"), float("inf"), 1 + 2.0**-50])
def test_b21_a_probability_outside_0_to_1_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\], got"):
        fm.Bernoulli(p)


@on_every_backend
@pytest.mark.parametrize("p", [1, 1.0, np.float32(1), np.int64(1)])
def test_b21_one_selects_all_that_may_be_selected(backend: str, p: Any) -> None:
    batch = mask(masker_of(p), [[2, 7, 8, 9, 10, 3]], backend)
    same(batch.labels, np.array([[-100, 7, 8, 9, 10, -100]]))


@on_every_backend
@pytest.mark.parametrize("p", [0, 0.0, -0.0])
def test_b21_zero_selects_none(backend: str, p: Any) -> None:
    ids = [[2, 7, 8, 9, 10, 3]]
    untouched(mask(masker_of(p), ids, backend), ids)


def test_b21_any_real_number_is_a_probability() -> None:
    narrow: Any = np.float32(0.15)
    assert fm.Bernoulli(narrow).p == float(narrow)
    assert fm.Bernoulli(1).threshold == 1 << 24


# How many are chosen.


@on_every_backend
def test_b27_rows_without_candidates_come_back_as_they_were(backend: str) -> None:
    ids = np.array([[2, 3, 0, 0], [0, 0, 0, 0], [4, 4, 1, 4]])
    untouched(mask(masker_of(1.0), ids, backend), ids)
    untouched(mask(masker_of(1.0), ids, backend, lengths=[0, 0, 0]), ids)


def test_b27_the_shares_of_no_selected_token_are_nan() -> None:
    shares = mask(masker_of(1.0), [[0, 0, 0]], "numpy").shares()
    assert np.isnan(list(shares.values())).all()


@on_every_backend
def test_b31_coin_flips_are_the_same_on_every_backend(backend: str) -> None:
    ids = np.tile(np.arange(5, 12), (6, 1))
    same_batches(mask(masker_of(0.2), ids, backend, sample_ids=0), mask(masker_of(0.2), ids, "numpy", sample_ids=0))


@on_host
def test_b31_coin_flips_leave_a_fifth_of_the_short_rows_alone(backend: str) -> None:
    ids = np.tile(np.arange(5, 12), (10_000, 1))
    counts = mask(masker_of(0.2), ids, backend, sample_ids=0).num_masked
    assert abs(np.count_nonzero(counts == 0) - 10_000 * 0.8**7) <= 5 * 41
    same(np.unique(counts[counts <= 4]), np.arange(5))


@on_host
def test_b44_there_are_as_many_labels_as_masked_tokens(backend: str) -> None:
    ids = np.tile([5, 6, 7, 8], (1000, 1))
    batch = mask(masker_of(0.25, ALL_MASK), ids, backend, sample_ids=0)
    same(np.count_nonzero(batch.labels != IGNORED, axis=1), batch.num_masked)
    same(batch.labels != IGNORED, batch.input_ids == 4)
    assert np.count_nonzero(batch.num_masked == 1) > 300
