"""What tests of the CUDA backend need: tiny launches, batches in device memory, the reference beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import OVERFLOW as OVERFLOW
from support import assert_same, poisoned, small_launches
from support_devices import FIRST, SECOND, device_of, slow

from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace
from fastmask.vocab import Vocab

numba_cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")
cuda = pytest.importorskip("fastmask.kernels.cuda")
launch = pytest.importorskip("fastmask.kernels.cuda_launch")

Ints = npt.NDArray[Any]

VOCAB = Vocab(size=60, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3, 30))
NO_PAD = Vocab(size=60, mask_token_id=4, special_token_ids=(0, 30, 59))
HALF_RANDOM = Replace(mask=0.3, random=0.5)
POISONS = (-7, 0x55)
OFFSETS = np.array([0, 1, 2, 3, 4, 7, (1 << 34) - 64], np.uint64)


SIMULATOR = "simulator"


@pytest.fixture(autouse=True, params=[SIMULATOR, FIRST, *slow(SECOND)])
def tiny_launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small launches for every test, in the simulator and on chips."""
    on_chip = nullcontext() if request.param == SIMULATOR else device_of(request.param, request)
    with small_launches(monkeypatch), on_chip:
        yield


def plan_of(
    vocab: Vocab = VOCAB, *, p: float = 0.5, replace: Replace = HALF_RANDOM, seed: int = 7, ignore: int = -100
) -> Plan:
    """A plan with defaults."""
    return make_plan(vocab, Bernoulli(p), replace, seed, ignore)


def call_of(rows: int, row_length: int, dtype: str = "int64", *, vocab: Vocab = VOCAB, **given: Any) -> Call:
    """A batch of seeded ids, special ones among them, one sample id per row unless given."""
    rng = np.random.default_rng(rows * 1000 + row_length)
    ids = rng.integers(0, vocab.size, rows * row_length).astype(dtype)
    given.setdefault("sample_ids", rng.integers(0, 1 << 64, rows, dtype=np.uint64))
    given.setdefault("lengths", np.full(rows, row_length, np.int64))
    return Call(ids=ids, rows=rows, row_length=row_length, **({"epoch": 3} | given))


def to_device(parts: Any) -> Any:
    """The same Call or Outputs with its arrays in device memory."""
    arrays = {f.name: getattr(parts, f.name) for f in fields(parts)}
    return replace(parts, **{k: numba_cuda.to_device(a) for k, a in arrays.items() if isinstance(a, np.ndarray)})


def to_host(out: Outputs) -> Outputs:
    """The same Outputs with its arrays in host memory."""
    arrays = (getattr(out, f.name) for f in fields(out))
    return Outputs(*(None if array is None else array.copy_to_host() for array in arrays))


def check(
    plan: Plan, call: Call, ids: str = "int64", labels: str = "int64", poisons: tuple[int, ...] = POISONS[:1]
) -> None:
    """What the reference writes is written, whatever the outputs held before; the call is left alone."""
    for poison in poisons:
        want = poisoned(call, ids, labels, poison)
        assert reference.mask_batch(plan, call, want)
        device_call, got = to_device(call), to_device(poisoned(call, ids, labels, poison))
        assert not launch.is_set(cuda.mask_batch(plan, device_call, got))
        assert_same(to_host(got), want)
        np.testing.assert_array_equal(device_call.ids.copy_to_host(), call.ids, strict=True)
