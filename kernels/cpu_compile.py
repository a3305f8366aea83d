"""How CPU kernels are compiled: one explicit signature per function, serial and parallel twins, a safe disk cache."""

import contextlib
import functools
import hashlib
import multiprocessing
import os
import pickle
import time
import types as python_types
from pathlib import Path

from numba import config, njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

try:
    import fcntl
except ImportError:  # where files have no such locks, every process compiles
    fcntl = None

PATIENCE = 300  # seconds that a process waits for what another compiles; a stopped one shall not stop the others
SOURCES = (
    "philox.py",
    "fate.py",
    "layout.py",
    "bits.py",
    "cpu.py",
    "cpu_batch.py",
    "cpu_choose.py",
    "cpu_collate.py",
    "cpu_compact.py",
    "cpu_compile.py",
    "cpu_layout.py",
    "cpu_objects.py",
    "cpu_range.py",
    "cpu_read.py",
    "cpu_rows.py",
    "cpu_samples.py",
    "cpu_sets.py",
    "cpu_spans.py",
    "cpu_tile.py",
    "cpu_words.py",
)


@functools.cache
def source_digest():
    """A digest of the kernel sources. OSError where they are not there.

    It is part of each cached name: Numba looks at the file of a function alone, and would keep code that was compiled
    from an older version of what the function calls.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(__spec__.loader.get_data(str(Path(__file__).parent / name)))  # the package may lie in a zip file
    return digest.hexdigest()[:12]


class Turn:
    """One process at a time compiles a kernel, which the others then find in the cache. It ends with its process."""

    def __init__(self):
        self._path, self._file = "", -1

    def take(self, path):
        """Waits for its turn at the file of this path; where that cannot be locked, or takes too long, not at all."""
        if fcntl is None:
            return
        deadline = time.monotonic() + PATIENCE
        try:
            self._path, self._file = path, os.open(path, os.O_CREAT | os.O_RDWR)
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    time.sleep(0.05)
        except OSError:
            pass  # a read-only folder, or a file system without locks

    def end(self):
        """The next process may go on."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1


class CheckedFiles(IndexDataCacheFile):
    """Numba's cache without the index: a file per kernel and processor, which is whole or counts as missing.

    An index and numbered data files can be crossed by processes that write them at once, so that code for another
    processor is loaded; a damaged one raises in every later process, or ends it. Here a file's name tells what it was
    compiled for, and a digest that nothing is missing or changed.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.turn = Turn()

    def _path_of(self, key):
        compiled_for = repr((self._version, self._source_stamp, key))
        name = self._index_name.removesuffix(".nbi")
        return os.path.join(self._cache_path, f"{name}.{hashlib.sha256(compiled_for.encode()).hexdigest()[:16]}.nbc")

    def load(self, key):
        """The entry of a key; None where it is missing, unreadable or damaged, and it is our turn to compile it."""
        entry = self._read(key)
        if entry is None:
            self.turn.take(f"{self._path_of(key)}.turn")
            entry = self._read(key)  # which another process may have written meanwhile
        return entry

    def _read(self, key):
        try:
            content = Path(self._path_of(key)).read_bytes()
        except OSError:
            return None
        digest, entry = content[:32], content[32:]
        return pickle.loads(entry) if hashlib.sha256(entry).digest() == digest else None

    def save(self, key, data):
        """The entry of a key is written, in one step."""
        entry = self._dump(data)
        with self._open_for_write(self._path_of(key)) as file:
            file.write(hashlib.sha256(entry).digest() + entry)


class KernelCache(FunctionCache):
    """Numba's cache of a function, with checked files. Whoever loads from it need not be able to compile.

    Numba would import all that it compiles with, SciPy's linear algebra where there is SciPy: half a second and more.
    """

    def __init__(self, function):
        super().__init__(function)
        files = self._cache_file
        self._cache_file = CheckedFiles(files._cache_path, self._impl.filename_base, files._source_stamp)

    def load_overload(self, signature, target_context):
        """The compiled kernel of a signature; None where it must be compiled."""
        rtsys.initialize(target_context)  # what the code calls of Numba's: memory
        return self._load_overload(signature, target_context)

    def end_turn(self):
        """The next process may compile."""
        self._cache_file.turn.end()


def read_array(dtype, dimensions=1):
    """The type of a contiguous array that is read, writable or not."""
    return types.Array(dtype, dimensions, "C", readonly=True)


def write_array(dtype):
    """The type of a contiguous 1-D array that is written."""
    return types.Array(dtype, 1, "C")


def compile_kernel(function, signature, tag, *, parallel, cache=True, nogil=True):
    """The function compiled for exactly this signature, under a name (and so a cache file) of its own.

    It runs without the interpreter's lock, unless `nogil` is False. Where the cache cannot be written, each process
    compiles. Threads that ask at once share one kernel.

    Raises:
        RuntimeError: Numba's compiler is switched off.
    """
    if config.DISABLE_JIT:
        raise RuntimeError("NUMBA_DISABLE_JIT is set, and the cpu backend needs the compiler; backend='numpy' does not")
    with global_compiler_lock, _start_method_left_open() if parallel else contextlib.nullcontext():
        return _compiled(function, signature, tag, parallel, cache, nogil)


@functools.cache
def _compiled(function, signature, tag, parallel, cache, nogil):
    try:
        sources = source_digest()
    except OSError:
        sources, cache = "unknown", False
    name = f"{function.__name__}_{tag}_{'parallel' if parallel else 'serial'}_{sources}"
    renamed = python_types.FunctionType(function.__code__, function.__globals__, name)
    renamed.__qualname__ = name
    renamed.__module__ = function.__module__
    kernel = njit(nogil=nogil, parallel=parallel)(renamed)
    if cache:
        with contextlib.suppress(RuntimeError, OSError):  # no writable place
            kernel._cache = KernelCache(renamed)
    try:
        kernel.compile(signature)
    except OSError:  # compiled, but not saved: a full disk, a folder that was removed
        if not kernel.overloads:
            raise
    finally:
        if isinstance(kernel._cache, KernelCache):
            kernel._cache.end_turn()
    kernel.disable_compile()
    return kernel


def entry_point(kernel):
    """The compiled code of a kernel as a function that looks at no type: arguments must be those of the signature.

    Numba's dispatcher would find out the type of each of two dozen arguments, at half of what a small call costs.
    """
    (compiled,) = kernel.overloads.values()
    return compiled.entry_point


@contextlib.contextmanager
def _start_method_left_open():
    """Numba, when it starts its threads, settles the start method of multiprocessing, which is the caller's to set."""
    undecided = multiprocessing.get_start_method(allow_none=True) is None
    try:
        yield
    finally:
        if undecided and multiprocessing.get_start_method() == multiprocessing.get_all_start_methods()[0]:
            multiprocessing.set_start_method(None, force=True)
