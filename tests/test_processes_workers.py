"""Workers of multiprocessing and of torch mask: never a crash, a hang or other bits."""

from __future__ import annotations

import importlib.util

import pytest
from support_processes import Runner, once_or_often

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


# --- multiprocessing


@once_or_often
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", "spawn"))]
)
def test_workers_of_multiprocessing_mask(script: Runner, costly_layer: str, method: str, repeats: int) -> None:
    code = """
def work(k):
    check()
    return is_parallel()

if __name__ == "__main__":
    import multiprocessing
    check()
    context = multiprocessing.get_context(sys.argv[3])
    with context.Pool(2) as pool:
        assert pool.map(work, range(2 * int(sys.argv[4])), 1) == [False] * 2 * int(sys.argv[4])
    process = context.Process(target=work, args=(0,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    check()
"""
    script(code, method, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


def test_masking_in_parallel_leaves_the_start_method_to_the_caller(script: Runner, costly_layer: str) -> None:
    code = """
import multiprocessing
check()
must_be_parallel()
fm.warmup(["int64"], parallel=True)
assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("spawn")
check()
assert multiprocessing.get_start_method() == "spawn"
"""
    script(code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")


def test_a_start_method_that_was_chosen_stays(script: Runner) -> None:
    code = """
import multiprocessing
multiprocessing.set_start_method("fork")
check()
assert multiprocessing.get_start_method(allow_none=True) == "fork"
"""
    script(code)


# --- torch


LOADER = """
import warnings
warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")  # on one core
import torch
from torch.utils.data import DataLoader

class Collate:
    def __init__(self, masker):
        self.masker = masker

    def __call__(self, rows):
        batch = self.masker(torch.stack(rows), epoch=3)
        return batch.input_ids, batch.labels

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * LARGE[0]

    def __getitem__(self, k):
        return torch.from_numpy(some_ids_once()[k % LARGE[0]])

def some_ids_once(kept=[]):
    if not kept:
        kept.append(some_ids(LARGE))
    return kept[0]

def loader(method):
    return DataLoader(
        Rows(), LARGE[0], num_workers=2, collate_fn=Collate(masker), multiprocessing_context=method, pin_memory=False
    )

def check_loader(batches):
    batches = [fm.MaskedBatch(ids.numpy(), labels.numpy()) for ids, labels in batches]
    assert [digest(batch) for batch in batches] == [WANTED[LARGE]] * len(batches)
    return len(batches)

if __name__ == "__main__":
    check()
    batch = Collate(masker)(list(torch.from_numpy(some_ids(LARGE))))  # masked in the parent, on torch's own threads
    check_loader([batch])
    torch.ones(1 << 20).sum()
    for _ in range(int(sys.argv[4])):
        assert check_loader(loader(sys.argv[3])) == 4
    check()
"""


@needs_torch
@once_or_often
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_b73_workers_of_a_torch_loader_mask(script: Runner, costly_layer: str, method: str, repeats: int) -> None:
    repeats = min(repeats, 5) if method == "spawn" else repeats  # each worker imports torch
    script(LOADER, method, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=300)


@needs_torch
@pytest.mark.slow
def test_b104_workers_that_a_torch_loader_spawns_mask(script: Runner) -> None:
    script(LOADER, "spawn", 1)


@needs_torch
def test_b104_two_torch_loaders_are_read_in_turns(script: Runner, costly_layer: str) -> None:
    code = """
if __name__ == "__main__":
    pairs = list(zip(loader("fork"), loader("fork"), strict=True))
    assert check_loader([batch for pair in pairs for batch in pair]) == 8
"""
    script(LOADER + code, "fork", 0, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb")
