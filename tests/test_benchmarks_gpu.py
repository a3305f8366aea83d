"""The benchmark for GPUs where there is none: its arithmetic, its gate, and a run of it on what stands for a GPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import OVERFLOW, small_launches

import fastmask as fm

numba_cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed: pip install numba-cuda")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gpu() -> Any:
    """benchmarks.gpu; importing it gives Numba an empty cache, which is taken back here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        patch.setenv("NUMBA_CACHE_DIR", "")
        module = importlib.import_module("benchmarks.gpu")
    return module


class Event:
    """Stands for a CUDA event: a second after the one before it."""

    now = 0

    def record(self) -> None:
        Event.now += 1
        self.at = Event.now

    def synchronize(self) -> None:
        """All is done already."""

    def elapsed_time(self, later: Event) -> float:
        return 1000.0 * (later.at - self.at)


class Host:
    """Stands for a GPU and torch's view of it: device memory of the tests."""

    def __init__(self, spoil: bool = False) -> None:
        self._spoil = spoil
        self.called: list[str] = []

    def __str__(self) -> str:
        return "a stand-in"

    def to_device(self, x: Any) -> Any:
        return numba_cuda.to_device(x)

    def to_host(self, x: Any) -> Any:
        values = x.copy_to_host()
        if self._spoil:
            values[-1, -1] += 1
        return values

    def ids(self, case: Any) -> Any:
        return self.to_device(np.full((case.rows, 24), 9, case.dtype))

    def empty_like(self, x: Any) -> Any:
        return self.to_device(np.zeros(x.shape, x.dtype))

    def copy(self, size: int) -> Any:
        return lambda: self.called.append(f"copy of {size}")

    def usual(self, ids: Any) -> Any:
        return lambda: self.called.append("torch")

    def event(self) -> Event:
        return Event()


@pytest.fixture
def small(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(importlib.import_module("benchmarks.gpu_cases"), "ROW_LENGTH", 24)
    monkeypatch.setattr(gpu, "calls_per_round", lambda tokens: 1)
    monkeypatch.setattr(gpu, "commit", lambda: "none")
    with small_launches(monkeypatch):
        yield


def test_seconds_of_a_call_are_the_median_of_rounds_by_their_calls(gpu: Any) -> None:
    assert gpu.per_call([30.0, 10.0, 20.0], 4) == 0.005


@pytest.mark.parametrize(("tokens", "calls"), [(1, 50), (1 << 16, 50), (1 << 24, 4), (1 << 26, 1), (1 << 30, 1)])
def test_small_calls_are_timed_many_at_a_time(gpu: Any, tokens: int, calls: int) -> None:
    assert gpu.calls_per_round(tokens) == calls


def test_a_line_of_the_table(gpu: Any) -> None:
    case = gpu.Case("Bernoulli", "int64", 1 << 24)
    assert (case.rows, case.bytes_moved) == (32768, 3 * 8 << 24)
    figures = gpu.Figures(case, call=2e-4, copy=1.7e-4, torch=4e-3)
    assert figures.cells() == ["Bernoulli", "int64", "2^24", "200.0", "83.89", "2013", "0.85", "20.0"]
    assert gpu.Figures(case, call=2e-4, copy=1.7e-4, torch=None).cells()[-1] == ""
    assert len(figures.cells()) == len(gpu.TITLES)


def test_every_law_is_timed_with_both_dtypes_at_every_size(gpu: Any) -> None:
    timed = gpu.cases([1 << 16, 1 << 18])
    assert len(set(timed)) == len(timed) == 2 * 2 * 6
    assert {type(case.masker().select) for case in timed} == {fm.Bernoulli, fm.ExactCount, fm.Spans, fm.Diffusion}


@OVERFLOW
@pytest.mark.usefixtures("small")
def test_the_whole_run(gpu: Any, tmp_path: Path) -> None:
    device = Host()
    done: list[Any] = []
    lines = list(gpu.report(device, [48], 1, done))
    assert "GPU: a stand-in" in lines[0]
    assert any("Equal to the NumPy backend, bit for bit, on this device: all 12 cases" in line for line in lines)
    table = [line for line in lines if line.startswith(("| Bernoulli", "| ExactCount", "| words", "| Spans", "| Diff"))]
    assert len(table) == len(done) == 12
    assert {figures.call for figures in done} == {1.0}
    assert [figures.torch for figures in done if figures.case.law == "Bernoulli"] == [1.0, 1.0]
    assert f"copy of {3 * 8 * 48}" in device.called
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    gpu.plot(done, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"


@OVERFLOW
@pytest.mark.usefixtures("small")
def test_no_figure_stands_over_a_wrong_bit(gpu: Any) -> None:
    lines = gpu.report(Host(spoil=True), [48], 1, [])
    with pytest.raises(
        SystemExit, match="No figures: Case\\(law='Bernoulli', dtype='int32', tokens=48\\) is not equal"
    ):
        list(lines)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
@pytest.mark.parametrize("simulated", ["0", "1"])
def test_without_a_gpu_it_ends_with_one_line(simulated: str) -> None:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": simulated}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("No figures: ")


def test_the_masking_usual_in_torch_masks() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    cases = importlib.import_module("benchmarks.gpu_cases")
    torch.manual_seed(0)
    ids, special = torch.randint(cases.SIZE, (64, 512)), torch.zeros(cases.SIZE, dtype=torch.bool)
    special[list(cases.SPECIAL)] = True
    before = ids.clone()
    inputs, labels = cases.torch_masking(torch, ids, special)
    chosen = labels != -100
    assert torch.equal(ids, before)
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(inputs[~chosen], ids[~chosen])
    assert not special[ids[chosen]].any()
    assert abs(chosen.double().mean() - 0.15) < 0.01
    assert abs((inputs[chosen] == cases.MASK_ID).double().mean() - 0.8) < 0.03
