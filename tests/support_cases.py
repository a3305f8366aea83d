"""Laws, replacements and batches to try on any backend, and the worked examples of the design."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from plain_laws import Sample
from support_laws import Layout, left_aligned, packed, padded, plan_of, unnamed
from support_reference import ROW

from fastmask.laws import Bernoulli, Diffusion, ExactCount, Law, Spans
from fastmask.lengths import Fixed, Geometric, InverseLength
from fastmask.replace import Replace

WORDS = [0, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 9, 9, 10, 11, 12, 13]
EXAMPLE = Sample(ROW[:22], WORDS, given_id=9)
GEOMETRIC = Geometric(0.2, 10)
DEFAULT, BY_WORD, BY_SPAN = Replace(), Replace(0.4, 0.4, unit="word"), Replace(0.4, 0.4, unit="span")

# Each: law, replacement, seed, decisions, random ids by position.
WORKED: list[tuple[Law, Replace, int, list[int], dict[int, int]]] = [
    (Bernoulli(0.3), DEFAULT, 7, [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 3, 0, 1, 0, 0, 0], {}),
    (
        Bernoulli(0.05, min_masked=4),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {},
    ),
    (
        Bernoulli(0.5, max_masked=4),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {},
    ),
    (ExactCount(0.3), DEFAULT, 7, [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0], {}),
    (
        Bernoulli(0.3, unit="word"),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 2, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {5: 27},
    ),
    (
        ExactCount(0.3, unit="word"),
        DEFAULT,
        7,
        [0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        {5: 27},
    ),
    (
        ExactCount(0.3, unit="word"),
        BY_WORD,
        7,
        [0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0],
        {4: 14, 5: 27, 6: 27, 13: 29},
    ),
    (
        Spans(0.3, GEOMETRIC),
        DEFAULT,
        7,
        [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 2, 0],
        {20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC),
        BY_SPAN,
        7,
        [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 0, 2, 2, 0],
        {1: 9, 12: 12, 13: 29, 14: 5, 19: 21, 20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC, unit="word"),
        DEFAULT,
        7,
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 2, 0],
        {20: 9},
    ),
    (
        Spans(0.3, GEOMETRIC),
        DEFAULT,
        8,
        [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 1, 1, 0, 0, 0, 0, 0, 0],
        {13: 15},
    ),
]


PROBABILITIES = (0.0, 1e-6, 0.05, 0.15, 0.3, 0.5, 0.85, 1.0)


@st.composite
def laws(draw: st.DrawFn) -> Law:
    p, unit = draw(st.sampled_from(PROBABILITIES)), draw(st.sampled_from(["token", "word"]))
    least = draw(st.sampled_from([0, 0, 1, 3, 8, 100]))
    most = draw(st.none() | st.integers(least, least + 6))
    limits: dict[str, Any] = {"unit": unit, "min_masked": least, "max_masked": most}
    match draw(st.integers(0, 3)):
        case 0:
            return Bernoulli(p, **limits)
        case 1:
            counts = ["candidates", "sequence", None] + ["words"] * (unit == "word")
            return ExactCount(p, **limits, count_of=draw(st.sampled_from(counts)))
        case 2:
            lengths: list[Any] = [GEOMETRIC, InverseLength(3), Fixed(1), Fixed(5), Fixed(40), [0.0, 3.0, 0.0, 1e-3]]
            return Spans(p, draw(st.sampled_from(lengths)), **limits)
        case _:
            return Diffusion(draw(st.sampled_from([0.0, 1e-3, 0.7, 1.0])))


@st.composite
def replacements(draw: st.DrawFn, law: Law) -> Replace:
    if isinstance(law, Diffusion):
        return Replace(1.0, 0.0)
    mask, random = draw(st.sampled_from([(0.8, 0.1), (0.3, 0.4), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]))
    unit: Any = draw(st.sampled_from(["token", "token", "word", "span"]))
    return Replace(mask, random, unit=unit, exclude_original=draw(st.booleans()))


@st.composite
def batches(draw: st.DrawFn, law: Law, replace: Replace) -> tuple[list[Sample], Layout, int]:
    """Samples, where they lie, and the id of the padding."""
    lengths = draw(st.lists(st.integers(0, 26), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    worded, marked, named, own_rates, moved = (draw(st.booleans()) for _ in range(5))
    moved = moved and not isinstance(law, ExactCount | Spans) and plan_of(law, replace).by_token
    specials = draw(st.sampled_from([0.0, 0.1, 0.9]))
    values = np.array(draw(st.sampled_from([[0, 1], [-1, 7, 2**62], [5]])))
    samples = []
    for length in lengths:
        tokens = np.where(rng.random(length) < specials, rng.integers(1, 5, length), rng.integers(5, 30, length))
        samples.append(
            Sample(
                tokens.tolist(),
                rng.choice(values, length).tolist() if worded else None,
                (rng.integers(0, 8, length) // 7 * 255).tolist() if marked else None,
                int(rng.integers(0, 2**64, dtype=np.uint64)) if named else None,
                float(rng.choice(PROBABILITIES)) if own_rates and not isinstance(law, Diffusion) else None,
                int(rng.integers(0, 2**34 - 26)) if moved else 0,
            )
        )
    lefts, right = [draw(st.integers(0, 5)) for _ in lengths], draw(st.integers(0, 5))
    match draw(st.integers(0, 3)):
        case 0:
            return samples, packed(lengths), 0
        case 1:
            return samples, padded(lengths, lefts, right), draw(st.integers(0, 29))
        case 2:
            return samples, left_aligned(lengths, right), draw(st.integers(0, 29))
        case _:
            return samples, unnamed(padded(lengths, lefts, right)), 0
