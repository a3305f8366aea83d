"""Masking as operators of torch, with fake kernels: torch.compile traces through them without a graph break.

An operator takes tensors, numbers and strings. So a masker goes by a name that says what it does: equal objectives have
one name in every process, another objective has another, and a graph is compiled anew for it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, library

from fastmask import supplied, validate
from fastmask.batch import CompactTargets, MaskedBatch
from fastmask.masker import Masker
from fastmask.outputs import check_returns, checked_returns

_maskers: dict[str, Masker] = {}


def register(masker: Masker) -> str:
    """The name by which operators of this process find the masker from now on.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4)
    >>> one, same, other = (register(fm.Masker(vocab, fm.Bernoulli(p))) for p in (0.3, 0.3, 0.4))
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.sha256(f"{masker.id_dtype} {masker.label_dtype}".encode())
    for part in fields(masker.plan):
        value = getattr(masker.plan, part.name)
        digest.update(f"{part.name} {getattr(value, 'shape', value)!r} ".encode())
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else b"")
    name = f"{masker.plan.law}-{digest.hexdigest()[:32]}"
    _maskers[name] = masker
    return name


def _known(name: str) -> Masker:
    try:
        return _maskers[name]
    except KeyError:
        raise RuntimeError(f"no masker {name!r} in this process: make its MaskTokens first") from None


def _further(plan: Any, returns: str, max_predictions: int | None) -> tuple[str, ...]:
    """The outputs beside ids and labels, in the order in which an operator returns them."""
    names = checked_returns(returns.split(",") if returns else ())
    check_returns(plan, names, max_predictions)
    if "compact" in names and max_predictions is None:
        raise ValueError(
            "compact targets of an operator need max_predictions: a graph must know how many slots there are"
        )
    compact = ("positions", "ids", "target_weights") if "compact" in names else ()
    counted = ("num_masked",) if compact or "num_masked" in names else ()
    decisions = ("decisions",) if "decisions" in names else ()
    return (*decisions, *counted, *compact, *(("rates", "weights") if "rates" in names else ()))


@library.custom_op("fastmask::mask", mutates_args=())
def mask(
    input_ids: Tensor,
    masker: str,
    epoch: int,
    epoch_tensor: Tensor | None = None,
    sample_id: int | None = None,
    sample_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    special_tokens_mask: Tensor | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    word_ids: Tensor | None = None,
    rates: Tensor | None = None,
    stratify: Sequence[int] | None = None,
    position_offset: int = 0,
    position_offsets: Tensor | None = None,
    returns: str = "",
    max_predictions: int | None = None,
) -> list[Tensor]:
    """[input_ids, labels, ...]: what the masker of this name makes of them, and the outputs that `returns` names.

    Arguments are those of `Masker.__call__`. What may be a number or a tensor there is two arguments here, of which the
    tensor wins; `returns` is a list of names with commas between.
    """
    objective = _known(masker)
    names = _further(objective.plan, returns, max_predictions)
    batch = objective(
        input_ids,
        epoch=epoch if epoch_tensor is None else epoch_tensor,
        sample_ids=sample_id if sample_ids is None else sample_ids,
        attention_mask=attention_mask,
        special_tokens_mask=special_tokens_mask,
        lengths=lengths,
        cu_seqlens=cu_seqlens,
        word_ids=word_ids,
        rates=rates,
        stratify=stratify,
        position_offset=position_offset if position_offsets is None else position_offsets,
        returns=returns.split(",") if returns else (),
        max_predictions=max_predictions,
    )
    made = {name: getattr(batch, name) for name in ("decisions", "num_masked", "rates", "weights")}
    if batch.compact is not None:
        made["positions"], made["ids"], made["target_weights"], _ = batch.compact
    return [batch.input_ids, batch.labels, *(made[name] for name in names)]


_signature = inspect.signature(mask._init_fn)


@mask.register_fake
def _(*arguments: Any, **named: Any) -> list[Tensor]:
    given = _signature.bind(*arguments, **named)
    given.apply_defaults()
    return _empty_outputs(**{name: given.arguments[name] for name in _TOLD_BY})


_TOLD_BY = ("input_ids", "masker", "cu_seqlens", "returns", "max_predictions")


def _empty_outputs(
    input_ids: Tensor, masker: str, cu_seqlens: Tensor | None, returns: str, max_predictions: int | None
) -> list[Tensor]:
    """What the operator returns, of unspecified content."""
    objective = _known(masker)
    rows, _ = validate.ids_shape(input_ids.shape)
    rows = rows if cu_seqlens is None else cu_seqlens.shape[0] - 1
    given = np.dtype(str(input_ids.dtype).removeprefix("torch."))
    id_dtype = _torch_dtype(objective.id_dtype or validate.output_dtype(given))
    label_dtype = _torch_dtype(objective.label_dtype)
    slots = (rows, max_predictions)
    kinds: dict[str, tuple[Any, torch.dtype]] = {
        "decisions": (input_ids.shape, torch.uint8),
        "num_masked": ((rows,), torch.int64),
        "positions": (slots, torch.int64),
        "ids": (slots, label_dtype),
        "target_weights": (slots, torch.float32),
        "rates": ((rows,), torch.float32),
        "weights": ((rows,), torch.float32),
    }
    further = (kinds[name] for name in _further(objective.plan, returns, max_predictions))
    made = ((input_ids.shape, id_dtype), (input_ids.shape, label_dtype), *further)
    return [input_ids.new_empty(shape, dtype=dtype) for shape, dtype in made]


