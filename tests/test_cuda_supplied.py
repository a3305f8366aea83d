"""Supplied decisions are carried out in device memory as the reference carries them out."""

from __future__ import annotations

import numpy as np
import pytest
from support_cuda import OVERFLOW, Ints, cuda, launch, numba_cuda
from support_cuda import tiny_launches as tiny_launches

from fastmask.kernels import reference

pytestmark = OVERFLOW


def supplied(n: int) -> list[Ints]:
    rng = np.random.default_rng(n)
    ids, tokens = rng.integers(-(1 << 40), 1 << 40, (2, n))
    return [ids, rng.random(n) < 0.5, rng.choice([0.0, 0.8, 0.85, 0.9, 1.0, rng.random()], n), tokens]


@pytest.mark.parametrize("borders", [(0.8, 0.9), (0.0, 0.0), (1.0, 1.0), (0.8, 0.8)])
@pytest.mark.parametrize("n", [0, 1, 130])
def test_apply_supplied(n: int, borders: tuple[float, float]) -> None:
    arrays = supplied(n)
    want_ids, want_labels = np.full(n, -7), np.full(n, -7)
    tokens, chosen, probabilities, drawn = arrays
    reference.apply_supplied(tokens, chosen, probabilities, drawn, 103, borders, want_ids, want_labels)
    ids, labels = numba_cuda.to_device(np.full(n, 5)), numba_cuda.to_device(np.full(n, 5))
    device = [numba_cuda.to_device(array) for array in arrays]
    assert not launch.is_set(cuda.apply_supplied(*device, 103, borders, ids, labels))
    np.testing.assert_array_equal(ids.copy_to_host(), want_ids, strict=True)
    np.testing.assert_array_equal(labels.copy_to_host(), want_labels, strict=True)
    for on_gpu, on_cpu in zip(device, arrays, strict=True):
        np.testing.assert_array_equal(on_gpu.copy_to_host(), on_cpu, strict=True)


@pytest.mark.parametrize("bad", [-1e-9, 1.0000001, np.nan, np.inf])
def test_supplied_probabilities_outside_raise_the_flag(bad: float) -> None:
    arrays = [numba_cuda.to_device(array) for array in supplied(40)]
    probabilities = arrays[2].copy_to_host()
    probabilities[39] = bad
    arrays[2] = numba_cuda.to_device(probabilities)
    outputs = [numba_cuda.to_device(np.zeros(40, np.int64)) for _ in range(2)]
    assert launch.is_set(cuda.apply_supplied(*arrays, 103, (0.8, 0.9), *outputs))
