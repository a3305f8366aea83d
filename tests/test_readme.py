"""What the README shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_first_example_prints_what_stands_below_it() -> None:
    code, output = re.findall(r"```(?:python)?\n(.*?)```", README, re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_every_name_of_the_library_that_it_uses_exists() -> None:
    import fastmask

    names = set(re.findall(r"\b(?:fm|fastmask)\.(\w+)", README))
    assert names
    assert not [name for name in names if not hasattr(fastmask, name)]
