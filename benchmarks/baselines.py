"""What fastmask is measured against: maskers in plain NumPy, Hugging Face's mask step, and memory copies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastmask.cli.baseline import mask_plain

Ids = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Masked = tuple[Ids, Ids]

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


@dataclass
class NumpyMasker:
    """BERT's law with one uniform number per token, cut into the bands MASK, random, kept, not selected."""

    table: npt.NDArray[np.bool_]  # (size,), True: special
    mask_token_id: int
    p: float
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.pool = np.flatnonzero(~self.table)
        self.to_mask, self.to_random = self.p * MASK_SHARE, self.p * (MASK_SHARE + RANDOM_SHARE)

    def banded(self, ids: Ids, padding: npt.NDArray[np.bool_] | None = None, double: bool = False) -> Masked:
        """New arrays (ids, labels) by whole-array expressions, as ModernBERT and others do it (they draw doubles)."""
        if ids.dtype.kind == "u":
            ids = ids.astype(np.int64)  # labels hold -100
        return mask_plain(
            ids,
            special=self.table,
            pool=self.pool,
            mask_id=self.mask_token_id,
            p=self.p,
            mask=MASK_SHARE,
            random=RANDOM_SHARE,
            rng=self.rng,
            padding=padding,
            double=double,
        )

    def sparse(self, ids: Ids, out: Masked, padding: npt.NDArray[np.bool_] | None = None) -> Masked:
        """The same law written into `out`, with every step after the draw on the selected tokens alone.

        The fastest way we know in plain NumPy. `ids` and `out` are contiguous.
        """
        uniform = self.rng.random(ids.size, np.float32)
        chosen = np.flatnonzero(uniform < self.p)
        original = ids.reshape(-1).take(chosen)
        allowed = ~self.table.take(original)
        if padding is not None:
            allowed &= ~padding.reshape(-1).take(chosen)
        chosen, original = chosen[allowed], original[allowed]
        self.write(ids, chosen, original, uniform.take(chosen), (self.to_mask, self.to_random), out)
        return out

    def write(
        self, ids: Ids, chosen: Ids, original: Ids, uniform: Floats, borders: tuple[float, float], out: Masked
    ) -> None:
        """The outputs of a selection: `chosen` are its places in the flat ids, `original` the ids there.

        A chosen token becomes MASK where its uniform is below the first border, and random up to the second.
        """
        new = np.where(uniform < borders[0], self.mask_token_id, original)
        randomised = np.flatnonzero((uniform >= borders[0]) & (uniform < borders[1]))
        new[randomised] = self.pool[self.rng.integers(0, self.pool.size, randomised.size)]
        masked, labels = out
        np.copyto(masked, ids)
        masked.reshape(-1)[chosen] = new
        labels.fill(-100)
        labels.reshape(-1)[chosen] = original


@dataclass
class _Tokenizer:
    """The three things that Hugging Face's mask step asks of a tokenizer."""

    size: int
    mask_token_id: int
    mask_token: str = "[MASK]"

    def __len__(self) -> int:
        return self.size


def hugging_face(
    ids: Ids, size: int, mask_token_id: int, never: npt.NDArray[np.bool_], p: float
) -> Callable[[], Masked] | str:
    """`DataCollatorForLanguageModeling.numpy_mask_tokens` on `ids`, or why it cannot be called.

    It writes into its input, so each call first copies the ids into a buffer (under 1 % of its time).
    The mask of special tokens and padding, `never`, is ready beforehand, the fast way to call it.
    """
    try:
        from transformers import DataCollatorForLanguageModeling
    except ImportError:
        return "not installed"
    if ids.dtype.kind == "u":
        return f"refuses {ids.dtype}"  # OverflowError: labels keep the dtype, and -100 does not fit
    tokenizer: Any = _Tokenizer(size, mask_token_id)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=p, return_tensors="np", seed=0)
    collator.create_rng("np")
    buffer = np.empty_like(ids)

    def mask() -> Masked:
        np.copyto(buffer, ids)
        result: Masked = collator.numpy_mask_tokens(buffer, never)
        return result

    return mask


def copier(ids: Ids, out: Masked, threads: int) -> Callable[[], object]:
    """np.copyto of ids to both outputs: the bytes that a masker moves. Python threads share the rows."""
    if threads == 1:

        def copy() -> None:
            for target in out:
                np.copyto(target, ids)

        return copy

    cuts = [ids.shape[0] * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    pool = ThreadPoolExecutor(threads)

    def copy_part(part: slice) -> None:
        for target in out:
            np.copyto(target[part], ids[part])

    return lambda: list(pool.map(copy_part, parts))
