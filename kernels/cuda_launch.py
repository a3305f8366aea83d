"""How device code is compiled and launched: a signature per kernel and dtype, on the stream of the caller.

In the simulator (NUMBA_ENABLE_CUDASIM=1) the same kernels run with arrays where a GPU gets raw pointers.
"""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fastmask.kernels.cuda_compiler import SIMULATED as SIMULATED
from fastmask.kernels.cuda_compiler import create_stream, cuda
from fastmask.kernels.cuda_compiler import is_capturing as is_capturing

Array = Any  # of the device: whatever has __cuda_array_interface__; in the simulator a FakeCUDAArray

MAX_THREADS = 128  # per block: kernels share memory for so many
THREADS = 128  # per block: a power of two, a multiple of each width
WIDTHS = (8, 16, 32)  # threads that may share a piece of a row
MAX_BLOCKS = 8192  # further work is taken in strides of the grid
MIN_BLOCKS = 128  # Numba warns of any grid below this; blocks without work end at once
FLAGS = 1024  # flag words per allocation, of which half are a reserve

_lock = threading.Lock()
device = cuda.jit(device=True)


def pieces_of(quads: int) -> tuple[int, int]:
    """(width, number) of the pieces that cover a row of so many blocks of the random stream.

    Those with the fewest threads, and of these the widest.
    """
    width = min(WIDTHS, key=lambda width: (-(-quads // width) * width, -width))
    return width, -(-quads // width)


def blocks_of(threads: int) -> int:
    """The blocks that hold so many threads."""
    return -(-threads // THREADS)


class Queue(NamedTuple):
    """Where kernels are launched: a device and one of its streams, inside `on_device`."""

    device: int
    stream: Any


@contextmanager
def on_device(array: Array, stream: int) -> Iterator[Queue]:
    """The device that holds the array is current within the block, and the one before it again afterwards.

    Args:
        array: of device memory, or whatever else `device_of` knows.
        stream: the handle of a stream of that device; 0 is its default stream.
    """
    device = device_of(array)
    with cuda.gpus[device]:
        yield Queue(device, _stream(device, stream))


def device_of(array: Array) -> int:
    """The index of the device that holds an array; of the current device where the array does not tell."""
    if SIMULATED:
        return 0
    if hasattr(array, "device_index"):
        return int(array.device_index)
    if hasattr(array, "gpu_data"):  # of Numba
        return int(array.gpu_data.context.device.id)
    return int(cuda.get_current_device().id)


@functools.lru_cache(maxsize=256)
def _stream(device: int, handle: int) -> Any:
    return 0 if handle == 0 or SIMULATED else cuda.external_stream(handle)


class Kernel:
    """A kernel, compiled for the dtypes of its arrays when it is first launched with them.

    Args:
        function: the kernel: first its arrays, then its scalars.
        arrays: a dtype per array, or None where the array given decides (such arrays are never None).
        scalars: a dtype per scalar.
        variants: the dtypes of the undecided arrays that are worth compiling ahead.
    """

    def __init__(
        self,
        function: Callable[..., None],
        arrays: Sequence[str | None],
        scalars: Sequence[str],
        variants: Sequence[tuple[str, ...]] = ((),),
    ) -> None:
        self.function = function
        self.arrays = tuple(None if dtype is None else np.dtype(dtype).str for dtype in arrays)
        self.scalars = tuple(np.dtype(dtype) for dtype in scalars)
        self.variants = variants
        self._compiled: dict[tuple[str, ...], Any] = {}

    def signature(self, undecided: Sequence[str]) -> Any:
        """The signature over raw pointers for these dtypes of the undecided arrays."""
        rest = iter(undecided)
        pointees = (next(rest) if dtype is None else dtype for dtype in self.arrays)
        pointers = (cuda.types.CPointer(_numba_type(dtype)) for dtype in pointees)
        return cuda.types.void(*pointers, *(_numba_type(dtype) for dtype in self.scalars))

    def launch(self, queue: Queue, blocks: int, arrays: Sequence[Array], scalars: Sequence[Any]) -> None:
        """The kernel is queued on the stream: so many blocks, or fewer that go round the grid.

        Arrays are contiguous; None where the kernel takes none.

        Raises TypeError for an array of another dtype than the kernel's: it would be read as something else.
        """
        places, undecided = [], []
        for known, array in zip(self.arrays, arrays, strict=True):
            if array is None:
                places.append(_NOWHERE)
                continue
            place, dtype = _place(array)
            if known is None:
                undecided.append(dtype)
            elif dtype != known:
                raise TypeError(f"{self.function.__name__} takes an array of {known}, got {dtype}")
            places.append(place)
        kernel = self._kernel(tuple(undecided))
        if SIMULATED:
            values = (dtype.type(value) for dtype, value in zip(self.scalars, scalars, strict=True))
            kernel[min(blocks, MAX_BLOCKS), THREADS](*places, *values)
        else:
            grid = max(min(blocks, MAX_BLOCKS), MIN_BLOCKS)
            kernel[grid, THREADS, queue.stream](*places, *scalars)

    def _kernel(self, undecided: tuple[str, ...]) -> Any:
        kernel = self._compiled.get(undecided)
        if kernel is None:
            with _lock:
                if undecided not in self._compiled:
                    compiler = cuda.jit if SIMULATED else cuda.jit(self.signature(undecided))
                    self._compiled[undecided] = compiler(self.function)
                kernel = self._compiled[undecided]
        return kernel


_NOWHERE = None if SIMULATED else 0  # a null pointer


def _numba_type(dtype: Any) -> Any:
    return getattr(cuda.types, np.dtype(dtype).name)


def _place(array: Array) -> tuple[Any, str]:
    """What a kernel takes for an array (its address; itself in the simulator), and its dtype."""
    if SIMULATED:
        return array, array.dtype.str.replace("|b1", "|u1")
    interface = array.__cuda_array_interface__
    return interface["data"][0], interface["typestr"].replace("|b1", "|u1")


def is_aligned(array: Array) -> bool:
    """Whether an array begins where 16 bytes do, as far as that matters."""
    return SIMULATED or _place(array)[0] % 16 == 0


class Tables(NamedTuple):
    """A plan in device memory: its scalars as Python ints, its tables as device arrays."""

    words: list[int]
    scalars: Array  # the same, for kernels that take many of them
    runs: Array
    pool: Array
    cumulative: Array
    length_sums: Array
    is_continuation: Array  # a single 0 where the plan has no such table, or does not look for words


_tables: weakref.WeakKeyDictionary[Any, dict[int, Tables]] = weakref.WeakKeyDictionary()


def tables_of(plan: Any, device: int) -> Tables:
    """The tables of a plan on the current device, copied once and kept as long as the plan lives."""
    with _lock:
        known = _tables.setdefault(plan, {})
        if device not in known:
            runs, words = plan.special_runs.reshape(-1), plan.is_continuation if plan.needs_words else None
            continues = np.zeros(1, np.uint8) if words is None else words
            tables = (plan.words, runs, plan.pool, plan.cumulative, plan.length_sums, continues)
            known[device] = Tables(plan.words.tolist(), *(to_device(table, device) for table in tables))
        return known[device]


def to_device(table: np.ndarray[Any, Any], device: int) -> Array:
    """A copy of the table on the current device that every stream may read at once; never of size 0."""
    stream = _copies(device)
    copy = cuda.to_device(table if table.size else np.zeros(1, table.dtype), stream=stream)
    stream.synchronize()
    return copy


@functools.cache
def _copies(device: int) -> Any:
    """A stream of the current device for such copies: to wait for them is to wait for nothing else."""
    return create_stream()


def device_array(size: int, dtype: Any) -> Array:
    """A new array on the current device, of unspecified content."""
    return cuda.device_array(size, dtype)


_flags: dict[int, collections.deque[tuple[Array, int]]] = {}


def new_flag(queue: Queue) -> Array:
    """A uint32 of the queue's device that holds 0, (1,).

    It costs no launch: the words of one allocation are cleared together, and each is given out once. While a graph is
    captured nothing is allocated as long as the reserve lasts.
    """
    with _lock:
        words = _flags.setdefault(queue.device, collections.deque())
        if len(words) <= FLAGS // 2 and not (words and queue.stream and is_capturing(queue.stream)):
            page = to_device(np.zeros(FLAGS, np.uint32), queue.device)
            words.extend((page, place) for place in range(FLAGS))
        page, place = words.popleft()
        return page[place : place + 1]


def read_flag(flag: Array, stream: int = 0) -> int:
    """What the flag holds once all that was queued on the stream before is done; waits for that."""
    with on_device(flag, stream) as queue:
        value = flag.copy_to_host(stream=queue.stream)
        if queue.stream:
            queue.stream.synchronize()
        return int(value[0])


def is_set(flag: Array, stream: int = 0) -> bool:
    """Whether the flag has been raised; waits as `read_flag`."""
    return read_flag(flag, stream) != 0
