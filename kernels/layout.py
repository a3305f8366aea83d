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
    WORDS,  # the length of the array
) = range(14)

NO_PAD = (1 << 64) - 1
