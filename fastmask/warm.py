"""warmup: kernels compiled, or loaded from the disk cache, before they are needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastmask.dispatch import host_kernels
from fastmask.outputs import OUT_DTYPES
from fastmask.validate import KERNEL_DTYPES


def warmup(dtypes: Iterable[str] = ("int64",), *, label_dtype: str = "int64", parallel: bool = False) -> None:
    """The CPU kernels for these id dtypes are compiled: no later call waits for the compiler.

    A kernel takes some seconds to compile and some milliseconds to load once it is in Numba's disk cache. In a process
    that forks workers, call it before the fork.

    Args:
        dtypes: names of id dtypes as in the input; the ids come out as int32 or int64, as by default.
        label_dtype: "int64" or "int32".
        parallel: also the parallel twins, which large batches use.

    Raises:
        TypeError: a dtype that cannot be masked.
    """
    kernels = host_kernels("cpu")
    for name in dtypes:
        if np.dtype(name) not in KERNEL_DTYPES:
            raise TypeError(f"dtypes holds {name!r}: ids are int64, int32, uint16, uint32 or int16")
        read = KERNEL_DTYPES[np.dtype(name)]
        written = np.dtype(name) if np.dtype(name) in OUT_DTYPES else OUT_DTYPES[1]
        for twin in (False, True)[: 1 + parallel]:
            kernels.compiled_mask_batch(read, written, np.dtype(label_dtype), twin)
    kernels.content_weights(1)