def _torch_dtype(dtype: Any) -> torch.dtype:
    known: torch.dtype = getattr(torch, np.dtype(dtype).name)
    return known


def _parted(x: Any, number: Any) -> tuple[Any, Tensor | None]:
    """(number, tensor): x as whichever it is; beside a tensor stands the number given."""
    return (number, x) if isinstance(x, Tensor) else (x, None)


class MaskTokens(torch.nn.Module):  # type: ignore[misc]  # to mypy torch is Any
    """A masker whose calls torch.compile traces as one operator, `fastmask::mask`; results equal those of the masker.

    An epoch or a first sample id that is an int becomes dynamic when it changes: a graph is compiled a few times and
    then no more. A tensor in its place never causes another compilation.

    Args:
        masker: the objective.

    >>> import fastmask as fm
    >>> vocab = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
    >>> mask_tokens = MaskTokens(fm.Masker(vocab, fm.Bernoulli(0.3), seed=7))
    >>> compiled = torch.compile(mask_tokens, fullgraph=True, backend="eager")
    >>> batch = compiled(torch.tensor([[2, 7, 8, 9, 10, 11, 3, 0]]), epoch=0, sample_ids=5)
    >>> batch.input_ids.tolist(), batch.labels.tolist()
    ([[2, 4, 4, 9, 10, 4, 3, 0]], [[-100, 7, 8, -100, -100, 11, -100, -100]])
    """

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self.masker, self.name = masker, register(masker)

    def __setstate__(self, state: dict[str, Any]) -> None:  # perhaps in another process
        super().__setstate__(state)
        register(self.masker)

    def extra_repr(self) -> str:
        return repr(self.masker)

    def forward(
        self,
        input_ids: Tensor,
        *,
        epoch: int | Tensor,
        sample_ids: int | Tensor | None = None,
        attention_mask: Tensor | None = None,
        special_tokens_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        word_ids: Tensor | None = None,
        rates: Tensor | None = None,
        stratify: Sequence[int] | None = None,
        position_offset: int | Tensor = 0,
        returns: str | Iterable[str] = (),
        max_predictions: int | None = None,
    ) -> MaskedBatch:
        """The masked batch; arguments as of `Masker.__call__`, but tensors or whole numbers below 2^63.

        On a GPU `check` of this batch knows of no complaint: an operator returns tensors alone. Compact targets need
        max_predictions.
        """
        names = returns if isinstance(returns, str) else ",".join(returns)
        epoch, epoch_tensor = _parted(epoch, 0)
        sample_id, sample_ids = _parted(sample_ids, None)
        position_offset, position_offsets = _parted(position_offset, 0)
        done = torch.ops.fastmask.mask(
            input_ids,
            self.name,
            epoch,
            epoch_tensor=epoch_tensor,
            sample_id=sample_id,
            sample_ids=sample_ids,
            attention_mask=attention_mask,
            special_tokens_mask=special_tokens_mask,
            lengths=lengths,
            cu_seqlens=cu_seqlens,
            word_ids=word_ids,
            rates=rates,
            stratify=stratify,
            position_offset=position_offset,
            position_offsets=position_offsets,
            returns=names,
            max_predictions=max_predictions,
        )
        further = dict(zip(_further(self.masker.plan, names, max_predictions), done[2:], strict=True))
        compact = None
        if "positions" in further:
            positions, ids, weights = (further.pop(name) for name in ("positions", "ids", "target_weights"))
            compact = CompactTargets(positions, ids, weights, further["num_masked"])
        backend = "cuda" if input_ids.is_cuda else "cpu"
        return MaskedBatch(done[0], done[1], compact=compact, backend=backend, **further)


@library.custom_op("fastmask::apply_mlm_mask", mutates_args=())
def _apply_mlm_mask(
    token_ids: Tensor,
    mask_positions: Tensor,
    replace_probs: Tensor,
    random_tokens: Tensor,
    mask_token_id: int,
    first_border: float,
    second_border: float,
    check: bool,
) -> tuple[Tensor, Tensor]:
    tensors = token_ids, mask_positions, replace_probs, random_tokens
    borders = (first_border, second_border)
    done = supplied.apply_mlm_mask(*tensors, mask_token_id, borders=borders, check=check)
    return done["masked_ids"], done["labels"]


@_apply_mlm_mask.register_fake
def _(token_ids: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return token_ids.new_empty(token_ids.shape), token_ids.new_empty(token_ids.shape)


def apply_mlm_mask(
    token_ids: Tensor,
    mask_positions: Tensor,
    replace_probs: Tensor,
    random_tokens: Tensor,
    mask_token_id: int = 103,
    *,
    borders: tuple[float, float] = (0.8, 0.9),
    check: bool = True,
) -> dict[str, Tensor]:
    """`fastmask.apply_mlm_mask` as an operator, `fastmask::apply_mlm_mask`: arguments, results and errors are the same.

    >>> ids, chosen = torch.tensor([[101, 2023, 102]]), torch.tensor([[False, True, False]])
    >>> probs = torch.zeros((1, 3), dtype=torch.float64)
    >>> {name: x.tolist() for name, x in apply_mlm_mask(ids, chosen, probs, ids).items()}
    {'masked_ids': [[101, 103, 102]], 'labels': [[-100, 2023, -100]]}
    """
    tensors = token_ids, mask_positions, replace_probs, random_tokens
    masked_ids, labels = torch.ops.fastmask.apply_mlm_mask(*tensors, mask_token_id, *borders, check)
    return {"masked_ids": masked_ids, "labels": labels}
