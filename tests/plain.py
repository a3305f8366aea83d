"""The stream and the masks in plain Python integers, one token at a time: the twin that the reference is held to."""

from __future__ import annotations

import math
from fractions import Fraction

from fastmask.replace import Replace
from fastmask.vocab import Vocab

VOCAB = Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
IGNORED = -100


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def plain_numbers(seed: int, epoch: int, sample: int, position: int, purpose: int = 0) -> tuple[int, int, int]:
    """(word, draw, mixed) of one position."""
    counter = [position // 4, sample % 2**32, sample // 2**32, epoch * 256 + purpose]
    block = plain_philox(counter, [seed % 2**32, seed // 2**32])
    low = [value & 255 for value in block]
    turned = low[position % 4 :] + low[: position % 4]  # a right rotation by whole bytes
    extra = sum(byte << 8 * i for i, byte in enumerate(turned))
    word = block[position % 4]
    return word, word >> 8, ((word >> 8) * 0x9E3779B1 + extra) % 2**32


def plain_mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def plain_content_id(tokens: list[int]) -> int:
    terms = [(t + 1) * plain_mix((j + 1) * 0x9E3779B97F4A7C15 % 2**64) for j, t in enumerate(tokens)]
    return plain_mix(sum(terms) % 2**64)


def plain_widths(weights: list[float]) -> list[int]:
    total = sum(map(Fraction, weights))
    exact = [Fraction(w) / total * 2**32 for w in weights]
    widths = [math.floor(e) for e in exact]
    order = sorted(range(len(exact)), key=lambda i: (widths[i] - exact[i], i))
    for i in order[: 2**32 - sum(widths)]:
        widths[i] += 1
    return widths


def plain_draw_from(pool: dict[int, float | None], exclude: bool, original: int, mixed: int) -> int:
    """The random token; `pool` maps each id to its weight, or to None in a uniform pool."""
    x = mixed * 0x9E3779B1 % 2**32
    ids = sorted(pool)
    if None in pool.values():
        if not (exclude and original in pool):
            return ids[x * len(ids) >> 32]
        others = [token for token in ids if token != original]
        return others[x * len(others) >> 32]
    widths = dict(zip(pool, plain_widths([w for w in pool.values() if w is not None]), strict=True))
    if exclude and original in widths:
        x = x * (2**32 - widths.pop(original)) >> 32
    for token in sorted(widths):
        if x < widths[token]:
            return token
        x -= widths[token]
    raise AssertionError("x lies past the last width")


def plain_row(
    tokens: list[int],
    p: float,
    replace: Replace,
    pool: dict[int, float | None],
    epoch: int,
    sample: int,
    offset: int = 0,
) -> tuple[list[int], list[int], list[int]]:
    """(input_ids, labels, decisions) of one unpadded row under seed 7."""
    selects, masks = math.floor(p * 2**24 + 0.5), math.floor(replace.mask * 2**24 + 0.5)
    randoms = min(2**24, math.floor((replace.mask + replace.random) * 2**24 + 0.5))
    t_mask, t_random = ((selects * share + 2**23) >> 24 for share in (masks, randoms))
    cells = []
    for j, token in enumerate(tokens):
        _, draw, mixed = plain_numbers(7, epoch, sample, j + offset)
        if token in VOCAB.special_token_ids or draw >= selects:
            cells.append((token, IGNORED, 0))
        elif draw < t_mask:
            cells.append((VOCAB.mask_token_id, token, 1))
        elif draw < t_random:
            cells.append((plain_draw_from(pool, replace.exclude_original, token, mixed), token, 2))
        else:
            cells.append((token, token, 3))
    ids, labels, decisions = (list(column) for column in zip(*cells, strict=True))
    return ids, labels, decisions
