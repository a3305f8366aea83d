"""Vocab: which ids there are, and which of them are never touched."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_SIZE = (1 << 31) - 1


def integer(name: str, value: object) -> int:
    """The value as a Python int; TypeError that names the argument where it is not a whole number."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


@dataclass(frozen=True)
class Vocab:
    """The ids 0 .. size - 1, with the special ones, which are never selected and never drawn as a random token.

    Args:
        size: ids >= size are invalid, 1 <= size < 2^31. Name the number of embedding rows or fewer, not a guess.
        mask_token_id: the id written for MASK; required, and not the pad id.
        pad_token_id: the id that fills rows, or None. Where a call says nothing of lengths, the leading and trailing
            runs of this id are padding.
        special_token_ids: further ids that are never selected. The mask and the pad id always count as special.
        is_continuation: one bool per id, True where a token of this id continues the word before it; or None. Laws over
            words read it where a call brings no word_ids.

    Raises:
        TypeError: an id that is not an integer.
        ValueError: a missing mask id or one equal to the pad id; an id outside the vocabulary; a table of another size.

    >>> Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3)).special_token_ids
    (0, 1, 2, 3, 4)
    """

    size: int
    mask_token_id: int
    pad_token_id: int | None = None
    special_token_ids: tuple[int, ...] = ()
    is_continuation: bytes | None = field(default=None, repr=False)  # a byte per id, 0 or 1

    def __init__(
        self,
        size: int,
        mask_token_id: int,
        pad_token_id: int | None = None,
        special_token_ids: Iterable[int] = (),
        is_continuation: Any = None,
    ) -> None:
        size = integer("size", size)
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"size must be in [1, 2^31), got {size}")
        if mask_token_id is None:
            raise ValueError("mask_token_id is None: a vocabulary without a mask token cannot be masked")
        mask = self._inside("mask_token_id", mask_token_id, size)
        if isinstance(special_token_ids, str) or not isinstance(special_token_ids, Iterable):
            raise TypeError(f"special_token_ids must be a sequence of ids, got {special_token_ids!r}")
        specials = {self._inside("special_token_ids", token, size) for token in special_token_ids} | {mask}
        if pad_token_id is not None:
            pad_token_id = self._inside("pad_token_id", pad_token_id, size)
            if pad_token_id == mask:
                raise ValueError(f"mask_token_id and pad_token_id are both {mask}: padding would be read as MASK")
            specials.add(pad_token_id)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "mask_token_id", mask)
        object.__setattr__(self, "pad_token_id", pad_token_id)
        object.__setattr__(self, "special_token_ids", tuple(sorted(specials)))
        object.__setattr__(self, "is_continuation", _packed_table(is_continuation, size))

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        size: int | None = None,
        *,
        words: bool | None = None,
        mask_token: str | None = None,
        pad_token: str | None = None,
    ) -> Vocab:
        """The vocabulary of a Hugging Face tokenizer, with its special ids and with what its tokens say about words.

        Special are all ids that the tokenizer calls special, reserved ones included, and ids that name no token (the
        rows by which a model's embedding is larger), so that none of these is ever drawn as a random token.

        `is_continuation` follows from the tokenizer's JSON and the token's text alone:

        - A prefix for pieces within words (WordPiece, "##"): they continue, all others begin a word. A piece that
          stands for a whole word (WordLevel) begins one. These are the words of the tokenizer's own `word_ids()`.
        - Byte-level BPE and SentencePiece (Metaspace): a token that begins with white space ("Ġ", "Ċ", "▁", "<0x0A>")
          begins a word, all others continue: **a word is what lies between spaces**. `word_ids()` also cuts byte-level
          text at punctuation and digits ("don" + "'t", "end" + "."), which the id alone cannot tell, and a token that
          ends with a line break does not end a word. Where that matters, pass `word_ids` to the call.
        - Added tokens always begin a word.

        Args:
            tokenizer: a `tokenizers.Tokenizer`, or a tokenizer of transformers, fast or slow.
            size: the number of ids, such as the rows of an embedding; None: the largest id + 1, added tokens included.
            words: True: the table, or an error where tokens do not tell (tokens that mark the ends of words, a
                pre-tokenizer that drops spaces, a slow tokenizer). None: the table, or none where they do not tell;
                laws over words then need `word_ids`. False: no table.
            mask_token: the text of the mask token, where the tokenizer does not say. A tokenizer of transformers says
                by its `mask_token`; of a `tokenizers.Tokenizer` the special token named mask, as in "[MASK]" or
                "<mask>", is taken.
            pad_token: likewise for padding.

        Raises:
            TypeError: not a tokenizer, or a size that is not an integer.
            ValueError: no mask token, or two; one that is also the pad token; a text that is no token; a size that
                leaves out an id; words=True where tokens do not tell.

        >>> from tokenizers import Tokenizer, models
        >>> tokenizer = Tokenizer(models.WordPiece({"walk": 0, "##ing": 1, "[MASK]": 2}, unk_token="walk"))
        >>> _ = tokenizer.add_special_tokens(["[MASK]"])
        >>> Vocab.from_tokenizer(tokenizer).continuation_table
        array([0, 1, 0], dtype=uint8)
        """
        from fastmask.tokenizer import vocab_arguments

        return cls(**vocab_arguments(tokenizer, size, words, mask_token, pad_token))

    @property
    def continuation_table(self) -> npt.NDArray[np.uint8] | None:
        """`is_continuation` as an array by id, or None."""
        return None if self.is_continuation is None else np.frombuffer(self.is_continuation, np.uint8)

    @staticmethod
    def _inside(name: str, value: object, size: int) -> int:
        token = integer(name, value)
        if not 0 <= token < size:
            raise ValueError(f"{name} holds {token}, outside the vocabulary [0, {size})")
        return token


def _packed_table(table: Any, size: int) -> bytes | None:
    """A table of one truth value per id as bytes of 0 and 1."""
    if table is None:
        return None
    values = np.frombuffer(table, np.uint8) if isinstance(table, bytes) else np.asarray(table)
    if values.shape != (size,):
        raise ValueError(f"is_continuation must hold one value for each of {size} ids, got shape {values.shape}")
    if values.dtype.kind not in "biu":
        raise TypeError(f"is_continuation must be bools, got {values.dtype}")
    if (wrong := (values != 0) & (values != 1)).any():
        token = int(wrong.argmax())
        raise ValueError(f"is_continuation must hold 0 and 1 only, got {values[token]} for id {token}")
    return values.astype(np.uint8).tobytes()
