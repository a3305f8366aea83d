"""Vector tests as 64-bit sets, in plain LLVM vector IR: nothing in them is bound to one processor. And addresses."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastmask.kernels import fate

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
LANES = ir.VectorType(I32, 64)
GOLDEN = int(fate.GOLDEN)
# Byte j of the extra of lane i of a block is the low byte of word (i + j) mod 4.
LOW_BYTES = [byte & ~15 | 4 * ((byte % 16 // 4 + byte) % 4) for byte in range(256)]


def _splat(builder, value):
    vector = builder.insert_element(ir.Constant(LANES, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(vector, ir.Constant(LANES, ir.Undefined), ir.Constant(LANES, [0] * 64))


@intrinsic
def in_range_64(typing_context, array, start, low, width):
    """A set as uint64: bit b tells whether low <= array[start + b] < low + width, compared modulo 2^32.

    array: 1-D contiguous, 32-bit, start + 64 <= its size; start: uint64; low, width: uint32.
    """
    signature = types.uint64(array, types.uint64, types.uint32, types.uint32)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(LANES))
        above = builder.sub(builder.load(pointer, align=4), _splat(builder, args[2]))
        inside = builder.icmp_unsigned("<", above, _splat(builder, args[3]))
        return builder.bitcast(inside, I64)

    return signature, codegen


@intrinsic
def lowest_bit(typing_context, bits):
    """The index of the lowest bit of a set, as uint64; 64 for the empty set."""

    def codegen(context, builder, signature, args):
        cttz = builder.module.declare_intrinsic("llvm.cttz", [I64], ir.FunctionType(I64, [I64, I1]))
        return builder.call(cttz, [args[0], I1(0)])

    return types.uint64(types.uint64), codegen


@intrinsic
def count_bits(typing_context, bits):
    """The size of a set, as uint64."""

    def codegen(context, builder, signature, args):
        ctpop = builder.module.declare_intrinsic("llvm.ctpop", [I64], ir.FunctionType(I64, [I64]))
        return builder.call(ctpop, [args[0]])

    return types.uint64(types.uint64), codegen


@intrinsic
def keep_64(typing_context, target, at, source, start, bits):
    """target[at + b] = source[start + b] >> 8 where bit b is in the set, else 0x7FFFFFFF, for b = 0 .. 63.

    target: 1-D contiguous int32, at + 64 <= its size; source: the same as uint32; at, start, bits: uint64.
    """
    signature = types.void(target, types.uint64, source, types.uint64, types.uint64)

    def codegen(context, builder, signature, args):
        into = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        data = context.make_array(signature.args[2])(context, builder, value=args[2]).data
        pointer = builder.bitcast(builder.gep(data, [args[3]]), ir.PointerType(LANES))
        shifted = builder.lshr(builder.load(pointer, align=4), _splat(builder, I32(8)))
        chosen = builder.bitcast(args[4], ir.VectorType(I1, 64))
        kept = builder.select(chosen, shifted, _splat(builder, I32(0x7FFFFFFF)))
        builder.store(kept, builder.bitcast(builder.gep(into, [args[1]]), ir.PointerType(LANES)), align=4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def mix_64(typing_context, target, source, start):
    """target[start + b] is the second number of the word source[start + b], for b = 0 .. 63: `mixed_of`, on vectors.

    Both 1-D contiguous uint32; start: uint64, a multiple of 4, so that whole blocks of four words are read.
    """
    signature = types.void(target, source, types.uint64)

    def codegen(context, builder, signature, args):
        into = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        data = context.make_array(signature.args[1])(context, builder, value=args[1]).data
        words = builder.load(builder.bitcast(builder.gep(data, [args[2]]), ir.PointerType(LANES)), align=4)
        bytes_of = ir.VectorType(I8, 256)
        low = builder.shuffle_vector(
            builder.bitcast(words, bytes_of),
            ir.Constant(bytes_of, ir.Undefined),
            ir.Constant(ir.VectorType(I32, 256), LOW_BYTES),
        )
        spread = builder.mul(builder.lshr(words, _splat(builder, I32(8))), _splat(builder, I32(GOLDEN)))
        mixed = builder.add(spread, builder.bitcast(low, LANES))
        builder.store(mixed, builder.bitcast(builder.gep(into, [args[2]]), ir.PointerType(LANES)), align=4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def pointer(typing_context, address, dtype):
    """An address as a pointer to a dtype."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(types.int64, dtype), codegen
