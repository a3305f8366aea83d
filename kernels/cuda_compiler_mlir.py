"""numba-cuda-mlir: what kernels and launches need beyond what its predecessor has under the same name."""

from numba_cuda_mlir import cuda
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import llvm
from numba_cuda_mlir._mlir.extras import types as ir_types
from numba_cuda_mlir.cuda import libdevice
from numba_cuda_mlir.extending import intrinsic
from numba_cuda_mlir.lowering_utilities import convert
from numba_cuda_mlir.numba_cuda.cudadrv.driver import binding as binding
from numba_cuda_mlir.numba_cuda.cudadrv.driver import driver as driver

DYNAMIC = -(1 << 31)  # in the list of an address's constant indices: one that is not constant


def _address(builder, pointer, index):
    """The address of the element at an index."""
    kind = builder.get_storage_type(builder.get_numba_type(pointer).dtype)
    places = [convert(builder.load_var(index), ir_types.i64())]
    return llvm.getelementptr(llvm.PointerType.get(), builder.load_var(pointer), places, [DYNAMIC], kind, None)


@intrinsic
def add(typing_context, counts, index, value):
    """counts[index] += value, atomically; cuda.atomic takes no raw pointers."""

    def generate(builder, target, arguments, _):
        counts, index, value = arguments
        place, amount = _address(builder, counts, index), builder.load_var(value)
        llvm.atomicrmw(llvm.AtomicBinOp.add, place, amount, llvm.AtomicOrdering.monotonic)

    return cuda.types.void(counts, index, counts.dtype), generate


def _vector_of(bits):
    """The type of so many elements as are 16 bytes."""
    return ir.VectorType.get([128 // bits], ir.IntegerType.get_signless(bits))


def _lane(number):
    return llvm.mlir_constant(ir.IntegerAttr.get(ir_types.i32(), number))


def _vectors(builder, array, index):
    """(bits of an element, the addresses of the vectors of 16 bytes that hold four of them from an index on)."""
    bits, first = builder.get_numba_type(array).dtype.bitwidth, _address(builder, array, index)
    places = [
        llvm.getelementptr(llvm.PointerType.get(), first, [], [i], _vector_of(bits), None) for i in range(bits // 32)
    ]
    return bits, places


@intrinsic
def load_quad(typing_context, array, index):
    """Four elements of 32 or 64 bits from an index on, as uint64; they begin where 16 bytes do."""

    def generate(builder, target, arguments, _):
        bits, places = _vectors(builder, *arguments)
        elements = []
        for place in places:
            vector = llvm.load(_vector_of(bits), place, alignment=16)
            elements += [llvm.extractelement(vector, _lane(i)) for i in range(128 // bits)]
        wide = elements if bits == 64 else [llvm.sext(ir_types.i64(), element) for element in elements]
        builder.store_var(target, tuple(wide))

    return cuda.types.UniTuple(cuda.types.uint64, 4)(array, index), generate


@intrinsic
def store_quad(typing_context, array, index, a, b, c, d):
    """Four uint64 become elements of 32 or 64 bits from an index on; they begin where 16 bytes do."""

    def generate(builder, target, arguments, _):
        array, index, *values = arguments
        bits, places = _vectors(builder, array, index)
        elements = [builder.load_var(value) for value in values]
        if bits == 32:
            no_flags = llvm.IntegerOverflowFlags.none
            elements = [llvm.trunc(ir_types.i32(), element, no_flags) for element in elements]
        for place in places:
            vector = llvm.mlir_undef(_vector_of(bits))
            for i in range(128 // bits):
                vector = llvm.insertelement(vector, elements.pop(0), _lane(i))
            llvm.store(vector, place, alignment=16)

    return cuda.types.void(array, index, a, b, c, d), generate


multiply, plus = libdevice.dmul_rn, libdevice.dadd_rn  # float64, each rounded: no FMA is made of them
