"""What runs beside the translated kernels, compiled by Numba: the look at each access, and the scheduler of threads.

A byte of memory carries a shadow (FREE, EMPTY or WRITTEN) and two stamps: who wrote it last, and who read it. A stamp
tells launch, block, how many barriers the block has passed, and thread. Two threads race where one writes another value
to a byte that the other touches, unless a barrier or the end of a launch lies between; atomics are exempt.
"""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
from numba import cfunc, njit, types

from device.access import GENERIC, LOCAL, READ, SHARED, WRITE
from device.translate import (
    AT_BARRIER,
    AT_WARP,
    BALLOT,
    EXCHANGED,
    GIVEN,
    LINEAR,
    MEMBERS,
    MISALIGNED,
    OUTSIDE,
    PARTIAL_WARP,
    PLACE,
    RACE,
    RECORD,
    RUNNING,
    SCATTERED,
    STAMP,
    STATUS,
    STRANDED,
    UNWRITTEN,
)

FREE, EMPTY, WRITTEN = range(3)  # of the shadow: no array's, of one but never written, of one and written
WINDOW = 1 << 18  # bytes at the beginning of memory for shared variables
LOCALS = WINDOW + (1 << 20)  # where those for local variables end, which lie behind

# The fields of the machine's state.
BASE, CAPACITY, FUEL, MUTANT, LANES_MEET, APART, KIND, WHERE, FIRST, SECOND, WHO, BLOCK, STATE = range(13)

# A stamp: launch, block, barriers passed, thread, from the highest bits to the lowest.
THREAD_BITS, EPOCH_BITS, BLOCK_BITS, LAUNCH_BITS = 11, 22, 14, 16
EPOCH_AT, BLOCK_AT = THREAD_BITS, THREAD_BITS + EPOCH_BITS
LAUNCH_AT = BLOCK_AT + BLOCK_BITS
SEVERAL_THREADS, SEVERAL_BLOCKS = (1 << THREAD_BITS) - 1, (1 << BLOCK_BITS) - 1
EPOCHS = (1 << EPOCH_BITS) - 1
LANES = 32


@njit(inline="always")
def _blame(state, thread, kind, place, first, second):  # type: ignore[no-untyped-def]
    if state[KIND] == 0:
        state[KIND], state[WHERE], state[FIRST], state[SECOND] = kind, place, first, second
        state[WHO], state[BLOCK] = thread[LINEAR], (thread[STAMP] >> BLOCK_AT) & SEVERAL_BLOCKS


@njit
def _conflict(earlier, stamp, together):  # type: ignore[no-untyped-def]
    """Whether nothing orders two accesses; threads whose numbers agree but for the `together` low bits are in order."""
    differ = earlier ^ stamp
    if earlier == 0 or differ >> LAUNCH_AT != 0:
        return False
    if (differ >> BLOCK_AT) & SEVERAL_BLOCKS != 0:
        return True
    return (differ >> EPOCH_AT) & EPOCHS == 0 and (differ & SEVERAL_THREADS) >> together != 0


@njit
def _joined(earlier, stamp, together):  # type: ignore[no-untyped-def]
    """The stamp of a byte that was read before, and is now: that of several where neither came after the other."""
    differ = earlier ^ stamp
    if earlier == 0 or differ >> LAUNCH_AT != 0:
        return stamp
    if (differ >> BLOCK_AT) & SEVERAL_BLOCKS != 0:
        return stamp | SEVERAL_BLOCKS << BLOCK_AT
    if (differ >> EPOCH_AT) & EPOCHS == 0 and (differ & SEVERAL_THREADS) >> together != 0:
        return stamp | SEVERAL_THREADS
    return stamp


@njit
def _is_outside(shadow, offset, size, low, high):  # type: ignore[no-untyped-def]
    if offset < low or offset + size > high:
        return True
    for at in range(offset, offset + size):  # noqa: SIM110  (compiled)
        if shadow[at] == FREE:
            return True
    return False


