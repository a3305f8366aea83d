"""Kernels written by hand, to test the machine with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from device.machine import CompiledKernel, FaultError
from device.memory import memory
from device.ptx import Kernel, parse

HEAD = """
.version 9.0
.target sm_90
.address_size 64
{shared}
.visible .entry made({parameters})
{{
    .reg .pred %p<16>;
    .reg .b16 %rs<16>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<{wide}>;
    .reg .f32 %f<8>;
    .reg .f64 %fd<8>;
{loads}
{body}
    ret;
}}
"""

# The thread's number in the grid in %r0, in its block in %r1, and 8 times both in %rd30 and %rd31.
NUMBERS = """
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r1, %tid.x;
    mad.lo.s32 %r0, %r2, %r3, %r1;
    mul.wide.u32 %rd30, %r0, 8;
    mul.wide.u32 %rd31, %r1, 8;
"""


def parsed(body: str, *, parameters: int = 1, shared: int = 0, wide: int = 32) -> Kernel:
    """A kernel of so many u64 parameters, which it finds in %rd0, %rd1, ...; `tile` is shared memory of so many bytes.

    It begins with NUMBERS, and ends after the body.
    """
    names = [f"made_param_{i}" for i in range(parameters)]
    text = HEAD.format(
        shared=f".visible .shared .align 8 .b8 tile[{shared}];" if shared else "",
        parameters=", ".join(f".param .u64 {name}" for name in names),
        loads="".join(f"    ld.param.u64 %rd{i}, [{name}];\n" for i, name in enumerate(names)) + NUMBERS,
        wide=wide,
        body=body,
    )
    return parse(text)


def made(body: str, *, parameters: int = 1, shared: int = 0, wide: int = 32) -> CompiledKernel:
    """The same kernel, ready to run."""
    return CompiledKernel(parsed(body, parameters=parameters, shared=shared, wide=wide))


# The thread's place in the first array, of 8 bytes an item, in %rd10.
MINE = "    add.s64 %rd10, %rd0, %rd30;\n"


def array(values: Any, shift: int = 0) -> Any:
    return memory().to_device(np.asarray(values), shift=shift)


def fault(body: str, *arguments: Any, grid: int = 1, block: int = 1, shared: int = 0, **how: Any) -> int:
    """The kind of fault that a kernel ends with."""
    kernel = made(body, parameters=len(arguments), shared=shared)
    with pytest.raises(FaultError) as caught:
        kernel.launch(grid, block, arguments, **how)
    return caught.value.kind
