"""Why a token got its fate: the draws, the thresholds, the unit and its rank, and the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastmask import validate
from fastmask.call import Arguments, Call, row_of
from fastmask.kernels import fate, reference, reference_rows, reference_stream
from fastmask.plan import Plan
from fastmask.thresholds import ALWAYS
from fastmask.vocab import integer

if TYPE_CHECKING:
    from fastmask.masker import Masker

DECISIONS = {fate.UNTOUCHED: "untouched", fate.MASKED: "MASK", fate.RANDOM: "random", fate.KEPT: "kept"}


@dataclass(frozen=True)
class Explanation:
    """What decided about one token.

    Attributes:
        row, column: where it lies; of packed ids the segment, and the place in the array.
        position: its position in the sample, with the offset; None in padding.
        sample_id: given, or computed from the content.
        token, new_token: its id before and after.
        word, draw, mixed: its random numbers: 32 bits, the upper 24 of them, and the second number; None in padding.
        threshold: the draw of a unit must lie below it for the law to choose the unit, in units of 2^-24; None for laws
            that count.
        unit: the first and last column of its unit; None where it is no candidate.
        rank: the place of its unit, from 0, in the order in which units are taken; None where it is no candidate.
        units, candidates, selected: how many there are in its sample.
        decision: "untouched", "MASK", "random" or "kept".
        reason: all this in words; also `str()` of the explanation.
    """

    row: int
    column: int
    position: int | None
    sample_id: int
    token: int
    new_token: int
    word: int | None
    draw: int | None
    mixed: int | None
    threshold: int | None
    unit: tuple[int, int] | None
    rank: int | None
    units: int
    candidates: int
    selected: int
    decision: str
    reason: str

    def __str__(self) -> str:
        return self.reason


def explain(masker: Masker, input_ids: Any, row: int, column: int, arguments: Arguments) -> Explanation:
    """The explanation of one token of a batch in host memory. IndexError for a place outside the batch."""
    plan = masker.plan
    ids = validate.checked_ids(input_ids)
    call = validate.host_call(plan, ids, reference.real_runs, arguments)
    if not validate.ids_in_range(ids, plan.size):
        raise validate.id_error(ids, plan.size)
    row, column = _checked_place(call, integer("row", row), integer("column", column))
    return _Row(plan, row_of(call, row), row, _first_column(call, row)).explanation(column)


def _first_column(call: Call, row: int) -> int:
    return 0 if call.boundaries is None else int(call.boundaries[row])


def _checked_place(call: Call, row: int, column: int) -> tuple[int, int]:
    if not 0 <= row < call.rows:
        raise IndexError(f"row must be in [0, {call.rows}), got {row}")
    first = _first_column(call, row)
    end = call.row_length if call.boundaries is None else int(call.boundaries[row + 1])
    if not first <= column < end:
        raise IndexError(f"column must be in [{first}, {end}), got {column}")
    return row, column


class _Row:
    """One row, masked by the reference, and what its candidates drew."""

    def __init__(self, plan: Plan, call: Call, row: int, first_column: int) -> None:
        self.plan, self.call, self.row, self.first_column = plan, call, row, first_column
        self.ids = call.ids.astype(np.int64)
        first, length = reference_rows.sample_runs(plan, call, self.ids)
        self.first, self.length = int(first[0]), int(length[0])
        self.sample_id = int(reference.sample_ids_of(plan, call)[0])
        self.offset = 0 if call.offsets is None else int(call.offsets[0])
        self.tokens, self.decisions, random_ids = reference.decide(plan, call, self.ids)
        self.new_ids = self.ids.copy()
        self.new_ids[self.tokens.cells[self.decisions == fate.MASKED]] = plan.mask_id
        self.new_ids[self.tokens.cells[self.decisions == fate.RANDOM]] = random_ids
        places = self.tokens.positions + self.offset
        block = reference_stream.words(plan.seed, call.epoch, self.sample_id, places, reference_stream.SELECT)
        self.words = reference_stream.word(block, places)
        below = reference_stream.draw(block, places) < reference.selects(plan, call)[0]
        self.by_draw = reference.by_first_rule(plan, self.tokens, self.decisions != fate.UNTOUCHED, below)
        self.begins = np.ones(self.tokens.cells.size, np.bool_)
        if plan.unit == "word":
            self.begins = reference_rows.word_begins(plan, call, self.ids, self.tokens)

    def numbers(self, position: int) -> tuple[int, int, int]:
        """word, draw and mixed of a position of the stream."""
        place = np.array([position])
        block = reference_stream.words(self.plan.seed, self.call.epoch, self.sample_id, place, reference_stream.SELECT)
        word, draw = int(reference_stream.word(block, place)[0]), int(reference_stream.draw(block, place)[0])
        return word, draw, int(reference_stream.mixed(block, place)[0])

    def unit_of(self, index: int) -> tuple[int, int, int]:
        """The first and last candidate of the unit that a candidate belongs to, and the unit's rank."""
        firsts = np.flatnonzero(self.begins)
        unit = int(np.searchsorted(firsts, index, side="right")) - 1
        last = int(np.append(firsts, self.begins.size)[unit + 1]) - 1
        order = np.argsort(self.words[firsts], kind="stable")
        return int(firsts[unit]), last, int(np.flatnonzero(order == unit)[0])

    def explanation(self, column: int) -> Explanation:
        """Of the token in a column of the batch."""
        cell = column - self.first_column
        real = self.first <= cell < self.first + self.length
        position = cell - self.first + self.offset if real else None
        word, draw, mixed = (None, None, None) if position is None else self.numbers(position)
        found = np.flatnonzero(self.tokens.cells == cell)
        unit = rank = None
        decision = fate.UNTOUCHED
        if found.size:
            first, last, rank = self.unit_of(int(found[0]))
            unit = tuple(int(c) + self.first_column for c in self.tokens.cells[[first, last]])
            decision = int(self.decisions[found[0]])
        counting = self.plan.law in ("exact_count", "spans")
        threshold = None if counting else int(reference.selects(self.plan, self.call)[0])
        known: dict[str, Any] = {
            "row": self.row,
            "column": column,
            "position": position,
            "sample_id": self.sample_id,
            "token": int(self.ids[cell]),
            "new_token": int(self.new_ids[cell]),
            "word": word,
            "draw": draw,
            "mixed": mixed,
            "threshold": threshold,
            "unit": unit,
            "rank": rank,
            "units": int(self.begins.sum()),
            "candidates": self.begins.size,
            "selected": int(np.count_nonzero(self.decisions)),
            "decision": DECISIONS[decision],
        }
        return Explanation(**known, reason=self._reason(known, cell))

    def _reason(self, known: dict[str, Any], cell: int) -> str:
        if known["position"] is None:
            return "padding: never touched"
        if known["unit"] is None:
            special = known["token"] in self.plan.special_ids
            return "a special id: never touched" if special else "special_tokens_mask is not 0 here: never touched"
        index = int(np.searchsorted(self.tokens.cells, cell))
        return f"{self._why_selected(known, cell)}; {self._why_replaced(known, bool(self.by_draw[index]))}"

    def _why_selected(self, known: dict[str, Any], cell: int) -> str:
        selected = known["decision"] != "untouched"
        first = int(known["unit"][0]) - self.first_column
        draw = self.numbers(first - self.first + self.offset)[1]
        which = "its draw" if first == cell else f"the draw of its word's first position, column {known['unit'][0]},"
        place = f"{self.plan.unit} {known['rank'] + 1} of {known['units']} in the order of random words"
        if self.plan.law == "spans":
            held = "covered by a span, or by the fill-up" if selected else "covered by no span"
            return f"{held}: {known['selected']} of {known['candidates']} candidates are the budget"
        if self.plan.law == "exact_count":
            return f"{place}, of which the first are taken, {known['selected']} tokens in all"
        chosen = draw < known["threshold"]
        sign = "<" if chosen else ">="
        text = f"{which} {draw} {sign} {known['threshold']}, the threshold in units of 2^-24"
        if chosen != selected:
            text += f", but {'max_masked leaves it out' if chosen else 'min_masked adds it'}: it is {place}"
        return text

    def _why_replaced(self, known: dict[str, Any], by_draw: bool) -> str:
        if known["decision"] == "untouched":
            return "not selected, so it stays and its label is ignored"
        shares = f"shares {self.plan.mask_share / ALWAYS:.4g} and {self.plan.random_share / ALWAYS:.4g} are the borders"
        outcome = {
            "MASK": "becomes MASK",
            "random": f"becomes the random id {known['new_token']}",
            "kept": "is selected and stays as it is",
        }[known["decision"]]
        by = {"token": "", "word": " of its word", "span": " of its span"}[self.plan.replace_unit]
        number = "the draw itself" if by_draw else f"the second number{by}"
        return f"{outcome}, as {number} says ({shares})"
