"""The machine finds each access that no thread may make; arrays go to its memory and come back."""

from __future__ import annotations

import numpy as np
import pytest

from device import translate
from device.handmade import MINE, array, fault, made
from device.machine import FaultError
from device.memory import UnwrittenError, memory


@pytest.mark.parametrize(
    ("access", "size"),
    [
        ("ld.global.u8 %rs5, [%rd0+{0}]", 1),
        ("ld.global.u16 %rs5, [%rd0+{0}]", 2),
        ("ld.global.nc.u32 %r5, [%rd0+{0}]", 4),
        ("ld.volatile.global.u64 %rd5, [%rd0+{0}]", 8),
        ("ld.global.v2.u64 {{%rd5, %rd6}}, [%rd0+{0}]", 16),
        ("ld.global.L1::no_allocate.v4.u32 {{%r5, %r6, %r7, %r8}}, [%rd0+{0}]", 16),
        ("ld.global.v2.u16 {{%rs5, %rs6}}, [%rd0+{0}]", 4),
        ("st.global.u8 [%rd0+{0}], %rs5", 1),
        ("st.global.cs.u32 [%rd0+{0}], %r5", 4),
        ("st.global.v4.u32 [%rd0+{0}], {{%r5, %r6, %r7, %r8}}", 16),
        ("st.global.v2.f64 [%rd0+{0}], {{%fd5, %fd6}}", 16),
        ("ld.u64 %rd5, [%rd0+{0}]", 8),
        ("st.v2.u32 [%rd0+{0}], {{%r5, %r6}}", 8),
        ("red.global.add.u32 [%rd0+{0}], 1", 4),
        ("atom.global.add.u64 %rd5, [%rd0+{0}], 1", 8),
    ],
)
def test_an_access_ends_with_its_array_and_is_aligned(access: str, size: int) -> None:
    values = array(np.zeros(48, np.uint8))
    made("".join(f"    {access.format(at)};\n" for at in (0, 48 - size))).launch(1, 1, [values])
    for at in (-size, 48, 1 << 40, -(1 << 40)):
        assert fault(f"    {access.format(at)};", values) == translate.OUTSIDE
    for at in range(1, size):
        assert fault(f"    {access.format(at)};", values) == translate.MISALIGNED


def test_an_access_that_ends_outside_is_found_whatever_lies_behind() -> None:
    """The last bytes of an array whose size is no multiple of the access."""
    values = array(np.zeros(20, np.uint8))
    assert fault("ld.global.u64 %rd5, [%rd0+16];", values) == translate.OUTSIDE
    assert fault("st.global.u64 [%rd0+16], %rd5;", values) == translate.OUTSIDE


@pytest.mark.parametrize("shift", [4, 8, 12])
def test_vectors_from_a_misaligned_beginning_are_found(shift: int) -> None:
    assert fault("ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd0];", array(np.zeros(4, np.uint32), shift)) == (
        translate.MISALIGNED
    )


def test_vectors_hold_their_parts_in_order() -> None:
    body = """
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd0];
    st.global.v4.u32 [%rd1], {%r8, %r7, %r6, %r5};
    ld.global.v2.u64 {%rd5, _}, [%rd0];
    st.global.u64 [%rd1+16], %rd5;
    ld.global.s16 %r9, [%rd0];
    cvt.s64.s32 %rd6, %r9;
    st.global.u64 [%rd1+24], %rd6;
    """
    words, out = array(np.array([0xFFFF8001, 2, 3, 4], np.uint32)), memory().empty(8, np.uint32)
    made(body, parameters=2).launch(1, 1, [words, out])
    assert out.copy_to_host().tolist() == [4, 3, 2, 0xFFFF8001, 0xFFFF8001, 2, 0xFFFF8001, 0xFFFFFFFF]


def test_memory_that_was_given_back_is_nobodys() -> None:
    values = array(np.zeros(100, np.int64))
    address = values.ctypes.data
    kernel = made("ld.global.u64 %rd5, [%rd0+792];")
    kernel.launch(1, 1, [address])
    part = values[-1:]
    del values
    kernel.launch(1, 1, [address])  # a view holds it
    del part
    with pytest.raises(FaultError, match="are not all of an array"):
        kernel.launch(1, 1, [address])


def test_host_memory_is_out_of_bounds() -> None:
    values = np.zeros(4, np.int64)
    assert fault("ld.global.u64 %rd5, [%rd0];", values.ctypes.data) == translate.OUTSIDE
    assert fault("ld.global.u64 %rd5, [%rd0];", 0) == translate.OUTSIDE


