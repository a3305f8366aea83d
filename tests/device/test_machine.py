"""The machine runs every thread of a grid, lets threads meet, and finds those that wait in vain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from device import translate
from device.handmade import MINE, array, fault, made
from device.machine import FaultError
from device.memory import memory

# Threads and blocks.


def test_every_thread_of_a_grid_of_three_extents_runs_once_and_knows_its_place() -> None:
    names = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    body = """
    mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.y; mov.u32 %r6, %ctaid.y; mad.lo.s32 %r7, %r4, %r5, %r6;
    mov.u32 %r4, %nctaid.x; mov.u32 %r5, %ctaid.x; mad.lo.s32 %r7, %r7, %r4, %r5;
    mov.u32 %r4, %ntid.z; mov.u32 %r5, %tid.z; mad.lo.s32 %r7, %r7, %r4, %r5;
    mov.u32 %r4, %ntid.y; mov.u32 %r5, %tid.y; mad.lo.s32 %r7, %r7, %r4, %r5;
    mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.s32 %r7, %r7, %r4, %r5;
    mad.wide.u32 %rd10, %r7, 48, %rd0;
    """ + "".join(f"mov.u32 %r8, {name}; st.global.u32 [%rd10+{4 * i}], %r8;\n" for i, name in enumerate(names))
    grid, block = (2, 3, 2), (3, 2, 2)
    for backwards in (False, True):
        out = memory().empty((144, 12), np.uint32)
        made(body).launch(grid, block, [out], backwards=backwards)
        got = out.copy_to_host()
        z, y, x = (i.reshape(-1) for i in np.indices(grid[::-1]))
        c, b, a = (i.reshape(-1) for i in np.indices(block[::-1]))
        ones = np.ones((144, 1), int)
        blocks = [np.repeat(i, 12)[:, None] for i in (x, y, z)]
        threads = [np.tile(i, 12)[:, None] for i in (a, b, c)]
        np.testing.assert_array_equal(got, np.hstack([*threads, ones * block, *blocks, ones * grid]))


def test_some_blocks_of_a_grid_can_run_alone() -> None:
    values = array(np.zeros(12, np.int64))
    made(f"{MINE} st.global.u64 [%rd10], %rd30;").launch(1 << 20, 4, [values], only=range(1, 3))
    assert values.copy_to_host().tolist() == [0] * 4 + [32, 40, 48, 56, 64, 72, 80, 88]


def test_threads_meet_at_barriers_and_share_memory_that_is_empty_in_every_block() -> None:
    body = f"""{MINE}
    mov.u64 %rd11, tile;
    add.s64 %rd12, %rd11, %rd31;
    st.shared.u64 [%rd12], %rd30;
    bar.sync 0;
    mov.u32 %r4, 63;
    sub.s32 %r4, %r4, %r1;
    mad.wide.u32 %rd12, %r4, 8, %rd11;
    ld.shared.u64 %rd13, [%rd12];
    st.global.u64 [%rd10], %rd13;
    """
    for backwards in (False, True):
        out = memory().empty(128, np.int64)
        made(body, shared=512).launch(2, 64, [out], backwards=backwards)
        same = np.arange(64)[::-1] * 8
        np.testing.assert_array_equal(out.copy_to_host(), np.concatenate([same, same + 512]))


def test_a_loop_with_a_barrier_in_it_keeps_registers_apart() -> None:
    body = f"""{MINE}
    mov.u64 %rd11, 0;
    mov.u32 %r4, 0;
    mov.u64 %rd12, tile;
    add.s64 %rd13, %rd12, %rd31;
