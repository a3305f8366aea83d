"""Every law on a GPU gives the bits of the reference, whatever its units, limits and replacement, padded or packed."""

from __future__ import annotations

from dataclasses import replace as changed
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_laws import Sample
from support import Array, assert_same, same
from support_cases import EXAMPLE, WORKED, batches, laws, replacements
from support_cuda import OVERFLOW, cuda, launch, numba_cuda, to_device, to_host
from support_cuda import tiny_launches as tiny_launches
from support_laws import Layout, call_of, left_aligned, outputs_of, packed, padded, plan_of, some_samples, unnamed

from fastmask.call import Call, Outputs
from fastmask.kernels import cuda_spans, cuda_tokens, cuda_units, reference, reference_laws
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.lengths import Fixed, Geometric, InverseLength
from fastmask.plan import Plan
from fastmask.replace import Replace

pytestmark = OVERFLOW

GEOMETRIC = Geometric(0.2, 10)
LENGTHS = [45, 0, 13]  # more than a tile of a scan with 8 threads, and less
LAYOUTS = {
    "packed": packed(LENGTHS),
    "left": padded(LENGTHS, [max(LENGTHS) - n for n in LENGTHS]),
    "right": left_aligned(LENGTHS, right=3),
    "between": padded(LENGTHS, [2, 1, 7], 2),
}


def scratch(size: int, dtype: Any) -> Any:
    """Device memory that tells of candidates wherever it is read before it is written."""
    return numba_cuda.to_device(np.full(size * np.dtype(dtype).itemsize, 1, np.uint8).view(dtype))


def masked(plan: Plan, call: Call, ids: Any = np.int64, labels: Any = np.int64) -> Outputs:
    """What the kernels make of a call, in host memory; no id is out of range, and the call is left alone."""
    blank = outputs_of(call)
    blank = blank._replace(input_ids=blank.input_ids.astype(ids), labels=blank.labels.astype(labels))
    device_call, out = to_device(call), to_device(Outputs(**blank._asdict()))
    assert not launch.is_set(cuda.mask_batch(plan, device_call, out, allocate=scratch))
    same(device_call.ids.copy_to_host(), call.ids)
    return to_host(out)


def wanted(plan: Plan, call: Call, ids: Any = np.int64, labels: Any = np.int64) -> Outputs:
    """What the reference makes of a call."""
    blank = outputs_of(call)
    blank = blank._replace(input_ids=blank.input_ids.astype(ids), labels=blank.labels.astype(labels))
    out = Outputs(**blank._asdict())
    assert reference.mask_batch(plan, call, out)
    return out


def check(plan: Plan, call: Call, **dtypes: Any) -> Outputs:
    """The kernels give what the reference gives."""
    want = wanted(plan, call, **dtypes)
    assert_same(masked(plan, call, **dtypes), want)
    return want


def samples_for(layout: Layout, words: str = "table", seed: int = 0, specials: float = 0.12) -> list[Sample]:
    """Samples of the layout's lengths; their words are told by the table of continuations, or by ids."""
    rng = np.random.default_rng(seed)
    samples = []
    for row, size in enumerate(layout.lengths):
        tokens = np.where(rng.random(size) < specials, rng.integers(0, 5, size), rng.integers(5, 30, size))
        word_ids = np.cumsum(rng.random(size) < 0.6) << (40 if words == "high" else 0)
        samples.append(Sample(tokens.tolist(), None if words == "table" else word_ids.tolist(), given_id=row * 2**31))
    return samples


# The worked examples.


@pytest.mark.parametrize(("law", "replace", "seed", "decisions", "drawn"), WORKED)
def test_every_law_gives_its_worked_example(
    law: Law, replace: Replace, seed: int, decisions: list[int], drawn: dict[int, int]
) -> None:
    out = masked(plan_of(law, replace, seed), call_of([EXAMPLE], left_aligned([22], right=2)))
    same(out.decisions, np.array([*decisions, 0, 0], np.uint8))
    ids = [(token, 4, drawn.get(j, -1), token)[decisions[j]] for j, token in enumerate(EXAMPLE.tokens)]
    same(out.input_ids, np.array([*ids, 0, 0]))


def test_the_rate_of_diffusion_is_that_of_the_worked_example() -> None:
    call = to_device(call_of([EXAMPLE], packed([22])))
    plan = plan_of(Diffusion(1e-3), Replace(1, 0))
    same(cuda.sample_rates(plan, call).copy_to_host(), np.array([10294807], np.uint32))


# A grid.

CASES: list[Law] = [
    Bernoulli(0.3),
    Bernoulli(0.1, min_masked=9),
    Bernoulli(0.6, max_masked=9),
    Bernoulli(0.3, unit="word"),
    Bernoulli(0.1, unit="word", min_masked=9, max_masked=10),
    Bernoulli(1.0, unit="word", max_masked=7),
    ExactCount(0.3),
    ExactCount(1.0, min_masked=3, max_masked=20),
    ExactCount(0.3, count_of="sequence"),
    ExactCount(0.4, unit="word"),
    ExactCount(0.2, unit="word", min_masked=12),
    ExactCount(0.7, unit="word", min_masked=4, max_masked=9),
    ExactCount(0.4, unit="word", count_of="candidates"),
    ExactCount(0.4, unit="word", count_of="sequence", max_masked=6),
    Spans(0.4, GEOMETRIC),
    Spans(0.2, InverseLength(3), min_masked=9),
    Spans(0.9, Fixed(4), max_masked=21),
    Spans(0.4, GEOMETRIC, unit="word"),
    Spans(0.9, Fixed(2), unit="word"),
]
GRID = [(law, unit) for law in CASES for unit in ("token", "word", "span")]


