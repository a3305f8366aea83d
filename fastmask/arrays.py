"""Kinds of arrays: which framework an array comes from and where it lives, found by type and never by importing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def kind_of(x: Any, name: str = "input_ids") -> str:
    """The kind of an array: "numpy" (with lists and scalars), "torch" in host memory, or "cuda" for device memory."""
    if type(x) is np.ndarray:
        return "numpy"
    if is_torch(x):
        device = x.device.type
        if device not in ("cpu", "cuda"):
            raise TypeError(f"{name} is a torch tensor on {device!r}: only cpu and cuda tensors can be masked")
        return "torch" if device == "cpu" else "cuda"
    if hasattr(x, "__cuda_array_interface__") or _is_simulated(x):
        return "cuda"
    return "numpy"


def is_torch(x: Any) -> bool:
    """True for a torch tensor."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(x).__mro__)


def is_jax(x: Any) -> bool:
    """True for an array of JAX."""
    if type(x) is np.ndarray:  # the usual case, of which nothing else need be asked
        return False
    return type(x).__module__.partition(".")[0] in ("jax", "jaxlib") and type(x).__name__ == "ArrayImpl"


def as_kind_of(like: Any, x: Any) -> Any:
    """An array of NumPy (for arrays of JAX on a GPU, of CuPy) as one of the kind of `like`, sharing its memory."""
    if type(like) is np.ndarray or is_torch(x):
        return x
    if is_torch(like):
        import torch

        return torch.from_numpy(x)
    if is_jax(like):
        import jax

        return jax.dlpack.from_dlpack(x)
    return x


def known_dtype(like: Any, dtype: Any) -> np.dtype[Any]:
    """The dtype as the framework of `like` has it: JAX has no 64 bits unless it is told to (jax_enable_x64)."""
    if is_jax(like):
        import jax

        dtype = jax.dtypes.canonicalize_dtype(dtype)
    known: np.dtype[Any] = np.dtype(dtype)
    return known


def refuse_out(like: Any) -> None:
    """TypeError for arrays of JAX: what is given as `out` with them would be immutable."""
    if is_jax(like):
        raise TypeError("out cannot be given with arrays of JAX, which are immutable")


def _is_simulated(x: Any) -> bool:
    """True for an array of Numba's CUDA simulator."""
    return type(x).__name__ == "FakeCUDAArray" and type(x).__module__.startswith("numba.cuda")


def describe(x: Any) -> str:
    """The type of an array in words, for messages."""
    return f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"


def to_host(name: str, x: Any, beside: str = "input_ids") -> npt.NDArray[Any]:
    """The array as NumPy's, sharing its memory; TypeError for one in device memory, or for what is no array."""
    if type(x) is np.ndarray:
        return x
    if kind_of(x, name) == "cuda":
        raise TypeError(f"{name} is in device memory while {beside} is in host memory: arrays must live together")
    if is_torch(x):
        return np.asarray(x.detach().numpy())
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(f"{name} must be an array or nested lists of equal lengths") from None