AGAIN:
    st.shared.u64 [%rd13], %rd30;
    barrier.sync.aligned 0;
    ld.shared.u64 %rd14, [%rd12];
    add.s64 %rd11, %rd11, %rd14;
    bar.sync 0;
    add.s32 %r4, %r4, 1;
    setp.lt.s32 %p1, %r4, 5;
    @%p1 bra AGAIN;
    add.s64 %rd11, %rd11, %rd30;
    st.global.u64 [%rd10], %rd11;
    """
    out = memory().empty(33, np.int64)
    made(body, shared=8 * 33).launch(1, 33, [out])
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(33) * 8)


def test_atomics_of_all_blocks_add_up_and_answer_with_what_was_before() -> None:
    body = f"""{MINE}
    atom.global.add.u64 %rd11, [%rd1], 3;
    st.global.u64 [%rd10], %rd11;
    red.relaxed.gpu.global.max.u32 [%rd1+8], %r0;
    atom.global.cas.b32 %r4, [%rd1+12], 7, %r0;
    atom.global.exch.b32 %r4, [%rd1+16], %r0;
    atom.global.min.s32 %r4, [%rd1+20], -5;
    red.global.or.b32 [%rd1+24], %r0;
    """
    out, words = memory().empty(80, np.int64), array(np.array([0, 0, 0, 7, 0, 0, 0, 0], np.uint32))
    made(body, parameters=2).launch(5, 16, [out, words])
    assert sorted(out.copy_to_host().tolist()) == list(range(0, 240, 3))
    assert words.copy_to_host().tolist() == [240, 0, 79, 0, 79, (1 << 32) - 5, 127, 0]


# Warps.


def lanes(body: str, threads: int = 32, count: int = 1) -> Any:
    """What the threads of a block find in %r10, %r11, ... afterwards."""
    stores = "".join(f"    st.global.u32 [%rd11+{4 * i}], %r{10 + i};\n" for i in range(count))
    out = memory().empty((threads, count), np.uint32)
    made(f"{body}\n    mad.wide.u32 %rd11, %r0, {4 * count}, %rd0;\n{stores}").launch(1, threads, [out])
    return out.copy_to_host().T


@pytest.mark.parametrize("threads", [32, 64, 40])
def test_shuffles_read_other_lanes_and_say_whether_there_are_such(threads: int) -> None:
    mask = "0xFFFFFFFF" if threads % 32 == 0 else "%r9"
    body = """
    setp.lt.u32 %p5, %r0, 32;
    selp.b32 %r9, -1, 255, %p5;
    shl.b32 %r8, %r0, 2;
    """
    ways = {"idx": (3, 31), "up": (1, 0), "down": (2, 31), "bfly": (1, 31)}
    for place, (how, (by, bound)) in enumerate(ways.items()):
        body += f"shfl.sync.{how}.b32 %r{10 + place}|%p{place}, %r8, {by}, {bound}, {mask};\n"
        if threads == 40 and how == "down":  # lanes 8 and 9 of the last warp are not there
            body = body.replace(f"shfl.sync.down.b32 %r{10 + place}", f"shfl.sync.bfly.b32 %r{10 + place}")
    body += "selp.b32 %r14, 1, 0, %p1; selp.b32 %r15, 1, 0, %p2;"
    got = lanes(body, threads, 6)
    lane, warp = np.arange(threads) % 32, np.arange(threads) // 32 * 32
    np.testing.assert_array_equal(got[0], (warp + 3) * 4)
    np.testing.assert_array_equal(got[1], (warp + np.maximum(lane - 1, 0)) * 4)
    np.testing.assert_array_equal(got[3], (warp + (lane ^ 1)) * 4)
    np.testing.assert_array_equal(got[4], lane > 0)
    if threads != 40:
        np.testing.assert_array_equal(got[2], (warp + np.where(lane + 2 < 32, lane + 2, lane)) * 4)
        np.testing.assert_array_equal(got[5], lane + 2 < 32)


def test_segments_of_a_warp_shuffle_apart() -> None:
    body = "shfl.sync.idx.b32 %r10, %r0, 1, 0x181F, -1; shfl.sync.down.b32 %r11, %r0, 3, 0x181F, -1;"
    got = lanes(body, 32, 2)
    lane = np.arange(32)
    np.testing.assert_array_equal(got[0], lane // 8 * 8 + 1)
    np.testing.assert_array_equal(got[1], np.where(lane % 8 + 3 < 8, lane + 3, lane))


def test_votes() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 3;
    vote.sync.ballot.b32 %r10, %p1, -1;
    vote.sync.all.pred %p2, %p1, -1;
    vote.sync.any.pred %p3, %p1, -1;
    vote.sync.uni.pred %p4, %p1, -1;
    vote.sync.any.pred %p5, !%p1, -1;
    bar.warp.sync -1;
    selp.b32 %r11, 1, 0, %p2; selp.b32 %r12, 1, 0, %p3; selp.b32 %r13, 1, 0, %p4; selp.b32 %r14, 1, 0, %p5;
    """
    assert lanes(body, 32, 5).T.tolist() == [[7, 0, 1, 0, 1]] * 32


