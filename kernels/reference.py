"""Each operation in plain NumPy, slow and obvious: what the compiled backends are checked against.

Arithmetic is on uint64 arrays: products of two 32-bit numbers are exact, and the content id wraps mod 2^64.
A `block` is what `words` gives for some `positions`: (4, *shape of the positions) uint32.
"""

from __future__ import annotations

import numpy as np

SELECT = 0  # the purpose of the selection and of what a selected token becomes

LOW = 0xFFFFFFFF
GOLDEN_32 = 0x9E3779B1
GOLDEN_64 = 0x9E3779B97F4A7C15

UNTOUCHED, MASKED, RANDOM, KEPT = range(4)


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


def row_positions(shape, starts, lengths):
    """(positions, real): each cell's position in its sample, int64, and whether it is a real token, bool.

    Both of `shape` = (rows, row_length); positions mean nothing on padding.
    """
    positions = np.arange(shape[1], dtype=np.int64) - np.reshape(starts, (-1, 1))
    return positions, (positions >= 0) & (positions < np.reshape(lengths, (-1, 1)))


def trim_padding(ids2d, pad_id):
    """(starts, lengths), int64 (rows,): each row less its leading and trailing runs of `pad_id`.

    A row of nothing but `pad_id` has start 0 and length 0. With `pad_id` None every row is real as a whole.

    Args:
        ids2d: (rows, row_length) integers.
        pad_id: int, or None.

    >>> trim_padding(np.array([[0, 5, 0, 6, 0, 0]]), 0)
    (array([1]), array([3]))
    """
    rows, row_length = ids2d.shape
    if pad_id is None or row_length == 0:
        return np.zeros(rows, np.int64), np.full(rows, row_length, np.int64)
    real = ids2d.astype(np.int64) != pad_id
    starts = real.argmax(axis=1)
    ends = row_length - real[:, ::-1].argmax(axis=1)
    return starts.astype(np.int64), np.where(real.any(axis=1), ends - starts, 0)


def real_runs(attention_mask2d):
    """(starts, lengths, bad): where each row's run of ones lies, int64 (rows,), and the first offending cell.

    bad is an int: -1, or the flat index in row-major order of the first cell that is neither 0 nor 1 (NaN
    included) or is a one after a hole; starts and lengths then mean nothing. An empty row has start 0.

    Args:
        attention_mask2d: (rows, row_length) of any integer, bool or float dtype.
    """
    rows, row_length = attention_mask2d.shape
    ones = attention_mask2d == 1
    begins = ones.copy()
    begins[:, 1:] &= ~ones[:, :-1]
    again = begins & (begins.cumsum(axis=1) > 1)  # a run that is not the row's first
    offending = np.flatnonzero(~(ones | (attention_mask2d == 0)) | again)
    starts = ones.argmax(axis=1) if row_length else np.zeros(rows)
    lengths = ones.sum(axis=1, dtype=np.int64)
    return starts.astype(np.int64), lengths, int(offending[0]) if offending.size else -1


def content_ids(ids2d, starts, lengths):
    """The sample id that each row's real tokens give, uint64 (rows,); the padding around them does not enter.

    Args:
        ids2d: (rows, row_length) integers in [0, 2^31).
        starts: (rows,) int64, the column of the first real token.
        lengths: (rows,) int64, the number of real tokens.
    """
    positions, real = row_positions(ids2d.shape, starts, lengths)
    weights = mix(np.arange(1, ids2d.shape[1] + 1, dtype=np.uint64) * np.uint64(GOLDEN_64))
    terms = np.zeros(ids2d.shape, np.uint64)
    terms[real] = (ids2d[real].astype(np.uint64) + np.uint64(1)) * weights[positions[real]]
    return mix(terms.sum(axis=1, dtype=np.uint64))


def extents(plan, call, ids2d):
    """(starts, lengths), int64 (rows,): where the real tokens of each row of a call lie."""
    if call.lengths is None:
        return trim_padding(ids2d, plan.pad_id)
    starts = np.zeros(call.rows, np.int64) if call.starts is None else call.starts
    return starts, call.lengths


def candidates(plan, call, ids2d, real):
    """Which cells may be selected, bool (rows, row_length): real, and neither its id nor the call special."""
    allowed = real & ~np.isin(ids2d, np.array(plan.special_ids, np.int64))
    if call.special_tokens_mask is not None:
        allowed &= call.special_tokens_mask.reshape(ids2d.shape) == 0
    return allowed


def thresholds(plan, call):
    """(t_mask, t_random, select), three uint64 arrays (rows,) that cut the interval of a row's draws.

    A draw below t_mask means MASK, below t_random a random token, below select a kept one, else not selected.
    """
    given = np.full(call.rows, plan.select) if call.thresholds is None else call.thresholds
    select = given.astype(np.uint64)
    return *(select * share + (1 << 23) >> 24 for share in (plan.mask_share, plan.random_share)), select


