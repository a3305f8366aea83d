"""Each operation in plain NumPy, slow and obvious: what the compiled backends are checked against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastmask.kernels import reference_laws as laws
from fastmask.kernels.reference_collate import count_positions, find_arrays, pad_rows, padded_cells, read_lists
from fastmask.kernels.reference_rows import (
    adjoining,
    candidates,
    content_ids,
    ids_of_runs,
    real_runs,
    real_tokens,
    sample_runs,
    trim_padding,
    word_begins,
)
from fastmask.kernels.reference_stream import (
    RATE,
    SELECT,
    STRATUM,
    draw,
    extra,
    mixed,
    philox,
    pick,
    pick_number,
    word,
    words,
)

__all__ = [
    "SELECT",
    "apply_supplied",
    "collate_batch",
    "compact",
    "content_ids",
    "count_positions",
    "draw",
    "drawn_tokens",
    "extra",
    "find_arrays",
    "mask_batch",
    "mixed",
    "pad_rows",
    "philox",
    "pick",
    "read_lists",
    "real_runs",
    "sample_rates",
    "spread",
    "thresholds",
    "trim_padding",
    "word",
    "words",
]

UNTOUCHED, MASKED, RANDOM, KEPT = range(4)
ALWAYS = 1 << 24  # the threshold of probability 1


def sample_ids_of(plan, call):
    """The sample ids of a call, uint64 (rows,): those given, else those of the content."""
    if call.sample_ids is not None:
        return call.sample_ids
    return ids_of_runs(call.ids, *sample_runs(plan, call, call.ids))


def sample_rates(plan, call):
    """The T of Diffusion, in units of 2^-24, for each sample of a call: uint32 (rows,), in [T_lo, 2^24]."""
    w0 = words(plan.seed, call.epoch, sample_ids_of(plan, call), 0, RATE)[0].astype(np.uint64)
    if call.strata is not None:
        shift = words(plan.seed, call.epoch, call.step, 0, STRATUM)[0].astype(np.uint64)
        w0 = shift + call.strata & 0xFFFFFFFF
    return (plan.least_rate + (w0 * (ALWAYS - plan.least_rate) >> 32)).astype(np.uint32)


def selects(plan, call):
    """The threshold of selection by draw of each sample, uint64 (rows,): given, drawn (Diffusion), or the plan's."""
    if call.thresholds is not None:
        return call.thresholds.astype(np.uint64)
    if plan.law == "diffusion":
        return sample_rates(plan, call).astype(np.uint64)
    return np.full(call.rows, plan.select, np.uint64)


def nested(plan, select):
    """(t_mask, t_random, select), uint64 arrays: the shares cut the intervals [0, select) of a uint64 array."""
    return *(select * share + (1 << 23) >> 24 for share in (plan.mask_share, plan.random_share)), select


def thresholds(plan, call):
    """(t_mask, t_random, select), three uint64 arrays (rows,) that cut the interval of a row's draws.

    A draw below t_mask means MASK, below t_random a random token, below select a kept one, else not selected.
    """
    return nested(plan, selects(plan, call))


def drawn_tokens(plan, originals, mixed_words):
    """The pool ids that replace the originals, int64 (n,); with `exclude_original` never the original itself.

    Args:
        plan: Plan.
        originals: (n,) int64, the ids to be replaced.
        mixed_words: (n,) uint32, `mixed` of each token's own position.
    """
    if originals.size == 0:
        return originals
    pool = plan.pool.astype(np.int64)
    rank = np.minimum(np.searchsorted(pool, originals), pool.size - 1)
    excluded = (pool[rank] == originals) & plan.exclude_original
    if plan.cumulative.size == 0:
        index = pick(mixed_words, pool.size - excluded)
        return pool[index + (excluded & (index >= rank))]
    below = np.concatenate([np.zeros(1, np.uint64), plan.cumulative[:-1]])
    removed = np.where(excluded, (plan.cumulative - below)[rank], np.uint64(0))
    x = pick_number(mixed_words) * (np.uint64(1 << 32) - removed) >> 32
    x += np.where(x >= below[rank], removed, np.uint64(0))
    return pool[np.searchsorted(plan.cumulative, x, side="right")]


