"""warmup: kernels compiled, or loaded from the disk cache, before they are needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastmask.dispatch import host_kernels
from fastmask.validate import ID_DTYPES, KERNEL_DTYPES, OUT_DTYPES, output_dtype


def warmup(
    dtypes: str | Iterable[str] = ("int64",),
    *,
    label_dtype: str = "int64",
    parallel: bool = False,
    whole_rows: bool = False,
    collate: bool = False,
) -> None:
    """The CPU kernels that calls with these dtypes use are compiled: none of them waits for the compiler any more.

    A masking kernel takes some seconds to compile, and some milliseconds to load once it is in Numba's disk cache. In a
    process that forks workers, call it before the fork.

    Args:
        dtypes: names of id dtypes as in the input; the ids come out as by default.
        label_dtype: "int64" or "int32".
        parallel: also the parallel twins, which large batches use.
        whole_rows: also the kernels of laws that look at whole rows: ExactCount, Spans, words and limits.
        collate: also the kernels of `collate` and `pack`.

    Raises:
        TypeError: a dtype that cannot be masked.
        ValueError: labels of another dtype.
    """
    if label_dtype not in ("int64", "int32"):
        raise ValueError(f"label_dtype must be int64 or int32, got {label_dtype!r}")
    kernels = host_kernels("cpu")
    labels = OUT_DTYPES[label_dtype == "int64"]
    for dtype in _checked(dtypes):
        for twin in (False, True)[: 1 + parallel]:
            kernels.compiled_mask_batch(KERNEL_DTYPES[dtype], output_dtype(dtype), labels, twin)
            if whole_rows:
                kernels.compiled_mask_rows(KERNEL_DTYPES[dtype], output_dtype(dtype), labels, twin)
        if collate:
            kernels.compiled_collate_batch(output_dtype(dtype), labels)
        if collate and whole_rows:
            kernels.compiled_collate_rows(output_dtype(dtype), labels)
        kernels.compiled_content_ids(KERNEL_DTYPES[dtype])
    for twin in (False, True)[: 1 + parallel]:
        kernels.compiled_apply_supplied(twin)
    for width in (1, 2, 4, 8):  # of attention masks
        kernels.compiled_real_runs(np.dtype(f"u{width}"))
    if collate:
        for compiled in kernels.LAYOUT_KERNELS:
            compiled()
    kernels.compiled_sample_rates()
    kernels.compiled_spread(labels)
    kernels.content_weights(1)


def _checked(names: str | Iterable[str]) -> list[np.dtype[np.generic]]:
    dtypes = []
    for name in (names,) if isinstance(names, str) else names:
        try:
            dtypes.append(np.dtype(name))
        except TypeError:
            raise TypeError(f"dtypes holds {name!r}, which is no dtype") from None
        if dtypes[-1] not in KERNEL_DTYPES:
            raise TypeError(f"dtypes holds {name!r}: ids are {ID_DTYPES}")
    return dtypes
