"""What `fastmask.verify` and `fastmask verify` say of loaders and files: the truth, and the first place of a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support_cli import Cli, assert_one_line
from support_cli import cli as cli

import fastmask as fm
from fastmask import verify

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), seed=7)
IDS = np.random.default_rng(0).integers(5, 30, (20, 12))
IDS[::3, 8:] = 0
Batch = dict[str, Any]
SETTING = {"num_workers": 0, "batch_size": 8, "rank": 0, "world_size": 1, "start": 0}


def batch_of(rows: Any, **given: Any) -> Batch:
    """Masked rows of IDS, cut to their longest."""
    ids = IDS[rows]
    ids = ids[:, : int(np.count_nonzero(ids, 1).max(initial=0))]
    batch = MASKER(ids, epoch=0, backend="numpy", **given)
    return {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "attention_mask": (ids != 0).astype(np.int64),
        "index": np.asarray(rows),
    }


def sound(num_workers: int, batch_size: int, rank: int, world_size: int, start: int) -> Iterator[Batch]:
    mine = np.arange(rank, 20, world_size)[start:]
    for first in range(0, len(mine), batch_size):
        yield batch_of(mine[first : first + batch_size])


def faulty(when: Callable[..., bool], fault: Callable[[Batch], Batch | None]) -> verify.Build:
    """A loader with a fault in the first batch, where the setting is such."""

    def build(**setting: int) -> Iterator[Batch]:
        for i, batch in enumerate(sound(**setting)):
            changed = fault(batch) if i == 0 and when(**setting) else batch
            if changed is not None:
                yield changed

    return build


def another_token(batch: Batch) -> Batch:
    """The first token that stayed as it was is selected and kept."""
    labels = batch["labels"].copy()
    labels[0, np.flatnonzero(labels[0] == -100)[0]] = batch["input_ids"][0, np.flatnonzero(labels[0] == -100)[0]]
    return batch | {"labels": labels}


@pytest.mark.parametrize("sample_id", [None, "index"])
def test_masks_that_belong_to_samples_are_the_same_in_every_run(sample_id: str | None) -> None:
    told: list[str] = []
    report = verify.loader(sound, sample_id=sample_id, progress=told.append)
    assert report.same
    assert report.difference is None
    assert (report.samples, report.tokens) == (20, int(np.count_nonzero(IDS)))
    assert report.selected == int(np.count_nonzero(MASKER(IDS, epoch=0, backend="numpy").labels != -100))
    assert list(report.runs) == told
    assert told[1:] == [
        "num_workers=1",
        "num_workers=4",
        "world_size=4",
        "batch_size=4",
        "batch_size=17",
        "resumed",
    ]


@pytest.mark.parametrize(
    ("run", "when"),
    [
        ("num_workers=1", lambda num_workers, **_: num_workers == 1),
        ("num_workers=4", lambda num_workers, **_: num_workers == 4),
        ("world_size=4", lambda rank, **_: rank == 3),
        ("batch_size=4", lambda batch_size, **_: batch_size == 4),
        ("batch_size=17", lambda batch_size, **_: batch_size == 17),
        ("resumed", lambda start, **_: start > 0),
    ],
)
def test_a_fault_in_any_run_is_found_with_its_place_and_both_fates(run: str, when: Callable[..., bool]) -> None:
    report = verify.loader(faulty(when, another_token), sample_id="index")
    assert not report.same
    assert report.runs[-1] == run
    difference = report.difference
    assert difference is not None
    assert difference.run == run
    row = int(difference.sample.removeprefix("sample "))
    labels = MASKER(IDS[row : row + 1], epoch=0, backend="numpy").labels[0]
    assert difference.position == np.flatnonzero(labels == -100)[0]
    token = IDS[row, difference.position]
    assert (difference.expected, difference.found) == (f"{token} untouched", f"{token} selected and kept")
    assert str(difference).startswith(f"{run}: sample {row}, position {difference.position}: expected {token} ")


def test_masks_that_follow_the_row_are_found() -> None:
    def by_row(batch_size: int, start: int, **_: int) -> Iterator[Batch]:
        for first in range(start, 20, batch_size):
            yield batch_of(np.arange(first, min(20, first + batch_size)), sample_ids=0)

    report = verify.loader(by_row, world_sizes=())
    assert report.difference is not None
    assert report.runs[-1] == "batch_size=4"


def test_a_replacement_that_differs_is_told_by_both_ids() -> None:
    one, other = batch_of(np.arange(4)), batch_of(np.arange(4))
    row, column = np.argwhere(one["labels"] != -100)[0]
    one["input_ids"][row, column], other["input_ids"][row, column] = 4, 9
    difference = verify.batches([one], [other]).difference
    assert difference is not None
    original = IDS[row, column]
    assert difference.expected == f"{original} replaced by 4"
    assert difference.found == (f"{original} selected and kept" if original == 9 else f"{original} replaced by 9")


def test_samples_that_are_missing_or_too_many_are_differences() -> None:
    whole, part = [batch_of(np.arange(8))], [batch_of(np.arange(7))]
    few, many = (verify.batches(*pair, sample_id="index").difference for pair in ((whole, part), (part, whole)))
    assert few is not None
    assert many is not None
    assert few[1:] == ("sample 7", None, "it", "no such sample")
    assert many[1:] == ("sample 7", None, "no such sample", "it")


def test_a_sample_that_comes_twice_must_have_its_masks_twice() -> None:
    assert verify.batches([batch_of([1, 1])], [batch_of([1])]).same
    twice = batch_of([1, 1], sample_ids=0)
    difference = verify.batches([twice], [twice]).difference
    assert difference is not None
    assert difference.run == "first"


def test_a_sample_cut_short_is_told_by_the_first_token_that_is_not_there() -> None:
    whole: Batch = {"input_ids": IDS[1:2], "labels": np.where(IDS[1:2] == IDS[1, 0], IDS[1:2], -100), "index": [5]}
    short: Batch = whole | {name: whole[name][:, :9] for name in ("input_ids", "labels")}
    difference = verify.batches([whole], [short], sample_id="index").difference
    assert difference is not None
    assert difference.position == 9
    assert difference.found == "no token, the sample has 9"


def test_runs_without_a_selected_token_prove_nothing() -> None:
    nothing = {"input_ids": IDS, "labels": np.full(IDS.shape, -100)}
    report = verify.batches([nothing], [nothing])
    assert report.difference is None
    assert not report.same
    assert not verify.batches([], []).same


def test_padding_left_right_or_packed_changes_nothing() -> None:
    padded = batch_of(np.arange(6))
    real = padded["attention_mask"] != 0
    left = {
        name: np.stack([np.roll(row, 12 - keep.sum()) for row, keep in zip(padded[name], real, strict=True)])
        for name in ("input_ids", "labels", "attention_mask")
    }
    packed = {name: padded[name][real] for name in ("input_ids", "labels")}
    packed["cu_seqlens"] = np.cumsum([0, *real.sum(1)])
    without = {name: padded[name] for name in ("input_ids", "labels")}
    for other in (left, packed, without):
        assert verify.batches([padded], [other], pad_token_id=0).same


def test_tensors_are_read_as_arrays_are() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = batch_of(np.arange(6))
    assert verify.batches([batch], [{name: torch.from_numpy(x) for name, x in batch.items()}]).same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "a batch must be a mapping with 'labels', got input_ids, attention_mask, index"),
        ({"labels": IDS}, r"input_ids has shape \(6, 12\), but labels has shape \(20, 12\)"),
        ({"attention_mask": IDS}, r"attention_mask has shape \(20, 12\), but input_ids has shape \(6, 12\)"),
        ({"index": [1]}, "index holds 1 numbers for 6 samples"),
    ],
)
def test_batches_that_cannot_be_compared_are_refused(change: Batch, message: str) -> None:
    batch = {name: x for name, x in (batch_of(np.arange(6)) | change).items() if x is not None}
    with pytest.raises(verify.BatchError, match=message):
        verify.batches([batch], [], sample_id="index")


# --- files and the command


def written(folder: Path, kind: str, batch: Batch) -> Path:
    if kind == "folder":
        folder.mkdir()
        for name, array in batch.items():
            np.save(folder / f"{name}.npy", array)
        return folder
    path = folder.with_suffix(f".{kind}")
    if kind == "npz":
        np.savez(path, **batch)
    else:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        torch.save([{name: torch.tensor(x[i : i + 3].copy()) for name, x in batch.items()} for i in (0, 3)], path)
    return path


@pytest.mark.parametrize("kind", ["folder", "npz", "pt"])
def test_files_are_compared_whatever_their_kind(tmp_path: Path, cli: Cli, kind: str) -> None:
    one = written(tmp_path / "one", "npz", batch_of(np.arange(6)))
    same = written(tmp_path / "same", kind, batch_of(np.arange(6)[::-1]))
    other = written(tmp_path / "other", kind, another_token(batch_of(np.arange(6))))
    result = cli("verify", one, same)
    assert (result.status, result.err) == (0, "")
    assert "6 samples" in result.out
    result = cli("verify", one, other, "--sample-id", "index")
    assert result.status == 1
    assert "different" in result.out
    assert "sample 0, position" in result.err
    assert "untouched, found" in result.err


LOADERS = """
import numpy as np, fastmask as fm
masker = fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.3), seed=7)
ids = np.random.default_rng(0).integers(5, 30, (20, 12))

