"""Laws over rows in ranges, in place and in memory of any kind: threads and outputs decide nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from plain_laws import VOCAB
from support import POISON, assert_same, in_place, run_python, same, with_lists
from support_laws import Batch, allowed, outputs_of, random_batch, same_in_all, wordy

import fastmask as fm
from fastmask.call import Call, Outputs
from fastmask.kernels import cpu, reference
from fastmask.laws import Law
from fastmask.plan import Plan, make_plan

GEOMETRIC = fm.Geometric(0.2, 10)
BY_SPAN, BY_WORD = fm.Replace(0.4, 0.4, unit="span"), fm.Replace(0.4, 0.4, unit="word")
OBJECTIVES: dict[str, tuple[Law, fm.Replace]] = {
    "Bernoulli": (fm.Bernoulli(0.3, min_masked=2, max_masked=60), fm.Replace(0.4, 0.4)),
    "Bernoulli words": (fm.Bernoulli(0.3, "word"), BY_WORD),
    "ExactCount": (fm.ExactCount(0.3), BY_SPAN),
    "Spans words": (fm.Spans(0.3, GEOMETRIC, "word"), BY_SPAN),
    "Diffusion": (fm.Diffusion(), fm.Replace(1, 0)),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def plan_of(name: str, seed: int = 7) -> Plan:
    return make_plan(VOCAB, *OBJECTIVES[name], seed, -100)


def outputs(call: Call) -> Outputs:
    return with_lists(Outputs(**outputs_of(call)._asdict()))


def reference_of(plan: Plan, call: Call) -> Outputs:
    out = outputs(call)
    assert reference.mask_batch(plan, call, out)
    return out


def uneven(seed: int, rows: int, longest: int) -> list[int]:
    """Lengths of which some are 0 and a few long."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = (rng.random(rows) ** 4 * longest).astype(int).tolist()
    return lengths


@every_objective
@pytest.mark.parametrize("layout", ["left", "middle", "pad id", "packed"])
@pytest.mark.parametrize("ranges", [2, 3, 7])
def test_ranges_leave_the_bits_of_the_reference(name: str, layout: str, ranges: int) -> None:
    law, _ = OBJECTIVES[name]
    for seed, lengths in enumerate(([1100], [3, 1100, 2], uneven(ranges, 40, 900), [], [0, 0])):
        said = allowed(law, {"marks": seed % 2 > 0, "rates": True, "offsets": True, "named": seed % 2 == 0})
        call = random_batch(seed, VOCAB, layout, lengths, **said).call(plan_of(name))
        want = reference_of(plan_of(name), call)
        for count in (1, ranges):
            out = outputs(call)
            assert cpu.mask_batch(plan_of(name), call, out, count)
            assert_same(out, want)


@every_objective
@pytest.mark.parametrize("ranges", [2, 3])
@pytest.mark.parametrize("beside", [-1, 0, 1])
@pytest.mark.parametrize("empty", [0, 1, 3])
def test_segments_that_end_at_the_border_of_a_range_are_masked_once(
    name: str, ranges: int, beside: int, empty: int
) -> None:
    size = 600 * ranges
    step = size // ranges + 1
    cuts = [k * step + beside for k in range(1, ranges)]
    bounds = [0] * (1 + empty) + [cut for cut in cuts for _ in range(1 + empty)] + [size] * (1 + empty)
    call = random_batch(beside + 1, VOCAB, "packed", np.diff(bounds).tolist()).call(plan_of(name))
    out = outputs(call)
    assert cpu.mask_batch(plan_of(name), call, out, ranges)
    assert_same(out, reference_of(plan_of(name), call))


@every_objective
@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("named", [False, True])
def test_the_input_may_be_the_output(name: str, ranges: int, named: bool) -> None:
    for layout in ("middle", "packed"):
        call = random_batch(4, VOCAB, layout, uneven(4, 30, 1200), named=named).call(plan_of(name))
        want = reference_of(plan_of(name), call)
        for _ in range(3 if ranges > 1 else 1):
            out = outputs(call)
            assert cpu.mask_batch(plan_of(name), in_place(call, out), out, ranges)
            assert_same(out, want)


@every_objective
@pytest.mark.parametrize("ranges", [1, 2])
@pytest.mark.parametrize("cell", [0, 511, 512, 1100, 1163, -1])
@pytest.mark.parametrize("wrong", [-1, 30, 1 << 31, -(1 << 40)])
def test_an_id_out_of_range_is_found_wherever_it_stands(name: str, wrong: int, cell: int, ranges: int) -> None:
    for layout in ("left", "packed"):  # real tokens and padding
        call = random_batch(5, VOCAB, layout, [1100, 0, 63, 30]).call(plan_of(name))
        call.ids = call.ids.copy()
        call.ids[cell] = wrong
        assert not cpu.mask_batch(plan_of(name), call, outputs(call), ranges)


@every_objective
def test_after_an_id_out_of_range_the_input_is_as_it_was(name: str) -> None:
    masker = fm.Masker(VOCAB, *OBJECTIVES[name], seed=7)
    batch = random_batch(5, VOCAB, "left", [600, 30])
    ids = batch.shaped
    ids[1, 17] = 30
    before = ids.copy()
    for out in (None, (ids, np.empty_like(ids))):
        with pytest.raises(ValueError, match=r"input_ids must be in \[0, 30\), got 30 in row 1, column 17"):
            masker(ids, epoch=0, out=out, **batch.arguments)
        same(ids, before)


