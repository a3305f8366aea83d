"""What a token's fate is, once its block of random words is known: the scalar core of every compiled backend.

Each function is plain Python on np.uint64 scalars and calls only what it is given, so that any compiler can take it.
No value passes 64 bits and none wraps, but for the hash of the content id, which is defined modulo 2^64.
"""

import numpy as np

LOW = np.uint64(0xFFFFFFFF)
GOLDEN = np.uint64(0x9E3779B1)
BYTE = np.uint64(255)
ZERO, ONE = np.uint64(0), np.uint64(1)
S8, S16, S24, S32 = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)
ROUND_24 = np.uint64(1 << 23)

UNTOUCHED, MASKED, RANDOM, KEPT = 0, 1, 2, 3  # decisions


def draw_of(word):
    """The 24 high bits of a word, compared with thresholds."""
    return (word & LOW) >> S8


def extra_of(w0, w1, w2, w3, lane):
    """The low bytes of a block's four words, rotated to the lane: 32 bits that no draw of the block has seen."""
    low = (w0 & BYTE) | ((w1 & BYTE) << S8) | ((w2 & BYTE) << S16) | ((w3 & BYTE) << S24)
    turn = lane * S8
    return ((low >> turn) | (low << (S32 - turn))) & LOW


def mixed_of(draw, extra):
    """A second number of the token: 32 uniform bits, independent of every draw of its block."""
    return (draw * GOLDEN + extra) & LOW


def pick_number(mixed):
    """The x of a pick: mixed, multiplied once more."""
    return (mixed * GOLDEN) & LOW


def uniform(x, size):
    """The index that x picks among `size` equally likely things."""
    return (x * size) >> S32


def nest(select, share):
    """The threshold of a share within a select threshold, both in units of 2^-24, rounded."""
    return (select * share + ROUND_24) >> S24


def rate_of(word, least):
    """The rate that a word picks between the least one and 1, in units of 2^-24."""
    return least + ((word * ((ONE << S24) - least)) >> S32)


def count_not_above(table, size, x):
    """How many of the ascending table[0:size] are <= x."""
    low, high = ZERO, size
    while low < high:
        middle = (low + high) >> ONE
        if np.uint64(table[middle]) <= x:
            low = middle + ONE
        else:
            high = middle
    return low


def pick_function(count_not_above, uniform):
    """The pick of a random token, as a function that calls the given (compiled) functions of this module."""

    def pick(x, original, pool, cumulative, size, weighted, exclude_original):
        """The random id for x from the ascending pool[0:size].

        cumulative[i] is the sum of the integer widths 0..i, adding up to 2^32 (read only where weighted).
        Where exclude_original, an original that stands in the pool is left out and the others fill its place.
        """
        rank = ZERO
        leave_out = False
        if exclude_original:
            rank = count_not_above(pool, size, original)
            leave_out = rank > ZERO and np.uint64(pool[rank - ONE]) == original
            rank = rank - ONE if leave_out else ZERO
        if weighted:
            if leave_out:
                below = np.uint64(cumulative[rank - ONE]) if rank > ZERO else ZERO
                width = np.uint64(cumulative[rank]) - below
                x = (x * ((ONE << S32) - width)) >> S32
                x = x + width if x >= below else x
            return np.uint64(pool[count_not_above(cumulative, size, x)])
        if leave_out:
            index = uniform(x, size - ONE)
            return np.uint64(pool[index + ONE if index >= rank else index])
        return np.uint64(pool[uniform(x, size)])

    return pick


def mix(z):
    """The finalizer of the content id: a bijection of 64 bits that spreads every bit (mix of SplitMix64)."""
    z = z ^ (z >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = z ^ (z >> np.uint64(27))
    z = z * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def spread(position):
    """The argument of `mix` that gives the content weight of a position: (position + 1) * 2^64 / golden ratio."""
    return (position + ONE) * np.uint64(0x9E3779B97F4A7C15)