def test_reads_of_what_nothing_wrote_are_found() -> None:
    values = memory().empty(4, np.int64)
    for access in ("ld.global.u64 %rd5, [%rd0+8];", "atom.global.add.u64 %rd5, [%rd0+8], 1;"):
        assert fault(access, values) == translate.UNWRITTEN
        assert fault(f"st.global.u32 [%rd0+8], %r5; {access}", values) == translate.UNWRITTEN
        values = memory().empty(4, np.int64)
    made("st.global.u64 [%rd0+8], %rd0; ld.global.u64 %rd5, [%rd0+8];").launch(1, 1, [values])
    with pytest.raises(UnwrittenError, match="24 of 32 bytes, from byte 0 on"):
        values.copy_to_host()


def test_shared_memory_is_as_long_as_declared_and_unwritten_at_first() -> None:
    for at in (-8, 64, 1 << 20):
        assert fault(f"mov.u64 %rd5, tile; st.shared.u64 [%rd5+{at}], %rd5;", array([0]), shared=64) == (
            translate.OUTSIDE
        )
    assert fault("mov.u64 %rd5, tile; ld.shared.u64 %rd6, [%rd5];", array([0]), shared=64) == translate.UNWRITTEN
    written = (
        "mov.u64 %rd5, tile; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u64 [%rd5], %rd5; ld.shared.u64 %rd6, [%rd5];"
    )
    assert fault(written, array([0]), grid=2, shared=64) == translate.UNWRITTEN  # the second block wrote nothing


# A variable of each space: their addresses in %rd5, of shared, and %rd6, of local memory.
PLACES = """
    .local .align 16 .b8 own[24];
    .reg .b64 %SP;
    mov.u64 %rd5, tile;
    mov.u64 %SP, own;
    cvta.local.u64 %rd6, %SP;
"""


def test_local_memory_is_a_threads_own() -> None:
    """Whatever its address is to others: what lies there stays while they write to theirs."""
    body = f"""{PLACES} {MINE}
    .local .align 64 .b8 other[8];
    mov.u64 %rd7, other;
    st.local.v2.u64 [%rd6], {{%rd30, %rd31}};
    st.u64 [%rd7], %rd6;
    bar.sync 0;
    ld.u64 %rd8, [%rd6+8];
    ld.local.u32 %r4, [%rd6];
    cvt.u64.u32 %rd9, %r4;
    add.s64 %rd8, %rd8, %rd9;
    cvta.to.local.u64 %rd7, %rd7;
    ld.volatile.local.u64 %rd9, [%rd7];
    setp.eq.s64 %p1, %rd9, %rd6;
    and.b64 %rd9, %rd7, 63;
    setp.eq.and.s64 %p1, %rd9, 0, %p1;
    @%p1 st.global.u64 [%rd10], %rd8;
    """
    for backwards in (False, True):
        out = memory().empty(80, np.int64)
        made(body, shared=8).launch(2, 40, [out], backwards=backwards)
        assert out.copy_to_host().tolist() == [8 * (i + i % 40) for i in range(80)]


def test_local_memory_is_as_long_as_declared_and_unwritten_at_first() -> None:
    for at in (-8, 24, 128, -128, 1 << 20):  # 128 on lies what the next thread has
        for access in (f"st.local.u64 [%rd6+{at}], %rd5;", f"ld.u64 %rd7, [%rd6+{at}];"):
            body = f"{PLACES} st.local.v2.u64 [%rd6], {{%rd5, %rd5}}; bar.sync 0; {access}"
            assert fault(body, array([0]), block=3, shared=8) == translate.OUTSIDE
    for access in ("ld.local.u64 %rd7, [%rd6];", "ld.u64 %rd7, [%rd6];"):
        assert fault(f"{PLACES} {access}", array([0]), shared=8) == translate.UNWRITTEN
    some = f"{PLACES} setp.eq.u32 %p1, %r0, 0; @%p1 st.local.u64 [%rd6], %rd5; ld.local.u64 %rd7, [%rd6];"
    assert fault(some, array([0]), grid=2, shared=8) == translate.UNWRITTEN  # the second block wrote nothing
    made(f"{PLACES} st.local.u64 [%rd6+16], %rd5;", shared=8).launch(1, 1, [array([0])])
    assert fault(f"{PLACES} ld.local.u64 %rd7, [%rd6+16];", array([0]), shared=8) == translate.UNWRITTEN


def test_spaces_are_apart() -> None:
    for space, allowed in (("global", "%rd0"), ("shared", "%rd5"), ("local", "%rd6")):
        for place in ("%rd0", "%rd5", "%rd6"):
            body = f"{PLACES} st.{space}.u64 [{place}], %rd30;"
            if place == allowed:
                made(body, shared=8).launch(1, 1, [array([0])])
            else:
                assert fault(body, array([0]), shared=8) == translate.OUTSIDE