def by_first_rule(plan, tokens, selected, below):
    """Which selected candidates are cut by the very draw that selected them, bool.

    Args:
        plan: Plan.
        tokens: Tokens, the candidates of a batch.
        selected: bool per candidate.
        below: bool per candidate, whether its draw is below its sample's threshold.
    """
    if plan.law not in ("bernoulli", "diffusion") or plan.unit != "token" or plan.replace_unit != "token":
        return np.zeros(selected.size, np.bool_)
    cut_short = tokens.rows[below & ~selected]  # the rows in which a limit left out a chosen token
    return below & ~np.isin(tokens.rows, cut_short)


def deciders(unit, tokens, selected, begins_word):
    """For each candidate the index of the one whose number decides for it, if it is selected.

    `begins_word` is read where the unit of the decision is "word".
    """
    every = np.arange(selected.size)
    if unit == "token":
        return every
    if unit == "word":
        begins = begins_word
    else:
        begins = selected.copy()
        begins[1:] &= ~(selected[:-1] & adjoining(tokens)[1:])
    return np.maximum.accumulate(np.where(begins, every, 0))


def decide(plan, call, ids):
    """(tokens, decisions, random_ids): the candidates of a batch, the decision of each, uint8, and random tokens.

    The random tokens, int64, are those of the candidates decided RANDOM, in order. `ids` holds the call's ids,
    (cells,) int64, all in [0, plan.size).
    """
    first, lengths = sample_runs(plan, call, ids)
    sample_ids = sample_ids_of(plan, call)
    offsets = np.zeros(call.rows, np.uint64) if call.offsets is None else call.offsets
    tokens = candidates(plan, call, ids, real_tokens(first, lengths))
    rows = tokens.rows
    places = tokens.positions.astype(np.uint64) + offsets[rows]
    block = words(plan.seed, call.epoch, sample_ids[rows], places, SELECT)
    select = selects(plan, call)[rows]
    below = draw(block, places) < select
    begins_word = word_begins(plan, call, ids, tokens) if plan.needs_words else None
    if plan.by_token:
        selected = below
    else:
        ranks = word(block, places)
        samples = laws.samples_of(plan, call, tokens, ranks, below, begins_word, sample_ids, lengths)
        selected = np.concatenate([np.zeros(0, np.bool_), *(laws.selection(plan, sample) for sample in samples)])

    first_rule = by_first_rule(plan, tokens, selected, below)
    t_mask, t_random, _ = nested(plan, np.where(first_rule, select, np.uint64(ALWAYS)))
    numbers = np.where(first_rule, draw(block, places), mixed(block, places) >> np.uint32(8))
    u = numbers[deciders(plan.replace_unit, tokens, selected, begins_word)]
    decisions = np.where(u < t_mask, MASKED, np.where(u < t_random, RANDOM, KEPT))
    decisions = np.where(selected, decisions, UNTOUCHED).astype(np.uint8)
    drawn = decisions == RANDOM
    return tokens, decisions, drawn_tokens(plan, ids[tokens.cells[drawn]], mixed(block[:, drawn], places[drawn]))


def mask_batch(plan, call, out):
    """True iff every id of every cell is in [0, plan.size); `out` then holds the masked batch.

    Where False is returned, nothing has been written.

    Args:
        plan: Plan, of any law.
        call: Call, padded or packed; only read, though `ids` may be the memory of `out.input_ids`.
        out: Outputs, written as a whole; all but ids and labels may be None.
    """
    ids = call.ids.astype(np.int64)
    if not ((ids >= 0) & (ids < plan.size)).all():
        return False
    tokens, decisions, random_ids = decide(plan, call, ids)
    selected = tokens.cells[decisions != UNTOUCHED]

    out.input_ids[:] = ids
    out.input_ids[tokens.cells[decisions == MASKED]] = plan.mask_id
    out.input_ids[tokens.cells[decisions == RANDOM]] = random_ids
    out.labels[:] = plan.ignore_index
    out.labels[selected] = ids[selected]
    if out.decisions is not None:
        out.decisions[:] = UNTOUCHED
        out.decisions[tokens.cells] = decisions
    if out.num_masked is not None:
        out.num_masked[:] = np.bincount(tokens.rows[decisions != UNTOUCHED], minlength=call.rows)
    if out.selected_ids is not None:
        out.selected_positions[: selected.size] = rows_and_positions(call, selected)[1]
        out.selected_ids[: selected.size] = ids[selected]
    return True


