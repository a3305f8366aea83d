"""numba-cuda-mlir: what kernels and launches need beyond what its predecessor has under the same name."""

import numpy as np
from numba_cuda_mlir import cuda
from numba_cuda_mlir._mlir.dialects import llvm
from numba_cuda_mlir._mlir.extras import types as ir_types
from numba_cuda_mlir.cuda import libdevice
from numba_cuda_mlir.extending import intrinsic
from numba_cuda_mlir.lowering_utilities import convert
from numba_cuda_mlir.numba_cuda.cudadrv.driver import binding, driver

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


@cuda.jit(device=True)
def rounded_share(p, n):
    """floor(p * n + 0.5) in float64; two roundings, since the product and the sum are not contracted to an FMA."""
    return np.uint64(libdevice.dadd_rn(libdevice.dmul_rn(p, np.float64(n)), 0.5))


def create_stream():
    """A stream of the current device that waits for no other, the default stream included."""
    handle = driver.cuStreamCreate(binding.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    return cuda.external_stream(int(handle))


def is_capturing(stream):
    """Whether what is queued on the stream becomes part of a graph."""
    return int(driver.cuStreamIsCapturing(int(stream))) != 0
