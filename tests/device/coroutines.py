"""The LLVM IR of a kernel as a coroutine: it runs to a barrier or its end, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device import access, integers, threads, values  # noqa: F401  (their rules)
from device.ptx import Instruction, Kernel
from device.translate import ENDED, FAULTED, STATUS, Code, Place

DECLARATIONS = """\
@ptx.memory = external global i8
@ptx.shadow = external global i8
@ptx.readers = external global i64
@ptx.writers = external global i64
@ptx.state = external global i64
@ptx.fuel = external global i64
@ptx.mutant = external global i64
declare i64 @ptx.look(ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64, i64)
declare void @ptx.blame(ptr, ptr, i64, i64, i64, i64)
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare ptr @llvm.coro.free(token, ptr)
declare void @llvm.coro.end(ptr, i1, token)
declare ptr @malloc(i64)
declare void @free(ptr)
declare float @llvm.fma.f32(float, float, float)
declare double @llvm.fma.f64(double, double, double)
declare i32 @llvm.fshl.i32(i32, i32, i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)

define internal i64 @ptx.access(
  ptr %thread, i64 %what, i64 %space, i64 %address, i64 %size, i64 %low, i64 %high, i64 %place
) alwaysinline {
  %allowed = call i64 @ptx.look(
    ptr @ptx.memory, ptr @ptx.shadow, ptr @ptx.readers, ptr @ptx.writers, ptr @ptx.state, ptr %thread,
    i64 %what, i64 %space, i64 %address, i64 %size, i64 %low, i64 %high, i64 %place)
  ret i64 %allowed
}

define internal void @ptx.fault(ptr %thread, i64 %kind, i64 %place, i64 %first, i64 %second) alwaysinline {
  call void @ptx.blame(ptr @ptx.state, ptr %thread, i64 %kind, i64 %place, i64 %first, i64 %second)
  ret void
}

define internal i1 @ptx.burn() alwaysinline {
  %before = load i64, ptr @ptx.fuel
  %after = sub i64 %before, 1
  store i64 %after, ptr @ptx.fuel
  %some = icmp sgt i64 %after, 0
  ret i1 %some
}
"""

WIDTHS = (16, 32, 64)
DECLARATIONS += "".join(
    f"declare i{bits} @llvm.{name}.i{bits}(i{bits}{further})\n"
    for bits in WIDTHS
    for name, further in [
        ("ctpop", ""),
        ("bitreverse", ""),
        ("ctlz", ", i1"),
        *((name, f", i{bits}") for name in ("smin", "smax", "umin", "umax")),
    ]
)
DECLARATIONS += "".join(
    f"declare i{to} @llvm.fpto{kind}i.sat.i{to}.f{bits}({name})\n"
    for to in (32, 64)
    for kind in "su"
    for bits, name in ((32, "float"), (64, "double"))
)

BEGINNING = """\
  %id = call token @llvm.coro.id(i32 0, ptr null, ptr null, ptr null)
  %size = call i64 @llvm.coro.size.i64()
  %frame = call ptr @malloc(i64 %size)
  %handle = call ptr @llvm.coro.begin(token %id, ptr %frame)
"""

ENDING = f"""\
ptx.ended:
  br label %ptx.final
ptx.faulted:
  br label %ptx.final
ptx.final:
  %status = phi i64 [{ENDED}, %ptx.ended], [{FAULTED}, %ptx.faulted]
  %where = getelementptr i64, ptr %thread, i64 {STATUS}
  store i64 %status, ptr %where
  %state = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %state, label %ptx.left [i8 1, label %ptx.freed]
ptx.freed:
  %memory = call ptr @llvm.coro.free(token %id, ptr %handle)
  call void @free(ptr %memory)
  br label %ptx.left
ptx.left:
  call void @llvm.coro.end(ptr %handle, i1 false, token none)
  ret ptr %handle
"""


def as_coroutine(
    kernel: Kernel,
    places: Mapping[str, Place],
    mutants: Mapping[int, Sequence[tuple[int, Instruction]]] | None = None,
) -> str:
    """A module with `kernel(ptr %thread, ptr %arguments) -> ptr`: a thread's record, eight bytes per parameter.

    It returns the coroutine's handle. Registers hold 0 before anything else; places and mutants as in `Code`.
    """
    code = Code(kernel, places, mutants or {})
    slots = "".join(
        f'  %"{name}" = alloca {kind.integer}\n  store {kind.integer} 0, ptr %"{name}"\n'
        for name, kind in kernel.registers.items()
    )
    head = "define ptr @kernel(ptr %thread, ptr %arguments) presplitcoroutine {\nentry:\n"
    body = "\n".join(code.lines)
    return f"{DECLARATIONS}\n{head}{slots}{BEGINNING}  br label %ptx.body\nptx.body:\n{body}\n{ENDING}}}\n"