def public(masker: fm.Masker, batch: Batch, ids: Any, **given: Any) -> fm.MaskedBatch:
    return masker(ids, epoch=2, returns=("decisions", "num_masked", "compact"), **batch.arguments, **given)


@every_objective
@pytest.mark.parametrize("layout", ["middle", "packed"])
def test_a_public_call_may_write_to_its_input(name: str, layout: str) -> None:
    masker, batch = fm.Masker(VOCAB, *OBJECTIVES[name], seed=7), random_batch(6, VOCAB, layout)
    want = public(masker, batch, batch.shaped, backend="numpy")
    for backend in ("numpy", "cpu"):
        ids = batch.shaped
        labels = np.full_like(ids, POISON)
        got = public(masker, batch, ids, out=(ids, labels), backend=backend)
        assert got.input_ids is ids
        same_in_all(got, want)


VIEWS: dict[str, Any] = {
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, -1)[::2, ::3],
    "Fortran": np.asfortranarray,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_memory_of_ids_words_and_marks_decides_nothing(view: str) -> None:
    masker, batch = fm.Masker(VOCAB, *OBJECTIVES["Spans words"], seed=7), random_batch(7, VOCAB, "left", marks=True)
    want = public(masker, batch, batch.shaped, backend="numpy")
    cells = {name: VIEWS[view](x.reshape(batch.shape)) for name, x in batch.cells.items()}
    given = batch.arguments | cells
    ids = VIEWS[view](batch.shaped)
    same_in_all(masker(ids, epoch=2, returns=("decisions", "num_masked", "compact"), **given), want)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_the_dtype_of_word_ids_decides_nothing(dtype: Any) -> None:
    masker = fm.Masker(VOCAB, fm.ExactCount(0.3, "word"), seed=7)
    words: npt.NDArray[Any] = np.cumsum(np.random.default_rng(0).random((4, 200)) < 0.4, 1) % 100
    ids = np.random.default_rng(1).integers(5, 30, (4, 200))
    want = masker(ids, epoch=0, word_ids=words, backend="numpy", returns=("decisions", "num_masked"))
    same_in_all(masker(ids, epoch=0, word_ids=words.astype(dtype), returns=("decisions", "num_masked")), want)
    lists = [[None if word % 7 == 3 else word for word in row] for row in words.tolist()]
    got = masker(ids, epoch=0, word_ids=lists, returns=("decisions", "num_masked"))
    minus = np.where(words % 7 == 3, -1, words)
    same_in_all(got, masker(ids, epoch=0, word_ids=minus, backend="numpy", returns=("decisions", "num_masked")))


@every_objective
def test_threads_never_change_a_bit(name: str) -> None:
    import numba

    if numba.config.NUMBA_NUM_THREADS == 1:
        pytest.skip("Numba has one thread here")
    masker = fm.Masker(wordy(VOCAB), *OBJECTIVES[name], seed=7)
    batch = random_batch(8, VOCAB, "packed", uneven(8, 5000, 560))
    assert batch.layout.size > 1 << 19
    batches = []
    for n in (1, 2):
        fm.set_num_threads(n)
        assert ("parallel" in masker.explain_backend(batch.ids)) == (n > 1)
        batches.append(public(masker, batch, batch.ids))
    same_in_all(*batches)


@pytest.mark.slow
def test_no_kernel_leaves_an_array_under_a_checker_of_bounds(tmp_path: Path) -> None:
    code = """
import sys
sys.path.insert(0, "tests")
from support_laws import agree, allowed, random_batch, wordy
from plain_laws import VOCAB
import fastmask as fm
from fastmask.kernels import cpu
laws = [fm.Bernoulli(0.3, "word", 5, 70), fm.ExactCount(0.15, max_masked=63), fm.ExactCount(0.5, "word"),
        fm.Spans(0.3, fm.Geometric(0.2, 10), "word"), fm.Spans(0.9, fm.Fixed(70)), fm.Bernoulli(0.5, min_masked=1)]
for law in laws:
    for unit in ("token", "word", "span"):
        masker = fm.Masker(VOCAB, law, fm.Replace(0.4, 0.4, unit=unit), seed=7)
        for layout in ("left", "middle", "right", "pad id", "packed"):
            for beginnings in (None, 0.0, 0.4):
                said = allowed(law, {"marks": True, "offsets": unit == "word", "named": layout == "left"})
                agree(masker, random_batch(3, VOCAB, layout, beginnings=beginnings, **said))
        agree(masker, random_batch(3, VOCAB, "packed", [0, 0, 512, 0, 1024, 64, 0]))
"""
    checked = run_python(
        code, "-W", "ignore", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path), FASTMASK_NUM_THREADS="1"
    )
    assert checked == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Spans words", "ExactCount"])
def test_content_ids_are_taken_before_any_range_writes(name: str) -> None:
    call = random_batch(9, VOCAB, "packed", [5000] * 3).call(plan_of(name))
    want = reference_of(plan_of(name), call)
    for _ in range(20):
        out = outputs(call)
        assert cpu.mask_batch(plan_of(name), in_place(call, out), out, 3)
        assert_same(out, want)
