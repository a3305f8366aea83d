"""Where each integer of a plan stands in the array of uint64 that compiled kernels read it from."""

(
    SEED,
    SIZE,  # ids are 0 .. SIZE - 1
    MASK_ID,
    IGNORE_INDEX,  # as a 64-bit two's complement
    PAD_ID,  # NO_PAD where the vocabulary names none
    SELECT,  # S: selected iff draw < S
    MASK,  # t_mask, nested in S
    RANDOM,  # t_random, nested in S
    MASK_SHARE,  # M: the share of MASK, for samples with a rate of their own
    RANDOM_SHARE,  # R: the share of MASK and random together
    POOL_SIZE,
    WEIGHTED,
    EXCLUDE_ORIGINAL,
    LAW,
    BY_WORD,  # whether the units of the law are words
    REPLACE_UNIT,
    COUNT_OF,
    MIN_MASKED,
    MAX_MASKED,  # NO_LIMIT where there is none
    LEAST_RATE,
    STEPS,  # how many steps make the pool from its ranks; 0 where they would be many, and the pool is looked up
    FIRST_STEP,  # from here on, two words a step: the first rank that it moves, and by how much
) = range(22)

MOST_STEPS = 8

NO_PAD = (1 << 64) - 1
NO_LIMIT = (1 << 63) - 1

BERNOULLI, EXACT_COUNT, SPANS, DIFFUSION = range(4)  # laws
TOKEN, WORD, SPAN = range(3)  # units
CANDIDATES, SEQUENCE, WORDS = range(3)  # what a count is a share of
