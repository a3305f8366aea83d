"""What tests of the laws share: samples laid out in a batch, padded or packed, and what each of them became."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plain import IGNORED
from plain_laws import VOCAB, Row, Sample
from support import POISON, Array, all_same, same, same_batches
from support_reference import POISONS, Masked, equal, poisoned, sample_of

import fastmask as fm
from fastmask.call import Call, Outputs
from fastmask.kernels import reference
from fastmask.laws import Diffusion, Law, Spans
from fastmask.plan import Plan, make_plan
from fastmask.replace import Replace


@dataclass(frozen=True)
class Layout:
    """Where the samples of a batch lie in a flat array."""

    size: int
    firsts: list[int]
    lengths: list[int]
    call: dict[str, Any]

    def spread(self, rows: Sequence[Sequence[int]], dtype: Any, fill: int) -> Array:
        """The samples' values in their places, read-only, and `fill` in all others."""
        flat = np.full(self.size, fill, dtype)
        for first, row in zip(self.firsts, rows, strict=True):
            flat[first : first + len(row)] = row
        flat.flags.writeable = False
        return flat

    def parts(self, flat: Array) -> list[list[int]]:
        return [flat[first : first + length].tolist() for first, length in zip(self.firsts, self.lengths, strict=True)]


def packed(lengths: list[int]) -> Layout:
    bounds = np.cumsum([0, *lengths])
    rows = {"rows": len(lengths), "row_length": max(lengths, default=0), "boundaries": bounds}
    return Layout(int(bounds[-1]), bounds[:-1].tolist(), lengths, rows)


def padded(lengths: list[int], lefts: list[int], right: int = 0) -> Layout:
    """Rows in which sample r begins at column lefts[r]; the longest ends `right` columns before the end."""
    row_length = max(map(sum, zip(lengths, lefts, strict=True)), default=0) + right
    firsts = [row * row_length + left for row, left in enumerate(lefts)]
    rows = {"rows": len(lengths), "row_length": row_length}
    extents = {"starts": np.array(lefts, np.int64), "lengths": np.array(lengths, np.int64)}
    return Layout(len(lengths) * row_length, firsts, lengths, rows | extents)


def left_aligned(lengths: list[int], right: int = 0) -> Layout:
    layout = padded(lengths, [0] * len(lengths), right)
    del layout.call["starts"]
    return layout


def unnamed(layout: Layout) -> Layout:
    """The padded layout for a call that leaves it to the pad id to tell what is real."""
    return Layout(layout.size, layout.firsts, layout.lengths, {k: layout.call[k] for k in ("rows", "row_length")})


def plan_of(law: Law, replace: Replace | None = None, seed: int = 7) -> Plan:
    return make_plan(VOCAB, law, replace or Replace(), seed, IGNORED)


def call_of(samples: list[Sample], layout: Layout, fill: int = 0, epoch: int = 1, dtype: Any = np.int64) -> Call:
    """The call of samples that are alike in what they have beside their tokens; `fill` is the padding's id."""
    given: dict[str, Any] = {}
    if any(sample.word_ids is not None for sample in samples):
        given["word_ids"] = layout.spread([sample.word_ids or [] for sample in samples], np.int64, 0)
    if any(sample.marks is not None for sample in samples):
        given["special_tokens_mask"] = layout.spread([sample.marks or [] for sample in samples], np.uint8, 0)
    if any(sample.given_id is not None for sample in samples):
        given["sample_ids"] = sample_of(*(sample.id for sample in samples))
    if any(sample.p is not None for sample in samples):
        p = np.array([sample.p for sample in samples], np.float64)
        given |= {"rates": p, "thresholds": np.floor(p * 2**24 + 0.5).astype(np.uint32)}
    if any(sample.offset for sample in samples):
        given["offsets"] = sample_of(*(sample.offset for sample in samples))
    ids = layout.spread([sample.tokens for sample in samples], dtype, fill)
    return Call(ids, epoch=epoch, **layout.call, **given)


def outputs_of(call: Call, poison: int = 0x55) -> Masked:
    dtypes = {"input_ids": np.int64, "labels": np.int64, "decisions": np.uint8}
    arrays = {name: poisoned(call.ids.size, dtype, poison) for name, dtype in dtypes.items()}
    return Masked(**arrays, num_masked=poisoned(call.rows, np.int64, poison))


