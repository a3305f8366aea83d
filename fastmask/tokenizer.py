"""What a Hugging Face tokenizer says about its vocabulary: sizes, special ids, and where words begin.

Nothing is imported and no class is asked for: `tokenizers.Tokenizer` and the tokenizers of transformers are known by
their methods. Where words begin is read from the tokenizer's own JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.vocab import MAX_SIZE, integer

Continues = Callable[[str], bool]
Surface = Callable[[str], str]
BYTE_FALLBACK = re.compile("<0x([0-9A-F]{2})>")
PROBE = "ab cd"


class UnreadableWordsError(ValueError):
    """A vocabulary whose single tokens do not say where words begin."""


def vocab_arguments(
    tokenizer: Any, size: int | None, words: bool | None, mask_token: str | None, pad_token: str | None
) -> dict[str, Any]:
    """The arguments of a Vocab; raises as `Vocab.from_tokenizer` says."""
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise TypeError(f"tokenizer must be a loaded Hugging Face tokenizer, got {type(tokenizer).__name__}")
    added = _added_tokens(tokenizer)
    texts = {i: text for text, i in tokenizer.get_vocab().items()} | {i: str(token) for i, token in added.items()}
    size = _checked_size(size, texts)
    special = {i for i, token in added.items() if token.special}
    mask = _role(tokenizer, "mask", mask_token, texts, special)
    if mask is None:
        raise ValueError("mask_token: the tokenizer names none; say which of its tokens it is, or add one to it")
    pad = _role(tokenizer, "pad", pad_token, texts, special)
    special |= {i for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}
    nameless = np.setdiff1d(np.arange(size), np.array(list(texts)))
    return {
        "size": size,
        "mask_token_id": mask,
        "pad_token_id": pad,
        "special_token_ids": sorted(special.union(nameless.tolist())),
        "is_continuation": _table(tokenizer, texts, set(added) | special, size, words),
    }


def _added_tokens(tokenizer: Any) -> dict[int, Any]:
    """The tokens that are cut out of a text before anything else, by id."""
    if hasattr(tokenizer, "get_added_tokens_decoder"):
        return dict(tokenizer.get_added_tokens_decoder())
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _checked_size(size: int | None, texts: Mapping[int, str]) -> int:
    """The size asked for, or the largest id + 1."""
    if not texts:
        raise ValueError("tokenizer has no tokens")
    largest = max(texts)
    if size is None:
        return largest + 1
    size = integer("size", size)
    if size <= largest:
        raise ValueError(f"size = {size} leaves out {texts[largest]!r}, whose id is {largest}")
    if size > MAX_SIZE:
        raise ValueError(f"size must be in [1, 2^31), got {size}")
    return size


# Roles.


def _role(tokenizer: Any, role: str, text: str | None, texts: Mapping[int, str], special: set[int]) -> int | None:
    """The id of the mask or the pad token, or None."""
    if text is not None:
        ids = [i for i, one in texts.items() if one == text]
        if not ids:
            raise ValueError(f"{role}_token = {text!r} is not a token of the tokenizer")
        return ids[0]
    names = getattr(tokenizer, "special_tokens_map", None)
    if names is not None and f"{role}_token" not in names:
        return None  # to ask for the id would log an error
    if hasattr(tokenizer, f"{role}_token_id"):
        found: int | None = getattr(tokenizer, f"{role}_token_id")
        return found
    return _by_name(tokenizer, role, texts, special)


def _by_name(tokenizer: Any, role: str, texts: Mapping[int, str], special: set[int]) -> int | None:
    """A `tokenizers.Tokenizer` knows of no roles but padding: "[MASK]", "<mask>" and "<|mask|>" are what they say."""
    if role == "pad" and (padding := getattr(tokenizer, "padding", None)):
        return int(padding["pad_id"])
    ids = sorted(i for i in special if texts[i].strip("[]<>|").lower() == role)
    if len(ids) > 1:
        raise ValueError(f"{role}_token: the tokenizer has {', '.join(repr(texts[i]) for i in ids)}; say which")
    return ids[0] if ids else None


# Words.


def _table(
    tokenizer: Any, texts: Mapping[int, str], whole: set[int], size: int, words: bool | None
) -> npt.NDArray[np.bool_] | None:
    """One bool per id, True where a token continues the word before it. Those in `whole` begin one."""
    if words is False:
        return None
    try:
        continues = _rule(getattr(tokenizer, "backend_tokenizer", tokenizer))
    except UnreadableWordsError:
        if words:
            raise
        return None
    table = np.zeros(size, np.bool_)
    table[[i for i, text in texts.items() if i not in whole and continues(text)]] = True
    return table


def _rule(backend: Any) -> Continues:
    """Whether a token continues a word, by its text; UnreadableWordsError where texts do not tell."""
    if not hasattr(backend, "to_str"):
        raise UnreadableWordsError(_refusal(f"a {type(backend).__name__} has no JSON that says how it works"))
    try:
        spec = json.loads(backend.to_str())
    except Exception as error:  # tokenizers raises nothing narrower
        raise UnreadableWordsError(_refusal(f"the tokenizer has no JSON: {error}")) from None
    model = spec["model"]
    if model["type"] == "WordLevel":
        return lambda text: False
    prefix = model.get("continuing_subword_prefix")
    if model.get("end_of_word_suffix"):
        raise UnreadableWordsError(_refusal(f"its tokens mark the end of words ({model['end_of_word_suffix']!r})"))
    if prefix:
        return lambda text: text.startswith(prefix)
    return _by_space(backend, spec)


def _by_space(backend: Any, spec: Mapping[str, Any]) -> Continues:
    """A token continues a word unless its text begins with white space."""
    parts = [*_parts(spec.get("normalizer")), *_parts(spec.get("pre_tokenizer"))]
    mark = next(filter(None, map(_space_mark, parts)), None)
    by_bytes = any(part["type"] == "ByteLevel" for part in parts)
    if by_bytes == (mark is not None):  # neither, or one upon the other
        raise UnreadableWordsError(_refusal("its tokens do not keep spaces in a known way"))
    surface = bytes_as_text if by_bytes else _marked_as_text(mark or "", bool(spec["model"].get("byte_fallback")))
    if len(surface(_pretokenized(backend)).split()) != 2:
        raise UnreadableWordsError(_refusal("it drops the spaces of a text"))
    return lambda text: not surface(text)[:1].isspace()


def _parts(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer and, where it is a sequence, all that it holds."""
    if part is not None:
        yield part
        for inner in (*part.get("normalizers", ()), *part.get("pretokenizers", ())):
            yield from _parts(inner)


