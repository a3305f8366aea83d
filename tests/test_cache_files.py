"""The disk cache of compiled kernels, damaged or in the way: what is unreadable is a miss, and is rebuilt."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support_cache import MASK_DTYPES, SMALL_KERNELS, environment, files_of, run

# --- damaged files


def _empty(content: bytes) -> bytes:
    return b""


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _all_but_the_last_byte(content: bytes) -> bytes:
    return content[:-1]


def _zeros(content: bytes) -> bytes:
    return bytes(len(content))


def _zeros_at_the_end(content: bytes) -> bytes:
    return content[:-4096] + bytes(min(4096, len(content)))


def _garbage(content: bytes) -> bytes:
    return random.Random(1).randbytes(len(content))


def _one_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _first_byte(content: bytes) -> bytes:
    return bytes([content[0] ^ 255]) + content[1:]


def _a_pickle_of_an_unknown_module(content: bytes) -> bytes:
    return b"cno_such_module\nName\n."


def _a_pickle_of_another_protocol(content: bytes) -> bytes:
    return b"\x80\x63" + content[2:]


Damage = Callable[[bytes], bytes]
DAMAGES: list[list[Damage]] = [
    [_empty, _half, _all_but_the_last_byte, _zeros, _zeros_at_the_end],
    [_garbage, _one_bit, _first_byte, _a_pickle_of_an_unknown_module, _a_pickle_of_another_protocol],
]


@pytest.mark.parametrize("damages", DAMAGES, ids=["cut", "changed"])
def test_b78_a_damaged_file_is_a_miss_and_is_rebuilt(damages: list[Damage], small_cache: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    names = ["weights", *MASK_DTYPES]
    for name, damage in zip(names, damages, strict=True):
        mark = "content_weights" if name == "weights" else f"real_runs_kernel_{name}_"
        touched = [path for path in files_of(cache) if mark in path.name]
        assert touched
        for path in touched:
            path.write_bytes(damage(path.read_bytes()))
    env = environment(cache)
    assert run(SMALL_KERNELS, *names, env=env) == [f"{name} compiled" for name in names]
    assert run(SMALL_KERNELS, *names, env=env) == [f"{name} loaded" for name in names]


def test_b78_a_folder_in_the_place_of_a_file_does_no_harm(small_cache: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(small_cache, cache)
    for path in files_of(cache):
        path.unlink()
        path.mkdir()
    assert run(SMALL_KERNELS, "weights", env=environment(cache)) == ["weights compiled"]


def test_b78_a_full_disk_does_no_harm(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"  # bytes that a file can have
    assert run(limit + SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights compiled"]
    assert run(SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights compiled"]
    assert run(SMALL_KERNELS, "weights", env=environment(tmp_path)) == ["weights loaded"]


def test_b78_a_cache_that_vanishes_during_the_compilation_does_no_harm(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = f"""
import os, shutil
from numba.core import event
class Vanish(event.Listener):
    def on_start(self, event):
        if os.path.isdir({str(cache)!r}):
            shutil.rmtree({str(cache)!r})
            open({str(cache)!r}, "w").close()
    def on_end(self, event):
        pass
event.register("numba:compile", Vanish())
"""
    assert run(code + SMALL_KERNELS, "weights", env=environment(cache)) == ["weights compiled"]
    assert cache.is_file()
