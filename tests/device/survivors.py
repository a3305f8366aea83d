"""The list of the mutants that no launch tells from the kernel as it is, and why they live."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).with_name("survivors.md")
UNKNOWN = "not looked into"
WRITE = "FASTMASK_LIST_SURVIVORS"  # set: the list is written anew, with the reasons that it has

HEAD = """\
# Mutants that live on

`tests/device/test_mutants.py` changes one instruction of a kernel at a time, for sm_90, and looks for a launch that
tells. With nvidia-nvvm {version}, {alive} of {count} pass unnoticed; {share:.1%} are caught. Each that is listed equals
the kernel as it is in all that it is launched with, or differs where no launch could be made to go, as is said.
`{write}=1 python -m pytest -m slow tests/device/test_mutants.py` writes this list anew.

| mutant | reason |
| --- | --- |
"""


def reasons() -> dict[str, str]:
    """Why the listed mutants live."""
    return dict(re.findall(r"^\| `(.*)` \| (.*) \|$", LIST.read_text(), re.MULTILINE))


def listed(survivors: Iterable[str], count: int, version: str) -> str:
    """The list of these survivors of so many mutants, with the reasons that are known."""
    known, alive = reasons(), list(survivors)
    lines = [f"| `{survivor}` | {known.get(survivor, UNKNOWN)} |\n" for survivor in alive]
    head = HEAD.format(version=version, alive=len(alive), count=count, share=1 - len(alive) / count, write=WRITE)
    return head + "".join(lines)
