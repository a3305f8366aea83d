"""Text as rows of ids: sentences, a vocabulary, and the rows that hold every token of the text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.cli.errors import RefusedError

SPECIAL_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = {  # special tokens by their bare name: "[MASK]", "<mask>" and "<|mask|>" are all "mask"
    "mask": ("mask",),
    "pad": ("pad",),
    "cls": ("cls", "s", "bos"),
    "sep": ("sep", "/s", "eos"),
}
_WORD = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


@dataclass(frozen=True)
class Words:
    """A vocabulary: how to spell an id, how to encode sentences, and the ids that have a role, or None."""

    size: int
    spell: Callable[[int], str]
    encode: Callable[[Sequence[str]], list[list[int]]]
    special: tuple[int, ...]
    mask: int
    pad: int | None
    cls: int | None
    sep: int | None


@dataclass(frozen=True)
class Rows:
    """The text as ids (rows, row length): [CLS], a piece of the text, [SEP]; the last row is padded.

    `sentences` holds row, first column and last column + 1 of each sentence that lies within one row.
    """

    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    sentences: npt.NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """The number of ids without padding."""
        return int(self.lengths.sum())

    def repeated(self, tokens: int) -> Rows:
        """The whole text as often as it takes to have `tokens` of them, at least once."""
        times = max(1, -(-tokens // self.tokens))
        return Rows(np.tile(self.ids, (times, 1)), np.tile(self.lengths, times), self.sentences)


def read_text(files: Sequence[Path]) -> str:
    """The files' text, or without files the English text that every CPython carries (its help topics)."""
    if not files:
        try:
            from pydoc_data.topics import topics  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise RefusedError("this Python comes without its help texts: name a FILE") from None
        return "\n\n".join(topics.values())
    return "\n\n".join(_read(path) for path in files)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise RefusedError(f"{path} is not UTF-8 text: {wrong}") from None


def sentences_of(text: str) -> list[str]:
    """The text cut after full stops, question and exclamation marks, and at empty lines."""
    return [stripped for part in _SENTENCE_END.split(text) if (stripped := part.strip())]


def words_of(sentences: Iterable[str]) -> Words:
    """A vocabulary of the lower-cased words and punctuation of some sentences, the most frequent first."""
    counts = Counter(word for sentence in sentences for word in _split(sentence))
    if not counts:
        raise RefusedError("the text holds no words")
    spelling = [*SPECIAL_WORDS, *(word for word, _ in counts.most_common())]
    index = {word: i for i, word in enumerate(spelling)}
    pad, _, cls, sep, mask = range(len(SPECIAL_WORDS))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [[index[word] for word in _split(one)] for one in texts]

    special = tuple(range(len(SPECIAL_WORDS)))
    return Words(len(spelling), spelling.__getitem__, encode, special, mask, pad, cls, sep)


def _split(sentence: str) -> Iterator[str]:
    return (match.group() for match in _WORD.finditer(sentence.lower()))


def words_from(path: Path) -> Words:
    """The vocabulary of a Hugging Face `tokenizer.json`, its roles read from its special tokens."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise RefusedError("--tokenizer needs: pip install 'fastmask-kernels[tokenizer]'") from None
    if not path.is_file():
        raise RefusedError(f"{path}: no such file")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise RefusedError(f"{path} is not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
    special = {i: token.content for i, token in added.items() if token.special}
    roles = _roles(special)
    if roles["mask"] is None:
        raise RefusedError(f"{path} has no mask token among its special tokens {sorted(special.values())}")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def spell(token: int) -> str:
        written = tokenizer.decode([token], skip_special_tokens=False).strip()
        return written or tokenizer.id_to_token(token) or f"#{token}"

    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    return Words(size, spell, encode, tuple(sorted(special)), roles["mask"], roles["pad"], roles["cls"], roles["sep"])


def _roles(special: dict[int, str]) -> dict[str, int | None]:
    """The id of each role, or None."""
    bare = {token.strip("[]<>|").lower(): i for i, token in sorted(special.items(), reverse=True)}
    return {role: next((bare[name] for name in names if name in bare), None) for role, names in ROLES.items()}


def rows_of(sentences: Sequence[str], words: Words, row_length: int) -> Rows:
    """Every token of the sentences in order, cut into rows: only the last row holds padding."""
    encoded = [ids for ids in words.encode(sentences) if ids]
    if not encoded:
        raise RefusedError("the text holds no tokens")
    stream = np.concatenate([np.array(ids, np.int64) for ids in encoded])
    before = [i for i in [words.cls] if i is not None]
    after = [i for i in [words.sep] if i is not None]
    piece = row_length - len(before) - len(after)
    rows = -(-stream.size // piece)
    left = len(before)
    ids = np.full((rows, row_length), words.mask if words.pad is None else words.pad, np.int64)
    lengths = np.full(rows, row_length, np.int64)
    lengths[-1] -= rows * piece - stream.size
    body = np.full(rows * piece, ids[0, 0])
    body[: stream.size] = stream
    ids[:, left : left + piece] = body.reshape(rows, piece)
    ids[:, :left] = before
    ids[np.arange(rows)[:, None], lengths[:, None] - len(after) + np.arange(len(after))] = after
    return Rows(ids, lengths, _within_rows([len(one) for one in encoded], piece, left))


def _within_rows(sizes: Sequence[int], piece: int, left: int) -> npt.NDArray[np.int64]:
    """Row, first column and last column + 1 of the sentences that no row border cuts."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    row = starts // piece
    whole = row == (ends - 1) // piece
    columns = np.stack([row, starts - row * piece + left, ends - row * piece + left], axis=1)
    within: npt.NDArray[np.int64] = columns[whole].astype(np.int64)
    return within
