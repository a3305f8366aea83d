"""The collator that stands in for transformers' own: its keys, shapes and law, and masks that follow samples."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array
from support import by_reference as by_reference
from support_tokenizers import TEXT, bpe, byte_level, metaspace_bpe, unigram, word_level, wordpiece

import fastmask as fm

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

from tokenizers import pre_tokenizers as pre  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from fastmask.huggingface import DataCollatorForLanguageModeling, EpochCallback, with_word_ids  # noqa: E402

pytestmark = pytest.mark.usefixtures("by_reference")
Theirs = transformers.DataCollatorForLanguageModeling
LINES = [*dict.fromkeys(TEXT), "walking", "don't jump - 901!"]
FAST = [wordpiece, byte_level, unigram, metaspace_bpe, word_level]


def loaded(make: Callable[[], Any] = wordpiece, **given: Any) -> Any:
    """A fast tokenizer of transformers around one of ours, with [CLS] and [SEP] round a text."""
    from tokenizers import processors

    inner = type(make()).from_str(make().to_str())
    inner.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    named = {f"{role}_token": name for role, name in names.items()} | given
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **named)


def encoded(tokenizer: Any, lines: list[str] = LINES, **given: Any) -> list[dict[str, Any]]:
    batch = tokenizer(lines, **given)
    return [{name: batch[name][i] for name in batch} for i in range(len(lines))]


def arrays(batch: Any) -> dict[str, Array]:
    return {name: np.asarray(value) for name, value in batch.items()}


# --- in the place of transformers' own


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "given", [{}, {"return_special_tokens_mask": True}, {"padding": "max_length", "max_length": 61}]
)
@pytest.mark.parametrize("bare", [False, True])
def test_keys_shapes_and_dtypes_are_those_of_transformers(
    kind: str, side: str, given: dict[str, Any], bare: bool
) -> None:
    tokenizer = loaded(padding_side=side, model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    samples: list[Any] = encoded(tokenizer, **given)
    if bare:
        samples = [sample["input_ids"] for sample in samples]
    for multiple in (None, 8):
        setting: dict[str, Any] = {
            "pad_to_multiple_of": multiple,
            "return_tensors": kind,
            "mask_replace_prob": 0.0,
            "seed": 3,
        }
        mine = DataCollatorForLanguageModeling(tokenizer, random_replace_prob=0.0, **setting)(samples)
        their = Theirs(tokenizer, random_replace_prob=0.0, **setting)(samples)
        assert type(mine) is type(their)
        assert set(mine) == set(their)
        for name in their:
            assert type(mine[name]) is type(their[name])
            assert mine[name].dtype == their[name].dtype
            assert tuple(mine[name].shape) == tuple(their[name].shape)
            if name != "labels":  # with all selected tokens kept, the ids are those that came
                np.testing.assert_array_equal(mine[name], their[name])


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_without_mlm_labels_are_the_ids_without_padding(kind: str) -> None:
    tokenizer = loaded(mask_token=None)
    samples = encoded(tokenizer)
    mine = DataCollatorForLanguageModeling(tokenizer, mlm=False, return_tensors=kind)(samples)
    their = Theirs(tokenizer, mlm=False, return_tensors=kind)(samples)
    assert set(mine) == set(their)
    for name in their:
        np.testing.assert_array_equal(mine[name], their[name], strict=True)


def test_arguments_come_in_the_order_of_transformers_with_its_defaults() -> None:
    import dataclasses

    theirs = {one.name: one.default for one in dataclasses.fields(Theirs)}
    mine = [one for one in dataclasses.fields(DataCollatorForLanguageModeling) if one.init and not one.kw_only]
    assert {one.name: one.default for one in mine} == theirs
    assert [one.name for one in mine] == list(theirs)


def test_rates_and_shares_are_those_asked_for_and_random_tokens_are_not_special() -> None:
    tokenizer = loaded()
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, len(tokenizer), 500) for _ in range(100)]
    collator = DataCollatorForLanguageModeling(tokenizer, True, False, 0.3, 0.5, 0.3, return_tensors="np", seed=5)
    batch = collator(rows)
    original, ids, chosen = np.stack(rows), batch["input_ids"], batch["labels"] != -100
    n = np.count_nonzero(chosen)
    assert abs(n / chosen.size - 0.3) < 5 * np.sqrt(0.3 * 0.7 / chosen.size)
    np.testing.assert_array_equal(batch["labels"][chosen], original[chosen])
    np.testing.assert_array_equal(ids[~chosen], original[~chosen])
    masked, kept = ids[chosen] == tokenizer.mask_token_id, ids[chosen] == original[chosen]
    assert abs(masked.mean() - 0.5) < 5 * np.sqrt(0.25 / n)
    back = 0.3 / (len(tokenizer) - 5)  # a random token may be the original
    assert abs(kept.mean() - 0.2 - back) < 5 * np.sqrt(0.2 * 0.8 / n)
    drawn = ids[chosen][~masked & ~kept]
    assert drawn.min() >= 5
    every = DataCollatorForLanguageModeling(tokenizer, True, False, 1.0, 0.0, 1.0, random_pool="vocab")
    assert (every(rows)["input_ids"] < 5).any()


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_masks_are_those_of_the_masker_by_content_seed_and_epoch(seed: int | None) -> None:
    tokenizer = loaded()
    samples = encoded(tokenizer)
    collator = DataCollatorForLanguageModeling(tokenizer, seed=seed, return_tensors="np")
    vocab = fm.Vocab.from_tokenizer(tokenizer, words=False)
    masker = fm.Masker(vocab, fm.Bernoulli(0.15), fm.Replace(0.8, 0.1), seed or 0)
    for epoch in (0, 4):
        collator.set_epoch(epoch)
        assert collator.epoch == epoch
        batch = collator(samples)
        for row, sample in enumerate(samples):
            want = masker(np.array(sample["input_ids"]), epoch=epoch, backend="numpy")
            real = batch["attention_mask"][row] != 0
            np.testing.assert_array_equal(batch["labels"][row][real], want.labels, strict=True)
            np.testing.assert_array_equal(batch["input_ids"][row][real], want.input_ids, strict=True)
    one = arrays(collator(samples, return_tensors="pt"))
    for name, array in arrays(batch).items():
        np.testing.assert_array_equal(one[name], array, strict=True)


def test_sample_ids_may_come_from_a_feature() -> None:
    collator = DataCollatorForLanguageModeling(loaded(), sample_id="index", mlm_probability=0.5)
    samples = [{"input_ids": [2, *range(5, 60), 3], "index": i} for i in range(2)]
    one, other = (collator(samples)["labels"][row] for row in range(2))
    assert not torch.equal(one, other)


def test_a_pickled_collator_goes_on_with_its_epoch() -> None:
    collator = DataCollatorForLanguageModeling(loaded(), return_tensors="np")
    collator.set_epoch(3)
    copy = pickle.loads(pickle.dumps(collator))
    samples = encoded(loaded())
    assert copy.epoch == 3
    np.testing.assert_array_equal(copy(samples)["labels"], collator(samples)["labels"], strict=True)


def test_b64_no_global_random_state_is_touched() -> None:
    collator = DataCollatorForLanguageModeling(loaded())
    samples = encoded(loaded())

    def states() -> tuple[object, ...]:
        name, keys, *rest = np.random.get_state()
        return random.getstate(), name, np.asarray(keys).tobytes(), rest, torch.get_rng_state().numpy().tobytes()

    before = states()
    collator(samples)
    assert states() == before


# --- whole words


def word_runs(words: list[int | None]) -> list[list[int]]:
    """The positions of each word, in order."""
    runs: list[list[int]] = []
    for i, word in enumerate(words):
        if word is not None:
            if i and word == words[i - 1]:
                runs[-1].append(i)
            else:
                runs.append([i])
    return runs


@pytest.mark.parametrize("make", FAST)
@pytest.mark.parametrize("told", ["column", "encodings"])
def test_words_of_any_fast_tokenizer_are_selected_whole_in_ragged_batches(make: Callable[[], Any], told: str) -> None:
    tokenizer = loaded(make)
    collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, mlm_probability=0.5)
    if told == "column":
        batch = with_word_ids(tokenizer(LINES))
        samples: list[Any] = [{name: batch[name][i] for name in batch} for i in range(len(LINES))]
    else:
        samples = [tokenizer(line) for line in LINES]
    chosen = (collator(samples)["labels"] != -100).numpy()
    outcomes = set()
    for row, line in enumerate(LINES):
        for run in word_runs(tokenizer(line).word_ids()):
            assert len({bool(chosen[row, i]) for i in run}) == 1
            outcomes.add((len(run) > 1, bool(chosen[row, run[0]])))
    assert {selected for _, selected in outcomes} == {False, True}


@pytest.mark.parametrize("make", FAST)
def test_words_are_found_by_the_tokens_alone(make: Callable[[], Any]) -> None:
    tokenizer = loaded(make)
    collator = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mlm_probability=0.5, return_tensors="np"
    )
    samples = encoded(tokenizer, return_offsets_mapping=True)  # as transformers wants them
    batch = collator(samples)
    assert set(batch) == {"input_ids", "attention_mask", "labels"} | ({"token_type_ids"} & set(samples[0]))
    table = fm.Vocab.from_tokenizer(tokenizer, words=True).continuation_table
    assert table is not None
    for row, sample in enumerate(samples):
        chosen = batch["labels"][row] != -100
        for i in range(2, len(sample["input_ids"]) - 1):
            if table[sample["input_ids"][i]]:
                assert chosen[i] == chosen[i - 1]


def test_b41_whole_words_honour_the_shares() -> None:
    tokenizer = loaded()
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, len(tokenizer), 500) for _ in range(60)]
    collator = DataCollatorForLanguageModeling(
        tokenizer, whole_word_mask=True, mlm_probability=0.5, return_tensors="np"
    )
    batch = collator(rows)
    assert (collator.mask_replace_prob, collator.random_replace_prob) == (0.8, 0.1)
    chosen = batch["labels"] != -100
    now, then = batch["input_ids"][chosen], batch["labels"][chosen]
    shares = [(now == 4).mean(), ((now != 4) & (now != then)).mean(), (now == then).mean()]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)


def test_b39_a_tokenizer_whose_tokens_do_not_tell_words_needs_word_ids() -> None:
    ends = loaded(lambda: bpe(pre.Whitespace(), 120, end_of_word_suffix="</w>"))
    collator = DataCollatorForLanguageModeling(ends, whole_word_mask=True, mlm_probability=1.0)
    with pytest.raises(ValueError, match="word_ids must be given"):
        collator(encoded(ends))
    assert (collator([ends(line) for line in LINES])["labels"] != -100).any()


# --- refusals


@pytest.mark.parametrize(
    ("tokenizer", "given", "message"),
    [
        ({"mask_token": None}, {}, "tokenizer has no mask token, which masking needs: add one, or give mlm=False"),
        ({"pad_token": None}, {}, "tokenizer has no pad token"),
        ({}, {"mlm": False, "whole_word_mask": True}, "whole_word_mask=True goes with mlm=True"),
        ({}, {"return_tensors": "tf"}, "return_tensors must be 'pt' or 'np', got 'tf'"),
        ({}, {"mlm_probability": 15}, r"mlm_probability must lie in \[0, 1\], got 15"),
        ({}, {"mlm_probability": None}, "mlm_probability must be a number"),
        ({}, {"mask_replace_prob": -0.1}, r"mask_replace_prob must lie in \[0, 1\]"),
        ({}, {"random_replace_prob": 1.1}, r"random_replace_prob must lie in \[0, 1\]"),
        ({}, {"random_replace_prob": 0.3}, "mask \\+ random must be at most 1"),
        ({}, {"seed": -1}, "seed must be in"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(
    tokenizer: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DataCollatorForLanguageModeling(loaded(**tokenizer), **given)


def test_a_collator_cannot_be_changed_under_way() -> None:
    with pytest.raises(AttributeError):
        DataCollatorForLanguageModeling(loaded()).mlm_probability = 0.3  # type: ignore[misc]


# --- in a Trainer


class Lines(Dataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """Sixteen samples of unequal lengths."""

    def __init__(self, tokenizer: Any) -> None:
        self.samples = encoded(tokenizer, [" ".join(TEXT[i % 3].split()[: 3 + i % 7]) + f" {i}" for i in range(16)])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Recorder:
    """A collator that keeps the labels it hands out, by sample and epoch."""

    def __init__(self, collator: DataCollatorForLanguageModeling) -> None:
        self.collator = collator
        self.seen: dict[int, dict[tuple[int, ...], list[int]]] = {}

    def set_epoch(self, epoch: int) -> None:
        self.collator.set_epoch(epoch)

    def __call__(self, features: list[Any]) -> Any:
        batch = self.collator(features)
        for feature, labels in zip(features, batch["labels"].tolist(), strict=True):
            ids = tuple(feature["input_ids"])
            self.seen.setdefault(self.collator.epoch, {})[ids] = labels[: len(ids)]
        return batch


class Guess(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """A model that guesses every token by itself alone."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.logits = nn.Embedding(size, size)

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
        logits = self.logits(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def trained(folder: Path, resume: Path | None = None) -> Recorder:
    """Two epochs of eight steps, saved after every fifth step; or the rest of them."""
    tokenizer = loaded()
    recorder = Recorder(DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5))
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, num_train_epochs=2, save_steps=5, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Guess(len(tokenizer)),
        arguments,
        data_collator=recorder,
        train_dataset=Lines(tokenizer),
        callbacks=[EpochCallback(recorder)],
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return recorder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_trainer_gets_other_masks_each_epoch_and_the_same_after_a_resume(tmp_path: Path) -> None:
    whole = trained(tmp_path)
    assert set(whole.seen) == {0, 1}
    assert all(len(seen) == 16 for seen in whole.seen.values())
    assert whole.seen[0] != whole.seen[1]
    for step, epochs in ((5, {0, 1}), (10, {1})):
        resumed = trained(tmp_path / "again", tmp_path / f"checkpoint-{step}")
        assert set(resumed.seen) == epochs
        for epoch, seen in resumed.seen.items():
            assert seen.items() <= whole.seen[epoch].items()
        assert len(resumed.seen[1]) == 16 if step == 5 else resumed.seen[1]


def test_a_batch_of_a_worker_is_an_encoding_whose_tensors_lie_in_one_block() -> None:
    from torch.utils.data import DataLoader

    collator = DataCollatorForLanguageModeling(loaded(), seed=3)
    batches = DataLoader(encoded(loaded()), 2, collate_fn=collator, num_workers=1, multiprocessing_context="fork")
    for batch, want in zip(batches, DataLoader(encoded(loaded()), 2, collate_fn=collator), strict=True):
        assert type(batch) is type(want) is transformers.BatchEncoding
        assert type(batch.data) is dict
        assert {name: x.tolist() for name, x in batch.items()} == {name: x.tolist() for name, x in want.items()}
        assert len({x.untyped_storage().data_ptr() for x in batch.to("cpu").values()}) == 1
