"""Batches at borders: equal words, draws that equal a threshold, attempts that run out, blocks of a few threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from plain_laws import VOCAB
from support import same
from support_devices import agree_on_device, launches_of
from support_laws import Batch, left_aligned, packed, unnamed

import fastmask as fm
from device.memory import memory
from fastmask.call import Call, Compact, Outputs
from fastmask.kernels import reference
from fastmask.laws import Law
from fastmask.plan import make_plan

EPOCH, SEED = 0xABCDEF, 7
BARE = fm.Vocab(60, 4, None, (30,), np.arange(60) % 3 == 0)  # without padding whole rows of quads stay whole
PROBABLE = 1 - 2**-24
ALONE, THIRTY_TWO, MANY = (8, 1, 1), (32, 1, 1), (128, 1, 1)  # threads of a block; blocks, at most and at least


def one_row(length: int, sample: int, by_word: bool = False) -> Batch:
    """A sample of ordinary tokens, each a word where it is by word."""
    ids = np.random.default_rng(length).integers(5, 30, length)
    cells = {"word_ids": np.arange(length)} if by_word else {}
    return Batch(packed([length]), ids, cells, {"sample_ids": np.array([sample], np.uint64)})


def whole_rows(seed: int, rows: int, length: int, **given: Any) -> Batch:
    """Samples of ordinary tokens that fill their rows, of which a call says nothing but what is given."""
    ids = np.random.default_rng(seed).integers(5, 30, rows * length)
    return Batch(unnamed(left_aligned([length] * rows)), ids, {}, {k: np.array(x) for k, x in given.items()})


def mask_equal_words() -> None:
    """Two words of a row are equal, so many are below them, and the cut goes between the two."""
    for sample, length, rank in ((5258, 1500, 1312), (9813, 1500, 1431), (10099, 1500, 338)):
        laws: list[Law] = [
            fm.ExactCount((rank + 1) / length),
            fm.Bernoulli(0, "token", rank + 1),
            fm.Bernoulli(1, "token", 0, rank + 1),
            fm.ExactCount((rank + 1) / length, "word"),
            fm.Bernoulli(1, "word", 0, rank + 1),
        ]
        for number, law in enumerate(laws):
            agree_on_device(fm.Masker(VOCAB, law, seed=SEED), one_row(length, sample, number > 2), EPOCH, THIRTY_TWO)


def mask_at_thresholds() -> None:
    """A number is the threshold of selection or of a share, or would be but for the rounding of a product."""
    seed, positions = 8, np.arange(8)  # with an odd seed arrays would begin off the borders of 16 bytes
    words = reference.words(seed, EPOCH, 5, positions, reference.SELECT)
    mixed = (reference.mixed(words, positions) >> np.uint32(8)).tolist()
    for draw, other in zip(reference.draw(words, positions).tolist(), mixed, strict=True):
        p, above = draw / 2**24, (draw + 1) / 2**24
        for chance, shares in [
            (p, (0.4, 0.4)), (1, (p, 0)), (1, (0, p)), (PROBABLE, (above, 0)), (PROBABLE, (0, above)),
        ]:  # fmt: skip
            for law, batch in [
                (fm.Bernoulli(chance), whole_rows(1, 1, 8, sample_ids=5)),  # in quads
                (fm.Bernoulli(chance), one_row(8, 5)),
                (fm.Bernoulli(chance, "token", 0, 8), one_row(8, 5)),
            ]:
                agree_on_device(fm.Masker(BARE, law, fm.Replace(*shares), seed=seed), batch, EPOCH, ALONE)
        for shares in ((other / 2**24, 0), (0, other / 2**24)):
            masker = fm.Masker(BARE, fm.ExactCount(1), fm.Replace(*shares), seed=seed)
            agree_on_device(masker, one_row(8, 5), EPOCH, ALONE)


def mask_where_attempts_run_out() -> None:
    """Spans of one token leave out more than the `spared` tokens that need not be selected."""
    for length, spared, samples, shape in [
        (1000, 2, (15052, 18435), ALONE),  # four are left
        (120, 2, (14021, 145876, 254689, 328979, 426477), MANY),  # three
        (127, 2, (238171, 251994), MANY),  # three, and one thread of the block has no token
        (120, 0, (3190, 8821), MANY),  # two
    ]:
        masker = fm.Masker(VOCAB, fm.Spans((length - spared) / length, fm.Fixed(1)), seed=SEED)
        for sample in samples:
            agree_on_device(masker, one_row(length, sample), EPOCH, shape)


def mask_lone_tokens() -> None:
    """One real token a row, in every column, between two runs of padding; blocks of one thread and of two among all."""
    ids = np.diag(np.arange(5, 28))
    batch = Batch(unnamed(left_aligned([23] * 23)), ids.reshape(-1), {}, {})
    for threads in (1, 2, 8):
        for law in (fm.ExactCount(1), fm.Spans(1, fm.Fixed(2))):
            agree_on_device(fm.Masker(VOCAB, law, seed=SEED), batch, EPOCH, (threads, 3, 1))


def mask_in_blocks_of_few_threads() -> None:
    laws: list[Law] = [fm.ExactCount(0.5, "word"), fm.Bernoulli(0.4, "token", 3, 6), fm.Spans(0.5, fm.Fixed(2), "word")]
    for threads in (1, 2):
        for law in laws:
            masker = fm.Masker(BARE, law, fm.Replace(0.3, 0.4, unit="span"), seed=SEED)
            agree_on_device(masker, whole_rows(threads, 4, 21), EPOCH, (threads, 3, 1))


def mask_where_nothing_is_special() -> None:
    """For callers of the kernels: a plan without a run of special ids, which no vocabulary has."""
    from fastmask.kernels import cuda

    laws: list[Any] = [
        fm.Bernoulli(0.5),
        fm.Bernoulli(0.5, "word"),
        fm.ExactCount(0.4, "word"),
        fm.Spans(0.4, fm.Fixed(2)),
    ]
    for number, (law, length) in enumerate((law, length) for law in laws for length in (24, 23)):
        plan = make_plan(BARE, law, fm.Replace(0.3, 0.4), SEED, -100)
        plan = replace(plan, special_ids=(), special_runs=np.zeros((0, 2), np.uint32))
        rng = np.random.default_rng(number)
        ids, words, marks = rng.integers(0, 60, (3, 3 * length))
        given: dict[str, Any] = {"ids": ids, "sample_ids": np.arange(5, 8, dtype=np.uint64)}
        given["lengths"] = np.array([length, 0, 7])
        if number % 2:
            given["starts"] = length - given["lengths"]
        if number % 4 < 2:
            given["special_tokens_mask"] = (marks < 9).astype(np.uint8)
        if law.unit == "word":
            given["word_ids"] = (words // 40 << 32) + words % 2
        want, got = (_outputs(ids, np.zeros(3, np.int64), place) for place in (np.array, memory().to_device))
        reference.mask_batch(plan, Call(rows=3, row_length=length, epoch=EPOCH, **given), want)
        there: dict[str, Any] = {name: memory().to_device(x) for name, x in given.items()}
        with launches_of(ALONE if number % 3 else THIRTY_TWO):
            cuda.mask_batch(plan, Call(rows=3, row_length=length, epoch=EPOCH, **there), got)
        for name in ("input_ids", "labels", "decisions", "num_masked"):
            same(getattr(got, name).copy_to_host(), getattr(want, name))


def _outputs(ids: Any, counts: Any, place: Any) -> Outputs:
    return Outputs(*(place(x) for x in (ids, ids, ids.astype(np.uint8), counts)))


def list_targets_that_nobody_counts() -> None:
    """For callers of the kernels: `num_masked` is None. Five slots a row are too few, which is for them to see."""
    from fastmask.kernels import cuda

    plan, (rows, length) = make_plan(VOCAB, fm.Bernoulli(0.5), fm.Replace(), SEED, -100), (3, 21)
    decisions = np.random.default_rng(0).integers(0, 4, rows * length).astype(np.uint8)
    ids = np.arange(rows * length)
    call, out = Call(ids, rows, length, epoch=EPOCH), Outputs(ids, np.where(decisions > 0, ids, -100), decisions)
    for width in (None, 5, 21):
        slots = rows * (width or length)
        got = _targets(slots, width, memory().to_device)
        on_device = Outputs(*map(memory().to_device, (out.input_ids, out.labels, decisions)))
        cuda.compact(plan, call, on_device, got)
        if width != 5:
            want = _targets(slots if width else int((decisions > 0).sum()), width, np.array)
            reference.compact(plan, call, out, want)
            for name in ("positions", "ids", "weights"):
                same(getattr(got, name).copy_to_host()[: want.ids.size], getattr(want, name))


def _targets(slots: int, width: int | None, place: Any) -> Compact:
    positions, ids, weights = (place(np.full(slots, 7, dtype)) for dtype in (np.int64, np.int64, np.float32))
    return Compact(positions, ids, weights, width)


def mask_at_borders() -> None:
    """All of the above."""
    mask_equal_words()
    mask_at_thresholds()
    mask_where_attempts_run_out()
    mask_lone_tokens()
    mask_in_blocks_of_few_threads()
    mask_where_nothing_is_special()
    list_targets_that_nobody_counts()
