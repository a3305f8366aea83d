"""Small tokenizers trained from a text, one of each kind, and the words that a table of continuations gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support import Array

import fastmask as fm

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install tokenizers")
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = "éü中.,'!-019"
TEXT = [
    "the quick brown fox jumps over the lazy dog and keeps jumping",
    "she walks, he walked; they don't like walking in the rain: it isn't fun!",
    f"numbers 10 and 901 are here - {LETTERS} {MARKS}",
] * 20
from_tokenizer = fm.Vocab.from_tokenizer


def trained(model: Any, trainer: Any, before: Any) -> Any:
    """A tokenizer with SPECIALS as the ids 0 to 4."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    given = {"special_tokens": SPECIALS, "show_progress": False, "initial_alphabet": [*LETTERS, *MARKS, " "]}
    if isinstance(before, pre.ByteLevel):
        given["initial_alphabet"] = pre.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainer(**given))
    return tokenizer


def bpe(before: Any, vocab_size: int = 330, **given: Any) -> Any:
    make = functools.partial(trainers.BpeTrainer, vocab_size=vocab_size, **given)
    return trained(models.BPE(unk_token="[UNK]", **given), make, before)


@functools.cache
def wordpiece(prefix: str = "##") -> Any:
    make = functools.partial(trainers.WordPieceTrainer, vocab_size=140, continuing_subword_prefix=prefix)
    model = models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=prefix)
    return trained(model, make, pre.BertPreTokenizer())


@functools.cache
def byte_level() -> Any:
    tokenizer = bpe(pre.ByteLevel(add_prefix_space=False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@functools.cache
def unigram() -> Any:
    make = functools.partial(trainers.UnigramTrainer, vocab_size=100, unk_token="[UNK]")
    return trained(models.Unigram(), make, pre.Metaspace())


@functools.cache
def metaspace_bpe() -> Any:
    return bpe(pre.Metaspace(), vocab_size=120)


@functools.cache
def word_level() -> Any:
    return trained(models.WordLevel(unk_token="[UNK]"), word_level_trainer, pre.Whitespace())


def word_level_trainer(initial_alphabet: object, **given: Any) -> Any:
    return trainers.WordLevelTrainer(**given)


@functools.cache
def llama() -> Any:
    """No pre-tokenizer: a normalizer writes the mark, bytes stand for what is not in the vocabulary."""
    vocab = {token: i for i, token in enumerate([*SPECIALS, "▁", *LETTERS, ".", "▁the", "<0x0A>", "<0x21>", "<0xE4>"])}
    model = models.BPE(vocab, [], unk_token="[UNK]", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


READABLE = [wordpiece, byte_level, unigram, metaspace_bpe, word_level, llama]


class Slow:
    """What a slow tokenizer of transformers offers."""

    mask_token_id, pad_token_id, all_special_ids = 4, 0, (0, 1, 2, 3, 4)

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate([*SPECIALS, "a", "##b"])}


def table_of(tokenizer: Any, **given: Any) -> Array:
    table = from_tokenizer(tokenizer, words=True, **given).continuation_table
    assert table is not None
    return table


def words_by_table(table: Array, ids: Sequence[int]) -> list[int]:
    """The number of each token's word: a continuation belongs to the word before it; the first token begins one."""
    begins = 1 - table[np.array(ids, int)].astype(int)
    begins[:1] = 1
    numbers: list[int] = (np.cumsum(begins) - 1).tolist()
    return numbers


def own_words(encoding: Any) -> list[int]:
    """The words of the tokenizer, numbered from 0 without gaps."""
    ids = encoding.word_ids
    changes = [i == 0 or ids[i] != ids[i - 1] for i in range(len(ids))]
    numbers: list[int] = (np.cumsum(changes) - 1).astype(int).tolist()
    return numbers


def agree(tokenizer: Any, table: Array, text: str) -> None:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert words_by_table(table, encoding.ids) == own_words(encoding), encoding.tokens


def spellings(tokenizer: Any, table: Array, text: str) -> list[str]:
    """The tokens of each word, joined."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    numbers = words_by_table(table, encoding.ids)
    words = [""] * (max(numbers, default=-1) + 1)
    for number, token in zip(numbers, encoding.tokens, strict=True):
        words[number] += token
    return words