@njit
def _borders(state, thread, space, offset):  # type: ignore[no-untyped-def]
    """Where that begins and ends which a thread may access in a space; that of a generic address is where it lies."""
    if space == SHARED or (space == GENERIC and offset < WINDOW):
        return 0, WINDOW
    if space == LOCAL or (space == GENERIC and offset < LOCALS):
        own = WINDOW + thread[LINEAR] * state[APART]
        return own, own + state[APART]
    return LOCALS, state[CAPACITY]


_BYTES, _WORDS, _I64 = types.CPointer(types.uint8), types.CPointer(types.int64), types.int64


@cfunc(_I64(_BYTES, _BYTES, _WORDS, _WORDS, _WORDS, _WORDS, *[_I64] * 7))
def look(memory, shadow, readers, writers, state, thread, what, space, address, size, low, high, place):  # type: ignore[no-untyped-def]
    """1 where the access may happen; else 0, and the state tells of a fault. low, high: the bytes to be written."""
    offset = address - state[BASE]
    begin, end = _borders(state, thread, space, offset)
    if address % size != 0:
        _blame(state, thread, MISALIGNED, place, address, size)
        return 0
    if _is_outside(shadow, offset, size, begin, end):
        _blame(state, thread, OUTSIDE, place, address, size)
        return 0
    stamp, together = thread[STAMP], state[LANES_MEET]
    for i in range(size):
        at = offset + i
        if what != WRITE and shadow[at] != WRITTEN:
            _blame(state, thread, UNWRITTEN, place, address, size)
            return 0
        if what == READ:
            if _conflict(writers[at], stamp, together):
                _blame(state, thread, RACE, place, address, size)
                return 0
            readers[at] = _joined(readers[at], stamp, together)
        elif what == WRITE:
            value = ((low if i < 8 else high) >> 8 * (i & 7)) & 255
            if shadow[at] != WRITTEN or memory[at] != value:
                if _conflict(writers[at], stamp, together) or _conflict(readers[at], stamp, together):
                    _blame(state, thread, RACE, place, address, size)
                    return 0
                shadow[at], writers[at] = WRITTEN, stamp
    return 1


@cfunc(types.void(_WORDS, _WORDS, *[_I64] * 4))
def blame(state, thread, kind, place, first, second):  # type: ignore[no-untyped-def]
    """The state tells of a fault, unless it tells of one already."""
    _blame(state, thread, kind, place, first, second)


_HANDLES = """
declare void @llvm.coro.resume(ptr)
declare void @llvm.coro.destroy(ptr)
define i64 @begin(i64 %kernel, i64 %thread, i64 %arguments) {
  %k = inttoptr i64 %kernel to ptr
  %t = inttoptr i64 %thread to ptr
  %a = inttoptr i64 %arguments to ptr
  %h = call ptr %k(ptr %t, ptr %a)
  %handle = ptrtoint ptr %h to i64
  ret i64 %handle
}
define void @resume(i64 %handle) {
  %h = inttoptr i64 %handle to ptr
  call void @llvm.coro.resume(ptr %h)
  ret void
}
define void @destroy(i64 %handle) {
  %h = inttoptr i64 %handle to ptr
  call void @llvm.coro.destroy(ptr %h)
  ret void
}
"""