def rows_and_positions(call, cells):
    """The row of each cell, and its position: the column in a padded batch, the cell in a packed one."""
    if call.boundaries is None:
        return np.divmod(cells, max(call.row_length, 1))
    return np.searchsorted(call.boundaries, cells, side="right") - 1, cells


def spread(plan, out, compact):
    """`compact` then holds the tokens that Outputs list in its `width` slots a row, none of which has more.

    An unused slot holds position 0, the plan's ignore_index and weight 0.
    """
    rows = np.repeat(np.arange(out.num_masked.size), out.num_masked)
    place(plan, compact, rows, out.selected_positions[: rows.size], out.selected_ids[: rows.size])


def collate_batch(plan, call, width, left, out, attention_mask):
    """True iff every id is in [0, plan.size); `out` then holds the packed batch, masked, in padded rows.

    Args:
        plan: Plan, of any law, with a pad id.
        call: Call, packed, of samples no longer than `width`; only read.
        width: of the rows.
        left: whether padding comes before a sample, not after it.
        out: Outputs of rows * width cells.
        attention_mask: (rows * width,) int64, 1 for real tokens and 0 for padding afterwards.
    """
    cells = call.ids.size
    flat = replace(
        out,
        input_ids=np.empty(cells, out.input_ids.dtype),
        labels=np.empty(cells, out.labels.dtype),
        decisions=np.empty(cells, np.uint8),
    )
    if not mask_batch(plan, call, flat):
        return False
    pad_rows(flat.input_ids, call.boundaries, width, left, plan.pad_id, out.input_ids)
    pad_rows(flat.labels, call.boundaries, width, left, plan.ignore_index, out.labels)
    pad_rows(1, call.boundaries, width, left, 0, attention_mask)
    if out.decisions is not None:
        pad_rows(flat.decisions, call.boundaries, width, left, UNTOUCHED, out.decisions)
    if out.selected_positions is not None:
        selected = out.selected_positions[: out.num_masked.sum()]
        selected[:] = padded_cells(call.boundaries, width, left)[selected] % width
    return True


def compact(plan, call, out, compact):
    """`compact` then holds the selected tokens of a masked batch, in order; the surplus slots of a row are unused.

    It defines what the CUDA kernels do with a masked batch; host backends list the tokens while they mask.

    Args:
        plan: Plan.
        call: Call; its ids are not read.
        out: Outputs of `mask_batch` for them, with decisions.
        compact: Compact, written as a whole: flat, of one slot per selected token, or with a width that no row passes.
    """
    cells = np.flatnonzero(out.decisions != UNTOUCHED)
    place(plan, compact, *rows_and_positions(call, cells), out.labels[cells])


def place(plan, compact, rows, positions, ids):
    """Selected tokens of ascending rows in a Compact; the surplus slots are unused."""
    slots = np.arange(rows.size)
    if compact.width is not None:
        slots += rows * compact.width - np.searchsorted(rows, rows)  # less the selected tokens of earlier rows
    compact.positions[:], compact.ids[:], compact.weights[:] = 0, plan.ignore_index, 0
    compact.positions[slots] = positions
    compact.ids[slots] = ids
    compact.weights[slots] = 1


def apply_supplied(token_ids, mask_positions, replace_probs, random_tokens, mask_token_id, borders, masked_ids, labels):
    """`masked_ids` and `labels` then hold what the supplied decisions make of the tokens; nothing is drawn.

    Where `mask_positions` is true, a probability below the first border gives `mask_token_id`, one below the
    second the random token of that cell, else the original stays; the label is the original. Elsewhere the
    original stays and the label is -100.

    All arrays are (n,): ids and labels int64, `mask_positions` bool, `replace_probs` float64 in [0, 1]. The
    borders are two floats, 0 <= first <= second <= 1: floats decide here, because the caller supplied them.
    """
    first, second = borders
    masked = mask_positions & (replace_probs < first)
    drawn = mask_positions & ~masked & (replace_probs < second)
    masked_ids[:] = np.where(masked, mask_token_id, np.where(drawn, random_tokens, token_ids))
    labels[:] = np.where(mask_positions, token_ids, -100)
