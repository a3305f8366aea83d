"""A public call of every law on arrays in device memory, padded and packed, gives the bits of backend="numpy"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support_cuda import OVERFLOW, Ints, cuda, launch, numba_cuda
from support_cuda import tiny_launches as tiny_launches

import fastmask as fm
from fastmask.lengths import Geometric

pytestmark = OVERFLOW

CONTINUES = np.arange(60) % 3 == 0
VOCAB = fm.Vocab(60, 4, 0, (1, 2, 3, 30), is_continuation=CONTINUES)
NO_TABLE = fm.Vocab(60, 4, 0, (1, 2, 3, 30))
RNG = np.random.default_rng(0)
IDS, FLAT = RNG.integers(5, 60, (3, 21)), RNG.integers(5, 60, 63)
BOUNDS = np.array([0, 30, 30, 41, 63])
WORD_IDS = np.arange(63) // 3
EVERYTHING = ("input_ids", "labels", "decisions", "num_masked")

LAWS = {
    "tokens": fm.Bernoulli(0.4),
    "limits": fm.Bernoulli(0.4, min_masked=5, max_masked=8),
    "words": fm.Bernoulli(0.4, unit="word"),
    "count": fm.ExactCount(0.4),
    "count of words": fm.ExactCount(0.4, unit="word"),
    "spans": fm.Spans(0.4, Geometric(0.2, 10)),
    "diffusion": fm.Diffusion(0.1),
}


def device(x: Any) -> Any:
    """Arrays in device memory, anything else as it is."""
    return numba_cuda.to_device(x) if isinstance(x, np.ndarray) else x


def host(x: Any) -> Any:
    return None if x is None else x.copy_to_host()


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want, strict=True)


def masker_of(law: Any, vocab: fm.Vocab = VOCAB, **further: Any) -> fm.Masker:
    return fm.Masker(vocab, law, seed=7, **further)


def both(masker: fm.Masker, ids: Ints, **given: Any) -> tuple[fm.MaskedBatch, fm.MaskedBatch]:
    """A batch in device memory without complaints, and the same of backend="numpy"."""
    on_host: dict[str, Any] = {"epoch": 5, "returns": EVERYTHING[2:]} | given
    on_device: dict[str, Any] = {name: device(x) for name, x in on_host.items()}
    batch = masker(device(ids), **on_device).check()
    assert batch.backend == "cuda"
    return batch, masker(ids, **on_host, backend="numpy")


def agree(masker: fm.Masker, ids: Ints, **given: Any) -> None:
    got, want = both(masker, ids, **given)
    for name in EVERYTHING:
        same(host(getattr(got, name)), getattr(want, name))


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_every_law(law: Any) -> None:
    agree(masker_of(law), IDS)
    agree(masker_of(law), FLAT, sample_ids=3, cu_seqlens=BOUNDS)


@pytest.mark.parametrize(
    "bounds", [BOUNDS, BOUNDS.astype(np.int32), BOUNDS.tolist(), tuple(BOUNDS)], ids=["int64", "int32", "list", "tuple"]
)
def test_boundaries_of_a_packed_batch(bounds: Any) -> None:
    for law in (LAWS["tokens"], LAWS["count"]):
        agree(masker_of(law), FLAT, cu_seqlens=bounds)


@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 0, 0]])
def test_packed_batches_without_tokens(bounds: list[int]) -> None:
    for law in (LAWS["tokens"], LAWS["count"]):
        for given in (bounds, np.array(bounds)):
            agree(masker_of(law), FLAT[:0], cu_seqlens=given)


def test_packed_batches_of_more_segments_than_a_block_has_threads() -> None:
    agree(masker_of(LAWS["count"]), FLAT, cu_seqlens=np.arange(0, 64, 3))


BAD_BOUNDS = [[1, 63], [0, 62], [0, 64], [0, 40, 30, 63], [0, -1, 63], [0, 70, 63], [0, 30, 63, 62], [3], [-1, 63]]


@pytest.mark.parametrize("bounds", BAD_BOUNDS, ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bad_boundaries_on_the_device_are_found_by_check_and_moved(bounds: list[int], dtype: str) -> None:
    masker, given = masker_of(LAWS["count"]), device(np.array(bounds, dtype))
    batch = masker(device(FLAT), epoch=5, cu_seqlens=given)
    with pytest.raises(ValueError, match="cu_seqlens must begin with 0, not fall, and end with 63, but do not"):
        batch.check()
    checked, flag = cuda.checked_boundaries(given, 63)
    moved = host(checked)
    assert launch.is_set(flag)
    assert len(bounds) == 1 or (moved[0], moved[-1]) == (0, 63)
    assert (np.diff(moved) >= 0).all()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_word_ids(dtype: str) -> None:
    for law in (LAWS["words"], LAWS["count of words"]):
        agree(masker_of(law, NO_TABLE), FLAT, word_ids=WORD_IDS.astype(dtype))
        agree(masker_of(law), IDS, word_ids=WORD_IDS.reshape(3, 21).astype(dtype))


def test_words_that_share_an_outcome() -> None:
    for unit in ("word", "span"):
        replace = fm.Replace(0.4, 0.4, unit=unit)  # type: ignore[arg-type]
        agree(masker_of(LAWS["count"], replace=replace), IDS)


@pytest.mark.parametrize("rates", [[0.9, 0.0, 0.3], np.array([0.9, 0.0, 0.3])], ids=["list", "array"])
def test_rates_of_counting_laws(rates: Any) -> None:
    for name in ("tokens", "words", "count", "count of words", "spans"):
        agree(masker_of(LAWS[name]), IDS, rates=rates)


@pytest.mark.parametrize("bad", [np.nan, -1e-9, 1.5])
def test_a_bad_rate_of_a_counting_law_is_found_by_check(bad: float) -> None:
    batch = masker_of(LAWS["count"])(
        device(IDS), epoch=5, rates=device(np.array([0.5, bad, 0.5])), returns="num_masked"
    )
    with pytest.raises(ValueError, match=r"rates must lie in \[0, 1\], but one does not"):
        batch.check()
    assert host(batch.num_masked)[1] == 0


@pytest.mark.parametrize("stratify", [None, (2, 9), (0, 3, 2**63), ([4, 0, 4], 5)])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 1.0])
def test_rates_of_diffusion(stratify: Any, eps: float) -> None:
    got, want = both(masker_of(fm.Diffusion(eps)), IDS, stratify=stratify, returns=(*EVERYTHING[2:], "rates"))
    for name in (*EVERYTHING, "rates", "weights"):
        same(host(getattr(got, name)), getattr(want, name))


def test_no_rates_unless_asked_for() -> None:
    batch, _ = both(masker_of(fm.Diffusion()), IDS)
    assert batch.rates is None
    assert batch.weights is None


@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
@pytest.mark.parametrize("given", [{}, {"cu_seqlens": BOUNDS}], ids=["padded", "packed"])
def test_compact_targets(given: dict[str, Any], label_dtype: str) -> None:
    masker, ids = masker_of(LAWS["spans"], label_dtype=label_dtype), FLAT if given else IDS
    got, want = both(masker, ids, returns="compact", max_predictions=14, **given)
    for mine, other in zip(got.compact or (), want.compact or (), strict=True):
        same(host(mine), other)
    got, want = both(masker, ids, returns="compact", **given)
    assert got.compact is not None
    assert want.compact is not None
    total = want.compact.ids.size
    for mine, other in zip(got.compact[:3], want.compact[:3], strict=True):
        assert mine.shape == (63,)  # a slot for every token: the host does not know how many are selected
        same(host(mine)[:total], other)
    same(host(got.compact.ids)[total:], np.full(63 - total, -100, label_dtype))
    same(host(got.compact.weights)[total:], np.zeros(63 - total, np.float32))
    same(host(got.compact.counts), want.compact.counts)


def test_a_surplus_is_dropped_and_found_by_check() -> None:
    masker = masker_of(LAWS["count"])
    batch = masker(device(IDS), epoch=5, returns=("compact", "decisions", "num_masked"), max_predictions=3)
    with pytest.raises(ValueError, match="max_predictions = 3 is too small"):
        batch.check()
    labels, ids, decisions = host(batch.labels), host(batch.input_ids), host(batch.decisions)
    same(host(batch.num_masked), np.full(3, 3))
    same((labels != -100).sum(axis=1), np.full(3, 3))
    same(decisions != 0, labels != -100)
    same(ids[decisions == 0], IDS[decisions == 0])


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "rates of Diffusion": (LAWS["diffusion"], {"rates": [0.5] * 3}, ValueError, "rates are drawn"),
    "strata of another law": (LAWS["count"], {"stratify": (0, 3)}, ValueError, "stratify spreads"),
    "an offset for spans": (LAWS["spans"], {"position_offset": 1}, ValueError, "position_offset must be 0"),
    "boundaries of rows": (LAWS["count"], {"cu_seqlens": [0, 63]}, ValueError, "1 dimension"),
    "boundaries of rows on the device": (LAWS["count"], {"cu_seqlens": np.array([0, 63])}, ValueError, "1 dimension"),
    "float word ids": (LAWS["words"], {"word_ids": np.zeros((3, 21))}, TypeError, "word_ids must be int32 or int64"),
    "narrow word ids": (LAWS["words"], {"word_ids": np.zeros((3, 21), np.int16)}, TypeError, "must be int32 or int64"),
    "word ids of another shape": (LAWS["words"], {"word_ids": WORD_IDS}, ValueError, "word_ids has shape"),
    "float32 rates": (LAWS["count"], {"rates": np.full(3, 0.5, np.float32)}, TypeError, "rates must be float64"),
    "a listed rate outside": (LAWS["count"], {"rates": [0.5, 2, 0.5]}, ValueError, r"rates must lie in \[0, 1\]"),
    "a stratum outside": (LAWS["diffusion"], {"stratify": (7, 9)}, ValueError, "stratify's index must be in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_host_can_see_is_refused(name: str) -> None:
    law, given, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        masker_of(law)(device(IDS), epoch=5, **{key: device(x) for key, x in given.items()})


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        (np.zeros((1, 2), np.int64), ValueError, "cu_seqlens must be 1-D"),
        (np.zeros(0, np.int64), ValueError, "cu_seqlens must be 1-D"),
        (np.array([0.0, 63.0]), TypeError, "cu_seqlens must be int32 or int64"),
    ],
)
def test_boundaries_that_kernels_cannot_read_are_refused(bounds: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        masker_of(LAWS["count"])(device(FLAT), epoch=5, cu_seqlens=device(bounds))


@pytest.mark.parametrize("name", ["cu_seqlens", "word_ids"])
def test_arrays_in_host_memory_are_not_moved_unasked(name: str) -> None:
    given: dict[str, Any] = {name: np.arange(63)}
    with pytest.raises(TypeError, match=f"{name} is a numpy.ndarray in host memory"):
        masker_of(LAWS["words"])(device(FLAT), epoch=5, **given)


def test_words_without_word_ids_or_a_table_are_refused() -> None:
    with pytest.raises(ValueError, match="word_ids must be given"):
        masker_of(LAWS["words"], NO_TABLE)(device(IDS), epoch=5)