def drawn_tokens(plan, originals, mixed_words):
    """The pool ids that replace the originals, int64 (n,); with `exclude_original` never the original itself.

    Args:
        plan: Plan.
        originals: (n,) int64, the ids to be replaced.
        mixed_words: (n,) uint32, `mixed` of each token's own position.
    """
    if originals.size == 0:
        return originals
    pool = plan.pool.astype(np.int64)
    rank = np.minimum(np.searchsorted(pool, originals), pool.size - 1)
    excluded = (pool[rank] == originals) & plan.exclude_original
    if plan.cumulative.size == 0:
        index = pick(mixed_words, pool.size - excluded)
        return pool[index + (excluded & (index >= rank))]
    below = np.concatenate([np.zeros(1, np.uint64), plan.cumulative[:-1]])
    removed = np.where(excluded, (plan.cumulative - below)[rank], np.uint64(0))
    x = pick_number(mixed_words) * (np.uint64(1 << 32) - removed) >> 32
    x += np.where(x >= below[rank], removed, np.uint64(0))
    return pool[np.searchsorted(plan.cumulative, x, side="right")]


def decide(plan, call, ids2d):
    """(decisions, random_ids): each cell's decision, uint8 (rows, row_length), and the random tokens, int64.

    The random tokens are those of the cells decided RANDOM, in row-major order. `ids2d` holds the call's ids,
    (rows, row_length) int64, all in [0, plan.size).
    """
    starts, lengths = extents(plan, call, ids2d)
    sample_ids = content_ids(ids2d, starts, lengths) if call.sample_ids is None else call.sample_ids
    offsets = np.zeros(call.rows, np.uint64) if call.offsets is None else call.offsets
    positions, real = row_positions(ids2d.shape, starts, lengths)
    rows, columns = np.nonzero(candidates(plan, call, ids2d, real))

    places = positions[rows, columns].astype(np.uint64) + offsets[rows]
    block = words(plan.seed, call.epoch, sample_ids[rows], places, SELECT)
    draws = draw(block, places)
    t_mask, t_random, select = (t[rows] for t in thresholds(plan, call))
    fates = np.full(draws.shape, UNTOUCHED, np.uint8)
    fates[draws < select] = KEPT
    fates[draws < t_random] = RANDOM  # t_mask <= t_random <= select: each line narrows the one before it
    fates[draws < t_mask] = MASKED

    decisions = np.full(ids2d.shape, UNTOUCHED, np.uint8)
    decisions[rows, columns] = fates
    drawn = fates == RANDOM
    originals = ids2d[rows[drawn], columns[drawn]]
    return decisions, drawn_tokens(plan, originals, mixed(block[:, drawn], places[drawn]))


def mask_batch(plan, call, out):
    """True iff every id of every cell is in [0, plan.size); `out` then holds the masked batch.

    Token-level Bernoulli: a candidate is selected iff its draw is below its row's threshold; the same draw
    tells what it becomes. Where False is returned, nothing has been written.

    Args:
        plan: Plan.
        call: Call, rows * row_length cells; only read, though `ids` may be the memory of `out.input_ids`.
        out: Outputs, written as a whole; `decisions` and `num_masked` may be None.
    """
    ids = call.ids.astype(np.int64).reshape(call.rows, call.row_length)
    if not ((ids >= 0) & (ids < plan.size)).all():
        return False
    decisions, random_ids = decide(plan, call, ids)
    selected = decisions != UNTOUCHED
    masked_ids = np.where(decisions == MASKED, plan.mask_id, ids)
    masked_ids[decisions == RANDOM] = random_ids

    out.input_ids[:] = masked_ids.reshape(-1)
    out.labels[:] = np.where(selected, ids, plan.ignore_index).reshape(-1)
    if out.decisions is not None:
        out.decisions[:] = decisions.reshape(-1)
    if out.num_masked is not None:
        out.num_masked[:] = selected.sum(axis=1)
    return True


def apply_supplied(token_ids, mask_positions, replace_probs, random_tokens, mask_token_id, borders, masked_ids, labels):
    """`masked_ids` and `labels` then hold what the supplied decisions make of the tokens; nothing is drawn.

    Where `mask_positions` is true, a probability below the first border gives `mask_token_id`, one below the
    second the random token of that cell, else the original stays; the label is the original. Elsewhere the
    original stays and the label is -100.

    All arrays are (n,): ids and labels int64, `mask_positions` bool, `replace_probs` float64 in [0, 1]. The
    borders are two floats, 0 <= first <= second <= 1: floats decide here, because the caller supplied them.
    """
    first, second = borders
    masked = mask_positions & (replace_probs < first)
    drawn = mask_positions & ~masked & (replace_probs < second)
    masked_ids[:] = np.where(masked, mask_token_id, np.where(drawn, random_tokens, token_ids))
    labels[:] = np.where(mask_positions, token_ids, -100)
