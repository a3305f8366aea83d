"""That masks belong to samples: the same ones whatever loads the data, or the first place where they are not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastmask.arrays import to_host

Ints = npt.NDArray[np.int64]
Batch = Mapping[str, Any]
Build = Callable[..., Iterable[Batch]]
IGNORE_INDEX = -100


class Difference(NamedTuple):
    """The first place where two runs disagree."""

    run: str  # which run differs from the first one
    sample: str
    position: int | None  # from the first real token; None: the sample is missing from one of them
    expected: str  # the fate of the token in the first run
    found: str

    def __str__(self) -> str:
        place = "" if self.position is None else f", position {self.position}"
        return f"{self.run}: {self.sample}{place}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Report:
    """What was compared, and the first difference, or None where every token has one fate in all runs."""

    runs: tuple[str, ...]  # the first is what the others are compared with; none after the one that differs
    samples: int
    tokens: int
    selected: int
    difference: Difference | None = None

    @property
    def same(self) -> bool:
        """True where all runs agree and there was something to agree on."""
        return self.difference is None and self.selected > 0


class Masked(NamedTuple):
    """The real tokens of one sample: as they were, as they are, and their labels."""

    original: Ints
    ids: Ints
    labels: Ints


Run = dict[Hashable, Masked]


class BatchError(ValueError):
    """A batch that cannot be compared: an entry is missing, or shapes do not fit."""


def loader(
    build: Build,
    *,
    batch_size: int = 8,
    workers: Sequence[int] = (1, 4),
    world_sizes: Sequence[int] = (4,),
    batch_sizes: Sequence[int] | None = None,
    sample_id: str | None = None,
    pad_token_id: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    progress: Callable[[str], object] = lambda run: None,
) -> Report:
    """Whether a loader gives every sample the same masks on any workers, ranks and batch sizes, and after a resume.

    The first run has no workers, one rank and `batch_size`; each other run changes one thing. Ranks are built one after
    the other in this process, and what they load together must be the samples of the first run. The run that resumes
    loads half of the batches and has the rest from a loader that is built anew. The first run is kept in memory.

    Args:
        build: called as build(num_workers=, batch_size=, rank=, world_size=, start=), gives an iterable of batches:
            those of one rank of so many, without the first `start` samples of this rank. A batch is a mapping with
            input_ids and labels, NumPy arrays or tensors: (rows, columns), with attention_mask where rows are padded;
            or (tokens,) with cu_seqlens.
        batch_size: of the first run.
        workers: numbers of workers to try beside 0.
        world_sizes: numbers of ranks to try beside 1.
        batch_sizes: None: half of batch_size, and twice as many and one more.
        sample_id: the entry of a batch that tells samples apart, one number per row. None: their tokens do, which are
            read from labels where they were replaced.
        pad_token_id: without attention_mask, the runs of this id at both ends of a row are padding.
        ignore_index: the label of what is not selected.
        progress: called with the name of each run before it begins.

    Raises:
        BatchError: a batch that lacks an entry, or entries whose shapes do not fit.
    """

    def load(**setting: int) -> Iterator[tuple[Hashable, Masked]]:
        everything = {"num_workers": 0, "batch_size": batch_size, "rank": 0, "world_size": 1, "start": 0} | setting
        for batch in build(**everything):
            yield from samples_of(batch, sample_id, pad_token_id, ignore_index)

    def ranks(world_size: int) -> Iterator[tuple[Hashable, Masked]]:
        for rank in range(world_size):
            yield from load(rank=rank, world_size=world_size)

    def resumed() -> Iterator[tuple[Hashable, Masked]]:
        first = iter(build(num_workers=0, batch_size=batch_size, rank=0, world_size=1, start=0))
        seen = 0
        for batch in first:
            found = list(samples_of(batch, sample_id, pad_token_id, ignore_index))
            seen += len(found)
            yield from found
            if 2 * seen >= len(base):
                break
        yield from load(start=seen)

    if batch_sizes is None:
        batch_sizes = (max(1, batch_size // 2), 2 * batch_size + 1)
    others: dict[str, Iterator[tuple[Hashable, Masked]]] = {
        **{f"num_workers={n}": load(num_workers=n) for n in workers},
        **{f"world_size={n}": ranks(n) for n in world_sizes},
        **{f"batch_size={n}": load(batch_size=n) for n in batch_sizes},
        "resumed": resumed(),
    }
    first = f"num_workers=0, world_size=1, batch_size={batch_size}"
    progress(first)
    base: Run = {}
    difference = _merge(base, load(), first, ignore_index)
    runs = [first]
    for name, samples in others.items():
        if difference is None:
            progress(name)
            runs.append(name)
            difference = _compare(base, samples, name, ignore_index)
    return _report(runs, base, difference, ignore_index)


def batches(
    one: Iterable[Batch],
    other: Iterable[Batch],
    *,
    sample_id: str | None = None,
    pad_token_id: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    names: tuple[str, str] = ("first", "second"),
) -> Report:
    """Whether two runs over the same samples gave them the same masks, in whatever batches and order.

    Arguments are those of `loader`.

    >>> ids, labels = np.array([[2, 4, 8, 3]]), np.array([[-100, 7, -100, -100]])
    >>> report = batches([{"input_ids": ids, "labels": labels}], [{"input_ids": ids, "labels": labels}])
    >>> report.same, report.samples, report.selected
    (True, 1, 1)
    """

    def load(run: Iterable[Batch]) -> Iterator[tuple[Hashable, Masked]]:
        for batch in run:
            yield from samples_of(batch, sample_id, pad_token_id, ignore_index)

    base: Run = {}
    difference = _merge(base, load(one), names[0], ignore_index) or _compare(base, load(other), names[1], ignore_index)
    return _report(names, base, difference, ignore_index)


def files(one: Path, other: Path, **given: Any) -> Report:
    """The same of two files of batches, as `read_batches` reads them."""
    return batches(read_batches(one), read_batches(other), names=(str(one), str(other)), **given)


def read_batches(path: Path) -> list[Batch]:
    """The batches of a file or folder.

    A folder holds input_ids.npy and labels.npy, as `fastmask mask` writes them, and may hold attention_mask.npy and
    others; an .npz holds the entries of one batch; a .pt or .pth, a list of batches, or one, as `torch.save` wrote it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none of these, or torch is needed and missing.
    """
    if path.is_dir():
        return [{file.stem: np.load(file, mmap_mode="r") for file in sorted(path.glob("*.npy"))}]
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return [dict(arrays)]
    if path.suffix in (".pt", ".pth"):
        try:
            import torch
        except ImportError:
            raise ValueError(f"{path} needs: pip install 'fastmask-kernels[torch]'") from None
        loaded = torch.load(path, weights_only=True)
        return [loaded] if isinstance(loaded, Mapping) else list(loaded)
    raise ValueError(f"{path} is not a folder of .npy files, an .npz, a .pt or a .pth")


def samples_of(
    batch: Batch, sample_id: str | None, pad_token_id: int | None, ignore_index: int
) -> Iterator[tuple[Hashable, Masked]]:
    """The real tokens of each sample of a batch, by what tells samples apart."""
    ids, labels = (_entry(batch, name).astype(np.int64, copy=False) for name in ("input_ids", "labels"))
    if ids.shape != labels.shape:
        raise BatchError(f"input_ids has shape {ids.shape}, but labels has shape {labels.shape}")
    original = np.where(labels == ignore_index, ids, labels)
    places = _places(batch, original, pad_token_id)
    names = None if sample_id is None else _entry(batch, sample_id).reshape(-1)
    if names is not None and len(names) != len(places):
        raise BatchError(f"{sample_id} holds {len(names)} numbers for {len(places)} samples")
    for i, place in enumerate(places):
        masked = Masked(original[place], ids[place], labels[place])
        yield (masked.original.tobytes() if names is None else int(names[i])), masked


def _entry(batch: Batch, name: str) -> npt.NDArray[Any]:
    if not isinstance(batch, Mapping) or name not in batch:
        held = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise BatchError(f"a batch must be a mapping with {name!r}, got {held}")
    return to_host(name, batch[name])


def _places(batch: Batch, original: Ints, pad_token_id: int | None) -> list[Any]:
    """Where the real tokens of each sample are, as an index into the arrays of a batch."""
    if original.ndim == 1:
        cuts = _entry(batch, "cu_seqlens").tolist()
        return [slice(first, end) for first, end in pairwise(cuts)]
    if "attention_mask" in batch:
        real = _entry(batch, "attention_mask") != 0
        if real.shape != original.shape:
            raise BatchError(f"attention_mask has shape {real.shape}, but input_ids has shape {original.shape}")
    elif pad_token_id is None:
        real = np.ones(original.shape, bool)
    else:
        token = original != pad_token_id
        real = np.logical_or.accumulate(token, 1) & np.logical_or.accumulate(token[:, ::-1], 1)[:, ::-1]
    return [(row, columns) for row, columns in enumerate(real)]


def _merge(base: Run, samples: Iterable[tuple[Hashable, Masked]], run: str, ignore_index: int) -> Difference | None:
    """Adds samples to a run; the difference where one comes twice and has other masks the second time."""
    for name, masked in samples:
        difference = _disagreement(base.setdefault(name, masked), masked, name, run, ignore_index)
        if difference is not None:
            return difference
    return None


def _compare(base: Run, samples: Iterable[tuple[Hashable, Masked]], run: str, ignore_index: int) -> Difference | None:
    """The first difference of a run from the base: another fate, a sample too many, or one too few."""
    seen = set()
    for name, masked in samples:
        if name not in base:
            return Difference(run, _describe(name, masked), None, "no such sample", "it")
        difference = _disagreement(base[name], masked, name, run, ignore_index)
        if difference is not None:
            return difference
        seen.add(name)
    for name, masked in base.items():
        if name not in seen:
            return Difference(run, _describe(name, masked), None, "it", "no such sample")
    return None


def _disagreement(want: Masked, got: Masked, name: Hashable, run: str, ignore_index: int) -> Difference | None:
    if want is got:
        return None
    length = min(len(want.ids), len(got.ids))
    unequal = np.zeros(length, bool)
    for one, other in zip(want, got, strict=True):
        unequal |= one[:length] != other[:length]
    if not unequal.any() and len(want.ids) == len(got.ids):
        return None
    position = int(unequal.argmax()) if unequal.any() else length
    fates = (_fate(masked, position, ignore_index) for masked in (want, got))
    return Difference(run, _describe(name, want), position, *fates)


def _fate(masked: Masked, position: int, ignore_index: int) -> str:
    if position >= len(masked.ids):
        return f"no token, the sample has {len(masked.ids)}"
    original, now, label = (int(array[position]) for array in masked)
    if label == ignore_index:
        return f"{original} untouched"
    return f"{original} selected and kept" if now == original else f"{original} replaced by {now}"


def _describe(name: Hashable, masked: Masked) -> str:
    if isinstance(name, int):
        return f"sample {name}"
    shown = " ".join(map(str, masked.original[:6].tolist()))
    return f"the sample {shown}{' ...' if len(masked.original) > 6 else ''} of {len(masked.original)} tokens"


def _report(runs: Sequence[str], base: Run, difference: Difference | None, ignore_index: int) -> Report:
    selected = sum(int(np.count_nonzero(masked.labels != ignore_index)) for masked in base.values())
    tokens = sum(len(masked.ids) for masked in base.values())
    return Report(tuple(runs), len(base), tokens, selected, difference)
