"""PTX instructions as LLVM IR: what all groups of instructions share, and the table of those that are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from device.ptx import Instruction, Kernel, Label, Type, UnknownPtxError

FLOATS = {32: "float", 64: "double"}
NAMES = ("tid", "ntid", "ctaid", "nctaid")
B32, B64, PRED = Type("b", 32), Type("b", 64), Type("pred", 1)

# The fields of a thread's record, 64-bit integers: special registers first.
SPECIAL = {f"%{name}.{axis}": 3 * i + j for i, name in enumerate(NAMES) for j, axis in enumerate("xyz")}
STATUS, PLACE, STAMP, LINEAR, MEMBERS, GIVEN, BALLOT, EXCHANGED, RECORD = (len(SPECIAL) + i for i in range(9))
RUNNING, AT_BARRIER, AT_WARP, ENDED, FAULTED = range(5)  # of STATUS

# What a thread, or a block, may end with.
(
    MISALIGNED, OUTSIDE, UNWRITTEN, RACE, EXHAUSTED, DIVISION, STRANDED, SCATTERED, PARTIAL_WARP,
) = range(1, 10)  # fmt: skip

Rule = Callable[["Code", Instruction], None]
_RULES: list[tuple[re.Pattern[str], Rule]] = []


def translates(pattern: str) -> Callable[[Rule], Rule]:
    """The rule is for opcodes that match the pattern as a whole, suffixes and all."""

    def register(rule: Rule) -> Rule:
        _RULES.append((re.compile(pattern), rule))
        return rule

    return register


def rule_for(instruction: Instruction) -> Rule:
    """The one rule for an instruction. UnknownPtxError names the opcode where there is none."""
    for pattern, rule in _RULES:
        if pattern.fullmatch(instruction.opcode):
            return rule
    raise UnknownPtxError(f"opcode {instruction.opcode}")


def is_known(instruction: Instruction) -> bool:
    """Whether there is a rule for the opcode."""
    return any(pattern.fullmatch(instruction.opcode) for pattern, _ in _RULES)


class Place(NamedTuple):
    """Where a variable lies: its address for the first thread of a block, and the distance to the next thread's own."""

    address: int
    apart: int = 0


