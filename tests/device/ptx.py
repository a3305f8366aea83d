"""The text of a PTX module, taken apart: its kernel, the registers and shared variables, and what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class UnknownPtxError(Exception):
    """The text holds something that the machine does not know; it guesses nothing."""


class Type(NamedTuple):
    """A fundamental type: b, u, s, f or pred, and how many bits."""

    kind: str
    bits: int

    @classmethod
    def named(cls, name: str) -> Type:
        """The type of a suffix such as u64."""
        if name == "pred":
            return cls("pred", 1)
        found = re.fullmatch(r"([busf])(8|16|32|64)", name)
        if found is None:
            raise UnknownPtxError(f"type .{name}")
        return cls(found[1], int(found[2]))

    @property
    def size(self) -> int:
        """In bytes."""
        return self.bits // 8

    @property
    def integer(self) -> str:
        """The LLVM integer that holds its bits."""
        return f"i{self.bits}"

    @property
    def signed(self) -> bool:
        return self.kind == "s"


class Variable(NamedTuple):
    """A variable of shared or local memory, in bytes."""

    name: str
    alignment: int
    size: int


@dataclass(frozen=True)
class Label:
    """A place that branches name."""

    name: str


@dataclass(frozen=True)
class Instruction:
    """One instruction: `guard` is the predicate that lets it happen, `negated` where it must be false."""

    opcode: str
    operands: tuple[str, ...]
    guard: str | None = None
    negated: bool = False

    @property
    def type(self) -> Type:
        """The last suffix of the opcode."""
        return Type.named(self.opcode.rpartition(".")[2])

    def __str__(self) -> str:
        guard = "" if self.guard is None else f"@{'!' * self.negated}{self.guard} "
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Kernel:
    """The one kernel of a module."""

    name: str
    target: str
    parameters: dict[str, Type]
    registers: dict[str, Type]
    shared: tuple[Variable, ...]
    local: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...] = field(repr=False)


_VARIABLE = re.compile(r"(?:\.visible )?\.(shared|local) \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]")
_UNUSED = re.compile(
    r"\.common \.global \.align (8 \.u64 _ZN08NumbaEnv|4 \.u32 __numba_cuda_mlir)\w+"
)  # nothing reads it, or `operand` refuses
_HEADER = re.compile(r"\.version [\d.]+\s+\.target (\w+)\s+\.address_size 64\s+(?=\.)")
_ENTRY = re.compile(r"\.visible \.entry ([\w$]+)\s*\(([^)]*)\)\s*(?:\.maxntid \d+(?:, \d+)*\s*)?(?=\{)")
_PARAMETER = re.compile(r"\.param \.(\w+)(?: \.ptr(?: \.global)? \.align \d+)? ([\w$]+)")
_REGISTERS = re.compile(r"\.reg \.(\w+) (%\w+)<(\d+)>")
_SCRATCH = re.compile(r"\.reg \.(\w+) (\w+)")
_ALONE = re.compile(r"\.reg \.(\w+) (%\w+)")
_PRAGMA = re.compile(r'\.pragma "[^"]*"')
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+) )?([a-z]\w*(?:(?:\.|::)\w+)*)(?: (.*))?", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


def parse(text: str) -> Kernel:
    """The kernel of a module's text. UnknownPtxError names what is not understood."""
    text = re.sub(r"[ \t\r\n]+", " ", re.sub(r"//[^\n]*", "", text)).strip()
    header = _HEADER.match(text)
    if header is None:
        raise UnknownPtxError(f"header {text[:80]!r}")
    text = text[header.end() :]
    shared: list[Variable] = []
    while not (entry := _ENTRY.match(text)):
        line, _, text = text.partition("; ")
        if (found := _VARIABLE.fullmatch(line)) is not None and found[1] == "shared":
            shared.append(_variable(found))
        elif _UNUSED.fullmatch(line) is None:
            raise UnknownPtxError(f"directive {line[:80]!r}")
    parameters = {}
    for parameter in filter(None, (part.strip() for part in entry[2].split(","))):
        found = _PARAMETER.fullmatch(parameter)
        if found is None:
            raise UnknownPtxError(f"parameter {parameter!r}")
        parameters[found[2]] = Type.named(found[1])
    body = _Body(text[entry.end() :])
    variables = (*shared, *body.variables["shared"]), tuple(body.variables["local"])
    return Kernel(entry[1], header[1], parameters, body.registers, *variables, tuple(body.statements))


def _variable(found: re.Match[str]) -> Variable:
    return Variable(found[3], int(found[2]), int(found[4]))


class _Body:
    """Statements of a function, read in order; registers of an inner block get names of their own."""

    def __init__(self, text: str) -> None:
        self.registers: dict[str, Type] = {}
        self.variables: dict[str, list[Variable]] = {"shared": [], "local": []}
        self.statements: list[Instruction | Label] = []
        self._scopes: list[dict[str, str]] = []
        for piece in _pieces(text):
            self._take(piece)

    def _take(self, piece: str) -> None:
        if piece == "{":
            self._scopes.append({})
        elif piece == "}":
            self._scopes.pop()
        elif piece.endswith(":"):
            self.statements.append(Label(piece[:-1]))
        elif (found := _REGISTERS.fullmatch(piece)) is not None:
            kind = Type.named(found[1])
            self.registers |= {f"{found[2]}{number}": kind for number in range(int(found[3]))}
        elif (found := _ALONE.fullmatch(piece)) is not None:
            self.registers[found[2]] = Type.named(found[1])
        elif (found := _VARIABLE.fullmatch(piece)) is not None:
            self.variables[found[1]].append(_variable(found))
        elif (found := _SCRATCH.fullmatch(piece)) is not None:
            name = f"%{found[2]}.{len(self.registers)}"
            self._scopes[-1][found[2]] = name
            self.registers[name] = Type.named(found[1])
        elif _PRAGMA.fullmatch(piece) is None:
            self._instruction(piece)

    def _instruction(self, piece: str) -> None:
        found = _INSTRUCTION.fullmatch(piece)
        if found is None:
            raise UnknownPtxError(f"statement {piece!r}")
        rest = found[4] or ""
        for scope in self._scopes:
            for name, own in scope.items():
                rest = re.sub(rf"(?<![\w%.]){name}\b", own, rest)
        self.statements.append(Instruction(found[3], tuple(_OPERAND.findall(rest)), found[2], found[1] == "!"))


def _pieces(text: str) -> Iterator[str]:
    """Statements without their semicolons, labels with their colons, and the braces of blocks."""
    rest, depth = text.strip(), 0
    while rest:
        if rest[0] in "{}":
            piece, depth = rest[0], depth + (1 if rest[0] == "{" else -1)
        elif (label := re.match(r"[\w$]+:", rest)) is not None:
            piece = label[0]
        else:
            piece, semicolon, _ = rest.partition(";")
            if not semicolon:
                raise UnknownPtxError(f"statement {rest[:80]!r}")
            rest = rest[1:]  # the semicolon
        rest = rest[len(piece) :].lstrip()
        yield piece.strip()
        if depth == 0 and rest:
            raise UnknownPtxError(f"more than one function: {rest[:80]!r}")
