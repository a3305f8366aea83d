"""Any law on any batch: the CPU leaves the bits of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_laws import VOCAB
from support import BERT, SCATTERED, SMALL
from support_devices import Agree
from support_laws import LAYOUTS, allowed, random_batch, wordy

import fastmask as fm
from fastmask.laws import Law

PROBABILITIES = (0.0, 1e-6, 0.05, 0.15, 0.3, 0.5, 0.85, 1.0)
SHARES = ((0.8, 0.1), (0.3, 0.4), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.3, 0.7))
CUTS = (0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 200, 511, 512, 513, 700)
VOCABS = (VOCAB, SMALL, wordy(SCATTERED), wordy(BERT), fm.Vocab(30522, 103))


@st.composite
def laws(draw: st.DrawFn, unit: Any) -> Law:
    p = draw(st.sampled_from(PROBABILITIES) | st.floats(2.0**-24, 1))
    least = draw(st.sampled_from([0, 0, 1, 3, 20, 130]))
    most = draw(st.none() | st.sampled_from([0, 1, 2, 7, 64, 90, 400]).map(lambda more: least + more))
    limits: dict[str, Any] = {"unit": unit, "min_masked": least, "max_masked": most}
    match draw(st.integers(0, 6)):
        case 0 | 1:
            return fm.Bernoulli(p, **limits)
        case 2 | 3:
            counts = [None, "candidates", "sequence"] + ["words"] * (unit == "word")
            return fm.ExactCount(p, **limits, count_of=draw(st.sampled_from(counts)))
        case 4 | 5:
            simple = st.integers(1, 100).map(fm.Fixed) | st.integers(1, 12).map(fm.InverseLength)
            weights = st.lists(st.sampled_from([0.0, 1e-3, 1.0, 3.0]), max_size=90).map(lambda x: [*x, 1.0])
            return fm.Spans(p, draw(st.just(fm.Geometric(0.2, 10)) | simple | weights), **limits)
        case _:
            return fm.Diffusion(draw(st.sampled_from([0.0, 1e-3, 0.7, 1.0])))


@st.composite
def replacements(draw: st.DrawFn, vocab: fm.Vocab, units: list[Any]) -> fm.Replace:
    how: dict[str, Any] = {"unit": draw(st.sampled_from(units)), "exclude_original": draw(st.booleans())}
    pool: Any = draw(st.sampled_from([None, None, "vocab", range(5, 25), tuple(range(5, 29, 2))]))
    if draw(st.integers(0, 3)) == 0:
        size = vocab.size if pool is None or pool == "vocab" else len(pool)
        how["weights"] = np.random.default_rng(draw(st.integers(0, 99))).random(size)
    return fm.Replace(*draw(st.sampled_from(SHARES)), pool=pool, **how)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_law_on_any_batch_gives_the_bits_of_the_reference(data: st.DataObject, agree: Agree) -> None:
    draw = data.draw
    layout = draw(st.sampled_from(LAYOUTS))
    vocab = draw(st.sampled_from([v for v in VOCABS if layout != "pad id" or v.pad_token_id is not None]))
    beginnings = draw(st.sampled_from([None, 0.0, 0.02, 0.3, 0.9]))
    words = ["word"] * (beginnings is not None or vocab.is_continuation is not None)
    law = draw(laws(draw(st.sampled_from(["token", *words]))))
    replace = draw(replacements(vocab, ["token", "span", *words]))
    if isinstance(law, fm.Diffusion):
        replace = fm.Replace(1, 0)
    said = {name: draw(st.booleans()) for name in ("marks", "rates", "offsets", "named")}
    lengths = draw(st.lists(st.sampled_from(CUTS) | st.integers(0, 1200), max_size=5))
    specials = draw(st.sampled_from([0.0, 0.01, 0.3, 0.9]))
    seed, epoch = draw(st.integers(0, (1 << 64) - 1)), draw(st.integers(0, (1 << 24) - 1))
    batch = random_batch(seed, vocab, layout, lengths, beginnings, specials, **allowed(law, said))
    agree(fm.Masker(vocab, law, replace, seed), batch, epoch)
