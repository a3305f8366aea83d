"""Loaders with a collator, on every threading layer: never a crash, a hang, a dead worker or other bits."""

from __future__ import annotations

import pytest
from support_processes import Runner, once_or_often

pytest.importorskip("torch", reason="torch is not installed: pip install torch")

COLLATING = """
import warnings
warnings.filterwarnings("ignore", "This DataLoader will create")  # on few cores
warnings.filterwarnings("ignore", "'pin_memory' argument is set as true")  # without an accelerator
import torch
from torch.utils.data import DataLoader, Dataset
from fastmask.torch import Collator

KEPT = {}

def rows(shape):
    if shape not in KEPT:
        KEPT[shape] = some_ids(shape)
    return KEPT[shape]

class Rows(Dataset):
    def __init__(self, shape, times=2):
        self.shape, self.times = shape, times

    def __len__(self):
        return self.times * self.shape[0]

    def __getitem__(self, k):
        return {"input_ids": rows(self.shape)[k % self.shape[0]]}

def loader(shape, collator, method="fork", **given):
    given = {"num_workers": 2, "multiprocessing_context": method} | given
    return DataLoader(Rows(shape), shape[0], collate_fn=collator, **given)

def masked(batch):
    return digest(fm.MaskedBatch(batch["input_ids"].numpy(), batch["labels"].numpy()))

def check_loader(batches, shape):
    assert [masked(batch) for batch in batches] == 2 * [WANTED[shape]]

def check_collator(collator, *shapes):
    for shape in shapes or (SMALL, LARGE):
        assert masked(collator([{"input_ids": row} for row in rows(shape)])) == WANTED[shape], shape
"""


@once_or_often
def test_b73_b75_workers_collate_after_the_parent_masked_and_collated_in_parallel(
    script: Runner, costly_layer: str, repeats: int
) -> None:
    code = """
collator = Collator(masker, epoch=3)
must_be_parallel()
check()
check_collator(collator)
torch.ones(1 << 20).sum()  # on torch's own threads
for k in range(int(sys.argv[3])):
    pin = bool(k % 2)
    check_loader(loader(LARGE, collator, pin_memory=pin), LARGE)
    kept = loader(SMALL, collator, persistent_workers=True, pin_memory=not pin)
    check_loader(kept, SMALL)
    collator.set_epoch(4)
    assert all(masked(batch) != WANTED[SMALL] for batch in kept)
    collator.set_epoch(3)
    check_loader(kept, SMALL)
    del kept
check_collator(collator)
"""
    script(COLLATING + code, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=300)


@once_or_often
def test_b74_eight_threads_collate_at_once_while_a_loader_runs(script: Runner, costly_layer: str, repeats: int) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
barrier = threading.Barrier(8)
collator = Collator(masker, epoch=3)
rows(SMALL), rows(LARGE)
def work(k):
    barrier.wait()
    for n in range(6):
        check_collator(collator, LARGE if (n + k) % 3 == 0 else SMALL)
with ThreadPoolExecutor(8) as pool:  # before the main thread has masked anything
    for _ in range(int(sys.argv[3])):
        running = pool.map(work, range(8))
        check_loader(loader(SMALL, collator), SMALL)
        list(running)
check_collator(collator)
"""
    script(COLLATING + code, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=300)


@once_or_often
def test_workers_forked_while_a_thread_compiles_collate(script: Runner, costly_layer: str, repeats: int) -> None:
    code = """
from numba import njit
collator = Collator(masker, epoch=3)
stop, compiled = threading.Event(), []
def compile_on():
    while not stop.is_set():
        function = njit(lambda a, b: (a + b) * 3 - a / (b + 1))
        for kind in (np.int8, np.int16, np.int32, np.float32):
            function(kind(1), kind(2))
            compiled.append(kind)
compiler = threading.Thread(target=compile_on)
compiler.start()
for _ in range(int(sys.argv[3])):
    check_loader(loader(SMALL, collator), SMALL)
stop.set()
compiler.join()
assert compiled
"""
    script(COLLATING + code, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=300)


@once_or_often
def test_b75_the_interpreter_exits_in_time_with_loaders_half_read(
    script: Runner, costly_layer: str, repeats: int
) -> None:
    code = """
collator = Collator(masker, epoch=3)
check_collator(collator)
held = []
for shape in (SMALL, LARGE):
    batches = iter(loader(shape, collator, persistent_workers=True, pin_memory=True))
    assert masked(next(batches)) == WANTED[shape]
    held.append(batches)  # two batches of workers wait in each
print("at the end")
"""
    for _ in range(repeats):
        lines = script(COLLATING + code, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=60)
        assert lines == ["at the end"]


@once_or_often
def test_b104_two_pinning_loaders_are_read_in_turns(script: Runner, costly_layer: str, repeats: int) -> None:
    code = """
collator = Collator(masker, epoch=3)
check_collator(collator)
for _ in range(int(sys.argv[3])):
    one, other = (loader(LARGE, collator, pin_memory=True) for _ in range(2))
    pairs = list(zip(one, other, strict=True))
    check_loader([batch for batch, _ in pairs], LARGE)
    check_loader([batch for _, batch in pairs], LARGE)
"""
    script(COLLATING + code, repeats, NUMBA_THREADING_LAYER=costly_layer, noise=costly_layer == "tbb", seconds=300)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_b104_workers_that_are_spawned_collate_and_hear_of_epochs(script: Runner, method: str) -> None:
    code = """
if __name__ == "__main__":
    collator = Collator(masker, epoch=3)
    check_collator(collator)
    kept = loader(SMALL, collator, sys.argv[3], persistent_workers=True)
    check_loader(kept, SMALL)
    collator.set_epoch(4)
    assert all(masked(batch) != WANTED[SMALL] for batch in kept)
    collator.set_epoch(3)
    check_loader(kept, SMALL)
"""
    script(COLLATING + code, method, seconds=300)


RANKS = """
import torch.distributed as dist
from torch.utils.data import DistributedSampler

def fates(batch):
    return {int(k): masked({name: batch[name][i : i + 1] for name in ("input_ids", "labels")})
            for i, k in enumerate(batch["index"])}

class Numbered(Rows):
    def __getitem__(self, k):
        return super().__getitem__(k) | {"index": k}

def everything(epoch, sampler=None, workers=0):
    collator = Collator(masker, sample_id="index")
    collator.set_epoch(epoch)
    found = {}
    for batch in DataLoader(Numbered(SMALL), 5, sampler=sampler, collate_fn=collator, num_workers=workers):
        found |= fates(batch)
    return found

def rank(k, size, folder, want):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=k, world_size=size)
    for epoch in (0, 3):
        sampler = DistributedSampler(Numbered(SMALL), size, k, seed=epoch)
        parts = [None] * size
        dist.all_gather_object(parts, everything(epoch, sampler, workers=2))
        assert sum(map(len, parts)) == 2 * SMALL[0]
        assert {index: fate for part in parts for index, fate in part.items()} == want[epoch]
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    import tempfile
    want = {epoch: everything(epoch) for epoch in (0, 3)}
    assert want[0] != want[3]
    for size in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            for child in [forked(lambda k=k: rank(k, size, folder, want)) for k in range(size)]:
                ended_well(child, 100)
"""


def test_b61_ranks_that_talk_by_gloo_find_their_samples_masked_as_in_one_process(script: Runner) -> None:
    script(COLLATING + RANKS, noise=True)  # gloo tells of its connections