def masked(plan: Plan, call: Call) -> Masked:
    """What the reference makes of a call, whatever the outputs held before."""
    first, second = (outputs_of(call, poison) for poison in POISONS)
    for out in (first, second):
        assert reference.mask_batch(plan, call, Outputs(**out._asdict())) is True
    equal(first, second)
    return first


def rows_of(call: Call, layout: Layout, out: Masked) -> list[Row]:
    """What each sample became; the padding is as it was and the counts are those of the selected tokens."""
    rows = list(zip(*map(layout.parts, (out.input_ids, out.labels, out.decisions)), strict=True))
    given = layout.parts(call.ids)
    apart = layout.spread([[1] * length for length in layout.lengths], np.bool_, 0) == 0
    same(out.input_ids[apart], call.ids[apart].astype(np.int64))
    same(out.labels[apart], np.full(apart.sum(), IGNORED))
    same(out.decisions[apart], np.zeros(apart.sum(), np.uint8))
    same(out.num_masked, np.array([sum(d != 0 for d in row[2]) for row in rows], np.int64))
    for tokens, (_, labels, decisions) in zip(given, rows, strict=True):
        assert labels == [t if d else IGNORED for t, d in zip(tokens, decisions, strict=True)]
    return rows


def fates(plan: Plan, samples: list[Sample], layout: Layout, fill: int = 0, epoch: int = 1) -> list[Row]:
    """What the reference makes of each of some samples in a batch."""
    call = call_of(samples, layout, fill, epoch)
    return rows_of(call, layout, masked(plan, call))


def fate(plan: Plan, sample: Sample) -> Row:
    """What the reference makes of a sample alone."""
    return fates(plan, [sample], left_aligned([len(sample.tokens)]))[0]


def selected(row: Row) -> list[int]:
    return [j for j, decision in enumerate(row[2]) if decision]


