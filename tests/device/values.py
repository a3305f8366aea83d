"""Moves, conversions, comparisons, and arithmetic in floats."""

from __future__ import annotations

from device.ptx import Instruction, Type
from device.translate import FLOATS, PRED, Code, translates

_ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}
_UNORDERED = {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}
_UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


@translates(r"mov\.([bus](16|32|64)|f(32|64)|pred)|cvta(\.to)?\.(global|shared|local)\.u64")
def _move(code: Code, instruction: Instruction) -> None:
    """An address is the same number in its own space as in all."""
    kind = instruction.type
    into, operand = instruction.operands
    if into.startswith("{"):
        _unpack(code, into, operand, kind)
    elif operand.startswith("{"):
        _pack(code, into, operand, kind)
    else:
        code.put(into, kind, code.get(operand, kind))


def vector(operand: str) -> list[str]:
    """The operands of a group in braces; of any other, itself."""
    return [part.strip() for part in operand.strip("{}").split(",")]


def _unpack(code: Code, group: str, operand: str, kind: Type) -> None:
    parts = vector(group)
    part = Type("b", kind.bits // len(parts))
    whole = code.get(operand, kind)
    for at, into in enumerate(parts):
        code.put(into, part, code.resized(code.value(f"lshr {kind.integer} {whole}, {at * part.bits}"), kind, part))


def _pack(code: Code, into: str, group: str, kind: Type) -> None:
    parts = vector(group)
    part, whole = Type("b", kind.bits // len(parts)), "0"
    for at, operand in enumerate(parts):
        piece = code.value(f"shl {kind.integer} {code.resized(code.get(operand, part), part, kind)}, {at * part.bits}")
        whole = code.value(f"or {kind.integer} {whole}, {piece}")
    code.put(into, kind, whole)


@translates(r"selp\.([bus](16|32|64)|f(32|64))")
def _select(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, first, second, condition = instruction.operands
    chosen = f"{kind.integer} {code.get(first, kind)}, {kind.integer} {code.get(second, kind)}"
    code.put(into, kind, code.value(f"select i1 {code.get(condition, PRED)}, {chosen}"))


@translates(r"setp\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs)(\.(and|or|xor))?\.[bus](16|32|64)")
def _compare(code: Code, instruction: Instruction) -> None:
    kind, how = instruction.type, instruction.opcode.split(".")[1]
    first, second = (code.get(operand, kind) for operand in instruction.operands[1:3])
    if how not in ("eq", "ne"):
        how = _UNSIGNED.get(how) or ("s" if kind.signed else "u") + how
    _set(code, instruction, code.value(f"icmp {how} {kind.integer} {first}, {second}"))


@translates(r"setp\.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)(\.(and|or|xor))?\.f(32|64)")
def _compare_floats(code: Code, instruction: Instruction) -> None:
    kind, how = instruction.type, instruction.opcode.split(".")[1]
    first, second = (code.get_float(operand, kind) for operand in instruction.operands[1:3])
    _set(code, instruction, code.value(f"fcmp {(_ORDERED | _UNORDERED)[how]} {FLOATS[kind.bits]} {first}, {second}"))


def _set(code: Code, instruction: Instruction, outcome: str) -> None:
    parts = instruction.opcode.split(".")
    if len(parts) == 4:
        outcome = code.value(f"{parts[2]} i1 {outcome}, {code.get(instruction.operands[3], PRED)}")
    code.put(instruction.operands[0], PRED, outcome)


@translates(r"cvt\.[us](8|16|32|64)\.[us](8|16|32|64)")
def _convert(code: Code, instruction: Instruction) -> None:
    to, kind = (Type.named(name) for name in instruction.opcode.split(".")[1:])
    into, operand = instruction.operands
    code.put(into, to, code.resized(code.get(operand, kind), kind, to))


@translates(r"cvt\.rn\.f(32|64)\.[us](8|16|32|64)")
def _to_float(code: Code, instruction: Instruction) -> None:
    to, kind = (Type.named(name) for name in instruction.opcode.split(".")[2:])
    into, operand = instruction.operands
    value = f"{kind.integer} {code.get(operand, kind)} to {FLOATS[to.bits]}"
    code.put_float(into, to, code.value(f"{'si' if kind.signed else 'ui'}tofp {value}"))


@translates(r"cvt\.rzi\.[us](32|64)\.f(32|64)")
def _to_integer(code: Code, instruction: Instruction) -> None:
    """Out of range it is the nearer end, and NaN is 0."""
    to, kind = (Type.named(name) for name in instruction.opcode.split(".")[2:])
    into, operand = instruction.operands
    name = f"llvm.fpto{to.kind}i.sat.{to.integer}.f{kind.bits}"
    value = code.get_float(operand, kind)
    code.put(into, to, code.value(f"call {to.integer} @{name}({FLOATS[kind.bits]} {value})"))


@translates(r"cvt\.rn\.f32\.f64|cvt\.f64\.f32")
def _resize(code: Code, instruction: Instruction) -> None:
    to, kind = (Type.named(name) for name in instruction.opcode.split(".")[-2:])
    into, operand = instruction.operands
    how = "fptrunc" if to.bits < kind.bits else "fpext"
    value = code.get_float(operand, kind)
    code.put_float(into, to, code.value(f"{how} {FLOATS[kind.bits]} {value} to {FLOATS[to.bits]}"))


@translates(r"(add|sub|mul)(\.rn)?\.f(32|64)|div\.rn\.f(32|64)")
def _arithmetic(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, *operands = instruction.operands
    first, second = (code.get_float(operand, kind) for operand in operands)
    code.put_float(into, kind, code.value(f"f{instruction.opcode[:3]} {FLOATS[kind.bits]} {first}, {second}"))


@translates(r"fma\.rn\.f(32|64)")
def _fused(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, *operands = instruction.operands
    values = ", ".join(f"{FLOATS[kind.bits]} {code.get_float(operand, kind)}" for operand in operands)
    code.put_float(into, kind, code.value(f"call {FLOATS[kind.bits]} @llvm.fma.f{kind.bits}({values})"))
