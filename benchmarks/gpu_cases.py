"""What is timed on a GPU: the laws, their tensors, the gate that each passes first, and the masking usual in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fastmask as fm
from fastmask.laws import Law

SIZE, MASK_ID, SPECIAL, SEED = 30522, 103, (0, 100, 101, 102, 103), 7
ROW_LENGTH = 512
LAWS: dict[str, Law] = {
    "Bernoulli": fm.Bernoulli(0.15),
    "ExactCount": fm.ExactCount(0.15),
    "words, Bernoulli": fm.Bernoulli(0.15, unit="word"),
    "words, ExactCount": fm.ExactCount(0.15, unit="word"),
    "Spans": fm.Spans(0.15, fm.Geometric(0.2, 10)),
    "Diffusion": fm.Diffusion(),
}
DTYPES = ("int32", "int64")


@dataclass(frozen=True)
class Case:
    """One line of the table: a law, a dtype of ids and labels, and how many tokens."""

    law: str
    dtype: str
    tokens: int

    @property
    def rows(self) -> int:
        return self.tokens // ROW_LENGTH

    @property
    def bytes_moved(self) -> int:
        """Ids read, and ids and labels written."""
        return 3 * self.tokens * np.dtype(self.dtype).itemsize

    def masker(self) -> fm.Masker:
        vocab = fm.Vocab(SIZE, MASK_ID, None, SPECIAL, is_continuation=np.arange(SIZE) % 4 == 1)
        dtype = np.dtype(self.dtype)
        return fm.Masker(vocab, LAWS[self.law], seed=SEED, id_dtype=dtype, label_dtype=dtype)


def cases(sizes: list[int]) -> list[Case]:
    """Every law with every dtype and size."""
    return [Case(law, dtype, tokens) for tokens in sizes for dtype in DTYPES for law in LAWS]


def check(device: TorchDevice, case: Case) -> None:
    """The gate of a case: the bits of the NumPy backend on the device at hand.

    Raises AssertionError, with the place, where a bit differs or an input was written.
    """
    ids = np.random.default_rng(1).integers(0, SIZE, (case.rows, ROW_LENGTH), np.int32).astype(case.dtype)
    masker, there = case.masker(), device.to_device(ids)
    out = tuple(device.to_device(np.full_like(ids, -7)) for _ in range(2))
    masker(there, epoch=3, sample_ids=1 << 33, out=out).check()
    want = masker(ids, epoch=3, sample_ids=1 << 33, backend="numpy")
    for name, got, wanted in zip(("ids", "labels"), out, (want.input_ids, want.labels), strict=True):
        np.testing.assert_array_equal(device.to_host(got), wanted, strict=True, err_msg=f"{case}: {name}")
    np.testing.assert_array_equal(device.to_host(there), ids, strict=True, err_msg=f"{case}: the input")


class TorchDevice:
    """The current GPU, by way of torch: its memory, its clock, and what the calls are compared with."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def __str__(self) -> str:
        return f"{self._torch.cuda.get_device_name()}, CUDA {self._torch.version.cuda}"

    def to_device(self, x: Any) -> Any:
        return self._torch.from_numpy(x).cuda()

    def to_host(self, x: Any) -> Any:
        return x.cpu().numpy()

    def ids(self, case: Case) -> Any:
        """Random ids, special ones among them, (rows, ROW_LENGTH)."""
        dtype = getattr(self._torch, case.dtype)
        return self._torch.randint(SIZE, (case.rows, ROW_LENGTH), dtype=dtype, device="cuda")

    def empty_like(self, x: Any) -> Any:
        return self._torch.empty_like(x)

    def copy(self, size: int) -> Callable[[], object]:
        """A copy on the device that reads and writes so many bytes together."""
        source = self._torch.empty(size // 2, dtype=self._torch.uint8, device="cuda")
        target = self._torch.empty_like(source)
        return lambda: target.copy_(source)

    def usual(self, ids: Any) -> Callable[[], object]:
        """The masking that is usual in torch."""
        special = self._torch.zeros(SIZE, dtype=self._torch.bool, device="cuda")
        special[list(SPECIAL)] = True
        return lambda: torch_masking(self._torch, ids, special)

    def event(self) -> Any:
        """A mark in what is queued, with `record`, `synchronize` and `elapsed_time` in milliseconds."""
        return self._torch.cuda.Event(enable_timing=True)


def torch_masking(torch: Any, ids: Any, special: Any) -> tuple[Any, Any]:
    """The usual sequence of torch: Bernoulli draws, `where` and masked writes, as Hugging Face's collator has it.

    ids: (rows, columns) on the device; special: bool by id, there as well.
    """
    inputs, labels = ids.clone(), ids.clone()
    chances = torch.full(ids.shape, 0.15, device=ids.device)
    chances.masked_fill_(special[ids.long()], 0.0)
    chosen = torch.bernoulli(chances).bool()
    labels = torch.where(chosen, labels, -100)
    masked = torch.bernoulli(torch.full(ids.shape, 0.8, device=ids.device)).bool() & chosen
    inputs = torch.where(masked, MASK_ID, inputs)
    random = torch.bernoulli(torch.full(ids.shape, 0.5, device=ids.device)).bool() & chosen & ~masked
    words = torch.randint(SIZE, ids.shape, dtype=ids.dtype, device=ids.device)
    return torch.where(random, words, inputs), labels