def some_samples(rows: int, length: int, seed: int = 0, **given: Any) -> list[Sample]:
    """Samples of about `length` tokens, a few of them special, none at the ends the pad id."""
    rng = np.random.default_rng(seed)
    samples = []
    for row in range(rows):
        size = int(rng.integers(length // 2, length, endpoint=True))
        tokens = np.where(rng.random(size) < 0.12, rng.integers(0, 5, size), rng.integers(5, 30, size))
        tokens[[0, -1]] = 2, 3
        samples.append(Sample(tokens.tolist(), given_id=row * 2**31, **given))
    return samples


# Random batches for every backend of the host, at the public call and at the kernels.

RETURNS = ("decisions", "num_masked", "compact")
LENGTHS = (0, 1, 63, 0, 64, 65, 511, 512, 513, 1100, 2, 0)  # about the borders of chunks and tiles
LAYOUTS = ("left", "middle", "right", "pad id", "packed")


def wordy(vocab: fm.Vocab, beginnings: float = 0.4) -> fm.Vocab:
    """The vocabulary with a table of continuations, in which so many ids begin words."""
    table = np.random.default_rng(vocab.size).random(vocab.size) >= beginnings
    return fm.Vocab(vocab.size, vocab.mask_token_id, vocab.pad_token_id, vocab.special_token_ids, table)


@dataclass(frozen=True)
class Batch:
    """Random samples, where they lie, and what a call says of them beside that."""

    layout: Layout
    ids: Array  # flat
    cells: dict[str, Array]  # word_ids, special_tokens_mask: flat
    rows: dict[str, Array]  # rates, position_offset, sample_ids: one per sample

    @property
    def shape(self) -> tuple[int, ...]:
        call = self.layout.call
        return (self.layout.size,) if "boundaries" in call else (call["rows"], call["row_length"])

    @property
    def shaped(self) -> Array:
        return self.ids.reshape(self.shape).copy()

    @property
    def arguments(self) -> dict[str, Any]:
        """What a public call says."""
        call = self.layout.call
        if "boundaries" in call:
            said: dict[str, Any] = {"cu_seqlens": call["boundaries"]}
        elif "starts" in call:
            ones = self.layout.spread([[1] * length for length in self.layout.lengths], np.int64, 0)
            said = {"attention_mask": ones.reshape(self.shape)}
        else:
            said = {"lengths": call["lengths"]} if "lengths" in call else {}
        return said | {name: x.reshape(self.shape) for name, x in self.cells.items()} | self.rows

    def call(self, plan: Plan, epoch: int = 3) -> Call:
        """What a kernel reads."""
        given: dict[str, Any] = dict(self.cells)
        if "rates" in self.rows:
            rates = self.rows["rates"]
            given |= {"thresholds": np.floor(rates * 2**24 + 0.5).astype(np.uint32)}
            given = given if plan.law == "bernoulli" else self.cells | {"rates": rates}
        if "position_offset" in self.rows:
            given["offsets"] = self.rows["position_offset"].astype(np.uint64)
        if "sample_ids" in self.rows:
            given["sample_ids"] = self.rows["sample_ids"]
        return Call(self.ids, epoch=epoch, **self.layout.call, **given)


def layout_of(name: str, lengths: Sequence[int], rng: np.random.Generator) -> Layout:
    sizes = list(lengths)
    lefts = rng.integers(0, 8, len(sizes)).tolist()
    match name:
        case "left":
            return left_aligned(sizes, right=3)
        case "middle":
            return padded(sizes, lefts, right=2)
        case "right":
            return padded(sizes, [max(sizes, default=0) - length for length in sizes])
        case "pad id":
            return unnamed(padded(sizes, lefts, right=2))
        case _:
            return packed(sizes)


def random_batch(
    seed: Any,
    vocab: fm.Vocab,
    layout: str,
    lengths: Sequence[int] = LENGTHS,
    beginnings: float | None = 0.4,
    specials: float = 0.1,
    **said: bool,
) -> Batch:
    """Samples of these lengths, and what is said of them: any of marks, rates, offsets and named.

    `beginnings` is the share of cells at which a word begins, None for a call without word ids. Padding that a call
    names holds an ordinary id, so that a kernel that reads it is found out.
    """
    rng = np.random.default_rng(seed)
    where = layout_of(layout, lengths, rng)
    ordinary = np.delete(np.arange(vocab.size), list(vocab.special_token_ids))
    tokens = rng.choice(ordinary, where.size)
    tokens = np.where(rng.random(where.size) < specials, rng.choice(vocab.special_token_ids, where.size), tokens)
    fill = int(vocab.pad_token_id or 0) if layout == "pad id" else int(ordinary[0])
    flat = np.full(where.size, fill)
    for first, length in zip(where.firsts, where.lengths, strict=True):
        flat[first : first + length] = tokens[first : first + length]
        if layout == "pad id" and length:
            flat[[first, first + length - 1]] = ordinary[1]
    cells: dict[str, Array] = {}
    if beginnings is not None:
        cells["word_ids"] = np.cumsum(rng.random(where.size) < beginnings)
    if said.get("marks"):
        cells["special_tokens_mask"] = (rng.random(where.size) < 0.2).astype(np.uint8) * np.uint8(3)
    rows: dict[str, Array] = {}
    samples = len(where.lengths)
    if said.get("rates"):
        rows["rates"] = rng.choice([0.0, 0.1, 0.3, 0.5, 1.0], samples)
    if said.get("offsets"):
        rows["position_offset"] = rng.integers(0, 1 << 33, samples)
    if said.get("named"):
        rows["sample_ids"] = rng.integers(0, (1 << 64) - 1, samples, np.uint64, endpoint=True)
    return Batch(where, flat, cells, rows)


def allowed(law: Law, said: dict[str, bool]) -> dict[str, Any]:
    """What is said, less what the law does not take."""
    refused = {Diffusion: "rates", Spans: "offsets"}.get(type(law))
    return {name: yes and name != refused for name, yes in said.items()}


def agree(masker: fm.Masker, batch: Batch, epoch: int = 3) -> fm.MaskedBatch:
    """What the "cpu" backend makes of a batch: in every output the bits of the reference, whatever was there."""
    returns = RETURNS + ("rates",) * isinstance(masker.select, Diffusion)
    call: dict[str, Any] = {"epoch": epoch, "returns": returns, **batch.arguments}
    want = masker(batch.shaped, backend="numpy", **call)
    out = np.full(batch.shape, POISON), np.full(batch.shape, POISON, masker.label_dtype)
    ids = batch.shaped
    got = masker(ids, backend="cpu", out=out, **call)
    same(ids, batch.shaped)
    same_in_all(got, want)
    return got


def same_in_all(got: fm.MaskedBatch, want: fm.MaskedBatch) -> None:
    """Two batches are equal, the compact targets and the rates too."""
    same_batches(got, want)
    assert (got.compact is None) == (want.compact is None)
    if got.compact is not None and want.compact is not None:
        all_same(tuple(got.compact), tuple(want.compact))
    for name in ("rates", "weights"):
        same(np.asarray(getattr(got, name)), np.asarray(getattr(want, name)))
