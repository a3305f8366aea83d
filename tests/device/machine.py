"""Kernels ready to run: translated, compiled for the host, launched over a grid; a fault is an exception that tells."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from device import translate
from device.coroutines import as_coroutine
from device.memory import DeviceArray, memory
from device.ptx import Instruction, Kernel, Type, Variable
from device.runtime import (
    APART,
    BLOCK,
    FIRST,
    FREE,
    FUEL,
    KIND,
    LANES_MEET,
    LAUNCH_BITS,
    LOCALS,
    MUTANT,
    SECOND,
    WHERE,
    WHO,
    WINDOW,
    compiled,
    run,
)

Extent = int | tuple[int, ...]

ZONE = 64  # bytes between variables that belong to none
WIDEST = 128  # of the alignments that variables have
FUEL_AT_START = 1 << 32  # branches backwards in a launch
MOST_THREADS = 1024

FAULTS = {
    translate.MISALIGNED: "address {0:#x} is not a multiple of {1}",
    translate.OUTSIDE: "{1} bytes at {0:#x} are not all of an array",
    translate.UNWRITTEN: "{1} bytes at {0:#x} were not all written",
    translate.RACE: "{1} bytes at {0:#x} are touched by another thread, and nothing orders the two",
    translate.EXHAUSTED: "the launch takes too long",
    translate.DIVISION: "the quotient does not exist",
    translate.STRANDED: "{0} of {1} threads have come to this barrier, and no other will",
    translate.SCATTERED: "some threads wait here, others at statement {0}",
    translate.PARTIAL_WARP: "the members of a warp, {0:#x}, do not all take part here",
}


class FaultError(AssertionError):
    """A thread did what no thread may do; or threads waited for others in vain."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class CompiledKernel:
    """A kernel that can be launched.

    Args:
        kernel: as parsed.
        mutants: by place in its body, instructions that may stand in for the one there, each with a number above 0.
    """

    def __init__(self, kernel: Kernel, mutants: Mapping[int, Sequence[tuple[int, Instruction]]] | None = None) -> None:
        self.kernel = kernel
        self._shared, end = _laid_out(kernel.shared)
        if end > WINDOW:
            raise MemoryError(f"{end} bytes of shared memory")
        self._local, self._apart = _laid_out(kernel.local)
        base, places = memory().base, {}
        for variable, (offset, _) in zip(kernel.shared, self._shared, strict=True):
            places[variable.name] = translate.Place(base + offset)
        for variable, (offset, _) in zip(kernel.local, self._local, strict=True):
            places[variable.name] = translate.Place(base + WINDOW + offset, self._apart)
        self._engine = compiled(as_coroutine(kernel, places, mutants))
        self._start = self._engine.get_function_address("kernel")
        opcodes = [statement.opcode for statement in kernel.body if isinstance(statement, Instruction)]
        self._lanes_meet = any(
            ".sync" in opcode and not opcode.startswith(("bar.sync", "barrier")) for opcode in opcodes
        )

    def launch(
        self,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Any],
        *,
        only: range | None = None,
        backwards: bool = False,
        mutant: int = 0,
        fuel: int = FUEL_AT_START,
    ) -> None:
        """All threads have run. FaultError where one of them must not have done what it did.

        Args:
            grid: up to three extents.
            block: likewise, of at most 1024 threads.
            arguments: per parameter a number, or an array for its address.
            only: the blocks that run, all unless given.
            backwards: whether the last thread of a block comes first.
            mutant: the number of the instruction that stands in for another; 0 for none.
            fuel: how many branches backwards there may be.
        """
        extents, threads = _extents(grid), _extents(block)
        size, blocks = int(threads.prod()), range(int(extents.prod()))
        assert 0 < size <= MOST_THREADS
        only = blocks if only is None else only
        values = zip(self.kernel.parameters.values(), arguments, strict=True)
        packed = b"".join(_packed(kind, value) for kind, value in values)
        parameters = np.frombuffer(packed + bytes(8), np.int64)
        device = memory()
        device.state[FUEL], device.state[MUTANT] = fuel, mutant
        device.state[KIND], device.state[LANES_MEET] = 0, 5 * self._lanes_meet
        device.state[APART] = self._apart
        device.shadow[: LOCALS if self.kernel.local else WINDOW] = FREE
        records, handles = np.zeros((size, translate.RECORD), np.int64), np.zeros(size, np.int64)
        run(
            self._start, parameters.ctypes.data, records, handles, device.state, device.shadow, device.readers,
            device.writers, self._variables(size), extents, threads, only.start, only.stop, _next_launch(), backwards,
        )  # fmt: skip
        if device.state[KIND] != 0:
            raise self._fault()

    def _variables(self, threads: int) -> Any:
        """Offset and size in memory of the shared variables, and of the local ones of each of so many threads."""
        if threads * self._apart > LOCALS - WINDOW:
            raise MemoryError(f"{threads * self._apart} bytes of local memory")
        owns = (WINDOW + thread * self._apart for thread in range(threads))
        local = [(own + offset, size) for own in owns for offset, size in self._local]
        return np.array(self._shared + local, np.int64).reshape(-1, 2)

    def _fault(self) -> FaultError:
        kind, place, first, second, who, block = (
            int(memory().state[field]) for field in (KIND, WHERE, FIRST, SECOND, WHO, BLOCK)
        )
        what = FAULTS[kind].format(first, second)
        where = f"statement {place}, {self.kernel.body[place]}"
        return FaultError(kind, f"{self.kernel.name[:60]}: {where}: thread {who} of block {block}: {what}")


def _laid_out(variables: Sequence[Variable]) -> tuple[list[tuple[int, int]], int]:
    """(offset and size of each of some variables, where the next may begin): they lie apart from all others."""
    spans, end = [], 0
    for variable in variables:
        offset = _rounded_up(end + ZONE, variable.alignment)
        spans.append((offset, variable.size))
        end = offset + variable.size
    return spans, _rounded_up(end + ZONE, WIDEST) if variables else 0


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _extents(extent: Extent) -> Any:
    given = (extent,) if isinstance(extent, int) else extent
    return np.array([*given, 1, 1][:3], np.int64)


def _packed(kind: Type, value: Any) -> bytes:
    """The eight bytes of a parameter, the lowest first."""
    if isinstance(value, DeviceArray):
        value = value.ctypes.data
    if kind.kind == "f":
        return struct.pack("<d" if kind.bits == 64 else "<f4x", value)
    return (int(value) % (1 << kind.bits)).to_bytes(8, "little")


_launches = [0]


def _next_launch() -> int:
    """A number for a launch; before numbers begin anew, the stamps of old ones are wiped."""
    _launches[0] += 1
    if _launches[0] == 1 << LAUNCH_BITS:
        _launches[0] = 1
        memory().readers.fill(0)
        memory().writers.fill(0)
    return _launches[0]