def _space_mark(part: Mapping[str, Any]) -> str | None:
    """The character that this part writes for a space, or None."""
    if part["type"] == "Metaspace":
        return str(part["replacement"])
    if part["type"] == "Replace" and part["pattern"] == {"String": " "} and len(part["content"]) == 1:
        return str(part["content"])
    return None


def _pretokenized(backend: Any) -> str:
    """What the model is given for "ab cd", its pieces joined."""
    seen: str = PROBE if backend.normalizer is None else backend.normalizer.normalize_str(PROBE)
    if backend.pre_tokenizer is None:
        return seen
    return "".join(piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(seen))


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for 256, 257, ... in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_letters()


def bytes_as_text(token: str) -> str:
    """The text of a byte-level token; what is not UTF-8 becomes U+FFFD."""
    return bytes(BYTE_OF.get(letter, 0xFF) for letter in token).decode("utf-8", "replace")


def _marked_as_text(mark: str, byte_fallback: bool) -> Surface:
    """The text of a token in which `mark` stands for a space, and <0x0A> for a byte where the model says so."""

    def text(token: str) -> str:
        if byte_fallback and (found := BYTE_FALLBACK.fullmatch(token)):
            return bytes.fromhex(found[1]).decode("utf-8", "replace")
        return token.replace(mark, " ")

    return text


def _refusal(reason: str) -> str:
    return f"words: {reason}, so a token alone does not say whether it begins a word; pass word_ids, or words=False"
