"""numba-cuda: what of it kernels and launches need beyond what its successor has under the same name."""

import importlib

import numpy as np
from llvmlite import ir


def _load_array_functions():
    """numba-cuda 0.30 takes hold of np.row_stack when it first compiles; NumPy 2.5 has it no more."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack
    try:
        importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        if missing:
            del np.row_stack


_load_array_functions()

from numba import cuda  # noqa: E402
from numba.cuda import libdevice  # noqa: E402
from numba.cuda.cudadrv.driver import binding as binding  # noqa: E402
from numba.cuda.cudadrv.driver import driver as driver  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402


@intrinsic
def add(typing_context, counts, index, value):
    """counts[index] += value, atomically; numba.cuda.atomic takes no raw pointers."""

    def generate(context, builder, signature, arguments):
        pointer, index, value = arguments
        builder.atomic_rmw("add", builder.gep(pointer, [index]), value, "monotonic")
        return context.get_dummy_value()

    return cuda.types.void(counts, index, counts.dtype), generate


I32, I64 = ir.IntType(32), ir.IntType(64)


def _vectors(builder, array, index, bits):
    """The addresses, in global memory, of the vectors of 16 bytes that hold four elements from an index on."""
    element = ir.IntType(bits)
    first = builder.addrspacecast(builder.gep(array, [index]), ir.PointerType(element, 1))
    vector = builder.bitcast(first, ir.PointerType(ir.VectorType(element, 128 // bits), 1))
    return [builder.gep(vector, [I32(i)]) for i in range(bits // 32)]


@intrinsic
def load_quad(typing_context, array, index):
    """Four elements of 32 or 64 bits from an index on, as uint64; they begin where 16 bytes do."""

    def generate(context, builder, signature, arguments):
        bits, elements = array.dtype.bitwidth, []
        for place in _vectors(builder, *arguments, bits):
            vector = builder.load(place, align=16)
            elements += [builder.extract_element(vector, I32(i)) for i in range(128 // bits)]
        wide = elements if bits == 64 else [builder.sext(element, I64) for element in elements]
        return context.make_tuple(builder, signature.return_type, wide)

    return cuda.types.UniTuple(cuda.types.uint64, 4)(array, index), generate


@intrinsic
def store_quad(typing_context, array, index, a, b, c, d):
    """Four uint64 become elements of 32 or 64 bits from an index on; they begin where 16 bytes do."""

    def generate(context, builder, signature, arguments):
        pointer, index, *values = arguments
        bits = array.dtype.bitwidth
        element = ir.IntType(bits)
        narrow = values if bits == 64 else [builder.trunc(value, element) for value in values]
        for place in _vectors(builder, pointer, index, bits):
            vector = ir.Constant(ir.VectorType(element, 128 // bits), ir.Undefined)
            for i in range(128 // bits):
                vector = builder.insert_element(vector, narrow.pop(0), I32(i))
            builder.store(vector, place, align=16)
        return context.get_dummy_value()

    return cuda.types.void(array, index, a, b, c, d), generate


multiply, plus = libdevice.dmul_rn, libdevice.dadd_rn  # float64, each rounded: no FMA is made of them
