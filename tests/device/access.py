"""Loads, stores and atomics, each looked at before it happens."""

from __future__ import annotations

import re

from device.ptx import Instruction, Type, UnknownPtxError
from device.translate import B64, Code, translates
from device.values import vector

_HINTS = r"(\.(ca|cg|cs|cv|lu|nc|wb|wt|L1::\w+|L2::\w+))*"
_SHAPE = r"(\.v[24])?\.([busf](8|16|32|64))"
_SPACE = r"(\.(global|shared|local))?"
READ, WRITE, ATOMIC = range(3)
GENERIC, GLOBAL, SHARED, LOCAL = range(4)  # spaces; a generic address lies in one of the others
_SPACES = {"global": GLOBAL, "shared": SHARED, "local": LOCAL}


def _address(code: Code, operand: str) -> str:
    found = re.fullmatch(r"\[([%\w$.]+)(?:\+(-?\d+))?\]", operand.replace(" ", ""))
    if found is None:
        raise UnknownPtxError(f"address {operand}")
    base = code.get(found[1], B64)
    return code.value(f"add i64 {base}, {found[2]}") if found[2] else base


def _check(code: Code, what: int, instruction: Instruction, address: str, size: int, low: str, high: str) -> str:
    """The address as a pointer, once the access is found to be allowed; low and high: the bytes that are written."""
    space = next((_SPACES[name] for name in instruction.opcode.split(".") if name in _SPACES), GENERIC)
    about = f"i64 {what}, i64 {space}, i64 {address}, i64 {size}, i64 {low}, i64 {high}, i64 {code.place}"
    allowed = code.value(f"call i64 @ptx.access(ptr %thread, {about})")
    denied = code.value(f"icmp eq i64 {allowed}, 0")
    with code.where(denied):
        code.close("br label %ptx.faulted")
    return code.value(f"inttoptr i64 {address} to ptr")


@translates(r"ld\.param\.[busf](8|16|32|64)")
def _load_parameter(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    names = list(code.kernel.parameters)
    if operand[1:-1] not in names:
        raise UnknownPtxError(f"parameter {operand}")
    place = code.value(f"getelementptr i64, ptr %arguments, i64 {names.index(operand[1:-1])}")
    code.put(into, kind, code.value(f"load {kind.integer}, ptr {place}"))


@translates(rf"ld(\.volatile)?{_SPACE}{_HINTS}{_SHAPE}")
def _load(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    parts = vector(into)
    size = len(parts) * kind.size
    place = _check(code, READ, instruction, _address(code, operand), size, "0", "0")
    loaded = code.value(f"load <{len(parts)} x {kind.integer}>, ptr {place}, align 1")
    for at, part in enumerate(parts):
        code.put(part, kind, code.value(f"extractelement <{len(parts)} x {kind.integer}> {loaded}, i32 {at}"))


@translates(rf"st(\.volatile)?{_SPACE}{_HINTS}{_SHAPE}")
def _store(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    operand, value = instruction.operands
    parts = vector(value)
    shape, whole = f"<{len(parts)} x {kind.integer}>", "poison"
    for at, part in enumerate(parts):
        whole = code.value(f"insertelement {shape} {whole}, {kind.integer} {code.get(part, kind)}, i32 {at}")
    bits = len(parts) * kind.bits
    own, wide = Type("b", bits), Type("b", 128)
    number = code.resized(code.value(f"bitcast {shape} {whole} to {own.integer}"), own, wide)
    low = code.resized(number, wide, B64)
    high = code.resized(code.value(f"lshr i128 {number}, 64"), wide, B64)
    place = _check(code, WRITE, instruction, _address(code, operand), bits // 8, low, high)
    code.emit(f"store {shape} {whole}, ptr {place}, align 1")


_ATOMICS = {"exch": "xchg", "add": "add", "and": "and", "or": "or", "xor": "xor"}
_ORDER = r"(\.(relaxed|acq_rel))?(\.(cta|gpu))?"


@translates(rf"(atom|red){_ORDER}\.(global|shared)\.(add|and|or|xor|exch|min|max)\.[bus](32|64)")
def _atomic(code: Code, instruction: Instruction) -> None:
    kind, operation = instruction.type, instruction.opcode.split(".")[-2]
    *into, operand, value = instruction.operands
    place = _check(code, ATOMIC, instruction, _address(code, operand), kind.size, "0", "0")
    name = _ATOMICS.get(operation) or ("" if kind.signed else "u") + operation
    before = code.value(f"atomicrmw {name} ptr {place}, {kind.integer} {code.get(value, kind)} seq_cst")
    _answer(code, into, kind, before)


@translates(rf"atom{_ORDER}\.(global|shared)\.cas\.b(32|64)")
def _compare_and_swap(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand, wanted, value = instruction.operands
    place = _check(code, ATOMIC, instruction, _address(code, operand), kind.size, "0", "0")
    pair = f"{kind.integer} {code.get(wanted, kind)}, {kind.integer} {code.get(value, kind)}"
    swapped = code.value(f"cmpxchg ptr {place}, {pair} seq_cst seq_cst")
    _answer(code, [into], kind, code.value(f"extractvalue {{{kind.integer}, i1}} {swapped}, 0"))


def _answer(code: Code, into: list[str], kind: Type, before: str) -> None:
    for register in into:
        code.put(register, kind, before)
