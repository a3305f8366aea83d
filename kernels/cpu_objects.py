"""Python's lists of integers and NumPy's arrays, read where they lie by compiled code.

The interpreter's lock is held, and what is read is what code compiled against CPython and NumPy reads: the fields of
PyListObject, PyLongObject (with integers of one digit; others are left to the interpreter) and PyArrayObject. An object
of any other type, be it a subclass, is not looked into. An interpreter whose objects may be laid out in another way is
told by its build and version, and nothing is read in it.
"""

import functools
import sys
import sysconfig

import numpy as np
from numba import types
from numba.core.typing import signature

from fastmask.kernels.bits import pointer
from fastmask.kernels.cpu_compile import compile_kernel, read_array, write_array
from fastmask.kernels.cpu_tile import inline

OBJECT = types.intp  # an address; 0: an error that the interpreter holds
_as_int64 = types.ExternalFunction("PyLong_AsLongLong", signature(types.int64, OBJECT))
_error = types.ExternalFunction("PyErr_Occurred", signature(OBJECT))
_clear_error = types.ExternalFunction("PyErr_Clear", signature(types.void))
NOTHING = np.intp(0)
MINUS_ONE = np.int64(-1)

KNOWN_LAYOUT = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 15)
    and sys.int_info.bits_per_digit == 30
    and sys.maxsize == (1 << 63) - 1
    and not any(map(sysconfig.get_config_var, ("Py_DEBUG", "Py_TRACE_REFS", "Py_GIL_DISABLED")))
    and np.lib.NumpyVersion(np.__version__).major < 3
)

# Bytes from the beginning of an object.
HEAD = object.__basicsize__  # of what all objects have; the last word of it is the type
TYPE, SIZE, ITEMS = HEAD - 8, HEAD, HEAD + 8  # of a list
TAG, DIGITS = HEAD, int.__basicsize__  # of an integer: how many digits, with the sign, and the lowest one, of 30 bits
DATA, DIMENSIONS, LENGTHS, DTYPE, FLAGS = HEAD, HEAD + 8, HEAD + 16, HEAD + 40, HEAD + 48  # of an array
KIND = HEAD + 8  # of a dtype: the word that tells kind, byte order and number of a type
IN_ORDER = np.uint32(0x101)  # flags of an array: C-contiguous and aligned
ONE_DIGIT = 1 << 20  # an integer like most ids
WORD = 8


@inline
def _word(address):
    """The eight bytes at an address."""
    return pointer(address, types.int64)[0]


@inline
def _half(address):
    """The four bytes at an address."""
    return pointer(address, types.uint32)[0]


@inline
def _item(items, index):
    """The item of a list."""
    return _word(_word(items + ITEMS) + WORD * index)


def read_lists_kernel(lists, none, of_list, of_int, zero, one_digit, boundaries, out):
    """The integers of lists; the first list that holds anything else, or -1. `none` is the object that reads as -1."""
    tag = _word(one_digit + TAG)
    for row in range(boundaries.size - 1):
        values = out[boundaries[row] : boundaries[row + 1]]
        items = _item(lists, row)
        if _word(items + TYPE) != of_list or _word(items + SIZE) != values.size:
            return row
        for j in range(values.size):
            if j >= _word(items + SIZE):  # an integer of another type may run code, which may shorten the list
                return row
            item = _item(items, j)
            if _word(item + TYPE) == of_int and _word(item + TAG) == tag:
                values[j] = _half(item + DIGITS)
            elif item == zero:
                values[j] = 0
            elif item == none:
                values[j] = MINUS_ONE
            else:
                values[j] = _as_int64(item)
                if values[j] == MINUS_ONE and _error() != NOTHING:
                    _clear_error()
                    return row
    return -1


def find_arrays_kernel(arrays, of_array, dtype, most, boundaries, addresses):
    """Where arrays of a dtype lie, and the bounds of the first `most` values of each; the first that is none, or -1."""
    kind = _word(dtype + KIND)
    boundaries[0] = 0
    for row in range(addresses.size):
        array = _item(arrays, row)
        if _word(array + TYPE) != of_array or _half(array + DIMENSIONS) != np.uint32(1):
            return row
        if _word(_word(array + DTYPE) + KIND) != kind or _half(array + FLAGS) & IN_ORDER != IN_ORDER:
            return row
        addresses[row] = _word(array + DATA)
        boundaries[row + 1] = boundaries[row] + min(_word(_word(array + LENGTHS)), most)
    return -1


@functools.cache
def compiled_read_lists(cache=True):
    """The kernel of `read_lists`."""
    of_kernel = types.int64(*(types.int64,) * 6, read_array(types.int64), write_array(types.int64))
    return compile_kernel(read_lists_kernel, of_kernel, "int64", parallel=False, cache=cache, nogil=False)


@functools.cache
def compiled_find_arrays(cache=True):
    """The kernel of `find_arrays`."""
    of_kernel = types.int64(*(types.int64,) * 4, *(write_array(types.int64),) * 2)
    return compile_kernel(find_arrays_kernel, of_kernel, "int64", parallel=False, cache=cache, nogil=False)


def read_lists(lists, boundaries, with_none, out):
    """`out` then holds the integers of lists, and -1 for None; the first list that holds anything else, or -1."""
    if not KNOWN_LAYOUT:
        return 0
    none = id(None) if with_none else 0
    return compiled_read_lists()(id(lists), none, id(list), id(int), id(0), id(ONE_DIGIT), boundaries, out)


def find_arrays(arrays, most, boundaries, addresses):
    """Where the values of a list of arrays lie, if all are 1-D, contiguous and of the first one's dtype.

    `addresses` then tells it, and `boundaries` those of the first `most` values of each. The first array that is
    something else, or -1. The caller keeps the arrays.
    """
    if not KNOWN_LAYOUT:
        return 0
    return compiled_find_arrays()(id(arrays), id(np.ndarray), id(arrays[0].dtype), most, boundaries, addresses)
