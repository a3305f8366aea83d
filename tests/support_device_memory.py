"""What tests of memory in frameworks share: kernels are launched as on a GPU, and no stream is made."""

from __future__ import annotations

import pytest
from support_cuda import launch

import fastmask as fm

STREAM = 77
MASKER = fm.Masker(fm.Vocab(size=60, mask_token_id=4, pad_token_id=0), fm.Bernoulli(0.5), fm.Replace(0.4, 0.4), seed=7)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SIMULATED", False)
    monkeypatch.setattr(launch, "_stream", lambda device, handle: handle)
