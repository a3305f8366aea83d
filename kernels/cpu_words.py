"""The random words of a group of blocks on the CPU: `philox` itself, carried out on vectors, a block to each lane."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastmask.kernels import philox
from fastmask.kernels.cpu_tile import inline

GROUP = 8  # blocks computed at once: AVX2 needs two vectors for them, whose long chains of operations run side by side
I32, I64 = ir.IntType(32), ir.IntType(64)
LANES = ir.VectorType(I64, GROUP)
BLOCKS_SIDE_BY_SIDE = [lane + part * GROUP for lane in range(GROUP) for part in range(2)]
ZERO, LONGS, GROUP_BLOCKS = np.uint64(0), np.uint64(2 * GROUP), np.uint64(GROUP)
S32 = np.uint64(32)

_philox = inline(philox.philox)


class Lanes:
    """A vector of uint64 under construction: arithmetic on it emits instructions, as on np.uint64 it computes."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def _with(self, emit, other):
        value = other.value if isinstance(other, Lanes) else ir.Constant(LANES, [int(other)] * GROUP)
        return Lanes(self.builder, emit(self.value, value))

    def __add__(self, other):
        return self._with(self.builder.add, other)

    def __mul__(self, other):
        return self._with(self.builder.mul, other)

    def __and__(self, other):
        return self._with(self.builder.and_, other)

    def __or__(self, other):
        return self._with(self.builder.or_, other)

    def __xor__(self, other):
        return self._with(self.builder.xor, other)

    def __lshift__(self, other):
        return self._with(self.builder.shl, other)

    def __rshift__(self, other):
        return self._with(self.builder.lshr, other)


def _splat(builder, value):
    vector = builder.insert_element(ir.Constant(LANES, ir.Undefined), value, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, GROUP), [0] * GROUP)
    return builder.shuffle_vector(vector, ir.Constant(LANES, ir.Undefined), zeros)


@intrinsic
def _write_group(typing_context, pairs, at, c0, c1, c2, c3, k0, k1):
    """pairs[at : at + 2 * GROUP]: the words of the blocks c0, c0 + 1, ...; two words each, four a block."""
    signature = types.void(pairs, *[types.uint64] * 7)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        c0, *rest = (Lanes(builder, _splat(builder, value)) for value in args[2:])
        counted = c0 + Lanes(builder, ir.Constant(LANES, list(range(GROUP))))
        w0, w1, w2, w3 = philox.philox(counted, *rest)
        low, high = (w0 & philox.LOW) | (w1 << S32), (w2 & philox.LOW) | (w3 << S32)
        order = ir.Constant(ir.VectorType(I32, 2 * GROUP), BLOCKS_SIDE_BY_SIDE)
        words = builder.shuffle_vector(low.value, high.value, order)
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(words.type))
        builder.store(words, place, align=8)
        return context.get_dummy_value()

    return signature, codegen


@inline
def fill_words(pairs, first_block, groups, sample, counter3, seed):
    """The words of `groups` groups of blocks from first_block on, as a uint64 view: two words each, four a block."""
    sample_high = (sample >> S32) | (sample << S32)  # no plain shift: its upper half would be known, see `philox`
    seed_high = (seed >> S32) | (seed << S32)
    for group in range(np.uint64(groups)):
        block = first_block + group * GROUP_BLOCKS
        _write_group(pairs, group * LONGS, block, sample, sample_high, counter3, seed, seed_high)


@inline
def first_word(sample, counter3, seed):
    """Word 0 of block 0."""
    return _philox(ZERO, sample, sample >> S32, counter3, seed, seed >> S32)[0] & philox.LOW
