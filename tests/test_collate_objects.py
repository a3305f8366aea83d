"""Samples are read where they lie: which lists and arrays, what is left to slower ways, and what it costs in memory."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import BERT, Array, same
from support_collate import LAWS, arrays, arrow, flat, masked_by_hand, offsets, same_as, some_rows

import fastmask as fm
from fastmask import buffers
from fastmask.kernels import cpu, cpu_objects, reference
from fastmask.samples import Said, Samples

LENGTHS = (5, 0, 130, 1)
ROWS = some_rows(LENGTHS)
MASKER = fm.Masker(BERT, fm.Bernoulli(0.3), seed=7)
NO_LIMIT = (1 << 63) - 1


def addresses(samples: list[Any]) -> list[int]:
    return [array.ctypes.data for array in samples]


def found(samples: list[Any], most: int = NO_LIMIT) -> tuple[int, list[int], list[int]]:
    """The first sample that is not read where it lies, and for those before it where they lie and how long they are."""
    bounds, places = np.zeros(len(samples) + 1, np.int64), np.zeros(len(samples), np.int64)
    first = cpu.find_arrays(samples, most, bounds, places)
    known = len(samples) if first < 0 else first
    return first, places[:known].tolist(), np.diff(bounds)[:known].tolist()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "int16", "uint32"])
def test_arrays_of_every_dtype_of_ids_are_found(dtype: str) -> None:
    samples = arrays(ROWS, dtype)
    assert found(samples) == (-1, addresses(samples), list(LENGTHS))
    assert found(samples, 60) == (-1, addresses(samples), [5, 0, 60, 1])


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "int16", "uint32"])
def test_ids_of_every_dtype_are_read_as_what_they_are(dtype: str) -> None:
    rng = np.random.default_rng(3)
    rows = [rng.integers(1000, BERT.size, n).tolist() for n in LENGTHS]
    masker = fm.Masker(BERT, fm.Bernoulli(0.3), seed=7, id_dtype=np.int64)
    same_as(fm.collate(masker, arrays(rows, dtype), epoch=1), masked_by_hand(masker, rows, max(LENGTHS), epoch=1))


def unpickled(array: Array) -> Array:
    again: Array = pickle.loads(pickle.dumps(array))
    assert again.dtype is not array.dtype  # equal, but an object of its own
    return again


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


PLAIN = np.arange(8)
FOUND: dict[str, Callable[[Array], Array]] = {
    "unpickled": unpickled,
    "read-only": frozen,
    "a slice": lambda array: array[1:],
    "of one value": lambda array: array[3:4],
    "every other value of one": lambda array: array[3:4:2],
}
LEFT: dict[str, Callable[[Array], Any]] = {
    "a list": lambda array: array.tolist(),
    "a subclass": lambda array: array.view(np.recarray),
    "strided": lambda array: array[::2],
    "backwards": lambda array: array[::-1],
    "misaligned": lambda array: np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1),
    "of two dimensions": lambda array: array[None],
    "of no dimension": lambda array: np.array(array[0]),
    "narrower": lambda array: array.astype(np.int32),
    "unsigned": lambda array: array.astype(np.uint64),
    "of floats": lambda array: array.astype(np.float64),
    "big-endian": lambda array: array.astype(">i8"),
}


@pytest.mark.parametrize("kind", FOUND)
def test_contiguous_arrays_are_found_whatever_their_memory(kind: str) -> None:
    samples = [PLAIN, FOUND[kind](PLAIN.copy()), PLAIN]
    assert found(samples) == (-1, addresses(samples), [8, len(samples[1]), 8])


@pytest.mark.parametrize("kind", LEFT)
def test_what_is_no_contiguous_array_of_the_first_ones_dtype_is_left(kind: str) -> None:
    assert found([PLAIN, PLAIN, LEFT[kind](PLAIN), PLAIN]) == (2, addresses([PLAIN, PLAIN]), [8, 8])


@pytest.mark.parametrize("with_none", [False, True])
@pytest.mark.parametrize(
    "item", [0, 1, -1, 2**30 - 1, 2**30, -(2**30), 2**60, 2**63 - 1, -(2**63), True, None, "a", 2**63]
)
def test_items_of_lists_are_read_as_the_reference_reads_them(item: Any, with_none: bool) -> None:
    rows, bounds, read = [[7, 0], [300, item, 7]], np.array([0, 2, 5]), []
    for kernels in (reference, cpu):
        out = np.full(5, 99)
        first = kernels.read_lists(rows, bounds, with_none, out)
        read.append((first, out.tolist() if first < 0 else out[:2].tolist()))
    assert read[0] == read[1]


def test_lists_of_other_lengths_or_types_than_was_said_are_not_read() -> None:
    class Own(list[int]):
        pass

    out = np.full(4, 99)
    for other in ([5], [5, 6, 7], (5, 6), Own([5, 6]), np.array([5, 6]), None):
        assert cpu.read_lists([[1, 2], other], np.array([0, 2, 4]), False, out) == 1
    same(out, np.array([1, 2, 99, 99]))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("sample_ids", [None, 5])
def test_every_law_reads_arrays_where_they_lie(law: str, sample_ids: int | None) -> None:
    masker = fm.Masker(fm.Vocab(30, 4, 0, (1, 2, 3)), *LAWS[law], seed=7)
    words = [[j // 2 for j in range(n)] for n in LENGTHS]
    call: dict[str, Any] = {"epoch": 1, "sample_ids": sample_ids, "word_ids": words}
    want = masked_by_hand(masker, ROWS, 130, **call)
    same_as(fm.collate(masker, arrays(ROWS), **call), want)


def test_where_the_layout_of_objects_is_not_known_all_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_objects, "KNOWN_LAYOUT", False)
    assert cpu.find_arrays([PLAIN], 9, np.empty(2, np.int64), np.empty(1, np.int64)) == 0
    want = masked_by_hand(MASKER, ROWS, 130, epoch=1)
    for rows in (ROWS, arrays(ROWS)):
        same_as(fm.collate(MASKER, rows, epoch=1), want)


def samples_of(rows: Any) -> Samples:
    return Samples(MASKER, rows, Said(0, None, None, None, None, None, None), "cpu", joined=False)


def test_no_value_is_copied_before_it_is_laid_out() -> None:
    values = flat(ROWS)
    assert np.shares_memory(samples_of((values, offsets(ROWS))).call.ids, values)
    parts = arrays(ROWS)
    samples = samples_of(parts).call
    assert samples.ids.size == 0
    assert np.asarray(samples.addresses).tolist() == addresses(parts)
    lists = arrow([[9], *ROWS])[1:]
    assert np.shares_memory(samples_of(lists).call.ids, lists.values.to_numpy())


# Memory: what comes out, and little more.

FEW = 64 << 10  # bytes of objects, offsets and addresses
COUNT, WIDTH = 256, 512


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held during a call beyond what they held before."""
    call()  # compiles, and fills caches
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "copies"), [("arrays", 0), ("a pair", 0), ("Arrow", 0), ("lists", 1)])
def test_a_call_holds_its_outputs_and_lists_as_one_array(
    kind: str, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).integers(1000, 30000, (COUNT, WIDTH)).tolist()
    made: dict[str, Callable[[Any], Any]] = {
        "arrays": arrays,
        "a pair": lambda rows: (flat(rows), np.array(offsets(rows))),
        "Arrow": arrow,
        "lists": list,
    }
    samples = made[kind](rows)

    def collate() -> object:
        monkeypatch.setattr(buffers, "_free_list", buffers.FreeList())  # nothing is recycled
        return fm.collate(MASKER, samples, epoch=0, sample_ids=0, backend="cpu")

    outputs = 3 * COUNT * WIDTH * 8
    assert outputs <= peak(collate) <= outputs + copies * COUNT * WIDTH * 8 + FEW


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from Linux's /proc")
@pytest.mark.parametrize("kind", ["a pair", "arrays"])
def test_a_memory_mapped_data_set_is_read_where_its_samples_lie_alone(kind: str, tmp_path: Path) -> None:
    def resident() -> int:
        return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

    size = 512 << 20
    path = tmp_path / "ids.bin"
    with path.open("wb") as file:
        file.truncate(size)  # takes no room on the disk
    ids: Array = np.memmap(path, np.uint16, "r")
    bounds = ids.size // 2 + np.arange(COUNT + 1) * WIDTH
    mapped: dict[str, Callable[[], Any]] = {
        "a pair": lambda: (ids, bounds),
        "arrays": lambda: [ids[first:end] for first, end in pairwise(bounds.tolist())],
    }
    fm.collate(MASKER, arrays([[5]], np.uint16), epoch=0, backend="cpu")
    before = resident()
    got = fm.collate(MASKER, mapped[kind](), epoch=0, backend="cpu")
    assert got.input_ids.shape == (COUNT, WIDTH)
    assert resident() - before < size // 8