@pytest.mark.parametrize(
    ("law", "unit", "name", "words"),
    [(*case, *how) for case, *how in zip(GRID, cycle(LAYOUTS), cycle(["table", "ids", "high"]), strict=False)],
)
def test_laws_limits_replacements_layouts_and_words(law: Law, unit: Any, name: str, words: str) -> None:
    layout = LAYOUTS[name]
    plan = plan_of(law, Replace(0.4, 0.3, unit=unit), seed=2**63 + len(name))
    check(plan, call_of(samples_for(layout, words, seed=len(words)), layout, fill=9))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("law", [Bernoulli(0.3), Diffusion(0.1)])
def test_token_level_laws_in_every_layout(law: Law, name: str) -> None:
    layout = LAYOUTS[name]
    plan = plan_of(law, Replace(1, 0) if isinstance(law, Diffusion) else Replace(0.3, 0.4))
    check(plan, call_of(samples_for(layout), layout))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_law_on_any_batch(data: st.DataObject) -> None:
    law = data.draw(laws())
    replace = data.draw(replacements(law))
    samples, layout, fill = data.draw(batches(law, replace))
    seed, epoch = data.draw(st.sampled_from([(7, 1), (2**64 - 1, 2**24 - 1)]))
    check(plan_of(law, replace, seed), call_of(samples, layout, fill, epoch))


@pytest.mark.parametrize("law", [Bernoulli(0.2, min_masked=1), Spans(0.2, GEOMETRIC), Diffusion(0.2)])
def test_content_ids_and_trimmed_padding(law: Law) -> None:
    plan = plan_of(law, Replace(1, 0))
    samples = [changed(sample, given_id=None) for sample in some_samples(3, 20)]
    sizes = [len(sample.tokens) for sample in samples]
    for layout in (unnamed(padded(sizes, [2, 0, 5], 1)), packed(sizes)):
        check(plan, call_of(samples, layout))


@pytest.mark.parametrize("name", ["packed", "left"])
@pytest.mark.parametrize(
    "law", [Bernoulli(0.3), Bernoulli(0.3, unit="word"), Bernoulli(0.2, min_masked=8), Diffusion(0.1)]
)
def test_offsets(law: Law, name: str) -> None:
    plan = plan_of(law, Replace(1, 0) if isinstance(law, Diffusion) else Replace(0.3, 0.4))
    for offsets in ([1, 2, 3], [2**34 - 64, 4, 7]):
        call = call_of(samples_for(LAYOUTS[name]), LAYOUTS[name])
        call.offsets = np.array(offsets, np.uint64)
        check(plan, call)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1], [3, 1, 0, 2, 1], [17, 16, 15, 1, 64], [4] * 9])
@pytest.mark.parametrize("law", [Bernoulli(0.5), ExactCount(0.5)])
def test_packed_samples_of_any_size(law: Law, sizes: list[int]) -> None:
    layout = packed(sizes)
    call = call_of(samples_for(layout), layout)
    check(plan_of(law), call)
    call.offsets = np.arange(len(sizes), dtype=np.uint64)
    check(plan_of(Bernoulli(0.5, unit="word") if isinstance(law, ExactCount) else law), call)


@pytest.mark.parametrize("law", [ExactCount(0.9), ExactCount(0.9, unit="word"), Spans(0.9, GEOMETRIC)])
def test_rates_of_the_samples_own(law: Law) -> None:
    layout = packed([40, 9, 0, 17, 30])
    call = call_of(samples_for(layout), layout)
    call.rates = np.array([0.0, 0.5, 0.3, 1.0, 0.35])
    check(plan_of(law), call)


def test_half_a_token_is_rounded_up_after_the_product_was_rounded() -> None:
    """0.35 * 10 rounds up to 3.5, of which a fused multiply-add knows that it is less: 3.5 less 2^-53, and so on."""
    sizes = [1, 3, 10, 50]
    call = call_of([Sample([9] * n, given_id=n) for n in sizes], packed(sizes))
    call.rates = np.array([0.5, 0.5, 0.35, 0.29])
    same(check(plan_of(ExactCount(1.0)), call).num_masked, np.array([1, 2, 4, 14]))


def test_thresholds_of_the_samples_own() -> None:
    call = call_of(samples_for(LAYOUTS["packed"]), LAYOUTS["packed"])
    call.thresholds = np.array([1 << 22, 1 << 24, 0], np.uint32)
    for law in (Bernoulli(0.5, unit="word"), Bernoulli(0.5, max_masked=6), Bernoulli(0.5)):
        check(plan_of(law, Replace(0.3, 0.4)), call)


