"""fastmask for torch: masking as a module that torch.compile traces without a graph break."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {"MaskTokens": "ops", "apply_mlm_mask": "ops"}  # loaded, with torch, at first use

__all__ = ["MaskTokens", "apply_mlm_mask"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"fastmask.torch.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'fastmask.torch' has no attribute {name!r}")
