"""fastmask for torch: a collate function for data loaders, and masking that torch.compile traces whole."""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("fastmask.torch needs torch: pip install 'fastmask-kernels[torch]'") from error

from fastmask.torch.collator import Collator
from fastmask.torch.ops import MaskTokens, apply_mlm_mask

assert _torch

__all__ = ["Collator", "MaskTokens", "apply_mlm_mask"]
