"""fastmask for torch: a collate function for data loaders."""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("fastmask.torch needs torch: pip install 'fastmask-kernels[torch]'") from error

from fastmask.torch.collator import Collator

assert _torch

__all__ = ["Collator"]
