"""Branches, barriers, and what the threads of a warp tell each other."""

from __future__ import annotations

from device.ptx import Instruction, UnknownPtxError
from device.translate import (
    AT_BARRIER,
    AT_WARP,
    B32,
    B64,
    BALLOT,
    EXCHANGED,
    GIVEN,
    LINEAR,
    MEMBERS,
    PARTIAL_WARP,
    PLACE,
    PRED,
    RECORD,
    STATUS,
    Code,
    translates,
)


@translates(r"ret|exit")
def _end(code: Code, _: Instruction) -> None:
    code.close("br label %ptx.ended")


@translates(r"bra(\.uni)?")
def _branch(code: Code, instruction: Instruction) -> None:
    code.branch(instruction.operands[0])


def _wait(code: Code, status: int) -> None:
    """The thread stops until those it waits for have come."""
    code.set_field(PLACE, str(code.place))
    code.set_field(STATUS, str(status))
    resumed, state = code.name(), code.value("call i8 @llvm.coro.suspend(token none, i1 false)")
    code.emit(f"switch i8 {state}, label %ptx.left [i8 0, label %{resumed} i8 1, label %ptx.freed]")
    code.lines.append(f"{resumed}:")


@translates(r"bar\.sync|barrier(\.cta)?\.sync\.aligned")
def _barrier(code: Code, instruction: Instruction) -> None:
    """Barrier 0, for all threads of the block."""
    if instruction.operands != ("0",):
        raise UnknownPtxError(f"barrier {instruction}")
    _wait(code, AT_BARRIER)


def _with_members(code: Code, members: str, given: str) -> None:
    """The thread gives a value to its warp and waits for the members, of whom it must be one."""
    mask = code.resized(code.get(members, B32), B32, B64)
    lane = code.value(f"and i64 {code.field(LINEAR)}, 31")
    mine = code.value(f"and i64 {code.value(f'lshr i64 {mask}, {lane}')}, 1")
    code.require(code.value(f"icmp eq i64 {mine}, 1"), PARTIAL_WARP, mask)
    code.set_field(MEMBERS, mask)
    code.set_field(GIVEN, given)
    _wait(code, AT_WARP)


@translates(r"bar\.warp\.sync")
def _warp_barrier(code: Code, instruction: Instruction) -> None:
    _with_members(code, instruction.operands[0], "0")


@translates(r"vote\.sync\.(all|any|uni)\.pred|vote\.sync\.ballot\.b32")
def _vote(code: Code, instruction: Instruction) -> None:
    how = instruction.opcode.split(".")[2]
    into, operand, members = instruction.operands
    opinion = code.get(operand.removeprefix("!"), PRED)
    if operand.startswith("!"):
        opinion = code.value(f"xor i1 {opinion}, true")
    _with_members(code, members, code.resized(opinion, PRED, B64))
    ballot = code.field(BALLOT)
    if how == "ballot":
        code.put(into, B32, code.resized(ballot, B64, B32))
        return
    everyone = code.value(f"icmp eq i64 {ballot}, {code.field(MEMBERS)}")
    someone = code.value(f"icmp ne i64 {ballot}, 0")
    same = code.value(f"or i1 {everyone}, {code.value(f'xor i1 {someone}, true')}")
    code.put(into, PRED, {"all": everyone, "any": someone, "uni": same}[how])


@translates(r"shfl\.sync\.(idx|up|down|bfly)\.b32")
def _shuffle(code: Code, instruction: Instruction) -> None:
    """The value of another lane of the segment; the thread's own where there is none.

    The control operand: the segment's mask in bits 8 to 12, the lane that bounds the source in bits 0 to 4.
    """
    how = instruction.opcode.split(".")[2]
    into, operand, other, control, members = instruction.operands
    into, _, inside = into.partition("|")
    _with_members(code, members, code.resized(code.get(operand, B32), B32, B64))
    lane = code.value(f"and i64 {code.field(LINEAR)}, 31")
    by = code.value(f"and i64 {code.resized(code.get(other, B32), B32, B64)}, 31")
    bounds = code.resized(code.get(control, B32), B32, B64)
    segment = code.value(f"and i64 {code.value(f'lshr i64 {bounds}, 8')}, 31")
    outside = code.value(f"xor i64 {segment}, 31")
    first = code.value(f"and i64 {lane}, {segment}")
    bound = code.value(f"and i64 {bounds}, {outside}")
    last = code.value(f"or i64 {first}, {bound}")
    source = {
        "idx": lambda: code.value(f"or i64 {first}, {code.value(f'and i64 {by}, {outside}')}"),
        "up": lambda: code.value(f"sub i64 {lane}, {by}"),
        "down": lambda: code.value(f"add i64 {lane}, {by}"),
        "bfly": lambda: code.value(f"xor i64 {lane}, {by}"),
    }[how]()
    valid = code.value(f"icmp {'sge' if how == 'up' else 'sle'} i64 {source}, {last}")
    taken = code.value(f"select i1 {valid}, i64 {source}, i64 {lane}")
    asked = code.value(f"and i64 {code.value(f'lshr i64 {code.field(MEMBERS)}, {taken}')}, 1")
    code.require(code.value(f"icmp eq i64 {asked}, 1"), PARTIAL_WARP, code.field(MEMBERS))
    steps = code.value(f"mul i64 {code.value(f'sub i64 {taken}, {lane}')}, {RECORD}")
    place = code.value(f"add i64 {steps}, {EXCHANGED}")
    code.put(into, B64, code.value(f"load i64, ptr {code.value(f'getelementptr i64, ptr %thread, i64 {place}')}"))
    if inside and inside != "_":
        code.put(inside, PRED, valid)
