"""The random words of a group of blocks on the CPU: `philox` itself, carried out on vectors, a block to each lane."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastmask.kernels import philox
from fastmask.kernels.cpu_tile import inline

GROUP = 8  # blocks that are computed together; two such groups are, where there are two: long chains side by side
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
ZERO, ONE, TWO, SIX = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(6)
BLOCKS, LONGS = np.uint64(GROUP), np.uint64(2 * GROUP)  # of a group
S32 = np.uint64(32)

_philox = inline(philox.philox)


class Lanes:
    """A vector of uint64 under construction: arithmetic on it emits instructions, as on np.uint64 it computes."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def _with(self, emit, other):
        kind = self.value.type
        value = other.value if isinstance(other, Lanes) else ir.Constant(kind, [int(other)] * kind.count)
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


def _splat(builder, value, lanes):
    nothing = ir.Constant(lanes, ir.Undefined)
    vector = builder.insert_element(nothing, value, I32(0))
    return builder.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(I32, lanes.count), [0] * lanes.count))


def _writer(blocks):
    """An intrinsic: the words of so many blocks c0, c0 + 1, ... from pairs[at] on; two words each, four a block."""
    lanes = ir.VectorType(I64, blocks)
    side_by_side = [lane + part * blocks for lane in range(blocks) for part in range(2)]

    @intrinsic
    def write_blocks(typing_context, pairs, at, c0, c1, c2, c3, k0, k1):
        signature = types.void(pairs, *[types.uint64] * 7)

        def codegen(context, builder, signature, args):
            data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
            c0, *rest = (Lanes(builder, _splat(builder, value, lanes)) for value in args[2:])
            counted = c0 + Lanes(builder, ir.Constant(lanes, list(range(blocks))))
            w0, w1, w2, w3 = philox.philox(counted, *rest)
            low, high = (w0 & philox.LOW) | (w1 << S32), (w2 & philox.LOW) | (w3 << S32)
            order = ir.Constant(ir.VectorType(I32, 2 * blocks), side_by_side)
            words = builder.shuffle_vector(low.value, high.value, order)
            place = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(words.type))
            builder.store(words, place, align=8)
            return context.get_dummy_value()

        return signature, codegen

    return write_blocks


_write_group, _write_two = _writer(GROUP), _writer(2 * GROUP)


@intrinsic
def _fetch_line(typing_context, cells, byte):
    """The line of memory so many bytes after the first cell comes to the cache; nothing waits for it."""
    signature = types.void(cells, types.uint64)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        address = ir.PointerType(I8)
        place = builder.gep(builder.bitcast(data, address), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [address, I32, I32, I32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [address], kind)
        builder.call(fetch, [place, I32(0), I32(3), I32(1)])  # to read, to all caches, data
        return context.get_dummy_value()

    return signature, codegen


@inline
def _fetch(cells, group, groups):
    """The cells that the words of so many groups are for, from one on."""
    size = np.uint64(4 * GROUP * cells.itemsize)
    for line in range(groups * size >> SIX):
        _fetch_line(cells, group * size + (line << SIX))


@inline
def fill_words(pairs, first_block, groups, sample, counter3, seed, cells):
    """The words of `groups` groups of blocks from first_block on, as a uint64 view: two words each, four a block.

    Meanwhile the cells that they are for come to the cache.
    """
    sample_high = (sample >> S32) | (sample << S32)  # no plain shift: its upper half would be known, see `philox`
    seed_high = (seed >> S32) | (seed << S32)
    group = ZERO
    for _ in range(np.uint64(groups) >> ONE):
        _fetch(cells, group, TWO)
        _write_two(pairs, group * LONGS, first_block + group * BLOCKS, sample, sample_high, counter3, seed, seed_high)
        group += TWO
    if group < np.uint64(groups):
        _fetch(cells, group, ONE)
        _write_group(pairs, group * LONGS, first_block + group * BLOCKS, sample, sample_high, counter3, seed, seed_high)


@inline
def first_word(sample, counter3, seed):
    """Word 0 of block 0."""
    return _philox(ZERO, sample, sample >> S32, counter3, seed, seed >> S32)[0] & philox.LOW
