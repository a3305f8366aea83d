"""Integer and bit instructions."""

from __future__ import annotations

from device.ptx import Instruction, Type
from device.translate import B32, B64, DIVISION, Code, translates


def _binary(code: Code, instruction: Instruction, operation: str) -> None:
    kind = instruction.type
    into, *operands = instruction.operands
    first, second = (code.get(operand, kind) for operand in operands)
    code.put(into, kind, code.value(f"{operation} {kind.integer} {first}, {second}"))


@translates(r"(add|sub)\.[us](16|32|64)|(and|or|xor)\.(b16|b32|b64|pred)")
def _plain(code: Code, instruction: Instruction) -> None:
    _binary(code, instruction, instruction.opcode.partition(".")[0])


@translates(r"(div|rem)\.[us](16|32|64)")
def _divide(code: Code, instruction: Instruction) -> None:
    """A division by 0, or of the least number by -1, has no answer to compare, and is a fault."""
    kind = instruction.type
    _, dividend, divisor = instruction.operands
    by = code.get(divisor, kind)
    code.require(code.value(f"icmp ne {kind.integer} {by}, 0"), DIVISION)
    if kind.signed:
        least = code.value(f"icmp eq {kind.integer} {code.get(dividend, kind)}, {-(1 << kind.bits - 1)}")
        overflow = code.value(f"and i1 {least}, {code.value(f'icmp eq {kind.integer} {by}, -1')}")
        code.require(code.value(f"xor i1 {overflow}, true"), DIVISION)
    _binary(code, instruction, ("s" if kind.signed else "u") + instruction.opcode.partition(".")[0])


