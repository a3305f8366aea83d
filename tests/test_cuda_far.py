"""Cells beyond 2^32 are found: compiled kernels run on one row far behind the beginning of a batch.

Only that row is in memory. Each array is handed over with an address so far before it that the row lies at its index.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from support import assert_same, poisoned
from support_cuda import HALF_RANDOM, OVERFLOW, VOCAB, call_of, cuda, launch, to_device, to_host

from fastmask.kernels import reference
from fastmask.laws import Bernoulli, ExactCount, Law, Spans
from fastmask.lengths import Geometric
from fastmask.plan import make_plan

pytestmark = OVERFLOW

OF_CELLS = {"ids", "out", "labels", "decisions", "special_tokens_mask"}
OF_ROWS = {"num_masked", "lengths", "thresholds"}
OF_SLOTS = {"words", "kinds", "firsts"}
SAMPLE, EVERY = 77, (1 << 64) - 1


class Far:
    """Launches on the row `row`, of which the arrays hold nothing else."""

    def __init__(self, device: Any, row: int, row_length: int) -> None:
        self._device, self._row = device, row
        self._moved = {name: row * row_length for name in OF_CELLS} | dict.fromkeys(OF_ROWS, row)
        self._moved |= dict.fromkeys(OF_SLOTS, 4 * (row * row_length // 4 + 2 * row))
        self.launched: list[str] = []

    def launch(self, kernel: Any, queue: Any, blocks: int, arrays: list[Any], scalars: list[Any]) -> None:
        """The block of the row runs, in a grid that has one for each row before."""
        row, names = self._row, list(inspect.signature(kernel.function).parameters)
        places = [self._place(name, array) for name, array in zip(names, arrays, strict=False)]
        numbers = dict(zip(names[len(arrays) :], scalars, strict=True))
        per_row = {"rows": 1, "quads": numbers.get("quads_per_row", 0), "pieces": numbers.get("pieces_per_row", 0)}
        for name in per_row.keys() & numbers.keys():
            numbers[name] += row * per_row[name]
        numbers["first_sample"] = (SAMPLE - row) & EVERY
        dtypes = tuple(arrays[i].dtype.str for i, known in enumerate(kernel.arrays) if known is None)
        code = self._device.kernel(kernel, dtypes)._kernel
        assert blocks == 1
        code.launch(row + 1, launch.THREADS, [*places, *numbers.values()], only=range(row, row + 1))
        self.launched.append(kernel.function.__name__)

    def _place(self, name: str, array: Any) -> int:
        if array is None:
            return 0
        first: int = array.__cuda_array_interface__["data"][0]
        behind: int = self._moved.get(name, 0) * array.dtype.itemsize
        return first - behind


@pytest.mark.parametrize(
    ("law", "row_length", "name"),
    [
        (Bernoulli(0.5), 512, "mask_quads"),
        (Bernoulli(0.5), 510, "mask_tokens"),
        (ExactCount(0.5), 509, "mask_samples"),
        (Spans(0.5, Geometric(0.2, 10)), 509, "mask_samples"),
    ],
)
@pytest.mark.parametrize("first_cell", [1 << 31, 1 << 32, 1 << 33])
def test_a_row_behind_billions_of_cells_is_masked(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    first_cell: int,
    law: Law,
    row_length: int,
    name: str,
) -> None:
    from device.backend import Device

    plan = make_plan(VOCAB, law, HALF_RANDOM, 7, -100)
    marks = np.random.default_rng(5).choice([0, 0, 1], row_length).astype(np.uint8)
    given: dict[str, Any] = {"lengths": np.array([row_length - 3]), "special_tokens_mask": marks}
    call = call_of(1, row_length, sample_ids=np.array([SAMPLE], np.uint64), **given)
    want = poisoned(call)
    assert reference.mask_batch(plan, call, want)
    call.sample_ids, call.first_sample = None, SAMPLE
    with pytest.MonkeyPatch.context() as patch:
        device = Device("sm_90", request.getfixturevalue("device_code").text)
        device.install(patch)
        out, there = to_device(poisoned(call)), to_device(call)
        out.num_masked[...] = 0
        far = Far(device, first_cell // row_length + 1, row_length)
        patch.setattr(launch.Kernel, "launch", lambda kernel, *rest: far.launch(kernel, *rest))
        patch.setattr(cuda.cuda_rows.CLEAR, "launch", lambda *_: None, raising=False)
        assert not launch.is_set(cuda.mask_batch(plan, there, out))
        assert far.launched == [name]
        assert_same(to_host(out), want)
