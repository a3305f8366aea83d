"""Each instruction that the machine knows computes what the PTX manual says: as Python integers and NumPy floats do."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from device.handmade import made
from device.memory import memory
from device.ptx import Type, UnknownPtxError, parse

THREADS = 64
RNG = np.random.default_rng(0)
CORNERS = [0, 1, 2, 31, 32, 33, 63, 64, 65, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63]
CORNERS += [(1 << 63) - 1, (1 << 64) - 1, 0x7654321076543210, 0xFEDCBA9876543210]
REGISTERS = {16: "rs", 32: "r", 64: "rd", 1: "p"}


def inputs(seed: int) -> Any:
    """Numbers of 64 bits, corners among them."""
    rng = np.random.default_rng(seed)
    some = rng.integers(0, 1 << 64, THREADS, np.uint64, endpoint=False)
    corners = rng.permutation(np.array(CORNERS, np.uint64))
    some[rng.permutation(THREADS)[: corners.size]] = corners
    return some


INPUTS = [inputs(seed) for seed in (1, 2, 3)]


def signed(x: int, bits: int) -> int:
    return (x & (1 << bits - 1) - 1) - (x & 1 << bits - 1)


def outcomes(cases: list[tuple[str, str, int]]) -> dict[str, list[int]]:
    """What each instruction makes of the inputs, by opcode: (opcode, suffix of its result, number of operands)."""
    body = "".join(f"    ld.global.u64 %rd{10 + i}, [%rd{20 + i}];\n" for i in range(3))
    body = "".join(f"    add.s64 %rd{20 + i}, %rd{i}, %rd30;\n" for i in range(3)) + body
    body += "".join(
        f"    cvt.u32.u64 %r{10 + i}, %rd{10 + i};\n    cvt.u16.u64 %rs{10 + i}, %rd{10 + i};\n" for i in range(3)
    )
    body += "    add.s64 %rd29, %rd3, %rd30;\n"
    for number, (opcode, result, count) in enumerate(cases):
        operands = [f"%{REGISTERS[Type.named(opcode.rpartition('.')[2]).bits]}{10 + i}" for i in range(count)]
        if opcode.startswith(("shl", "shr")):
            operands[1] = "%r11"
        to = Type.named(result).bits
        body += f"    {opcode} %{REGISTERS[to]}5, {', '.join(operands)};\n"
        if to == 1:
            body += "    selp.u64 %rd6, 1, 0, %p5;\n"
        else:
            body += f"    {'mov.b64' if to == 64 else f'cvt.u64.u{to}'} %rd6, %{REGISTERS[to]}5;\n"
        body += f"    st.global.u64 [%rd29+{number * THREADS * 8}], %rd6;\n"
    out = memory().empty(len(cases) * THREADS, np.uint64)
    arrays = [memory().to_device(x) for x in INPUTS]
    made(body, parameters=4).launch(2, THREADS // 2, [*arrays, out])
    rows = out.copy_to_host().reshape(len(cases), THREADS).tolist()
    return {opcode: row for (opcode, _, _), row in zip(cases, rows, strict=True)}


def integer_cases() -> dict[str, tuple[str, int, Callable[..., int]]]:
    """By opcode: suffix of the result, number of operands, and the result of unsigned operands of the width."""
    known: dict[str, tuple[str, int, Callable[..., int]]] = {}
    for bits in (16, 32, 64):
        for kind in "us":

            def of(x: int, kind: str = kind, bits: int = bits) -> int:
                return signed(x, bits) if kind == "s" else x

            t = f"{kind}{bits}"
            known[f"add.{t}"] = (t, 2, lambda x, y: x + y)
            known[f"sub.{t}"] = (t, 2, lambda x, y: x - y)
            known[f"mul.lo.{t}"] = (t, 2, lambda x, y: x * y)
            known[f"mul.hi.{t}"] = (t, 2, lambda x, y, of=of, bits=bits: of(x) * of(y) >> bits)
            known[f"mad.lo.{t}"] = (t, 3, lambda x, y, z: x * y + z)
            known[f"min.{t}"] = (t, 2, lambda x, y, of=of: min(of(x), of(y)))
            known[f"max.{t}"] = (t, 2, lambda x, y, of=of: max(of(x), of(y)))
            known[f"shr.{t}"] = (t, 2, lambda x, y, of=of: of(x) >> min(y, 64))
            for how, holds in COMPARED.items():
                known[f"setp.{how}.{t}"] = ("pred", 2, lambda x, y, of=of, holds=holds: holds(of(x), of(y)))
            if bits < 64:
                wide = f"{kind}{2 * bits}"
                known[f"mul.wide.{t}"] = (wide, 2, lambda x, y, of=of: of(x) * of(y))
            for to in (16, 32, 64):
                known[f"cvt.{kind}{to}.{t}"] = (f"{kind}{to}", 1, lambda x, of=of: of(x))
        b = f"b{bits}"
        known[f"and.{b}"] = (b, 2, lambda x, y: x & y)
        known[f"or.{b}"] = (b, 2, lambda x, y: x | y)
        known[f"xor.{b}"] = (b, 2, lambda x, y: x ^ y)
        known[f"not.{b}"] = (b, 1, lambda x: ~x)
        known[f"neg.s{bits}"] = (b, 1, lambda x: -x)
        known[f"shl.{b}"] = (b, 2, lambda x, y: x << min(y, 64))
        known[f"mov.{b}"] = (b, 1, lambda x: x)
    for bits in (32, 64):
        known[f"popc.b{bits}"] = ("b32", 1, lambda x: x.bit_count())
        known[f"clz.b{bits}"] = ("b32", 1, lambda x, bits=bits: bits - x.bit_length())
        known[f"brev.b{bits}"] = (f"b{bits}", 1, lambda x, bits=bits: int(f"{x:0{bits}b}"[::-1], 2))
    known["shf.l.wrap.b32"] = ("b32", 3, lambda x, y, z: ((y << 32 | x) << (z & 31)) >> 32)
    known["shf.r.wrap.b32"] = ("b32", 3, lambda x, y, z: (y << 32 | x) >> (z & 31))
    known["prmt.b32"] = ("b32", 3, permuted)
    return known


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("at", "width"), [(0, 0), (0, 8), (8, 8), (31, 1), (24, 16), (0, 64), (63, 255), (255, 255)])
def test_a_field_is_inserted(bits: int, at: int, width: int) -> None:
    register = REGISTERS[bits]
    body = f"""
    add.s64 %rd10, %rd0, %rd30;
    ld.global.s64 %rd11, [%rd10];
    add.s64 %rd10, %rd1, %rd30;
    ld.global.s64 %rd12, [%rd10];
    cvt.u{bits}.u64 %{register}11, %rd11;
    cvt.u{bits}.u64 %{register}12, %rd12;
    add.s64 %rd10, %rd2, %rd30;
    bfi.b{bits} %{register}13, %{register}11, %{register}12, {at}, {width};
    cvt.u64.u{bits} %rd13, %{register}13;
    st.global.u64 [%rd10], %rd13;
    """
    out = memory().empty(THREADS, np.uint64)
    made(body, parameters=3).launch(1, THREADS, [*(memory().to_device(x) for x in INPUTS[:2]), out])
    full, field = (1 << bits) - 1, ((1 << width) - 1) << at
    pairs = zip(*(x.astype(np.uint64).tolist() for x in INPUTS[:2]), strict=True)
    assert out.copy_to_host().tolist() == [((b & ~field) | (a << at & field)) & full for a, b in pairs]


def permuted(x: int, y: int, z: int) -> int:
    pool, whole = (y << 32 | x).to_bytes(8, "little"), []
    for nibble in (z >> 4 * i & 15 for i in range(4)):
        byte = pool[nibble & 7]
        whole.append(255 * (byte >> 7) if nibble & 8 else byte)
    return int.from_bytes(bytes(whole), "little")


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def test_integer_instructions() -> None:
    known = integer_cases()
    got = outcomes([(opcode, result, count) for opcode, (result, count, _) in known.items()])
    for opcode, (result, count, means) in known.items():
        bits, width = Type.named(opcode.rpartition(".")[2]).bits, Type.named(result).bits
        masks = [(1 << bits) - 1] * 3
        if opcode.startswith(("shl", "shr")):
            masks[1] = (1 << 32) - 1
        operands = zip(*(x.tolist() for x in INPUTS[:count]), strict=True)
        cut = ([x & mask for x, mask in zip(some, masks, strict=False)] for some in operands)
        assert got[opcode] == [int(means(*some)) & (1 << width) - 1 for some in cut], opcode


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_division_rounds_towards_0(bits: int) -> None:
    register = REGISTERS[bits]
    body = f"""
    add.s64 %rd10, %rd0, %rd30;
    ld.global.s64 %rd11, [%rd10];
    add.s64 %rd10, %rd1, %rd30;
    ld.global.s64 %rd12, [%rd10];
    cvt.u{bits}.u64 %{register}11, %rd11;
    cvt.u{bits}.u64 %{register}12, %rd12;
    add.s64 %rd10, %rd2, %rd30;
    """
    for place, opcode in enumerate(("div.s", "rem.s", "div.u", "rem.u")):
        body += f"""
        {opcode}{bits} %{register}13, %{register}11, %{register}12;
        cvt.{opcode[-1]}64.{opcode[-1]}{bits} %rd13, %{register}13;
        st.global.u64 [%rd10+{place * THREADS * 8}], %rd13;
        """
    kernel = made(body, parameters=3)
    x = np.array([signed(int(x), bits) for x in INPUTS[0]])
    y = np.array([signed(int(y), bits) or 3 for y in INPUTS[1]])
    y[y == -1] = 7
    out = memory().empty((4, THREADS), np.int64)
    kernel.launch(1, THREADS, [memory().to_device(x), memory().to_device(y), out])
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    quotients = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
    unsigned = [(a % (1 << bits), b % (1 << bits)) for a, b in pairs]
    got = out.copy_to_host().tolist()
    assert got[0] == quotients
    assert got[1] == [a - b * q for (a, b), q in zip(pairs, quotients, strict=True)]
    assert [g % (1 << 64) for g in got[2]] == [a // b for a, b in unsigned]
    assert [g % (1 << 64) for g in got[3]] == [a % b for a, b in unsigned]


FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.35,
    10.0,
    2.0**24,
    2.0**63,
    2.0**64,
    1e300,
    -1e300,
    5e-324,
    np.inf,
    -np.inf,
    np.nan,
    0.5,
]


def test_float_instructions_round_as_ieee_754_says() -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(np.array(FLOATS), np.array(FLOATS)))
    opcodes = ["add.f64", "sub.rn.f64", "mul.rn.f64", "div.rn.f64", "fma.rn.f64"]
    compared = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
    body = (
        "".join(f"    add.s64 %rd10, %rd{i}, %rd30;\n    ld.global.f64 %fd{i}, [%rd10];\n" for i in range(2))
        + "    add.s64 %rd10, %rd2, %rd30;\n"
    )
    for place, opcode in enumerate(opcodes):
        third = ", %fd0" if opcode.startswith("fma") else ""
        body += f"    {opcode} %fd5, %fd0, %fd1{third};\n    st.global.f64 [%rd10+{place * 2048}], %fd5;\n"
    for place, how in enumerate(compared, len(opcodes)):
        body += f"    setp.{how}.f64 %p1, %fd0, %fd1;\n    selp.u64 %rd11, 1, 0, %p1;\n"
        body += f"    st.global.u64 [%rd10+{place * 2048}], %rd11;\n"
    out = memory().empty((len(opcodes) + len(compared), x.size), np.uint64)
    arrays = (memory().to_device(x), memory().to_device(y), out)
    made(body, parameters=3).launch(4, 64, arrays)
    got = out.copy_to_host()
    with np.errstate(all="ignore"):
        wanted = [x + y, x - y, x * y, x / y]
        fused = np.array([_fused(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    for row, want in zip(got, [*wanted, fused], strict=False):
        np.testing.assert_array_equal(row.view(np.float64), want)
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(row.view(np.float64))[numbers], np.signbit(want)[numbers])
    ordered = ~(np.isnan(x) | np.isnan(y))
    for row, how in zip(got[len(opcodes) :], compared, strict=True):
        if how in ("num", "nan"):
            want = ordered if how == "num" else ~ordered
        elif how.endswith("u"):
            want = ~ordered | COMPARED[how[:-1]](x, y)
        else:
            want = ordered & COMPARED[how](x, y)
        np.testing.assert_array_equal(row, want.astype(np.uint64), err_msg=how)


def _fused(a: float, b: float) -> float:
    """A * b + a, rounded once."""
    if not (np.isfinite(a) and np.isfinite(b)) or abs(a * b) > 1e200 or 0 in (a, b):
        return a * b + a
    exact = Fraction(a) * Fraction(b) + Fraction(a)
    return float(exact) if exact else a * b + a


def test_conversions_between_floats_and_integers_clamp() -> None:
    x = np.array([*FLOATS, 2.5, -0.7, 4294967295.0, 4294967296.0])
    body = """
    add.s64 %rd10, %rd0, %rd30;
    ld.global.f64 %fd0, [%rd10];
    add.s64 %rd10, %rd1, %rd30;
    cvt.rzi.u64.f64 %rd11, %fd0;
    st.global.u64 [%rd10], %rd11;
    cvt.rzi.u32.f64 %r11, %fd0;
    cvt.u64.u32 %rd11, %r11;
    st.global.u64 [%rd10+160], %rd11;
    cvt.rzi.s64.f64 %rd11, %fd0;
    st.global.u64 [%rd10+320], %rd11;
    cvt.rn.f32.f64 %f0, %fd0;
    cvt.f64.f32 %fd1, %f0;
    st.global.f64 [%rd10+480], %fd1;
    cvt.rzi.s64.f64 %rd11, %fd0;
    cvt.rn.f64.s64 %fd1, %rd11;
    st.global.f64 [%rd10+640], %fd1;
    cvt.rn.f64.u64 %fd1, %rd11;
    st.global.f64 [%rd10+800], %fd1;
    """
    out = memory().empty((6, x.size), np.uint64)
    made(body, parameters=2).launch(1, x.size, [memory().to_device(x), out])
    got = out.copy_to_host()

    def clamped(value: float, low: int, high: int) -> int:
        return (
            0
            if np.isnan(value)
            else min(max(int(value) if np.isfinite(value) else (high if value > 0 else low), low), high)
        )

    assert got[0].tolist() == [clamped(v, 0, (1 << 64) - 1) for v in x.tolist()]
    assert got[1].tolist() == [clamped(v, 0, (1 << 32) - 1) for v in x.tolist()]
    whole = [clamped(v, -(1 << 63), (1 << 63) - 1) for v in x.tolist()]
    assert got[2].view(np.int64).tolist() == whole
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[3].view(np.float64), x.astype(np.float32).astype(np.float64))
    assert got[4].view(np.float64).tolist() == [float(v) for v in whole]
    assert got[5].view(np.float64).tolist() == [float(v % (1 << 64)) for v in whole]


def test_packs_selections_predicates_and_inner_scopes() -> None:
    body = """
    mov.u32 %r10, 0x89ABCDEF;
    mov.b64 %rd10, {%r10, %r0};
    { .reg .b32 tmp; mov.b64 {tmp, %r11}, %rd10; }
    setp.eq.s32 %p1, %r11, %r0;
    setp.lt.and.u32 %p2, %r0, 3, %p1;
    not.pred %p3, %p2;
    @%p3 bra LATER;
    mov.u64 %rd11, 7;
    @!%p1 mov.u64 %rd11, 9;
    bra.uni OUT;
