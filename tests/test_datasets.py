"""Masked columns: by map, with_transform, iterable data sets and Arrow tables, with every other column kept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, same
from support import by_reference as by_reference

import fastmask as fm
from fastmask.datasets import MaskColumns

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
import pyarrow as pa  # noqa: E402
from datasets.fingerprint import Hasher  # noqa: E402

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.6, 0.2), seed=7)
COUNT = 20
pytestmark = [
    pytest.mark.usefixtures("by_reference"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),  # map(num_proc=) forks
]


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()


def ids_of(index: int) -> list[int]:
    """CLS, 0 to 9 tokens, SEP."""
    return [2, *np.random.default_rng(index).integers(5, 30, index % 10).tolist(), 3]


def columns() -> dict[str, Any]:
    return {
        "index": list(range(COUNT)),
        "input_ids": [ids_of(i) for i in range(COUNT)],
        "text": [f"text {i}" for i in range(COUNT)],
    }


def data() -> Any:
    return datasets.Dataset.from_dict(columns())


def wanted(index: int, epoch: int = 0, by_index: bool = True) -> tuple[list[int], list[int]]:
    samples = [index] if by_index else None
    batch = MASKER(
        np.array([ids_of(index)]), epoch=epoch, sample_ids=samples, lengths=[2 + index % 10], backend="numpy"
    )
    return batch.input_ids[0].tolist(), batch.labels[0].tolist()


def check(rows: Any, epoch: int = 0, by_index: bool = True) -> None:
    """Every sample is there, masked as by the reference, with its text."""
    rows = list(rows)
    assert [row["index"] for row in rows] == list(range(COUNT))
    for i, row in enumerate(rows):
        assert row["text"] == f"text {i}"
        assert (list(row["input_ids"]), list(row["labels"])) == wanted(i, epoch, by_index)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("kind", [None, "numpy", "torch", "arrow"])
def test_map_masks_columns_of_any_format(kind: str | None, batch_size: int) -> None:
    mask = MaskColumns(MASKER, sample_id="index", epoch=2)
    mapped = data().with_format(kind).map(mask, batched=True, batch_size=batch_size)
    assert set(mapped.column_names) == {"index", "input_ids", "text", "labels"}
    assert mapped.features["labels"] == datasets.List(datasets.Value("int64"))
    check(mapped.with_format(None), epoch=2)


def test_map_takes_indices_for_sample_ids() -> None:
    check(data().map(MaskColumns(MASKER), batched=True, batch_size=6, with_indices=True))


def test_without_ids_the_content_tells_samples_apart() -> None:
    check(data().map(MaskColumns(MASKER), batched=True, batch_size=3), by_index=False)


def test_map_in_two_processes_gives_the_same_columns() -> None:
    mask = MaskColumns(MASKER, sample_id="index")
    mask.set_epoch(3)
    check(data().map(mask, batched=True, batch_size=4, num_proc=2), epoch=3)


def test_b66_fingerprints_follow_what_the_masks_depend_on() -> None:
    def another(**given: Any) -> Any:
        return Hasher.hash(MaskColumns(fm.Masker(VOCAB, fm.Bernoulli(0.3), seed=given.pop("seed", 7)), **given))

    assert another() == another()
    hashes = [another(), another(epoch=1), another(seed=8), another(sample_id="index")]
    mask = MaskColumns(fm.Masker(VOCAB, fm.Bernoulli(0.3), seed=7))
    mask.set_epoch(2)
    assert len({*hashes, Hasher.hash(mask)}) == 5
    mask.set_epoch(1)
    assert Hasher.hash(mask) == hashes[1]


def test_a_transform_masks_as_samples_are_read_in_the_epoch_of_the_moment() -> None:
    mask = MaskColumns(MASKER, sample_id="index")
    transformed = data().with_transform(mask)
    for epoch in (0, 5):
        mask.set_epoch(epoch)
        check((transformed[i] for i in range(COUNT)), epoch)
    batch = transformed[3:6]
    assert [row.tolist() for row in batch["labels"]] == [wanted(i, 5)[1] for i in (3, 4, 5)]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_iterable_data_sets_are_masked_as_they_stream(batch_size: int) -> None:
    mask = MaskColumns(MASKER, sample_id="index")
    stream = data().to_iterable_dataset(num_shards=2).map(mask, batched=True, batch_size=batch_size)
    for epoch in (0, 5):
        mask.set_epoch(epoch)
        check(stream, epoch)


def test_a_table_comes_back_as_a_table_with_its_columns_in_order() -> None:
    table = pa.table(columns())
    masked = MaskColumns(MASKER, sample_id="index")(table)
    assert masked.column_names == ["index", "input_ids", "text", "labels"]
    check(masked.to_pylist())
    assert table.column_names == ["index", "input_ids", "text"]
    again = MaskColumns(MASKER, sample_id="index")(masked.set_column(1, "input_ids", table["input_ids"]))
    assert again.equals(masked)


@pytest.mark.parametrize("kind", [pa.uint16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_tables_may_be_sliced_and_hold_ids_of_any_type(kind: Any, lists: Any) -> None:
    held = columns()
    table = pa.table({"index": held["index"], "input_ids": pa.array(held["input_ids"], lists(kind))}).slice(4, 9)
    masked = MaskColumns(MASKER, sample_id="index")(table)
    want = [wanted(i) for i in range(4, 13)]
    assert list(zip(masked["input_ids"].to_pylist(), masked["labels"].to_pylist(), strict=True)) == want
    narrow = pa.int32() if kind == pa.int32() else pa.int64()
    assert masked.schema.field("input_ids").type == pa.list_(narrow)
    assert masked.schema.field("labels").type == pa.list_(pa.int64())


def test_word_ids_and_special_tokens_are_heeded() -> None:
    held = columns()
    held["word_ids"] = [[None, *(i // 2 for i in range(len(row) - 2)), None] for row in held["input_ids"]]
    held["special_tokens_mask"] = [[int(i == 1) for i in range(len(row))] for row in held["input_ids"]]
    words = fm.Masker(VOCAB, fm.Bernoulli(0.5, unit="word"), fm.Replace(1.0, 0.0), seed=7)
    for given in (held, pa.table(held)):
        masked = MaskColumns(words)(given)
        labels = masked["labels"].to_pylist() if given is not held else masked["labels"]
        for row, sample in enumerate(held["input_ids"]):
            want = words(
                np.array(sample),
                epoch=0,
                word_ids=held["word_ids"][row],
                special_tokens_mask=np.array(held["special_tokens_mask"][row]),
                backend="numpy",
            )
            assert list(labels[row]) == want.labels.tolist()


def test_tensors_come_back_as_tensors_and_nothing_is_changed() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows = [torch.tensor(ids_of(i)) for i in range(COUNT)]
    given = {"input_ids": rows, "index": list(range(COUNT))}
    held = pickle.dumps(given)
    masked = MaskColumns(MASKER, sample_id="index")(given)
    assert pickle.dumps(given) == held
    assert set(given) == {"input_ids", "index"}
    for i, (ids, labels) in enumerate(zip(masked["input_ids"], masked["labels"], strict=True)):
        assert (ids.tolist(), labels.tolist()) == wanted(i)
        assert isinstance(ids, torch.Tensor)


def test_empty_batches_come_back_empty() -> None:
    masked = MaskColumns(MASKER)({"input_ids": []})
    assert (masked["input_ids"], masked["labels"]) == ([], [])
    empty: Array = MaskColumns(MASKER)(pa.table({"input_ids": pa.array([], pa.list_(pa.int64()))}))["labels"].to_numpy()
    same(empty, np.array([], object))


def test_a_pickled_function_has_the_epoch_of_its_moment() -> None:
    mask = MaskColumns(MASKER, sample_id="index", epoch=4)
    copy = pickle.loads(pickle.dumps(mask))
    mask.set_epoch(1)
    assert (copy.epoch, copy.sample_id, copy.masker) == (4, "index", MASKER)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"index": [0]}, "columns lack 'input_ids': they are 'index'"),
        ({"input_ids": [[5]]}, "columns lack 'index': they are 'input_ids'"),
        ({"input_ids": [[5], [6, 30]], "index": [0, 1]}, r"input_ids must be in \[0, 30\), got 30"),
        (
            {"input_ids": [[5], [6, 7]], "index": [0, 1], "word_ids": [[0], [0]]},
            "word_ids of sample 1 has 1 values, but the sample has 2 tokens",
        ),
        (
            {"input_ids": [[5], [6]], "index": [0, 1], "word_ids": [[0]]},
            "word_ids holds 1 samples, but rows hold 2",
        ),
        ({"input_ids": [[5]], "index": [-1]}, "sample_ids must be"),
        ([[5]], "columns must be a mapping of columns or an Arrow table, got list"),
    ],
)
def test_columns_that_cannot_be_masked_are_refused(given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        MaskColumns(MASKER, sample_id="index")(given)
