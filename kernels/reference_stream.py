"""The random stream in plain NumPy: the words of Philox, and the numbers that a position has from its block.

Arithmetic is on uint64 arrays: products of two 32-bit numbers are exact, and the content id wraps mod 2^64.
A `block` is what `words` gives for some `positions`: (4, *shape of the positions) uint32.
"""

from __future__ import annotations

import numpy as np

SELECT, RATE, SPAN = 0, 1, 2  # purposes; SELECT also tells what a selected token becomes
STRATUM = 7

LOW = 0xFFFFFFFF
GOLDEN_32 = 0x9E3779B1
GOLDEN_64 = 0x9E3779B97F4A7C15


def philox(counter, key):
    """The four output words of Philox4x32-10, uint32, (4, *shape).

    Args:
        counter: four uint64 arrays of one shape, values < 2^32.
        key: two ints in [0, 2^32).

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first = c0 * np.uint64(0xD2511F53)
        second = c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> 32) ^ c1 ^ np.uint64(k0), second & LOW
        c2, c3 = (first >> 32) ^ c3 ^ np.uint64(k1), first & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def words(seed, epoch, sample_id, positions, purpose):
    """The four words of the block that each position lies in, uint32, (4, *shape).

    The shape is that of `sample_id` and `positions` broadcast together.

    Args:
        seed: int in [0, 2^64).
        epoch: int in [0, 2^24).
        sample_id: int or uint64 array, in [0, 2^64).
        positions: int or array of integers, in [0, 2^34): the position in the sample plus the offset.
        purpose: int in [0, 256).

    >>> [hex(word) for word in words(0, 0, 0, 0, 0).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    position, sample = np.broadcast_arrays(np.asarray(positions, np.uint64), np.asarray(sample_id, np.uint64))
    last = np.full(position.shape, epoch * 256 + purpose, np.uint64)
    return philox((position >> 2, sample & LOW, sample >> 32, last), (seed & LOW, seed >> 32))


def lane(positions):
    """Which of its block's four words is each position's own: position mod 4, intp, shape of `positions`."""
    return (np.asarray(positions, np.uint64) & 3).astype(np.intp)


def word(block, positions):
    """Each position's own word, the key by which candidates are ranked, uint32, shape of `positions`."""
    return np.choose(lane(positions), list(block))


def draw(block, positions):
    """The upper 24 bits of each position's word, compared with thresholds, uint32, shape of `positions`."""
    return word(block, positions) >> np.uint32(8)


def extra(block, positions):
    """The four low bytes of the block rotated right by 8 * lane bits, uint32, shape of `positions`."""
    low_bytes = block.astype(np.uint64) & 255
    joined = low_bytes[0] | low_bytes[1] << 8 | low_bytes[2] << 16 | low_bytes[3] << 24
    turn = 8 * lane(positions).astype(np.uint64)
    return ((joined >> turn | joined << (32 - turn)) & LOW).astype(np.uint32)


def mixed(block, positions):
    """A second number per position, independent of every draw of the block, uint32, shape of `positions`."""
    spread = draw(block, positions).astype(np.uint64) * GOLDEN_32
    return ((spread + extra(block, positions)) & LOW).astype(np.uint32)


def pick_number(mixed_words):
    """x, the 32-bit number that a pick scales to its range, uint64, shape of `mixed_words` (uint32)."""
    return np.asarray(mixed_words, np.uint64) * GOLDEN_32 & LOW


def pick(mixed_words, n):
    """One of n things per number, int64 in [0, n), shape of `mixed_words` (uint32); each n < 2^31."""
    return (pick_number(mixed_words) * np.asarray(n, np.uint64) >> 32).astype(np.int64)


def mix(z):
    """A bijection of the numbers below 2^64 that maps 0 to 0, uint64, shape of z (a uint64 array, not 0-d).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64), OOPSLA 2014.
    """
    z = (z ^ z >> 30) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> 27) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> 31
