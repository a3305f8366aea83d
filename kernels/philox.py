"""The random stream: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11).

Plain Python on NumPy scalars; every compiled backend compiles this very function.
"""

import numpy as np

MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

# Counter 3 is epoch * 256 + purpose.
PURPOSE_SELECT, PURPOSE_RATE, PURPOSE_SPAN, PURPOSE_STRATA = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(7)
PURPOSE_BITS = np.uint64(8)


def philox(c0, c1, c2, c3, k0, k1):
    """The four random words of a counter, in the low halves of four uint64; the high halves are garbage.

    Counters and keys are uint64 of which only the low 32 bits count. They are masked at the multiplication and
    nowhere else: a value that the compiler knows to be 32 bits wide loses its mask, and with it the fast vector
    multiplication of 32-bit halves.
    """
    for _ in range(10):
        p0 = (c0 & LOW) * MULTIPLIER_0
        p1 = (c2 & LOW) * MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1, (p0 >> HALF) ^ c3 ^ k1, p0
        k0 = k0 + WEYL_0
        k1 = k1 + WEYL_1
    return c0, c1, c2, c3
