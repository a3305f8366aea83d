"""Failures of other systems, boiled down: the engine under Numba, numba-cuda and torch.

Each test carries the id of its case. The small vocabulary: PAD 0, UNK 1, CLS 2, SEP 3, MASK 4, others 5..29.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, all_same, on_cuda, on_every_backend, on_host, run_python, same, some_ids
from support import tiny_launches as tiny_launches

import fastmask as fm
from fastmask import host
from fastmask.kernels import fate, reference

VOCAB = fm.Vocab(size=30, mask_token_id=4, pad_token_id=0, special_token_ids=(1, 2, 3))
MASKER = fm.Masker(VOCAB, fm.Bernoulli(0.3), fm.Replace(0.4, 0.4), seed=7)
IGNORED = -100


def mask(masker: fm.Masker, ids: Array, backend: str, **given: Any) -> tuple[Array, Array]:
    """The ids and the labels of epoch 1 (unless given), in host memory."""
    call = {"epoch": 1, "backend": backend, **given}
    if backend != "cuda":
        batch = masker(ids, **call)
        return batch.input_ids, batch.labels
    from numba import cuda

    batch = masker(cuda.to_device(np.ascontiguousarray(ids)), **call).check()
    return batch.input_ids.copy_to_host(), batch.labels.copy_to_host()


# Compilation and layouts.


def test_b80_importing_compiles_nothing() -> None:
    code = "import sys, fastmask; print(sorted({'numba', 'llvmlite', 'torch', 'cupy'} & set(sys.modules)))"
    assert run_python(code).strip() == "[]"


def test_b80_after_warmup_no_call_waits_for_the_compiler() -> None:
    from fastmask.kernels import cpu

    fm.warmup(["int64", "int32"])
    before = cpu.compiled_mask_batch.cache_info().misses
    for dtype in ("int64", "int32"):
        MASKER(some_ids(1, 16, dtype), epoch=0)
    assert cpu.compiled_mask_batch.cache_info().misses == before


def test_b80_after_warmup_no_call_of_a_collate_function_waits_for_the_compiler() -> None:
    code = """
import numpy as np, fastmask as fm
from fastmask.kernels import cpu_compile
fm.warmup(collate=True)
before = cpu_compile._compiled.cache_info().misses
vocab = fm.Vocab(30, 4, 0)
lists, arrays = [[5, 6], [7]], [np.array([5, 6]), np.array([7])]
more = dict(token_type_ids=lists, special_tokens_mask=lists, returns=("decisions", "compact"), max_predictions=2)
for law in (fm.Bernoulli(0.15), fm.Diffusion()):
    for rows in (lists, arrays, (np.array([5, 6, 7]), [0, 2, 3])):
        fm.collate(fm.Masker(vocab, law), rows, epoch=0, **more)
        fm.pack(fm.Masker(vocab, law), rows, epoch=0, max_tokens=9)
print(cpu_compile._compiled.cache_info().misses - before)
"""
    assert run_python(code).split() == ["0"]


def test_b80_a_process_after_the_first_loads_its_kernel_and_compiles_none() -> None:
    fm.warmup()
    code = """
import numpy as np, fastmask as fm
from fastmask.kernels import cpu
fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.15))(np.full((1, 16), 9), epoch=0)
stats = cpu.compiled_mask_batch(*[np.dtype(np.int64)] * 3, False).stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
    assert run_python(code).split() == ["1", "0"]


def test_b80_a_process_after_the_first_imports_nothing_that_only_compiling_needs() -> None:
    fm.warmup()
    code = """
import sys, numpy as np, fastmask as fm
fm.Masker(fm.Vocab(30, 4), fm.Bernoulli(0.15))(np.full((1, 16), 9), epoch=0)
print("numba.core.dispatcher" in sys.modules, "numba.np.arraymath" in sys.modules, "scipy.linalg" in sys.modules)
"""
    assert run_python(code).split() == ["True", "False", "False"]