def test_an_address_alone_tells_the_space() -> None:
    """Of an access that names none."""
    body = f"""{PLACES} {MINE}
    add.s64 %rd5, %rd5, %rd31;
    st.u64 [%rd5], %rd31;
    st.u64 [%rd6], 7;
    st.u64 [%rd10], 1000;
    ld.shared.u64 %rd7, [%rd5];
    ld.local.u64 %rd8, [%rd6];
    ld.global.u64 %rd9, [%rd10];
    add.s64 %rd7, %rd7, %rd8;
    add.s64 %rd7, %rd7, %rd9;
    st.u64 [%rd10], %rd7;
    """
    out = memory().empty(4, np.int64)
    made(body, shared=32).launch(1, 4, [out])
    assert out.copy_to_host().tolist() == [1007, 1015, 1023, 1031]


def test_shared_memory_may_be_declared_within_the_kernel() -> None:
    body = (
        ".shared .align 8 .b8 inner[16]; mov.u64 %rd5, inner; st.shared.u64 [%rd5+8], 3; ld.shared.u64 %rd6, [%rd5{}];"
    )
    made(body.format("+8"), shared=8).launch(1, 1, [array([0])])
    assert fault(body.format("+16"), array([0]), shared=8) == translate.OUTSIDE


def test_memory_of_a_block_ends() -> None:
    with pytest.raises(MemoryError, match="bytes of shared memory"):
        made("ret;", shared=1 << 18)
    with pytest.raises(MemoryError, match="bytes of local memory"):
        made(".local .align 8 .b8 own[2048]; ret;").launch(1, 1024, [0])


# Races.


RACES = {
    "neighbours without a barrier": """
        mov.u64 %rd11, tile; add.s64 %rd12, %rd11, %rd31; st.shared.u64 [%rd12], %rd30; ld.shared.u64 %rd13, [%rd11];
    """,
    "a read, then a write": f"{MINE} ld.global.u64 %rd11, [%rd0]; st.global.u64 [%rd10], %rd30;",
    "two writes": "st.global.u64 [%rd0], %rd30;",
    "part of a word": "cvt.u16.u32 %rs5, %r0; ld.global.u64 %rd11, [%rd0]; st.global.u8 [%rd0+3], %rs5;",
}


@pytest.mark.parametrize("body", RACES.values(), ids=RACES)
@pytest.mark.parametrize("backwards", [False, True])
def test_accesses_that_nothing_orders_are_found(body: str, backwards: bool) -> None:
    values = array(np.full(8, -1))
    kind = fault(body, values, block=8, shared=64, backwards=backwards)
    assert kind == translate.RACE or (backwards and kind == translate.UNWRITTEN)  # the first thread came last
    if "tile" not in body:  # shared memory is a block's own
        assert fault(body, array(np.full(8, -1)), grid=8, backwards=backwards) == translate.RACE


def test_a_barrier_orders_the_threads_of_a_block_and_the_end_of_a_launch_all() -> None:
    body = f"{MINE} ld.global.u64 %rd11, [%rd0]; bar.sync 0; st.global.u64 [%rd10], %rd30;"
    values = array(np.full(8, -1))
    for _ in range(2):
        made(body).launch(1, 8, [values])
    assert fault(body, array(np.full(8, -1)), grid=8) == translate.RACE  # blocks do not meet


def test_writes_of_the_value_that_is_there_and_atomics_are_no_races() -> None:
    values = array(np.zeros(2, np.int64))
    made("st.global.u64 [%rd0], 1; red.global.add.u64 [%rd0+8], 1;").launch(4, 8, [values])
    assert values.copy_to_host().tolist() == [1, 32]


def test_threads_that_meet_in_a_warp_are_in_order() -> None:
    body = f"{MINE} ld.global.u64 %rd11, [%rd0]; bar.warp.sync -1; st.global.u64 [%rd10], %rd30;"
    made(body).launch(1, 32, [array(np.full(64, -1))])
    assert fault(body, array(np.full(64, -1)), block=64) == translate.RACE


# Arrays.


@pytest.mark.parametrize("shift", [0, 4, 8, 12])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3)])
def test_arrays_come_back_as_they_went(shape: tuple[int, ...], shift: int) -> None:
    there = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    here = array(there, shift)
    np.testing.assert_array_equal(here.copy_to_host(), there, strict=True)
    assert there.size == 0 or here.ctypes.data % 256 == shift
    assert here.__cuda_array_interface__["data"] == (here.ctypes.data, False)


def test_arrays_keep_their_strides() -> None:
    there = np.arange(12).reshape(3, 4)
    for view in (there.T, there[:, ::2], np.broadcast_to(there[0], (3, 4))):
        np.testing.assert_array_equal(np.asarray(array(view)), view)
        assert array(view).strides == view.strides
        assert not array(view).is_c_contiguous()


def test_memory_ends() -> None:
    with pytest.raises(MemoryError):
        memory().empty(1 << 40, np.uint8)


def test_memory_is_used_again() -> None:
    address = memory().empty(12345, np.uint8).ctypes.data
    assert memory().empty(12345, np.uint8).ctypes.data == address
