"""Where a sample lies, and in what company, decides nothing under any law; what there is nothing to do for stays."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import numpy as np
import pytest
from plain import plain_content_id
from plain_laws import Sample
from support import same
from support_laws import (
    call_of,
    fate,
    fates,
    left_aligned,
    masked,
    outputs_of,
    packed,
    padded,
    plan_of,
    some_samples,
    unnamed,
)
from support_reference import equal

from fastmask.call import Outputs
from fastmask.kernels import reference
from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.lengths import Fixed, Geometric
from fastmask.replace import Replace

GEOMETRIC = Geometric(0.2, 10)

EVERY_LAW: list[tuple[Law, Replace]] = [
    (Bernoulli(0.4), Replace()),
    (Bernoulli(0.5, min_masked=2, max_masked=9), Replace()),
    (Bernoulli(0.4, unit="word"), Replace(0.4, 0.4, unit="span")),
    (ExactCount(0.4, min_masked=3), Replace(0.4, 0.4, unit="word")),
    (ExactCount(0.4, unit="word", count_of="sequence"), Replace()),
    (Spans(0.4, GEOMETRIC, min_masked=3), Replace(0.4, 0.4, unit="span")),
    (Spans(0.4, Fixed(4), unit="word"), Replace()),
    (Diffusion(), Replace(1, 0)),
]
every_law = pytest.mark.parametrize(("law", "replace"), EVERY_LAW)

# Invariances.


@every_law
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("worded", [True, False])
def test_a_sample_has_the_same_fate_alone_and_in_any_batch(
    law: Law, replace: Replace, named: bool, worded: bool
) -> None:
    samples = some_samples(5, 30)
    if worded:
        samples = [changed(s, word_ids=[j // 3 for j in range(len(s.tokens))]) for s in samples]
    if not named:
        samples = [changed(s, given_id=None) for s in samples]
    plan = plan_of(law, replace)
    want = [fate(plan, sample) for sample in samples]
    lengths = [len(sample.tokens) for sample in samples]
    lefts = [0, 7, 1, 3, 0]
    layouts = (packed(lengths), padded(lengths, lefts), padded(lengths, lefts, 6), left_aligned(lengths, 2))
    for layout in (*layouts, unnamed(padded(lengths, lefts, 3))):
        assert fates(plan, samples, layout) == want
    assert fates(plan, samples, padded(lengths, lefts, 6), fill=9) == want
    others = [samples[4], Sample([], [] if worded else None), samples[1], samples[4], samples[0]]
    if named:
        others[1] = changed(others[1], given_id=0)
    layout = packed([len(sample.tokens) for sample in others])
    assert fates(plan, others, layout) == [want[4], ([], [], []), want[1], want[4], want[0]]


def test_samples_that_touch_in_a_packed_batch_share_no_word_and_no_span() -> None:
    samples = [Sample([9] * 4, [5] * 4), Sample([20] * 5, [5] * 5), Sample([*[2] * 5, *[20] * 5], [5] * 10)]
    for law, replace in (
        (Bernoulli(0.6, unit="word"), Replace(0.3, 0.3, unit="word")),
        (ExactCount(0.7), Replace(0.3, 0.3, unit="span")),
        (Spans(0.7, Fixed(8)), Replace(0.3, 0.3, unit="span")),
    ):
        for sample in range(20):
            named = [changed(s, given_id=sample * 3 + i) for i, s in enumerate(samples)]
            plan = plan_of(law, replace)
            assert fates(plan, named, packed([4, 5, 10])) == [fate(plan, one) for one in named]


@every_law
def test_a_sample_without_an_id_has_that_of_its_content(law: Law, replace: Replace) -> None:
    samples = [changed(s, given_id=None) for s in some_samples(4, 30)]
    named = [changed(s, given_id=plain_content_id(s.tokens)) for s in samples]
    layout = packed([len(sample.tokens) for sample in samples])
    plan = plan_of(law, replace)
    assert fates(plan, samples, layout) == fates(plan, named, layout)


@every_law
def test_word_ids_are_compared_for_equality_only(law: Law, replace: Replace) -> None:
    plan = plan_of(law, replace)
    for sample in some_samples(4, 40):
        ids = [j // 2 for j in range(len(sample.tokens))]
        other = [(-1) ** value * 2**40 for value in ids]
        assert fate(plan, changed(sample, word_ids=other)) == fate(plan, changed(sample, word_ids=ids))


def test_offsets_move_the_fates_of_packed_samples_along_the_stream() -> None:
    plan = plan_of(Bernoulli(0.5))
    whole = [changed(sample, tokens=[9] * 40, offset=100 * r) for r, sample in enumerate(some_samples(3, 40))]
    chunks = [changed(s, tokens=s.tokens[i : i + 10], offset=s.offset + i) for s in whole for i in (0, 10, 20, 30)]
    rows = fates(plan, chunks, packed([10] * 12))
    for row, want in enumerate(fates(plan, whole, packed([40] * 3))):
        parts = zip(*rows[4 * row : 4 * row + 4], strict=True)
        assert tuple([value for chunk in column for value in chunk] for column in parts) == want


@every_law
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_dtypes_and_one_memory_for_input_and_output_decide_nothing(law: Law, replace: Replace, dtype: Any) -> None:
    samples = some_samples(4, 30)
    layout, plan = packed([len(sample.tokens) for sample in samples]), plan_of(law, replace)
    want = masked(plan, call_of(samples, layout))
    call = call_of(samples, layout, dtype=dtype)
    same(masked(plan, call).input_ids, want.input_ids)
    if dtype == np.uint16:
        return
    ids = call.ids.copy()
    out = Outputs(ids, np.empty(ids.size, np.int32))
    assert reference.mask_batch(plan, changed(call, ids=ids, in_place=True), out) is True
    same(ids, want.input_ids.astype(dtype))
    same(out.labels, want.labels.astype(np.int32))


# Nothing to do.


@every_law
def test_rows_without_candidates_come_back_as_they_were(law: Law, replace: Replace) -> None:
    rows = [[], [1], [1, 2, 3], [2, 0, 4, 4, 3], []]
    lengths = list(map(len, rows))
    for layout in (packed(lengths), padded(lengths, [1, 0, 2, 0, 3]), left_aligned(lengths, 1)):
        want = [(tokens, [-100] * len(tokens), [0] * len(tokens)) for tokens in rows]
        assert fates(plan_of(law, replace), [Sample(tokens) for tokens in rows], layout) == want


@every_law
def test_empty_batches_come_back_empty(law: Law, replace: Replace) -> None:
    plan = plan_of(law, replace)
    for layout in (
        packed([]),
        packed([0]),
        packed([0, 0, 0]),
        left_aligned([]),
        left_aligned([0, 0]),
        unnamed(padded([0, 0], [0, 0])),
    ):
        out = masked(plan, call_of([Sample([])] * len(layout.lengths), layout))
        same(out.input_ids, np.empty(0, np.int64))
        same(out.num_masked, np.zeros(len(layout.lengths), np.int64))


@pytest.mark.parametrize(
    "law",
    [Bernoulli(0), ExactCount(0), Spans(0, GEOMETRIC), Spans(1, GEOMETRIC, max_masked=0), ExactCount(1, max_masked=0)],
)
def test_a_law_of_nothing_changes_nothing(law: Law) -> None:
    samples = some_samples(4, 40)
    for sample, row in zip(
        samples, fates(plan_of(law), samples, packed([len(s.tokens) for s in samples])), strict=True
    ):
        assert row == (sample.tokens, [-100] * len(sample.tokens), [0] * len(sample.tokens))


@pytest.mark.parametrize("law", [Bernoulli(1), ExactCount(1), Spans(1, GEOMETRIC), Diffusion(1.0)])
def test_a_law_of_everything_selects_every_candidate(law: Law) -> None:
    samples = some_samples(4, 40)
    plan = plan_of(law, Replace(1, 0))
    for sample, row in zip(samples, fates(plan, samples, packed([len(s.tokens) for s in samples])), strict=True):
        assert row[2] == [int(j in sample.candidates) for j in range(len(sample.tokens))]


@every_law
@pytest.mark.parametrize("bad", [-1, 30, 2**40])
def test_where_an_id_is_out_of_range_nothing_is_written(law: Law, replace: Replace, bad: int) -> None:
    layout = packed([3, 0, 2])
    call = call_of([Sample([5, 6, 7]), Sample([]), Sample([8, bad])], layout)
    out = outputs_of(call)
    assert reference.mask_batch(plan_of(law, replace), call, Outputs(**out._asdict())) is False
    equal(out, outputs_of(call))