@translates(r"not\.(b16|b32|b64|pred)")
def _not(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    code.put(into, kind, code.value(f"xor {kind.integer} {code.get(operand, kind)}, -1"))


@translates(r"neg\.s(16|32|64)")
def _negative(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    code.put(into, kind, code.value(f"sub {kind.integer} 0, {code.get(operand, kind)}"))


@translates(r"(min|max)\.[us](16|32|64)")
def _extreme(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, *operands = instruction.operands
    first, second = (code.get(operand, kind) for operand in operands)
    name = f"llvm.{kind.kind}{instruction.opcode[:3]}.{kind.integer}"
    code.put(into, kind, code.value(f"call {kind.integer} @{name}({kind.integer} {first}, {kind.integer} {second})"))


def _product(code: Code, instruction: Instruction) -> tuple[Type, str]:
    """The type and the value of a product: its low half, its high half, or as a whole."""
    kind, part = instruction.type, instruction.opcode.split(".")[1]
    wide = Type(kind.kind, 2 * kind.bits)
    operands = [code.get(operand, kind) for operand in instruction.operands[1:3]]
    if part == "lo":
        return kind, code.value(f"mul {kind.integer} {operands[0]}, {operands[1]}")
    first, second = (code.resized(operand, kind, wide) for operand in operands)
    product = code.value(f"mul {wide.integer} {first}, {second}")
    if part == "wide":
        return wide, product
    return kind, code.resized(code.value(f"lshr {wide.integer} {product}, {kind.bits}"), wide, kind)


@translates(r"mul\.((lo|hi)\.[us](16|32|64)|wide\.[us](16|32))")
def _multiply(code: Code, instruction: Instruction) -> None:
    code.put(instruction.operands[0], *_product(code, instruction))


@translates(r"mad\.((lo|hi)\.[us](16|32|64)|wide\.[us](16|32))")
def _multiply_add(code: Code, instruction: Instruction) -> None:
    kind, product = _product(code, instruction)
    summand = code.get(instruction.operands[3], kind)
    code.put(instruction.operands[0], kind, code.value(f"add {kind.integer} {product}, {summand}"))


@translates(r"shl\.b(16|32|64)|shr\.[bus](16|32|64)")
def _shift(code: Code, instruction: Instruction) -> None:
    """By more than the width, all bits are shifted out; an amount has 32 bits."""
    kind = instruction.type
    into, operand, amount = instruction.operands
    by = code.resized(code.get(amount, B32), B32, B64)
    far = code.value(f"icmp uge i64 {by}, {kind.bits}")
    near = code.resized(code.value(f"select i1 {far}, i64 {kind.bits - 1}, i64 {by}"), B64, kind)
    left = instruction.opcode.startswith("shl")
    operation = "shl" if left else "ashr" if kind.signed else "lshr"
    shifted = code.value(f"{operation} {kind.integer} {code.get(operand, kind)}, {near}")
    if operation != "ashr":
        shifted = code.value(f"select i1 {far}, {kind.integer} 0, {kind.integer} {shifted}")
    code.put(into, kind, shifted)


@translates(r"shf\.[lr]\.wrap\.b32")
def _funnel(code: Code, instruction: Instruction) -> None:
    """The upper half of two words shifted left, or the lower half of them shifted right."""
    into, *operands = instruction.operands
    low, high, by = (code.get(operand, B32) for operand in operands)
    name = f"llvm.fsh{instruction.opcode[4]}.i32"
    code.put(into, B32, code.value(f"call i32 @{name}(i32 {high}, i32 {low}, i32 {by})"))


@translates(r"(popc|clz)\.b(32|64)")
def _count(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    name, further = ("ctpop", "") if instruction.opcode.startswith("popc") else ("ctlz", ", i1 false")
    bits = code.get(operand, kind)
    counted = code.value(f"call {kind.integer} @llvm.{name}.{kind.integer}({kind.integer} {bits}{further})")
    code.put(into, B32, code.resized(counted, kind, B32))


@translates(r"brev\.b(32|64)")
def _reverse(code: Code, instruction: Instruction) -> None:
    kind = instruction.type
    into, operand = instruction.operands
    bits = code.get(operand, kind)
    code.put(into, kind, code.value(f"call {kind.integer} @llvm.bitreverse.{kind.integer}({kind.integer} {bits})"))


@translates(r"bfi\.b(32|64)")
def _insert(code: Code, instruction: Instruction) -> None:
    """The low bits of one word take the place of a field of another; what would lie behind its end is cut off."""
    kind, wide = instruction.type, Type("b", 512)  # a field ends before bit 2 * 255
    into, *operands = instruction.operands
    bits, base = (code.resized(code.get(operand, kind), kind, wide) for operand in operands[:2])
    at, width = (
        code.value(f"and i512 {code.resized(code.get(operand, B32), B32, wide)}, 255") for operand in operands[2:]
    )
    ones = code.value(f"sub i512 {code.value(f'shl i512 1, {width}')}, 1")
    field, moved = code.value(f"shl i512 {ones}, {at}"), code.value(f"shl i512 {bits}, {at}")
    kept = code.value(f"and i512 {base}, {code.value(f'xor i512 {field}, -1')}")
    whole = code.value(f"or i512 {kept}, {code.value(f'and i512 {moved}, {field}')}")
    code.put(into, kind, code.resized(whole, wide, kind))


@translates(r"prmt\.b32")
def _permute(code: Code, instruction: Instruction) -> None:
    """Four bytes of eight, each chosen by three bits; the fourth spreads the byte's sign instead."""
    into, *operands = instruction.operands
    low, high, choice = (code.resized(code.get(operand, B32), B32, B64) for operand in operands)
    pool = code.value(f"or i64 {low}, {code.value(f'shl i64 {high}, 32')}")
    whole = "0"
    for byte in range(4):
        selector = code.value(f"lshr i64 {choice}, {4 * byte}")
        by = code.value(f"shl i64 {code.value(f'and i64 {selector}, 7')}, 3")
        value = code.value(f"and i64 {code.value(f'lshr i64 {pool}, {by}')}, 255")
        sign = code.value(f"mul i64 {code.value(f'lshr i64 {value}, 7')}, 255")
        spread = code.value(f"icmp ne i64 {code.value(f'and i64 {selector}, 8')}, 0")
        value = code.value(f"select i1 {spread}, i64 {sign}, i64 {value}")
        whole = code.value(f"or i64 {whole}, {code.value(f'shl i64 {value}, {8 * byte}')}")
    code.put(into, B32, code.resized(whole, B64, B32))


@translates(r"lop3\.b32")
def _three_way(code: Code, instruction: Instruction) -> None:
    """Any function of three bits: its table is the last operand."""
    into, *operands, table = instruction.operands
    inputs = [code.get(operand, B32) for operand in operands]
    whole = "0"
    for row in range(8):
        if int(table, 0) >> row & 1:
            a, b, c = (
                bits if row >> (2 - at) & 1 else code.value(f"xor i32 {bits}, -1") for at, bits in enumerate(inputs)
            )
            term = code.value(f"and i32 {code.value(f'and i32 {a}, {b}')}, {c}")
            whole = code.value(f"or i32 {whole}, {term}")
    code.put(into, B32, whole)
