"""One tile of a batch on the CPU: words, draws, labels and ids, random tokens; all of it stays in the L1 cache.

A tile is 512 cells of the flat batch; the part of a sample that lies in a tile is a piece. The stages meet in `draws`,
an int32 per cell: the token's draw where it can be selected, NEVER elsewhere (special, padding, excluded by the
caller). Signed, because AVX2 compares signed integers only.
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

from fastmask.kernels import fate, layout
from fastmask.kernels.bits import count_bits, in_range_64, lowest_bit

TILE = 512
LIKELY = 3  # random tokens of 64
RUNS_IN_ONE_PASS = 2  # of special ids; real vocabularies have one to four
NEVER = np.int32(0x7FFFFFFF)
CLASSES = np.int32(1), np.int32(2), np.int32(3)  # the thresholds of classified draws
ZERO, ONE, TWO, THREE, SIXTY_FOUR = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(64)
UNTOUCHED, MASKED = np.uint8(fate.UNTOUCHED), np.uint8(fate.MASKED)
RANDOM, KEPT = np.uint8(fate.RANDOM), np.uint8(fate.KEPT)
LANE = np.uint64(3)

# Inlined by LLVM, and without Numba's reference counts (`_nrt`): they would cost a third of the time.
inline = njit(forceinline=True, _nrt=False)
apart = njit(_nrt=False)  # for what is called at several places, seldom, and with few arrays: each is seven words
_draw_of = inline(fate.draw_of)
_extra_of = inline(fate.extra_of)
_mixed_of = inline(fate.mixed_of)
_pick_number = inline(fate.pick_number)
rate_of = inline(fate.rate_of)
_uniform = inline(fate.uniform)
_pick = njit(fate.pick_function(njit(fate.count_not_above), _uniform))


def signed(token):
    """The id as a signed integer: int64 stays, everything narrower becomes int32."""
    raise NotImplementedError("exists in compiled code only")


def escapes(seen, token, top):
    """Negative iff `seen` is or the token lies outside [0, top]; all three signed and of one width."""
    raise NotImplementedError("exists in compiled code only")


@overload(signed, inline="always")
def _signed(token):
    if token == types.int64:
        return lambda token: token
    return lambda token: np.int32(token)


@overload(escapes, inline="always")
def _escapes(seen, token, top):
    if token == types.int64:
        return lambda seen, token, top: seen | token | (top - token)
    return lambda seen, token, top: np.int32(seen | np.int32(token | np.int32(top - token)))


@inline
def mask_piece(out, labels, draws, ids, words, runs, top, t_mask, t_select, mask_id, ignore_index):
    """MASK below t_mask, labels below t_select, other ids as they are; draws are NEVER in two runs of special ids.

    The result is negative iff an id lies outside [0, top].
    """
    first0, length0, first1, length1 = runs[0, 0], runs[0, 1], runs[1, 0], runs[1, 1]
    seen = signed(ids.dtype.type(0))
    for j in range(ids.size):
        token, drawn = ids[j], np.int32(words[j] >> np.uint32(8))  # read without asking: no masked load
        low = np.uint32(token)
        ordinary = (np.uint32(low - first0) >= length0) & (np.uint32(low - first1) >= length1)
        draw = drawn if ordinary else NEVER
        seen = escapes(seen, signed(token), top)
        draws[j] = draw
        labels[j] = token if draw < t_select else ignore_index
        out[j] = mask_id if draw < t_mask else token
    return seen


@inline
def copy_padding(out, labels, draws, ids, top, ignore_index):
    """Ids as they are, ignored labels, draws NEVER; negative iff an id lies outside [0, top]."""
    seen = signed(ids.dtype.type(0))
    for j in range(ids.size):
        token = ids[j]
        seen = escapes(seen, signed(token), top)
        draws[j] = NEVER
        labels[j] = ignore_index
        out[j] = token
    return seen


@inline
def mark_run(marks, ids, first, length):
    """Marks become 1 where the id lies in one more run of special ids."""
    for j in range(ids.size):
        marks[j] = np.uint8(1) if np.uint32(np.uint32(ids[j]) - first) < length else marks[j]


@inline
def restore(out, labels, draws, ids, marks, ignore_index):
    """Cells become untouched where the mark is not 0 (in three loops: few arrays each, or they are not vectorised)."""
    for j in range(marks.size):
        draws[j] = draws[j] if marks[j] == np.uint8(0) else NEVER
    for j in range(marks.size):
        labels[j] = labels[j] if marks[j] == np.uint8(0) else ignore_index
    for j in range(marks.size):
        out[j] = out[j] if marks[j] == np.uint8(0) else ids[j]


@inline
def classify(draws, t_mask, t_random, t_select):
    """Draws become 0, 1, 2 for MASK, random and kept, NEVER elsewhere: thresholds of one sample no longer matter."""
    for j in range(draws.size):
        draw = draws[j]
        kept = np.int32(2) if draw < t_select else NEVER
        moved = np.int32(1) if draw < t_random else kept
        draws[j] = np.int32(0) if draw < t_mask else moved


@inline
def fill(values, value):
    """Every value becomes the given one (a slice assignment would take a third of a second to compile)."""
    for j in range(values.size):
        values[j] = value


@inline
def copy_tile(target, source):
    """The source once more (a slice assignment would allocate)."""
    for j in range(source.size):
        target[j] = source[j]


@inline
def write_decisions(decisions, draws, t_mask, t_random, t_select):
    """0 untouched, 1 MASK, 2 random, 3 kept."""
    for j in range(draws.size):
        draw = draws[j]
        kept = KEPT if draw < t_select else UNTOUCHED
        moved = RANDOM if draw < t_random else kept
        decisions[j] = MASKED if draw < t_mask else moved


@inline
def count_below(draws, t_select):
    """How many draws are below t_select."""
    count = np.int32(0)
    for j in range(draws.size):
        count = np.int32(count + np.int32(draws[j] < t_select))
    return np.int64(count)


@inline
def note_bits(found, n, first, bits):
    """found[n:end] are the positions first + b for the bits b of a set, ascending; end.

    LIKELY of them are written without asking, since a branch that cannot be foretold costs more than a store that is
    overwritten: found has room for as many after the last.
    """
    end = n + count_bits(bits)
    for i in range(LIKELY):
        found[n + np.uint64(i)] = np.uint32(first + lowest_bit(bits))
        bits &= bits - ONE
    n += np.uint64(LIKELY)
    while bits != ZERO:
        found[n] = np.uint32(first + lowest_bit(bits))
        bits &= bits - ONE
        n += ONE
    return end


@inline
def find_random(found, draws, t_mask, t_random):
    """found[0:n] are the cells with t_mask <= draw < t_random, ascending; draws come in whole groups of 64.

    A group rarely holds more than LIKELY of them. None leaves found: before group g, n is at most 64 g.
    """
    n = ZERO
    bits = draws.view(np.uint32)
    for group in range(np.uint64(draws.size) >> np.uint64(6)):
        first = np.uint64(group) * SIXTY_FOUR
        inside = in_range_64(bits, first, np.uint32(t_mask), np.uint32(t_random - t_mask))
        n = note_bits(found, n, first, inside)
    return n


@inline
def _pick_number_at(words, slot):
    """The x of a pick: the second number of the token whose word stands at the slot."""
    block = slot & ~LANE
    w0, w1 = np.uint64(words[block]), np.uint64(words[block + ONE])
    w2, w3 = np.uint64(words[block + TWO]), np.uint64(words[block + THREE])
    extra = _extra_of(w0, w1, w2, w3, slot & LANE)
    return _pick_number(_mixed_of(_draw_of(np.uint64(words[slot])), extra))


@inline
def _id_of(rank, plan):
    """The id of a rank in a pool that is made of steps."""
    token = rank
    for step in range(plan[layout.STEPS]):
        word = np.uint64(layout.FIRST_STEP) + TWO * step
        token = token + plan[word + ONE] if rank >= plan[word] else token
    return token


@inline
def write_random(out, found, count, words, ends, shifts, objective):
    """Random tokens in the found cells. Piece k ends before cell ends[k]; its cell j has the word at j + shifts[k]."""
    plan, pool = objective.plan, objective.pool
    size, steps = plan[layout.POOL_SIZE], plan[layout.STEPS]
    weighted, exclude = plan[layout.WEIGHTED] != ZERO, plan[layout.EXCLUDE_ORIGINAL] != ZERO
    piece = 0
    for i in range(count):
        j = np.int64(found[i])
        while j >= ends[piece]:
            piece += 1
        x = _pick_number_at(words, np.uint64(j + shifts[piece]))
        cell = np.uint64(j)
        if weighted or exclude:
            out[cell] = _pick(x, np.uint64(out[cell]), pool, objective.cumulative, size, weighted, exclude)
        elif steps > ZERO:
            out[cell] = _id_of(_uniform(x, size), plan)
        else:
            out[cell] = pool[_uniform(x, size)]
