"""What the README shows is what happens."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

import fastmask as fm

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```(python)?\n(.*?)```", README, re.DOTALL)
EXAMPLE, CALLS, RAGGED = (code for language, code in BLOCKS if language)


def run(code: str, names: dict[str, Any]) -> str:
    """What code prints; the names it binds are added to `names`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def test_no_mark_is_left_to_be_filled_in() -> None:
    assert "@@" not in README


def test_the_first_example_prints_what_stands_below_it() -> None:
    _, output = BLOCKS[1]
    assert run(EXAMPLE, {}) == output


def test_the_calls_shown_can_be_made() -> None:
    names: dict[str, Any] = {}
    run(EXAMPLE, names)
    ids = np.random.default_rng(0).integers(200, 30522, (4, 16))
    arrays: dict[str, Any] = {
        "input_ids": ids.copy(),
        "ids": np.arange(4),
        "lengths": np.array([16, 12, 8, 4]),
        "mask": np.arange(64).reshape(4, 16) % 5 == 0,
        "words": np.arange(64).reshape(4, 16) // 2,
        "flat_ids": np.random.default_rng(1).integers(200, 30522, 512),
        "rates": np.full(4, 0.5),
        "ids_out": np.empty((4, 16), np.int64),
        "labels_out": np.empty((4, 16), np.int64),
    }
    run(CALLS, names | arrays)
    np.testing.assert_array_equal(arrays["input_ids"], ids)
    chosen = arrays["labels_out"] != -100
    assert chosen.any()
    np.testing.assert_array_equal(arrays["ids_out"][~chosen], ids[~chosen])
    assert not chosen[arrays["mask"] | (np.arange(16) >= arrays["lengths"][:, None])].any()


def test_ragged_samples_are_collated_and_packed_as_shown() -> None:
    names: dict[str, Any] = {"rows": [np.arange(1000, 1000 + n) for n in (3, 700, 60)]}
    run(EXAMPLE, names)
    run(RAGGED, names)
    assert names["batch"].labels.shape == (3, 512)
    assert [part.samples for part in names["parts"]] == [(0, 3)]


def test_every_name_of_the_library_that_it_uses_exists() -> None:
    names = set(re.findall(r"\b(?:fm|fastmask)\.(\w+)", README))
    assert names
    modules = {name for name in names if importlib.util.find_spec(f"fastmask.{name}") is not None}
    assert not [name for name in names - modules if not hasattr(fm, name)]
