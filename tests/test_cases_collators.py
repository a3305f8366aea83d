"""Failures of other systems, boiled down: collators and what a data loader hands to them.

Each test carries the id of its case. The small vocabulary: PAD 0, UNK 1, CLS 2, SEP 3, MASK 4, others 5..29.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import by_reference as by_reference
from support_loaders import VOCAB, torch

import fastmask as fm
from fastmask.torch import Collator

pytestmark = pytest.mark.usefixtures("by_reference")
IDS = np.arange(5, 13)
IGNORED = -100


def masker(p: float = 0.5, **given: Any) -> fm.Masker:
    return fm.Masker(VOCAB, fm.Bernoulli(p, **given), seed=7)


def whole_words(**given: Any) -> Collator:
    return Collator(masker(unit="word"), pad_to_multiple_of=16, **given)


def worded(ids: Any) -> dict[str, Any]:
    return {"input_ids": ids, "word_ids": [0, 0, 1, 1, 2, 2, 3, 3], "index": 3}


def test_b01_padding_has_neither_a_mask_nor_a_label() -> None:
    batch = Collator(masker(1.0))([{"input_ids": [2, 7, 8, 3, 0, 0, 0, 0], "attention_mask": [1] * 4 + [0] * 4}])
    assert batch["labels"].tolist() == [[IGNORED, 7, 8, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED]]
    assert batch["input_ids"][0, 4:].tolist() == [0] * 4
    assert batch["attention_mask"].tolist() == [[1] * 4 + [0] * 4]


def test_b08_the_attention_mask_is_of_the_input_whatever_is_drawn() -> None:
    all_random = fm.Masker(VOCAB, fm.Bernoulli(1.0), fm.Replace(0.0, 1.0, pool="vocab"))
    batch = Collator(all_random)([{"input_ids": [2, *[7] * 500, 3]}, {"input_ids": [2, 3]}])
    assert (batch["input_ids"][0] == 0).any()  # the pad id was drawn, as this pool may
    assert batch["attention_mask"].sum(1).tolist() == [502, 2]


@pytest.mark.parametrize("kind", [np.array, list, torch.tensor])
def test_b45_arrays_lists_and_tensors_give_equal_batches_of_the_rounded_width(kind: Callable[..., Any]) -> None:
    want, batch = whole_words()([worded(IDS)]), whole_words()([worded(kind(IDS.tolist()))])
    assert set(batch) == {"input_ids", "labels", "attention_mask", "index"}
    for name, tensor in batch.items():
        assert torch.equal(tensor, want[name])
    assert batch["input_ids"].shape == (1, 16)
    assert batch["attention_mask"].tolist() == [[1] * 8 + [0] * 8]
    assert batch["index"].tolist() == [3]


def test_b45_a_feature_of_two_dimensions_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"input_ids of sample 0 must have 1 dimension, got shape \(1, 8\)"):
        whole_words()([worded(IDS[None])])


def test_b45_ragged_samples_are_masked_by_whole_words() -> None:
    samples = [worded(IDS), {"input_ids": IDS[:3], "word_ids": [0, 0, 0], "index": 4}]
    chosen = whole_words(sample_id="index")(samples)["labels"] != IGNORED
    assert len(set(chosen[1, :3].tolist())) == 1
    assert all(a == b for a, b in zip(chosen[0, :8:2].tolist(), chosen[0, 1:8:2].tolist(), strict=True))


def test_b44_only_selected_tokens_have_labels() -> None:
    one = fm.Masker(VOCAB, fm.ExactCount(0.25), seed=7)
    assert (Collator(one)([[5, 6, 7, 8]])["labels"] != IGNORED).sum() == 1


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_b70_labels_are_what_cross_entropy_takes(dtype: str) -> None:
    batch = Collator(masker())([{"input_ids": IDS.astype(dtype)}])
    assert batch["labels"].dtype == batch["input_ids"].dtype == torch.int64
    assert torch.isfinite(torch.nn.functional.cross_entropy(torch.zeros(8, 30), batch["labels"].flatten()))


def test_b68_ids_too_narrow_for_the_vocabulary_are_refused() -> None:
    wide = fm.Masker(fm.Vocab(119_547, 4, 0), fm.Bernoulli(0.15))
    with pytest.raises(OverflowError, match="too narrow for a vocabulary of 119547 ids"):
        Collator(wide)([IDS.astype(np.uint16)])


def test_b15_an_id_outside_the_vocabulary_is_named_with_its_sample() -> None:
    with pytest.raises(ValueError, match=r"got 30 in sample 1, position 2"):
        Collator(masker())([[5], [6, 7, 30]])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_b59_masks_are_the_same_in_any_child_process() -> None:
    """A pool is not a DataLoader: nothing tells a worker its number there."""
    import multiprocessing

    collator = Collator(masker(), epoch=2)
    want = collator([{"input_ids": IDS}])["labels"].tolist()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        batches = pool.map(_labels, [collator] * 4)
    assert batches == [want] * 4


def _labels(collator: Collator) -> Any:
    return collator([{"input_ids": IDS}])["labels"].tolist()
