"""Kernels with one instruction changed, and launches that tell them from the kernel as it is."""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from device.backend import CodeOf, Device, Which
from device.machine import CompiledKernel, FaultError
from device.memory import DeviceArray, Snapshot, memory
from device.ptx import Instruction, Kernel, Type
from device.translate import is_known
from device.values import vector

# What is made of an opcode; the first pattern that is found in it counts.
OPERATIONS = [
    (r"^add\.", "sub."),
    (r"^sub\.", "add."),
    (r"^and\.", "or."),
    (r"^or\.", "and."),
    (r"^xor\.", "or."),
    (r"^shl\.b", "shr.u"),
    (r"^shr\.u", "shl.b"),
    (r"^min\.", "max."),
    (r"^max\.", "min."),
    (r"^mul\.lo\.", "mul.hi."),
    (r"^mad\.lo\.", "mad.hi."),
    (r"^div\.u", "rem.u"),
    (r"^rem\.u", "div.u"),
    (r"^fma\.rn\.", "mul.rn."),
    (r"\.eq\.", ".ne."),
    (r"\.ne\.", ".eq."),
    (r"^setp\.lt\.", "setp.le."),
    (r"^setp\.le\.", "setp.lt."),
    (r"^setp\.gt\.", "setp.ge."),
    (r"^setp\.ge\.", "setp.gt."),
]
SCRATCH = {"mask_samples": (21, 22, 23)}  # arguments that only hold what a launch needs itself: words, kinds, firsts
PATIENCE = 1 << 20  # branches backwards in a launch
WITHOUT = Instruction("mov.pred", ("_", "0"))  # nothing happens


Registers = dict[str, Type]


class Mutant(NamedTuple):
    """An instruction that stands in for the one at a place of a kernel's body."""

    place: int
    instruction: Instruction
    original: Instruction

    def __str__(self) -> str:
        now = "nothing" if self.instruction is WITHOUT else str(self.instruction)
        return f"{self.original} -> {now}"


def mutants_of(kernel: Kernel, count: int) -> list[Mutant]:
    """So many mutants, or fewer, evenly spread over all that there are."""
    registers = _written(kernel)
    every = [
        Mutant(place, changed, instruction)
        for place, instruction in enumerate(kernel.body)
        if isinstance(instruction, Instruction)
        for changed in _changed(registers, instruction, place)
    ]
    chosen = np.unique(np.linspace(0, len(every) - 1, min(count, len(every))).astype(int))
    return [every[i] for i in chosen]


def _written(kernel: Kernel) -> Registers:
    """The registers that some instruction writes: to read another is to read nothing."""
    instructions = (statement for statement in kernel.body if isinstance(statement, Instruction))
    results = {name for instruction in instructions for name in vector("".join(instruction.operands[:1]))}
    return {name: kind for name, kind in kernel.registers.items() if name in results}


def _changed(registers: Registers, instruction: Instruction, place: int) -> Iterator[Instruction]:
    """One change at a time: of the predicate, the operation, a constant or a register; or it is left out."""
    if instruction.guard is not None:
        yield replace(instruction, negated=not instruction.negated)
    if instruction.opcode.startswith(("bar.", "st.", "atom.", "red.")):
        yield WITHOUT
    yield from _other_operation(instruction)
    if instruction.opcode.startswith(("bar.", "bra")):
        return
    has_result = not instruction.opcode.startswith(("st.", "red."))
    for at in range(has_result, len(instruction.operands)):
        if at == 4 and _fills_the_top(instruction):
            continue
        for operand in _other_operands(registers, instruction.operands[at], place):
            yield replace(instruction, operands=(*instruction.operands[:at], operand, *instruction.operands[at + 1 :]))


def _fills_the_top(instruction: Instruction) -> bool:
    """Whether a field is inserted up to the highest bit: where it is wider, it is cut to the same."""
    *_, at, width = instruction.operands
    return instruction.opcode.startswith("bfi.") and int(at) + int(width) >= instruction.type.bits