@pytest.mark.parametrize("ids", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("out", ["int32", "int64"])
def test_every_dtype(ids: str, out: str) -> None:
    layout = LAYOUTS["between"]
    call = call_of(samples_for(layout), layout, dtype=ids)
    call.special_tokens_mask = layout.spread([[0, 255, 0, 0] * 12, [], [1, 0] * 7], np.uint8, 0)
    check(plan_of(ExactCount(0.5, unit="word")), call, ids=out, labels=out)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_word_ids_of_32_and_64_bits(dtype: str) -> None:
    layout = LAYOUTS["packed"]
    call = call_of(samples_for(layout, "ids"), layout)
    call.word_ids = np.array([-1, 7, 7, 2**31 - 1, -1, -1], dtype)[np.arange(layout.size) // 2 % 6]
    check(plan_of(Bernoulli(0.4, unit="word")), call)


@pytest.mark.parametrize("law", [ExactCount(0.5), Spans(0.5, GEOMETRIC, unit="word")])
def test_in_place(law: Law) -> None:
    layout = LAYOUTS["left"]
    plan, call = plan_of(law), call_of(samples_for(layout), layout)
    device_call, out = to_device(call), to_device(Outputs(**outputs_of(call)._asdict()))
    out.input_ids = device_call.ids
    cuda.mask_batch(plan, device_call, out)
    assert_same(to_host(out), wanted(plan, call))


def test_outputs_that_may_be_left_out() -> None:
    layout = LAYOUTS["packed"]
    plan, call = plan_of(ExactCount(0.5)), call_of(samples_for(layout), layout)
    few = changed(Outputs(**outputs_of(call)._asdict()), decisions=None, num_masked=None)
    want, got = few, to_device(few)
    assert reference.mask_batch(plan, call, want)
    cuda.mask_batch(plan, to_device(call), got)
    assert_same(to_host(got), want)


@pytest.mark.parametrize("bad", [-1, 30, 2**32 + 5])
@pytest.mark.parametrize("law", [ExactCount(1.0), Bernoulli(1.0, unit="word"), Spans(1.0, GEOMETRIC)])
def test_ids_out_of_range_raise_the_flag(law: Law, bad: int) -> None:
    layout = left_aligned([7], right=2)
    for cell in (3, 8):  # padding too
        call = call_of(samples_for(layout), layout)
        call.ids = call.ids.copy()
        call.ids[cell] = bad
        assert launch.is_set(
            cuda.mask_batch(plan_of(law), to_device(call), to_device(Outputs(**outputs_of(call)._asdict())))
        )


def test_rows_too_long_for_32_bits_are_refused() -> None:
    call = changed(call_of(samples_for(packed([3])), packed([3])), row_length=1 << 31)
    with pytest.raises(ValueError, match="rows have 2147483648 cells"):
        cuda.mask_batch(plan_of(ExactCount(0.5)), to_device(call), to_device(Outputs(**outputs_of(call)._asdict())))


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_and_runs_that_are_longer_than_what_a_block_takes_at_once(unit: Any) -> None:
    tokens = [*[9] * 5, 1, *[9] * 120, 2, 9, 9]
    sample = Sample(tokens, [0] * 5 + [1] * 121 + [2, 2, 3], given_id=3)
    for law in (Bernoulli(0.9), Bernoulli(0.5, unit="word"), ExactCount(0.6, unit="word"), Spans(0.98, Fixed(9))):
        check(plan_of(law, Replace(0.3, 0.4, unit=unit)), call_of([sample], packed([len(tokens)])))


# The search for the k-th key.


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("p", [0.001, 0.15, 0.997])
def test_a_cut_is_found_in_a_long_row(p: float, unit: Any) -> None:
    layout = packed([700])
    check(plan_of(ExactCount(p, unit=unit)), call_of(samples_for(layout), layout))


WORDS = {"few": 3, "one": 1}


@pytest.fixture(params=WORDS.values(), ids=list(WORDS))
def equal_words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of so few values that many are equal, on both sides."""
    if not launch.SIMULATED:
        pytest.skip("compiled kernels take no other words")

    def word(block: Any, lane: int) -> Any:
        return (block * 4 + lane) * 5 % request.param << 29

    def numpy_words(seed: int, epoch: int, sample: Any, positions: Array, purpose: int) -> Array:
        block = np.asarray(positions, np.int64) >> 2
        return np.stack([word(block, lane) for lane in range(4)]).astype(np.uint32)

    def device_words(block: Any, *_: Any) -> tuple[Any, ...]:
        return tuple(np.uint64(word(int(block), lane)) for lane in range(4))

    for module in (reference, reference_laws):
        monkeypatch.setattr(module, "words", numpy_words)
    for module in (cuda_tokens, cuda_units, cuda_spans):
        monkeypatch.setattr(module, "philox_block", device_words)


@pytest.mark.usefixtures("equal_words")
def test_equal_words_are_taken_by_position_and_spans_that_end_early_are_filled_up() -> None:
    layout = packed([21, 9])
    for law in CASES:
        check(plan_of(law, Replace(0.4, 0.3)), call_of(samples_for(layout), layout))
