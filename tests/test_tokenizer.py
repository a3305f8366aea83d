"""Vocab.from_tokenizer: sizes, the mask and the pad token, special ids; tokenizers of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import same
from support_tokenizers import (
    READABLE,
    Slow,
    byte_level,
    from_tokenizer,
    llama,
    metaspace_bpe,
    table_of,
    unigram,
    word_level,
    wordpiece,
    words_by_table,
)
from tokenizers import Tokenizer, models

import fastmask as fm

untyped: Any = from_tokenizer  # for calls that a type checker refuses


@pytest.mark.parametrize("make", READABLE)
def test_size_and_special_ids_are_the_tokenizers(make: Callable[[], Any]) -> None:
    vocab = from_tokenizer(make())
    assert vocab.size == make().get_vocab_size()
    assert (vocab.mask_token_id, vocab.pad_token_id, vocab.special_token_ids) == (4, 0, (0, 1, 2, 3, 4))


def test_added_tokens_count_and_reserved_ones_are_special() -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["covid"])
    tokenizer.add_special_tokens(["<|reserved|>"])
    vocab = from_tokenizer(tokenizer)
    assert vocab.size == size + 2
    assert vocab.special_token_ids == (0, 1, 2, 3, 4, size + 1)


def test_rows_of_an_embedding_that_name_no_token_are_never_drawn() -> None:
    vocab = from_tokenizer(llama(), size=64)  # case B15
    tokens = llama().get_vocab_size()
    assert vocab.size == 64
    assert vocab.special_token_ids == (0, 1, 2, 3, 4, *range(tokens, 64))
    masker = fm.Masker(vocab, fm.Bernoulli(1.0), fm.Replace(0, 1))
    drawn = masker(np.full((40, 100), 6), epoch=0, sample_ids=0, backend="numpy").input_ids
    same(np.unique(drawn), np.arange(5, tokens))


def test_a_hole_in_the_ids_is_special() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[MASK]": 5}, unk_token="a"))
    tokenizer.add_special_tokens(["[MASK]"])
    vocab = from_tokenizer(tokenizer)
    assert (vocab.size, vocab.special_token_ids) == (6, (2, 3, 4, 5))


@pytest.mark.parametrize("size", [0, 5, 6])
def test_a_size_that_leaves_out_a_token_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size = {size} leaves out '##b', whose id is 6"):
        from_tokenizer(Slow(), size)


def test_a_size_that_no_vocabulary_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"size must be in \[1, 2\^31\), got 1099511627776"):
        from_tokenizer(Slow(), 1 << 40)
    with pytest.raises(TypeError, match="size must be an integer, got 64"):
        untyped(Slow(), 64.0)


def test_the_mask_token_may_be_named() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<|mdm_mask|>": 1, "<eos>": 2}, unk_token="a"))
    tokenizer.add_special_tokens(["<|mdm_mask|>", "<eos>"])
    with pytest.raises(ValueError, match="mask_token: the tokenizer names none"):
        from_tokenizer(tokenizer)
    vocab = from_tokenizer(tokenizer, mask_token="<|mdm_mask|>", pad_token="<eos>")
    assert (vocab.mask_token_id, vocab.pad_token_id, vocab.special_token_ids) == (1, 2, (1, 2))
    with pytest.raises(ValueError, match="both 1"):
        from_tokenizer(tokenizer, mask_token="<|mdm_mask|>", pad_token="<|mdm_mask|>")
    for name in ("mask_token", "pad_token"):
        with pytest.raises(ValueError, match=f"{name} = '<m>' is not a token"):
            untyped(tokenizer, **{"mask_token": "a", name: "<m>"})


def test_a_token_that_is_not_special_is_no_mask_token_by_its_name() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "mask": 1}, unk_token="a"))
    with pytest.raises(ValueError, match="mask_token: the tokenizer names none"):
        from_tokenizer(tokenizer)


def test_two_mask_tokens_are_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<mask>": 1, "[MASK]": 2}, unk_token="a"))
    tokenizer.add_special_tokens(["<mask>", "[MASK]"])
    with pytest.raises(ValueError, match=r"mask_token: the tokenizer has '<mask>', '\[MASK\]'; say which"):
        from_tokenizer(tokenizer)
    assert from_tokenizer(tokenizer, mask_token="<mask>").special_token_ids == (1, 2)


def test_the_id_that_a_tokenizer_pads_with_is_padding() -> None:
    tokenizer = Tokenizer.from_str(word_level().to_str())
    tokenizer.enable_padding(pad_id=3, pad_token="[SEP]")
    assert from_tokenizer(tokenizer).pad_token_id == 3


@pytest.mark.parametrize("value", ["bert-base-uncased", None, 30522])
def test_what_is_no_tokenizer_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="tokenizer must be a loaded Hugging Face tokenizer, got"):
        from_tokenizer(value)


# Tokenizers of transformers.


def wrapped(tokenizer: Any, **roles: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@pytest.mark.parametrize("make", [wordpiece, unigram, metaspace_bpe, byte_level])
def test_a_fast_tokenizer_is_read_like_the_one_it_wraps(make: Callable[[], Any]) -> None:
    tokenizer = wrapped(make(), mask_token="[MASK]", pad_token="[PAD]")
    assert from_tokenizer(tokenizer) == from_tokenizer(make(), len(tokenizer), words=True)
    encoding = tokenizer("the quick walking fox", add_special_tokens=False)
    numbers = [0 if number is None else number for number in encoding.word_ids()]
    assert words_by_table(table_of(tokenizer), encoding["input_ids"]) == numbers


def test_a_fast_tokenizer_names_its_roles(caplog: pytest.LogCaptureFixture) -> None:
    vocab = from_tokenizer(wrapped(wordpiece(), mask_token="[SEP]"))
    assert (vocab.mask_token_id, vocab.pad_token_id) == (3, None)
    with pytest.raises(ValueError, match="mask_token: the tokenizer names none"):
        from_tokenizer(wrapped(wordpiece(), pad_token="[PAD]"))
    assert not caplog.records


def test_a_slow_tokenizer_of_proteins_gives_ids_but_no_words(tmp_path: Path) -> None:
    esm = pytest.importorskip(
        "transformers.models.esm", reason="transformers is not installed: pip install transformers"
    )
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = esm.EsmTokenizer(str(tmp_path / "vocab.txt"))
    assert from_tokenizer(tokenizer) == fm.Vocab(33, 32, 1, (0, 2, 3))
    with pytest.raises(ValueError, match="words: a EsmTokenizer has no JSON"):
        from_tokenizer(tokenizer, words=True)
