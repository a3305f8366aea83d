"""The training run of the benchmarks: its loss, its clock, its curve."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import by_reference as by_reference
from support import same

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
pytestmark = pytest.mark.usefixtures("by_reference")
TEXT = "The cat sat on the mat. A dog ran to the cat! Was it a big dog? It was: a big, old dog.\n\n"


@pytest.fixture(scope="module")
def train() -> Any:
    """benchmarks.train; importing it gives Numba an empty cache, which is taken back here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])
        patch.setenv("NUMBA_CACHE_DIR", "")
        module = importlib.import_module("benchmarks.train")
    return module


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A sentence of 13 words over and over: in samples of 16, a word's place tells it."""
    path = tmp_path / "text.txt"
    path.write_text("one two three four five six seven eight nine ten eleven twelve.\n" * 100)
    return path


def some_batch(train: Any) -> tuple[Any, Any]:
    """A small encoder, and a batch of samples of unequal lengths."""
    words = train.words_of(train.sentences_of(TEXT))
    ids = np.concatenate(words.encode([TEXT] * 5))
    samples = train.samples_of(ids, words, 16)
    torch.manual_seed(0)
    model = train.Encoder(train.Shape(words.size, 16, hidden=8, layers=1, heads=2, dropout=0.0))
    vocab = train.fm.Vocab(words.size, words.mask, words.pad, words.special)
    masker = train.fm.Masker(vocab, train.fm.Bernoulli(0.3), seed=7)
    return model, train.Collator(masker, sample_id="index", returns="compact")(samples)


def test_the_loss_at_compact_positions_is_that_of_logits_everywhere(train: Any) -> None:
    model, batch = some_batch(train)
    assert len(set(batch["attention_mask"].sum(1).tolist())) > 1
    compact, full = model.outcome(batch), model.full_outcome(batch)
    assert compact.selected == full.selected == int((batch["labels"] != -100).sum()) > 0
    assert compact.correct == full.correct
    torch.testing.assert_close(compact.loss, full.loss, rtol=1e-6, atol=1e-6)
    gradients = []
    for outcome in (compact, full):
        model.zero_grad()
        outcome.loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_logits_are_computed_at_the_selected_tokens_alone(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = some_batch(train)
    shapes: list[Any] = []
    logits = model.logits

    def watched(hidden: Any) -> Any:
        shapes.append(hidden.shape)
        return logits(hidden)

    monkeypatch.setattr(model, "logits", watched)
    model.outcome(batch)
    assert shapes == [(int((batch["labels"] != -100).sum()), 8)]


def test_padding_has_no_say_in_the_loss(train: Any) -> None:
    model, batch = some_batch(train)
    want = model.eval().outcome(batch).loss
    batch["input_ids"][batch["attention_mask"] == 0] = 9
    torch.testing.assert_close(model.outcome(batch).loss, want, rtol=0, atol=0)


def test_samples_hold_the_text_in_two_segments(train: Any) -> None:
    words = train.words_of(train.sentences_of(TEXT))
    ids = np.concatenate(words.encode([TEXT] * 5))
    samples = train.samples_of(ids, words, 16)
    special = list(words.special)
    same(np.concatenate([s["input_ids"][~np.isin(s["input_ids"], special)] for s in samples]), ids)
    for sample in samples:
        row, types = sample["input_ids"], sample["token_type_ids"]
        assert row[0] == words.cls
        ends = np.flatnonzero(row == words.sep)
        assert ends.tolist() == [np.flatnonzero(types == 0)[-1], len(row) - 1]
    assert {len(sample["input_ids"]) for sample in samples[:-1]} == {16}


def test_the_entropy_is_that_of_the_words(train: Any) -> None:
    assert train.entropy_of(np.array([7, 7, 8, 9])) == pytest.approx(1.5 * np.log(2))
    assert train.entropy_of(np.array([7])) == 0


def test_a_short_training_learns_and_says_what_it_measured(
    train: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    png = tmp_path / "loss.png"
    setting = ["--steps", "60", "--row-length", "16", "--hidden", "16", "--layers", "1", "--rate", "0.01", "--png", png]
    course = train.main(train.options_from([str(text), *map(str, setting)]))
    out = " ".join(capsys.readouterr().out.split())
    assert len(course.losses) == 60
    entropy = float(re.search(r"unigram entropy ([\d.]+) nats", out)[1])  # type: ignore[index]
    assert entropy == pytest.approx(np.log(13), abs=1e-3)
    assert np.mean(course.losses[-10:]) < entropy - 0.5
    assert 0 < course.masking < course.seconds
    for said in ("masked accuracy", "tokens/s", "collating and masking took", "held out: loss"):
        assert said in out
    assert png.read_bytes().startswith(b"\x89PNG")


def test_time_ends_a_training_and_a_missing_matplotlib_its_curve_alone(
    train: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = train.options_from([str(text), "--seconds", "1", "--row-length", "16", "--hidden", "8"])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert train.draw(train.Course([1.0], [0.5]), 1.0, tmp_path / "x.png").startswith("no curve: pip install")
    assert train._done(train.Course([1.0] * 3), 0.5, options) == 0.5
