"""Vocab.from_tokenizer: words that are the tokenizer's own, words between spaces, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import same
from support_tokenizers import (
    LETTERS,
    MARKS,
    READABLE,
    TEXT,
    Slow,
    agree,
    bpe,
    byte_level,
    from_tokenizer,
    llama,
    metaspace_bpe,
    spellings,
    table_of,
    unigram,
    word_level,
    wordpiece,
)
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import pre_tokenizers as pre

from fastmask.tokenizer import bytes_as_text

# Words by the table, and words by the tokenizer.


SENTENCES = [*TEXT[:3], "jumpingfox don't", "walk", " two  spaces ", "", "rain.rain,rain 9a"]


@pytest.mark.parametrize("make", [wordpiece, unigram, metaspace_bpe, word_level])
@pytest.mark.parametrize("text", SENTENCES)
def test_words_by_table_are_the_tokenizers_own(make: Callable[[], Any], text: str) -> None:
    agree(make(), table_of(make()), text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(LETTERS[:6] + MARKS + "   ", max_size=40))
def test_words_by_table_are_the_tokenizers_own_for_any_text(text: str) -> None:
    for make in (wordpiece, unigram, metaspace_bpe, word_level):
        agree(make(), table_of(make()), text)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.text(LETTERS + "éü", min_size=1, max_size=12), max_size=8))
def test_byte_level_words_of_letters_are_the_tokenizers_own(words: list[str]) -> None:
    agree(byte_level(), table_of(byte_level()), " ".join(words))


@settings(max_examples=200, deadline=None)
@given(text=st.text(LETTERS[:6] + MARKS + "  \n\t", max_size=40))
def test_byte_level_words_are_what_lies_between_spaces(text: str) -> None:
    tokenizer = byte_level()
    letters = tokenizer.decoder.decode
    words = [letters([word]).strip() for word in spellings(tokenizer, table_of(tokenizer), text)]
    assert [word for word in words if word] == text.split()


def test_byte_level_words_are_longer_than_the_tokenizers_own_at_punctuation() -> None:
    tokenizer = byte_level()
    assert spellings(tokenizer, table_of(tokenizer), "they don't.") == ["they", "Ġdon't."]
    assert len(set(tokenizer.encode("they don't.").word_ids)) == 4


def test_words_without_a_pre_tokenizer_are_what_lies_between_spaces() -> None:
    tokenizer = llama()
    got = spellings(tokenizer, table_of(tokenizer), "the fox.\nthe dog!")
    assert got == ["▁the", "▁fox.", "<0x0A>the", "▁dog<0x21>"]


def test_every_piece_of_a_word_continues_but_the_first() -> None:
    vocab = {"[MASK]": 0, "▁wal": 1, "k": 2, "ing": 3, "▁home": 4}  # case B39
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre.Metaspace()
    tokenizer.add_special_tokens(["[MASK]"])
    same(table_of(tokenizer), np.array([0, 0, 1, 1, 0], np.uint8))


@pytest.mark.parametrize("prefix", ["##", "@@", "~"])
def test_the_prefix_of_pieces_is_the_models(prefix: str) -> None:
    tokenizer = wordpiece(prefix)
    table = table_of(tokenizer)
    assert table.any()
    same(table, np.array([tokenizer.id_to_token(i).startswith(prefix) for i in range(table.size)]).astype(np.uint8))


def test_a_bpe_with_a_prefix_for_pieces_is_read_by_it() -> None:
    tokenizer = bpe(pre.Whitespace(), continuing_subword_prefix="##")
    table = table_of(tokenizer)
    for text in SENTENCES[:4]:
        agree(tokenizer, table, text)


@given(text=st.text(max_size=20))
def test_letters_of_bytes_are_those_of_the_byte_level(text: str) -> None:
    pieces = pre.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert bytes_as_text("".join(piece for piece, _ in pieces)) == text


def test_every_byte_that_is_white_space_begins_a_word() -> None:
    tokenizer = byte_level()
    table = table_of(tokenizer)
    for byte in range(128):
        (letter,) = [piece for piece, _ in pre.ByteLevel(False, use_regex=False).pre_tokenize_str(chr(byte))]
        assert table[tokenizer.token_to_id(letter)] == (not chr(byte).isspace()), byte


@pytest.mark.parametrize("make", [byte_level, unigram])
def test_added_tokens_begin_a_word(make: Callable[[], Any]) -> None:
    tokenizer = Tokenizer.from_str(make().to_str())
    tokenizer.add_tokens(["covid", AddedToken("fox", lstrip=True)])
    table = table_of(tokenizer)
    assert not table[-2:].any()
    assert not table[:5].any()


# What does not tell where words begin.


class InPython:
    """A pre-tokenizer that is no JSON."""


def plain_bpe(before: Any, **given: Any) -> Any:
    tokenizer = Tokenizer(models.BPE({"a": 0, "[MASK]": 1}, [], **given))
    tokenizer.pre_tokenizer = before
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


def unmarked_unigram() -> Any:
    tokenizer = Tokenizer(models.Unigram([("a", 0.0), ("b", -1.0)]))
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


def in_python() -> Any:
    custom: Any = pre.PreTokenizer.custom  # untyped
    return plain_bpe(custom(InPython()))


BYTES = pre.ByteLevel(add_prefix_space=False)
UNREADABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "an end of words is marked": (lambda: plain_bpe(BYTES, end_of_word_suffix="</w>"), "mark the end of words"),
    "no mark": (lambda: plain_bpe(pre.Whitespace()), "do not keep spaces"),
    "an unmarked unigram": (unmarked_unigram, "do not keep spaces"),
    "spaces dropped before bytes": (
        lambda: plain_bpe(pre.Sequence([pre.WhitespaceSplit(), BYTES])),
        "drops the spaces",
    ),
    "a mark for the first word alone": (
        lambda: plain_bpe(pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace(prepend_scheme="first")])),
        "drops the spaces",
    ),
    "bytes of a mark": (lambda: plain_bpe(pre.Sequence([pre.Metaspace(), BYTES])), "do not keep spaces"),
    "a pre-tokenizer in Python": (in_python, "no JSON: "),
    "no JSON": (Slow, "a Slow has no JSON"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_refused_and_never_guessed(kind: str) -> None:
    make, message = UNREADABLE[kind]
    with pytest.raises(ValueError, match=f"^words: .*{message}.*pass word_ids, or words=False"):
        from_tokenizer(make(), words=True)
    assert from_tokenizer(make()).is_continuation is None


@pytest.mark.parametrize("make", READABLE)
def test_words_is_a_wish(make: Callable[[], Any]) -> None:
    assert from_tokenizer(make(), words=False).is_continuation is None
    assert from_tokenizer(make()) == from_tokenizer(make(), words=True)


@pytest.mark.parametrize(
    "before",
    [
        pre.Sequence([pre.WhitespaceSplit(), pre.ByteLevel(add_prefix_space=True)]),
        pre.Sequence([pre.Split(Regex(r" ?\w+|\s+"), "isolated"), pre.ByteLevel(False, use_regex=False)]),
        pre.Sequence([pre.Digits(), pre.ByteLevel(add_prefix_space=False)]),
        pre.Metaspace(prepend_scheme="never"),
        pre.Metaspace(split=False),
        pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()]),
        pre.Sequence([pre.Whitespace(), pre.Metaspace(replacement="_")]),
    ],
    ids=str,
)
def test_pre_tokenizers_that_keep_spaces_are_read(before: Any) -> None:
    same(table_of(plain_bpe(before)), np.array([1, 0], np.uint8))