def compiled(ir: str) -> llvm.ExecutionEngine:
    """Host code of a module of LLVM IR, to be kept as long as it is used.

    It is compiled quickly rather than well: registers leave the stack, coroutines are split, and that is all.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(ir)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    module.triple, module.data_layout = llvm.get_process_triple(), str(target.target_data)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


_engine = compiled(_HANDLES)
_begin = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(_engine.get_function_address("begin"))
_resume = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_engine.get_function_address("resume"))
_destroy = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_engine.get_function_address("destroy"))


@njit
def _has_met(records, size, t):  # type: ignore[no-untyped-def]
    """Whether all that a thread names as members of its warp wait where it waits, for the same members."""
    first = t // LANES * LANES
    for lane in range(LANES):
        if records[t, MEMBERS] >> lane & 1:
            other = first + lane
            if other >= size or records[other, STATUS] != AT_WARP:
                return False
            if records[other, MEMBERS] != records[t, MEMBERS] or records[other, PLACE] != records[t, PLACE]:
                return False
    return True


@njit
def _meet_in_warps(records, size):  # type: ignore[no-untyped-def]
    """Whether members of a warp have met and go on; they know what each of them gave."""
    went_on = False
    for t in range(size):
        if records[t, STATUS] == AT_WARP and _has_met(records, size, t):
            first, ballot = t // LANES * LANES, 0
            members = records[t, MEMBERS]
            for lane in range(LANES):
                if members >> lane & 1:
                    ballot |= (records[first + lane, GIVEN] & 1) << lane
            for lane in range(LANES):
                if members >> lane & 1:
                    record = records[first + lane]
                    record[EXCHANGED], record[BALLOT], record[STATUS] = record[GIVEN], ballot, RUNNING
            went_on = True
    return went_on


@njit
def _meet_in_block(records, state, size):  # type: ignore[no-untyped-def]
    """Whether all threads have come to one barrier and go on; else the state tells of a fault, or all have ended."""
    waiting, last = 0, 0
    for t in range(size):
        if records[t, STATUS] == AT_BARRIER:
            waiting, last = waiting + 1, t
        elif records[t, STATUS] == AT_WARP:
            _blame(state, records[t], PARTIAL_WARP, records[t, PLACE], records[t, MEMBERS], 0)
    if 0 < waiting < size:
        _blame(state, records[last], STRANDED, records[last, PLACE], waiting, size)
    if waiting == 0 or state[KIND] != 0:
        return False
    for t in range(size):
        if records[t, PLACE] != records[last, PLACE]:
            _blame(state, records[t], SCATTERED, records[t, PLACE], records[last, PLACE], 0)
        records[t, STATUS] = RUNNING
        records[t, STAMP] += 1 << EPOCH_AT
    return True


@njit
def _run_block(kernel, arguments, records, handles, state, size, backwards):  # type: ignore[no-untyped-def]
    address = records.ctypes.data
    begun = 0
    for i in range(size):
        t = size - 1 - i if backwards else i
        if state[KIND] == 0:
            handles[t] = _begin(kernel, address + t * RECORD * 8, arguments)
            begun += 1
    while state[KIND] == 0:
        if not _meet_in_warps(records, size) and not _meet_in_block(records, state, size):
            break
        for i in range(size):
            t = size - 1 - i if backwards else i
            if state[KIND] == 0 and records[t, STATUS] == RUNNING:
                _resume(handles[t])
    for i in range(begun):
        _destroy(handles[size - 1 - i if backwards else i])


@njit
def run(  # type: ignore[no-untyped-def]
    kernel, arguments, records, handles, state, shadow, readers, writers, variables, grid, block, first, last, launch,
    backwards,
):  # fmt: skip
    """The blocks first to last - 1 of a grid, one after the other; it ends early where the state tells of a fault.

    `kernel` and `arguments` are the addresses of a coroutine and of its parameters; there are records and handles for
    each thread of a block. `variables` has offset and size of each shared variable and of each thread's local ones,
    empty at the beginning of a block. `grid` and `block` are three extents each; blocks are numbered, x running
    fastest. `launch` is a number that the launches before did not have. With `backwards` the last thread of a block
    comes first.
    """
    size = block[0] * block[1] * block[2]
    for number in range(first, last):
        for i in range(len(variables)):
            first_byte, end = variables[i, 0], variables[i, 0] + variables[i, 1]
            shadow[first_byte:end], readers[first_byte:end], writers[first_byte:end] = EMPTY, 0, 0
        for t in range(size):
            record = records[t]
            record[0], record[1], record[2] = t % block[0], t // block[0] % block[1], t // (block[0] * block[1])
            record[3:6] = block
            record[6], record[7] = number % grid[0], number // grid[0] % grid[1]
            record[8] = number // (grid[0] * grid[1])
            record[9:12] = grid
            record[STATUS], record[LINEAR] = RUNNING, t
            record[STAMP] = launch << LAUNCH_AT | (number % SEVERAL_BLOCKS) << BLOCK_AT | t
        _run_block(kernel, arguments, records, handles, state, size, backwards)
        if state[KIND] != 0:
            break