def test_half_a_warp_can_meet_while_the_other_half_goes_its_own_way() -> None:
    body = """
    mov.u32 %r10, 0;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 bra LOW;
    vote.sync.ballot.b32 %r10, %p1, 0xFFFF0000;
    bra OUT;
LOW:
    vote.sync.ballot.b32 %r10, %p1, 0xFFFF;
OUT:
    """
    assert lanes(body)[0].tolist() == [0xFFFF] * 16 + [0] * 16


@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p1, %r0, 5; @%p1 ret; vote.sync.ballot.b32 %r10, %p1, -1;",
        "setp.lt.u32 %p1, %r0, 5; @%p1 bra OUT; bar.warp.sync -1; OUT: bar.sync 0;",
        "bar.warp.sync 0xFFFF;",
        "shr.u32 %r4, %r0, 4; selp.b32 %r5, 1, 3, %p1; shl.b32 %r6, -1, %r4; bar.warp.sync %r6;",
        "setp.lt.u32 %p1, %r0, 5; @%p1 bar.warp.sync -1; @!%p1 bar.warp.sync -1;",
    ],
)
def test_warps_whose_members_do_not_all_take_part_are_found(body: str) -> None:
    assert fault(body, array([0]), block=32) == translate.PARTIAL_WARP


def test_a_shuffle_from_a_lane_that_takes_no_part_is_found() -> None:
    body = "setp.ge.u32 %p1, %r0, 16; @%p1 ret; shfl.sync.idx.b32 %r10, %r0, 20, 31, 0xFFFF;"
    assert fault(body, array([0]), block=32) == translate.PARTIAL_WARP


# Barriers that are not reached by all.


@pytest.mark.parametrize("backwards", [False, True])
def test_a_barrier_that_some_threads_do_not_come_to_is_found(backwards: bool) -> None:
    some = "setp.lt.u32 %p1, %r1, 3; @%p1 bar.sync 0;"
    gone = "setp.lt.u32 %p1, %r1, 3; @%p1 ret; bar.sync 0;"
    for body in (some, gone):
        assert fault(body, array([0]), block=8, backwards=backwards) == translate.STRANDED
        made(body).launch(1, 3 if body == some else 1, [array([0])])  # where all do the same, nothing is wrong


def test_threads_that_wait_at_different_barriers_are_found() -> None:
    body = "setp.lt.u32 %p1, %r1, 3; @%p1 bra LOW; bar.sync 0; bra OUT; LOW: bar.sync 0; OUT:"
    assert fault(body, array([0]), block=8) == translate.SCATTERED


# Ends.


def test_a_loop_without_end_is_found() -> None:
    assert fault("AGAIN: bra AGAIN;", array([0]), fuel=1000) == translate.EXHAUSTED
    body = "mov.u32 %r4, 0; AGAIN: add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 900; @%p1 bra AGAIN;"
    made(body).launch(1, 1, [array([0])], fuel=1000)


@pytest.mark.parametrize(
    "body",
    [
        "mov.u64 %rd5, 0; div.u64 %rd6, %rd0, %rd5;",
        "rem.u32 %r5, %r6, 0;",
        "mov.u64 %rd5, -9223372036854775808; div.s64 %rd6, %rd5, -1;",
    ],
)
def test_quotients_that_do_not_exist_are_found(body: str) -> None:
    assert fault(body, array([0])) == translate.DIVISION


def test_a_fault_tells_where_it_happened() -> None:
    message = (
        r"made: statement 10, @%p1 st\.global\.u64 \[%rd10\], %rd30: thread 2 of block 1: 8 bytes at 0x\w+ are not"
    )
    body = f"{MINE} mov.u32 %r4, 6; setp.ge.u32 %p1, %r0, %r4; @%p1 st.global.u64 [%rd10], %rd30;"
    with pytest.raises(FaultError, match=message):
        made(body).launch(3, 4, [array([0])])


def test_a_launch_after_a_fault_is_as_any_other() -> None:
    values = array(np.zeros(8, np.int64))
    assert fault("st.global.u64 [%rd0+64], %rd0;", values) == translate.OUTSIDE
    made(f"{MINE} st.global.u64 [%rd10], %rd30;").launch(1, 8, [values])
    assert values.copy_to_host().tolist() == list(range(0, 64, 8))