class Code:
    """The IR of a kernel's body, in the making. Registers are stack slots of integers, which LLVM removes.

    Args:
        kernel: what is translated.
        places: of its variables.
        mutants: by place in the body, instructions that stand in for the one there, each with a number: it is
            carried out in its stead while `@ptx.mutant` holds the number.
    """

    def __init__(
        self, kernel: Kernel, places: Mapping[str, Place], mutants: Mapping[int, Sequence[tuple[int, Instruction]]]
    ) -> None:
        self.kernel, self.places = kernel, places
        self.lines: list[str] = []
        self.place = 0  # of the instruction at hand, in the body
        self._names = 0
        self._seen: set[str] = set()
        for self.place, statement in enumerate(kernel.body):
            if isinstance(statement, Label):
                self.open(f'"{statement.name}"')
                self._seen.add(statement.name)
            elif self.place in mutants:
                self._choose(statement, mutants[self.place])
            else:
                self._guarded(statement)
        self.close("br label %ptx.ended")

    def _choose(self, original: Instruction, mutants: Sequence[tuple[int, Instruction]]) -> None:
        """The original instruction, or the mutant that is asked for."""
        ways = [self.name() for _ in mutants]
        usual, after = self.name(), self.name()
        chosen = self.value("load i64, ptr @ptx.mutant")
        cases = " ".join(f"i64 {number}, label %{way}" for (number, _), way in zip(mutants, ways, strict=True))
        self.close(f"switch i64 {chosen}, label %{usual} [{cases}]")
        for way, instruction in [(usual, original), *zip(ways, (mutant for _, mutant in mutants), strict=True)]:
            self.open(way)
            self._guarded(instruction)
            self.close(f"br label %{after}")
        self.open(after)

    def _guarded(self, instruction: Instruction) -> None:
        if instruction.guard is None:
            rule_for(instruction)(self, instruction)
            return
        condition = self.get(instruction.guard, PRED)
        if instruction.negated:
            condition = self.value(f"xor i1 {condition}, true")
        with self.where(condition):
            rule_for(instruction)(self, instruction)

    # Lines.

    def name(self) -> str:
        """A name that is not taken."""
        self._names += 1
        return f"t{self._names}"

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def value(self, expression: str) -> str:
        """The name of what an instruction of LLVM computes."""
        name = f"%{self.name()}"
        self.emit(f"{name} = {expression}")
        return name

    def open(self, label: str) -> None:
        """A basic block begins, where the one before goes on unless it was closed."""
        self.close(f"br label %{label}")
        self.lines.append(f"{label}:")

    def close(self, terminator: str) -> None:
        """The basic block ends; a second end is not reached, and gets a block of its own."""
        if self.lines and re.match(r"  (br|switch|unreachable)\b", self.lines[-1]):
            self.lines.append(f"{self.name()}:")
        self.emit(terminator)

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What is emitted within happens where the condition holds."""
        inside, after = self.name(), self.name()
        self.emit(f"br i1 {condition}, label %{inside}, label %{after}")
        self.lines.append(f"{inside}:")
        yield
        self.open(after)

    def require(self, condition: str, fault: int, *about: str) -> None:
        """The thread ends with a fault where the condition does not hold; `about` are up to two i64."""
        first, second = (*about, "0", "0")[:2]
        wrong = self.value(f"xor i1 {condition}, true")
        with self.where(wrong):
            where = f"i64 {self.place}, i64 {first}, i64 {second}"
            self.emit(f"call void @ptx.fault(ptr %thread, i64 {fault}, {where})")
            self.close("br label %ptx.faulted")

    def branch(self, label: str) -> None:
        """A jump; one backwards costs fuel, so that no loop lasts for ever."""
        if label in self._seen:
            self.require(self.value("call i1 @ptx.burn()"), EXHAUSTED)
        self.close(f'br label %"{label}"')

    # Operands.

    def field(self, index: int) -> str:
        """A field of the thread's record."""
        return self.value(f"load i64, ptr {self.value(f'getelementptr i64, ptr %thread, i64 {index}')}")

    def set_field(self, index: int, value: str) -> None:
        self.emit(f"store i64 {value}, ptr {self.value(f'getelementptr i64, ptr %thread, i64 {index}')}")

    def get(self, operand: str, kind: Type) -> str:
        """An operand's bits as an integer of the type's width."""
        if operand in self.kernel.registers:
            own = self.kernel.registers[operand]
            return self.resized(self.value(f'load {own.integer}, ptr %"{operand}"'), own, kind)
        if operand in SPECIAL:
            return self.resized(self.field(SPECIAL[operand]), B64, kind)
        if operand == "%laneid":
            return self.resized(self.value(f"and i64 {self.field(LINEAR)}, 31"), B64, kind)
        if operand == "WARP_SZ":
            return "32"
        if operand in self.places:
            if kind.bits != 64:
                raise UnknownPtxError(f"address of {operand} in {kind.bits} bits")
            address, apart = self.places[operand]
            if apart == 0:
                return str(address)
            return self.value(f"add i64 {address}, {self.value(f'mul i64 {self.field(LINEAR)}, {apart}')}")
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", operand):
            return str(int(operand[2:], 16))
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            return str(bool(number)).lower() if kind.bits == 1 else str(number)
        raise UnknownPtxError(f"operand {operand}")

    def put(self, operand: str, kind: Type, value: str) -> None:
        """A register holds a value of the type; a wider register its extension, by sign where the type has one."""
        if operand == "_":
            return
        if operand not in self.kernel.registers:
            raise UnknownPtxError(f"register {operand}")
        own = self.kernel.registers[operand]
        self.emit(f'store {own.integer} {self.resized(value, kind, own)}, ptr %"{operand}"')

    def resized(self, value: str, kind: Type, to: Type) -> str:
        """The value of a type in the width of another."""
        if kind.bits == to.bits:
            return value
        how = "trunc" if kind.bits > to.bits else "sext" if kind.signed else "zext"
        return self.value(f"{how} {kind.integer} {value} to {to.integer}")

    def get_float(self, operand: str, kind: Type) -> str:
        return self.value(f"bitcast {kind.integer} {self.get(operand, kind)} to {FLOATS[kind.bits]}")

    def put_float(self, operand: str, kind: Type, value: str) -> None:
        self.put(operand, kind, self.value(f"bitcast {FLOATS[kind.bits]} {value} to {kind.integer}"))