def test_b80_small_inputs_stay_on_one_thread() -> None:
    fm.set_num_threads(8)
    assert "serial: fewer than" in MASKER.explain_backend(np.zeros((1, 16), np.int64))


@on_host
def test_b81_read_only_ids_are_masked_and_not_written(backend: str) -> None:
    ids = some_ids(2, 8, "int32")
    ids.flags.writeable = False
    copy = ids.copy()
    got = mask(MASKER, ids, backend)
    all_same(got, mask(MASKER, copy, "numpy"))
    same(ids, copy)
    assert all(array.flags.writeable and not np.shares_memory(array, ids) for array in got)


@on_host
def test_b81_a_read_only_memory_map_is_masked_and_not_written(backend: str, tmp_path: Path) -> None:
    ids, path = some_ids(2, 8, "int32"), tmp_path / "ids"
    ids.tofile(path)
    mapped = np.memmap(path, np.int32, "r", shape=(2, 8))
    all_same(mask(MASKER, mapped, backend), mask(MASKER, ids, "numpy"))
    assert path.read_bytes() == ids.tobytes()


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_b81_a_tensor_over_a_read_only_buffer_is_masked_and_not_written() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ids = some_ids(2, 8)
    buffer = ids.tobytes()
    batch = MASKER(torch.frombuffer(buffer, dtype=torch.int64).view(2, 8), epoch=1)
    all_same((batch.input_ids.numpy(), batch.labels.numpy()), mask(MASKER, ids, "numpy"))
    assert buffer == ids.tobytes()