def _other_operation(instruction: Instruction) -> Iterator[Instruction]:
    for pattern, other in OPERATIONS:
        opcode, found = re.subn(pattern, other, instruction.opcode)
        operands = instruction.operands[: 3 if opcode.startswith("mul.rn.") else None]  # a sum has one more
        changed = replace(instruction, opcode=opcode, operands=operands)
        if found and is_known(changed):
            yield changed
            return


def _other_operands(registers: Registers, operand: str, place: int) -> Iterator[str]:
    """The constant after a constant; for a register one of the next three of its type that are written."""
    if re.fullmatch(r"-?\d+", operand):
        yield str(int(operand) + 1)
    elif operand in registers:
        alike = [name for name, kind in registers.items() if kind == registers[operand]]
        if len(alike) > 1:
            yield alike[(alike.index(operand) + 1 + place % min(3, len(alike) - 1)) % len(alike)]


@dataclass(frozen=True)
class Launch:
    """A launch, and what it made of the memory that it was given."""

    grid: int
    block: int
    arguments: tuple[Any, ...]
    backwards: bool
    before: Snapshot
    after: Snapshot
    matters: npt.NDArray[np.bool_]  # of the bytes: those that are not scratch

    def tells(self, kernel: CompiledKernel, mutant: int) -> bool:
        """Whether the mutant ends with a fault, or leaves other bytes than the kernel as it is."""
        memory().restore(self.before)
        try:
            kernel.launch(self.grid, self.block, self.arguments, backwards=self.backwards, mutant=mutant, fuel=PATIENCE)
        except FaultError:
            return True
        bytes_, shadow = memory().bytes[self.after.at], memory().shadow[self.after.at]
        same = (bytes_ == self.after.bytes) & (shadow == self.after.shadow)
        return not bool(same[self.matters].all())


class Recorder(Device):
    """A device that remembers its launches, and holds their memory until it is told to let go."""

    def __init__(self, architecture: str, code_of: CodeOf) -> None:
        super().__init__(architecture, code_of)
        self.launches: dict[Which, list[Launch]] = defaultdict(list)
        self.kernels: dict[Which, Kernel] = {}
        self._arrays: dict[int, DeviceArray] = {}  # by address
        self._addresses: list[int] = []  # ascending

    def install(self, patch: pytest.MonkeyPatch) -> None:
        super().install(patch)
        empty = memory().empty

        def kept(*arguments: Any, **further: Any) -> DeviceArray:
            array = empty(*arguments, **further)
            if array.size:
                self._arrays[array.ctypes.data] = array
                insort(self._addresses, array.ctypes.data)
            return array

        patch.setattr(memory(), "empty", kept)
        patch.setattr("numba.cuda.device_array", kept)

    def run(self, which: Which, kernel: CompiledKernel, grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        given = list({id(array): array for array in map(self._array_at, arguments) if array is not None}.values())
        before = memory().snapshot(given)
        super().run(which, kernel, grid, block, arguments)
        scratch = {arguments[at] for at in SCRATCH.get(which[0], ())}
        matters = np.concatenate([np.full(array.nbytes, array.ctypes.data not in scratch) for array in given])
        after = memory().snapshot(given)
        self.kernels[which] = kernel.kernel
        self.launches[which].append(Launch(grid, block, arguments, self.backwards, before, after, matters))

    def let_go(self) -> None:
        """The memory is free again: launches cannot be repeated any more."""
        self._arrays.clear()
        self._addresses.clear()

    def _array_at(self, argument: Any) -> DeviceArray | None:
        """The array that holds an address, if the argument is one."""
        at = bisect_right(self._addresses, argument) - 1
        array = self._arrays[self._addresses[at]] if at >= 0 else None
        return array if array is not None and argument < array.ctypes.data + array.nbytes else None
