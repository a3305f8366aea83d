"""Masked sentences for people: what became of a token is told by colour and by mark."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from fastmask.cli.text import Rows, Words
from fastmask.cli.timing import Masked
from fastmask.kernels.fate import KEPT, MASKED, RANDOM, UNTOUCHED

STYLES = {MASKED: "bold cyan", RANDOM: "bold magenta", KEPT: "bold green"}
LOOKED_AT = 2000  # sentences
CLOSING = frozenset(".,;:!?)]}")


def legend(arrow: str) -> Text:
    """What the marks mean."""
    return Text.assemble(
        ("[MASK]", STYLES[MASKED]),
        " masked   ",
        (f"original{arrow}random", STYLES[RANDOM]),
        " replaced   ",
        ("kept=", STYLES[KEPT]),
        " left as it is, and still to be predicted",
    )


def sentence(row: int, first: int, last: int, rows: Rows, words: Words, masked: Masked, arrow: str) -> Text:
    """Columns first .. last - 1 of a row, masked tokens marked."""
    line = Text()
    for column in range(first, last):
        original = words.spell(int(rows.ids[row, column]))
        fate = int(masked.decisions[row, column])
        new = words.spell(int(masked.input_ids[row, column]))
        marked = {MASKED: "[MASK]", RANDOM: f"{original}{arrow}{new}", KEPT: f"{original}="}
        if column > first and not (fate == UNTOUCHED and original in CLOSING):
            line.append(" ")
        line.append(marked.get(fate, original), STYLES.get(fate))
    return line


def chosen(rows: Rows, words: Words, masked: Masked, count: int) -> list[tuple[int, int, int]]:
    """Row, first column and last + 1 of sentences worth showing: prose, with as many fates as there are."""
    known = [(int(row), int(first), int(last)) for row, first, last in rows.sentences[:LOOKED_AT]]
    left = 0 if words.cls is None else 1
    known = known or [(row, left, int(length)) for row, length in enumerate(rows.lengths[:count])]

    def worth(place: tuple[int, int, int]) -> tuple[bool, int]:
        row, first, last = place
        fates = np.unique(masked.decisions[row, first:last])
        return _is_prose(rows.ids[row, first:last].tolist(), words), int(np.count_nonzero(fates))

    return sorted(known, key=worth, reverse=True)[:count]


def _is_prose(ids: list[int], words: Words) -> bool:
    """True for 8 to 32 tokens, most of them words."""
    return 8 <= len(ids) <= 32 and sum(any(map(str.isalpha, words.spell(i))) for i in ids) >= 0.8 * len(ids)
