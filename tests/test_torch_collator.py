"""fastmask.torch.Collator in one process: what comes out of features, and what it says of wrong ones."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support import Array, same
from support import by_reference as by_reference
from support_loaders import MASKER, VOCAB, by_index, fates, features, ids_of, torch, wanted

import fastmask as fm
from fastmask.torch import Collator

pytestmark = pytest.mark.usefixtures("by_reference")
ROWS = [ids_of(i) for i in range(6)]


def padded(rows: list[Array], width: int | None = None, fill: int = 0) -> Array:
    width = max(map(len, rows)) if width is None else width
    return np.stack([np.pad(row, (0, width - len(row)), constant_values=fill) for row in rows])


def test_a_batch_is_what_the_masker_makes_of_the_padded_ids() -> None:
    batch = by_index()(features(6))
    want = MASKER(padded(ROWS), epoch=0, sample_ids=0, lengths=[len(row) for row in ROWS], backend="numpy")
    same(batch["input_ids"].numpy(), want.input_ids)
    same(batch["labels"].numpy(), want.labels)
    same(batch["attention_mask"].numpy(), padded([np.ones(len(row), np.int64) for row in ROWS]))
    same(batch["index"].numpy(), np.arange(6))
    assert set(batch) == {"input_ids", "labels", "attention_mask", "index"}


@pytest.mark.parametrize("make", [np.array, torch.tensor, list, lambda row: np.array(row, np.uint16)])
def test_bare_sequences_and_mappings_of_any_kind_give_the_same_int64_batch(make: Callable[..., Any]) -> None:
    want = Collator(MASKER)([{"input_ids": row} for row in ROWS])
    for rows in ([make(row.tolist()) for row in ROWS], [{"input_ids": make(row.tolist())} for row in ROWS]):
        batch = Collator(MASKER)(rows)
        assert set(batch) == set(want)
        for name, tensor in batch.items():
            assert tensor.dtype == torch.int64
            assert torch.equal(tensor, want[name])


def test_int32_ids_come_out_on_request_alone() -> None:
    rows = [row.astype(np.int32) for row in ROWS]
    narrow = fm.Masker(VOCAB, MASKER.select, MASKER.replace, 7, id_dtype=np.int32)
    assert Collator(MASKER)(rows)["input_ids"].dtype == torch.int64
    assert Collator(narrow)(rows)["input_ids"].dtype == torch.int32
    assert torch.equal(Collator(MASKER)(rows)["labels"], Collator(narrow)(rows)["labels"])


def test_what_goes_along_with_tokens_is_padded_and_heeded() -> None:
    types = [np.arange(len(row)) % 2 for row in ROWS]
    marks = [np.where(row < 12, 1, 0) for row in ROWS]
    given = [
        {"input_ids": row, "token_type_ids": t.tolist(), "special_tokens_mask": m, "labels": row}
        for row, t, m in zip(ROWS, types, marks, strict=True)
    ]
    batch = Collator(MASKER)(given)
    same(batch["token_type_ids"].numpy(), padded(types))
    same(batch["special_tokens_mask"].numpy(), padded(marks, fill=1))
    want = MASKER(
        padded(ROWS), epoch=0, lengths=[len(row) for row in ROWS], special_tokens_mask=padded(marks), backend="numpy"
    )
    same(batch["labels"].numpy(), want.labels)


def test_word_ids_of_features_are_heeded() -> None:
    words = fm.Masker(VOCAB, fm.Bernoulli(0.5, unit="word"), seed=7)
    pairs = [[None, *(i // 2 for i in range(len(row) - 2)), None] for row in ROWS]
    batch = Collator(words)([{"input_ids": r, "word_ids": w} for r, w in zip(ROWS, pairs, strict=True)])
    assert "word_ids" not in batch
    chosen = (batch["labels"] != -100).numpy()
    assert np.count_nonzero(chosen) > 0
    for row, word in enumerate(pairs):
        inner = chosen[row, 1 : len(word) - 1]
        assert all(a == b for a, b in zip(inner[::2], inner[1::2], strict=False))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_an_attention_mask_tells_of_is_put_on_anew(side: str) -> None:
    width = 24
    ahead = [{"input_ids": np.pad(row, (width - len(row), 0)), "index": i} for i, row in enumerate(ROWS)]
    for feature in ahead:
        feature["attention_mask"] = np.where(feature["input_ids"] != 0, 1, 0).tolist()
        feature["token_type_ids"] = np.arange(width)
    batch = Collator(MASKER, sample_id="index", padding_side=side)(ahead)
    plain = Collator(MASKER, sample_id="index", padding_side=side, pad_to_multiple_of=width)(features(6))
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(batch[name], plain[name])
    types = batch["token_type_ids"][0][batch["attention_mask"][0] != 0]
    assert types.tolist() == list(range(width - len(ROWS[0]), width))


@pytest.mark.parametrize(
    ("given", "width"),
    [({}, 24), ({"pad_to_multiple_of": 16}, 32), ({"max_length": 10}, 10), ({"max_length": 30}, 24)],
)
def test_a_batch_is_as_wide_as_its_widest_sample_was(given: dict[str, int], width: int) -> None:
    feature = {"input_ids": np.pad(ROWS[0], (0, 24 - len(ROWS[0]))), "attention_mask": [1] * 5 + [0] * 19}
    assert Collator(MASKER, **given)([feature])["labels"].shape == (1, width)  # type: ignore[arg-type]


def test_samples_are_cut_and_widths_rounded_up() -> None:
    batch = Collator(MASKER, max_length=7, pad_to_multiple_of=4)(ROWS)
    assert batch["labels"].shape == (6, 8)
    assert batch["attention_mask"].sum(1).tolist() == [min(7, len(row)) for row in ROWS]


def test_other_columns_pass_through() -> None:
    given = [
        {
            "input_ids": row,
            "score": 0.5 * i,
            "pair": [i, i],
            "text": f"text {i}",
            "ragged": [1] * i,
            "flag": True,
        }
        for i, row in enumerate(ROWS)
    ]
    batch = Collator(MASKER)(given)
    assert torch.equal(batch["score"], torch.arange(6, dtype=torch.float64) / 2)
    assert batch["pair"].shape == (6, 2)
    assert batch["flag"].dtype == torch.bool
    assert batch["text"] == [f"text {i}" for i in range(6)]
    assert batch["ragged"] == [[1] * i for i in range(6)]


def test_sample_ids_use_all_64_bits() -> None:
    rows = [{"input_ids": ROWS[5], "id": (1 << 64) - 1}, {"input_ids": ROWS[5], "id": 0}]
    batch = Collator(MASKER, sample_id="id")(rows)
    want = MASKER(np.stack([ROWS[5]] * 2), epoch=0, sample_ids=[(1 << 64) - 1, 0], backend="numpy")
    same(batch["labels"].numpy(), want.labels)
    assert batch["id"].tolist() == [(1 << 64) - 1, 0]


def test_further_returns_come_as_tensors() -> None:
    batch = Collator(MASKER, sample_id="index", returns=("compact", "decisions", "num_masked"))(features(6))
    rows, columns = np.nonzero(batch["labels"].numpy() != -100)
    compact = batch["compact"]
    assert compact.positions.tolist() == columns.tolist()
    assert torch.equal(compact.ids, batch["labels"][rows, columns])
    assert torch.equal(compact.counts, batch["num_masked"])
    assert batch["num_masked"].tolist() == np.bincount(rows, minlength=6).tolist()
    assert ((batch["decisions"] != 0) == (batch["labels"] != -100)).all()
    dense = Collator(MASKER, returns="compact", max_predictions=20)(ROWS)["compact"]
    assert dense.positions.shape == (6, 20)
    rates = Collator(fm.Masker(VOCAB, fm.Diffusion()), returns="rates")(ROWS)
    assert rates["rates"].dtype == rates["weights"].dtype == torch.float32


def test_packed_batches_hold_every_sample_whole_and_masked_as_in_rows() -> None:
    rows = by_index()(features())
    packs = Collator(MASKER, sample_id="index", max_tokens=40, returns="compact")(features())
    assert len(packs) > 2
    row = 0
    for pack in packs:
        cuts = pack["cu_seqlens"].tolist()
        assert pack["cu_seqlens"].dtype == torch.int32
        assert cuts[-1] == len(pack["input_ids"]) <= 40
        assert pack["max_seqlen"] == max(np.diff(cuts))
        assert torch.equal(pack["compact"].positions, torch.nonzero(pack["labels"] != -100)[:, 0])
        assert pack["index"].tolist() == list(range(row, row + len(cuts) - 1))
        for first, end in pairwise(cuts):
            real = rows["attention_mask"][row] != 0
            assert torch.equal(pack["input_ids"][first:end], rows["input_ids"][row][real])
            assert torch.equal(pack["labels"][first:end], rows["labels"][row][real])
            assert pack["position_ids"][first:end].tolist() == list(range(end - first))
            row += 1
    assert row == 32


def test_epochs_are_set_and_each_is_the_references() -> None:
    collator = by_index()
    for epoch in (0, 3, 0, (1 << 24) - 1):
        collator.set_epoch(epoch)
        assert collator.epoch == epoch
        assert fates([collator(features())]) == wanted(epoch)
    assert Collator(MASKER, epoch=5).epoch == 5


def test_a_pickled_collator_has_the_epoch_of_its_moment_and_its_own_from_then_on() -> None:
    collator = by_index()
    collator.set_epoch(3)
    copy = pickle.loads(pickle.dumps(collator))
    collator.set_epoch(4)
    assert fates([copy(features())]) == wanted(3)
    copy.set_epoch(2)
    assert collator.epoch == 4


def test_features_are_neither_changed_nor_shared_and_may_be_read_only() -> None:
    given = features(6)
    for feature in given:
        feature["input_ids"].setflags(write=False)
        feature["attention_mask"] = [1] * len(feature["input_ids"])
    held = pickle.dumps(given)
    collator = by_index()
    first, second = collator(given), collator(given)
    assert pickle.dumps(given) == held
    assert not any(np.shares_memory(first["input_ids"].numpy(), feature["input_ids"]) for feature in given)
    first["input_ids"].zero_()
    assert second["input_ids"].any()


def test_memory_mapped_rows_are_read_where_they_are(tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", np.stack([ROWS[5]] * 3))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert torch.equal(Collator(MASKER)(list(mapped))["labels"], Collator(MASKER)([ROWS[5]] * 3)["labels"])


def test_random_states_are_byte_identical_before_and_after() -> None:
    def states() -> tuple[object, ...]:
        name, keys, *rest = np.random.get_state()
        return random.getstate(), name, np.asarray(keys).tobytes(), rest, torch.get_rng_state().numpy().tobytes()

    before = states()
    Collator(MASKER)(features())
    Collator(MASKER, max_tokens=40)(features())
    assert states() == before


def test_pinning_is_left_to_the_loader_in_workers_and_to_chance_without_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collator = Collator(MASKER, pin_memory=True, returns="compact")
    pinned: list[object] = []

    def pin(tensor: Any) -> Any:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    collator(ROWS)
    assert not pinned
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    collator(ROWS)
    assert len(pinned) == 4 + 4  # ids, labels, attention mask, counts; four of the compact targets
    monkeypatch.setattr("fastmask.torch.collator.get_worker_info", lambda: object())
    with pytest.raises(RuntimeError, match="give pin_memory=True to the DataLoader"):
        collator(ROWS)


# --- refusals


IDS = [2, 7, 8, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "the batch is empty"),
        ([{"ids": IDS}], "sample 0 lacks 'input_ids': it has 'ids'"),
        ([{"input_ids": IDS}], "sample 0 lacks 'index': it has 'input_ids'"),
        ([{"input_ids": IDS, "index": 0}, {"input_ids": IDS}], "sample 1 lacks 'index', which sample 0 has"),
        (
            [{"input_ids": IDS, "index": 0}, {"input_ids": IDS, "index": 1, "token_type_ids": IDS}],
            "sample 0 lacks 'token_type_ids', which sample 1 has",
        ),
        ([{"input_ids": IDS, "index": 1.5}], "index of sample 0 must be an integer, got 1.5"),
        ([{"input_ids": IDS, "index": -1}], "sample_ids must be .* got -1"),
        ([{"input_ids": IDS, "index": 0}, IDS], "sample 1 is a list, but sample 0 is a mapping"),
        ([IDS], "sample 0 is a sequence of ids and has no 'index'"),
        (
            [{"input_ids": IDS, "index": 0}, {"input_ids": [2, 30, 3], "index": 1}],
            r"input_ids must be in \[0, 30\), got 30 in sample 1, position 1",
        ),
        (
            [{"input_ids": IDS, "index": 0, "token_type_ids": [0, 0]}],
            "token_type_ids of sample 0 has 2 values, but the sample has 4 tokens",
        ),
        (
            [{"input_ids": np.array([IDS]), "index": 0}],
            r"input_ids of sample 0 must have 1 dimension, got shape \(1, 4\)",
        ),
        ([{"input_ids": [0.5], "index": 0}], "input_ids must be integers, got 0.5 in sample 0, position 0"),
        (
            [{"input_ids": IDS, "index": 0, "attention_mask": [1, 0, 1, 1]}],
            "attention_mask of sample 0 must be one run of ones among zeros",
        ),
        ([{"input_ids": IDS, "index": 0, "attention_mask": [1, 1, 2, 0]}], "must be one run of ones"),
        ([{"input_ids": IDS, "index": 0, "attention_mask": [1]}], "attention_mask of sample 0 has length 1"),
    ],
)
def test_features_that_disagree_are_refused_by_sample(given: list[Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        by_index()(given)


def test_sequences_and_mappings_do_not_mix() -> None:
    with pytest.raises(TypeError, match="sample 1 is a mapping, but sample 0 is a sequence of ids"):
        Collator(MASKER)([IDS, {"input_ids": IDS}])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": -1}, r"epoch must be in \[0, 2\^24\), got -1"),
        ({"padding_side": "top"}, "padding_side must be 'right' or 'left', got 'top'"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 8, "max_length": 8}, "max_length goes with padded rows, and max_tokens with packed ones"),
        ({"returns": "lengths"}, "returns may hold"),
        ({"returns": "rates"}, 'returns="rates" goes with Diffusion'),
        ({"max_predictions": 3}, 'max_predictions goes with returns="compact"'),
    ],
)
def test_wrong_arguments_are_refused_at_construction(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Collator(MASKER, **given)


def test_padding_without_a_pad_id_is_refused_at_construction_and_packing_is_not() -> None:
    masker = fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.3))
    with pytest.raises(ValueError, match="pad_token_id"):
        Collator(masker)
    assert len(Collator(masker, max_tokens=8)([IDS])) == 1


def test_an_epoch_out_of_range_leaves_the_one_before() -> None:
    collator = by_index()
    collator.set_epoch(3)
    for wrong in (-1, 1 << 24, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="epoch must be"):
            collator.set_epoch(wrong)  # type: ignore[arg-type]
    assert collator.epoch == 3