def by_sample(num_workers, batch_size, rank, world_size, start, row=None):
    mine = ids[rank::world_size][start:]
    for first in range(0, len(mine), batch_size):
        batch = masker(mine[first : first + batch_size], epoch=0, sample_ids=row, backend="numpy")
        yield {"input_ids": batch.input_ids, "labels": batch.labels}

def by_row(**setting):
    return by_sample(**setting, row=0)

def without_labels(**setting):
    return [{"input_ids": ids}]

def broken(**setting):
    raise ZeroDivisionError("the loader's own")

nothing = 3
"""


@pytest.fixture
def loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of loaders in the current folder."""
    (tmp_path / "some_loaders.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("loaders")
def test_the_command_verifies_a_loader_by_its_name(cli: Cli) -> None:
    result = cli("verify", "some_loaders:by_sample")
    assert result.status == 0
    assert result.out.count("the same") == 7
    assert "20 samples, 240 tokens" in result.out
    result = cli("verify", "some_loaders:by_row")
    assert result.status == 1
    assert result.err.startswith("fastmask: world_size=4: the sample")
    with pytest.raises(ZeroDivisionError, match="the loader's own"):
        cli("verify", "some_loaders:broken")


@pytest.mark.usefixtures("loaders")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["some_loaders"], "'some_loaders' is not module:function"),
        (["no_such_module:x"], "No module named 'no_such_module'"),
        (["some_loaders:nothing"], "has no function nothing"),
        (["some_loaders:without_labels"], "a batch must be a mapping with 'labels'"),
        (["no.npz", "no.npz"], "no.npz: No such file"),
        (["some_loaders.py", "no.npz"], "is not a folder of .npy files"),
        ([], "Missing argument"),
    ],
)
def test_the_command_refuses_what_it_cannot_compare(cli: Cli, arguments: list[str], message: str) -> None:
    assert_one_line(cli("verify", *arguments), message)
