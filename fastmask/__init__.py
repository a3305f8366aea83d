"""fastmask: masked-language-model corruption at memory speed, the same bits on NumPy, Numba and CUDA.

The fate of a token is a pure function of (seed, epoch, sample id, position). Importing this package compiles nothing
and loads neither Numba nor CUDA; they load at first use.
"""

from fastmask import presets, verify
from fastmask.batch import MaskedBatch
from fastmask.collating import CollatedBatch, collate
from fastmask.dispatch import Backend, backends
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Spans
from fastmask.lengths import Fixed, Geometric, InverseLength, mean_length
from fastmask.masker import Masker
from fastmask.packing import PackedBatch, pack
from fastmask.replace import Replace
from fastmask.supplied import apply_mlm_mask
from fastmask.threads import get_num_threads, set_num_threads
from fastmask.vocab import Vocab
from fastmask.warm import warmup

STREAM_VERSION = 1  # changes whenever the same arguments would give other bits

__all__ = [
    "STREAM_VERSION",
    "Backend",
    "Bernoulli",
    "CollatedBatch",
    "Diffusion",
    "ExactCount",
    "Fixed",
    "Geometric",
    "InverseLength",
    "MaskedBatch",
    "Masker",
    "PackedBatch",
    "Replace",
    "Spans",
    "Vocab",
    "apply_mlm_mask",
    "backends",
    "collate",
    "get_num_threads",
    "mean_length",
    "pack",
    "presets",
    "set_num_threads",
    "verify",
    "warmup",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("fastmask-kernels")
        except PackageNotFoundError:  # a plain checkout
            return "0+unknown"
    raise AttributeError(f"module 'fastmask' has no attribute {name!r}")