@on_host
def test_b81_writing_to_a_read_only_array_is_refused(backend: str) -> None:
    ids = some_ids(2, 8)
    ids.flags.writeable = False
    with pytest.raises(ValueError, match="out's input_ids is read-only"):
        mask(MASKER, ids, backend, out=(ids, np.empty_like(ids)))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_b83_no_layout_compiles_another_kernel(dtype: str) -> None:
    from fastmask.kernels import cpu

    ids = some_ids(6, 20, dtype)
    want = mask(MASKER, ids, "cpu")
    before = cpu.compiled_mask_batch.cache_info().currsize
    read_only = ids.copy()
    read_only.flags.writeable = False
    wide = np.repeat(ids, 2, axis=1)
    offset = np.frombuffer(b"\0" + ids.tobytes(), np.uint8)[1:].view(dtype).reshape(ids.shape)
    layouts = {
        "Fortran": np.asfortranarray(ids),
        "strided": wide[:, ::2],
        "reversed": ids[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": read_only,
        "misaligned": offset,
        "big-endian": ids.astype(ids.dtype.newbyteorder(">")),
        "a subclass": ids.view(np.memmap),
    }
    for name, layout in layouts.items():
        np.testing.assert_array_equal(layout, ids, err_msg=name)
        all_same(mask(MASKER, layout, "cpu"), want)
    assert cpu.compiled_mask_batch.cache_info().currsize == before


# Integers.


def plain_words(seed: int, epoch: int, sample: int, block: int) -> list[int]:
    """Philox4x32-10 in Python integers. Source: Salmon, Moraes, Dror, Shaw, SC'11."""
    c, k = [block, sample % 2**32, sample // 2**32, epoch * 256], [seed % 2**32, seed // 2**32]
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@on_every_backend
@pytest.mark.parametrize("seed", [0, 2**53 + 1, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, 2**34 - 24])
def test_b85_no_bit_of_a_64_bit_number_is_lost(backend: str, seed: int, offset: int) -> None:
    samples = [2**60, 2**60 + 1, 2**53 + 1, 2**64 - 1]
    ids = np.full((4, 24), 9)
    half = fm.Masker(VOCAB, fm.Bernoulli(0.5), seed=seed)
    call = {"epoch": 2**24 - 1, "sample_ids": samples, "lengths": [24] * 4, "position_offset": offset}
    _, labels = mask(half, ids, backend, **call)
    words = [
        [word for block in range(6) for word in plain_words(seed, 2**24 - 1, s, offset // 4 + block)] for s in samples
    ]
    same(labels, np.where(np.array(words) >> 8 < 2**23, 9, IGNORED))


# Of seed 7 and epoch 1: samples and positions whose 32-bit word is as small, or as large, as can be.
SMALLEST = [(909412278, 2), (989396787, 1)]
LARGEST = [(1543734332, 1), (1635219570, 0)]


@on_every_backend
@pytest.mark.parametrize(
    ("p", "smallest", "largest"),
    [(0, False, False), (2.0**-24, True, False), (1 - 2.0**-24, True, False), (1, True, True)],
)
def test_b87_the_extreme_words_are_on_the_right_side_of_every_threshold(
    backend: str, p: float, smallest: bool, largest: bool
) -> None:
    places = SMALLEST + LARGEST
    law = fm.Masker(VOCAB, fm.Bernoulli(p), seed=7)
    given = {"sample_ids": [sample for sample, _ in places], "lengths": [4] * 4}
    _, labels = mask(law, np.full((4, 4), 9), backend, **given)
    words = np.array([plain_words(7, 1, sample, 0)[position] for sample, position in places])
    same(words, np.array([0, 0, 2**32 - 1, 2**32 - 1]))
    selected = labels[np.arange(4), [position for _, position in places]] != IGNORED
    same(selected, np.array([smallest, smallest, largest, largest]))


def test_b87_the_largest_number_picks_the_last_of_n_things() -> None:
    for n in (1, 25, 30522, 2**31 - 1):
        assert int(fate.uniform(np.uint64(2**32 - 1), np.uint64(n))) == n - 1
        mixed = np.array([(2**32 - 1) * pow(0x9E3779B1, -1, 2**32) % 2**32], np.uint32)
        same(reference.pick(mixed, n), np.array([n - 1]))


@on_host
def test_b88_no_random_state_enters(backend: str) -> None:
    ids = some_ids(8, 64)
    batches = []
    for state in (2022, 2023):
        np.random.seed(state)
        random.seed(state)
        batches += [mask(MASKER, ids, backend), mask(MASKER, ids, backend)]
    for batch in batches[1:]:
        all_same(batch, batches[0])


def test_b88_threads_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(40, 513)
    want = mask(MASKER, ids, "numpy")
    for ranges in (1, 2, 8):
        monkeypatch.setattr(host, "plan_ranges", lambda cells, ranges=ranges: (ranges, "for the test"))
        all_same(mask(MASKER, ids, "cpu"), want)


@pytest.mark.parametrize(
    "replace",
    [fm.Replace(0.8, 0.1), fm.Replace(1 / 3, 1 / 3, weights=[0.1 * i for i in range(30)])],
    ids=["uniform", "weighted"],
)
def test_b89_a_million_cells_are_equal_on_both_backends_of_the_host(replace: fm.Replace) -> None:
    ids = some_ids(1000, 1000)
    fm.set_num_threads(1)
    rates = np.linspace(2.0**-24, 1, 1000)
    law = fm.Masker(VOCAB, fm.Bernoulli(0.15), replace, seed=11)
    all_same(mask(law, ids, "cpu", rates=rates), mask(law, ids, "numpy", rates=rates))


@on_cuda
def test_b89_cells_are_equal_on_a_gpu(backend: str) -> None:
    ids = some_ids(8, 130)
    rates = [2.0**-24, 0.1, 0.15, 0.2, 1 / 3, 0.5, 0.85, 1.0]
    given = {"rates": rates, "sample_ids": list(range(8)), "lengths": [130] * 8}
    all_same(mask(MASKER, ids, backend, **given), mask(MASKER, ids, "numpy", **given))