LATER:
    selp.b64 %rd11, 5, 6, %p2;
    lop3.b32 %r12, %r10, %r0, %r11, 0x96;
    cvt.u64.u32 %rd11, %r12;
OUT:
    add.s64 %rd12, %rd0, %rd30;
    st.global.u64 [%rd12], %rd11;
    """
    out = memory().empty(6, np.uint64)
    made(body).launch(1, 6, [out])
    assert out.copy_to_host().tolist() == [7, 7, 7] + [0x89ABCDEF] * 3  # r0 and r11 are equal: xor leaves r10


def test_float_constants_are_bit_patterns() -> None:
    body = """
    mov.f64 %fd0, 0d3FE0000000000000;
    st.global.f64 [%rd0], %fd0;
    mov.f32 %f0, 0f3F800000;
    st.global.f32 [%rd0+8], %f0;
    """
    out = memory().empty(12, np.uint8)
    made(body).launch(1, 1, [out])
    assert struct.unpack("<df", out.copy_to_host().tobytes()) == (0.5, 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "add.sat.s32 %r0, %r0, 1",
        "add.cc.u32 %r0, %r0, 1",
        "add.ftz.f32 %f0, %f0, %f0",
        "div.approx.f32 %f0, %f0, %f0",
        "cvt.rni.s32.f32 %r0, %f0",
        "ld.const.u64 %rd1, [%rd0]",
        "atom.add.u64 %rd1, [%rd0], 1",
        "cvta.param.u64 %rd1, %rd0",
        "st.global.v8.b32 [%rd0], {%r0, %r0, %r0, %r0, %r0, %r0, %r0, %r0}",
        "activemask.b32 %r0",
        "call.uni printf",
        "trap",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd0}, {%fd0}, {%fd0}, {%fd0}",
    ],
)
def test_an_unknown_opcode_is_refused_by_name(line: str) -> None:
    with pytest.raises(UnknownPtxError, match=line.split()[0].replace(".", r"\.")):
        made(f"    {line};")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mov.u32 %r0, %clock", "operand %clock"),
        ("mov.u32 %r0, nowhere", "operand nowhere"),
        ("mov.u32 %r0, tile", "address of tile in 32 bits"),
        ("mov.u32 %zz9, 1", "register %zz9"),
        ("ld.param.u64 %rd1, [other]", r"parameter \[other\]"),
        ("ld.global.u64 %rd1, [%rd0+%rd1]", "address"),
        ("bar.sync 1, 64", "barrier bar.sync 1"),
        (".loc 1 2 3", "statement"),
        ("mov.b128 %rd1, %rd2", "opcode mov.b128"),
    ],
)
def test_what_is_not_understood_is_refused(line: str, message: str) -> None:
    with pytest.raises(UnknownPtxError, match=message):
        made(f"    {line};", shared=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "header"),
        (".version 9.0 .target sm_90 .address_size 64 .const .u32 x = 1; .visible .entry", "directive '.const"),
        (".version 9.0 .target sm_90 .address_size 64 .extern .func printf; .visible", "directive '.extern"),
        (".version 9.0 .target sm_90 .address_size 64 .visible .entry k(.param .b8 p[8]) { ret; }", "parameter"),
        (
            ".version 9.0 .target sm_90 .address_size 64 .visible .entry k() { ret; } .visible .entry l() { ret; }",
            "more",
        ),
        (".version 9.0 .target sm_90 .address_size 64 .visible .entry k() { ret }", "statement"),
    ],
)
def test_modules_with_more_than_a_kernel_are_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownPtxError, match=message):
        parse(text)
