"""The buffers that rails share: one input, one result, and views of both by (pointer, length).

Source: Nezha section 3.2 (UnboundBuffer, Buffer). The input stays as it was given until an operation ends everywhere
it may have to be done again; rails work in a `result` of the group's own, which is kept while the next operation runs
(recovery.py says why), and is copied once to where the caller wants it. Each copy is counted.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from railyard.core.errors import BadInput

Array = NDArray[Any]

DTYPES: Final = tuple(
    np.dtype(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The place in `DTYPES`. BadInput for a type that isn't summed here."""
    try:
        return DTYPES.index(dtype)
    except ValueError:
        raise BadInput("dtype", str(dtype), f"must be one of {', '.join(map(str, DTYPES))}") from None


def octets(array: Array, start: int, end: int) -> memoryview:
    """The bytes of elements `start` to `end`, in place."""
    view: memoryview = array[start:end].view(np.uint8).data
    return view


def scratch(size: int) -> memoryview:
    """`size` bytes of memory to receive into, with whatever was there before."""
    view: memoryview = np.empty(size, np.uint8).data
    return view


def flat(array: Array) -> Array:
    """One dimension, same memory. BadInput where that needs a copy: it would be the copy that got the result."""
    if not array.flags.c_contiguous:
        raise BadInput("array", f"strides {array.strides}", "must be contiguous")
    if not array.flags.writeable:
        raise BadInput("array", "read-only", "must be writable: the result goes there")
    dtype_code(array.dtype)
    return array.reshape(-1)


@dataclass
class Copies:
    """Bytes that were moved in memory beside the sums themselves, by why."""

    result: int = 0  # from the group's result to the caller's array
    own_part: int = 0  # AllGather: a node's part into its own result
    staged: int = 0  # beginnings of frames, which came together with their headers
    early: int = 0  # frames of an operation that this node hadn't begun


@dataclass
class Results:
    """Two buffers in turn, as large as the largest so far."""

    _slots: list[Array] = field(default_factory=lambda: [np.empty(0, np.uint8), np.empty(0, np.uint8)])

    def take(self, op: int, length: int, dtype: np.dtype[Any]) -> Array:
        """`length` elements for operation `op`; what operation `op` - 2 had is lost."""
        size = length * dtype.itemsize
        if len(self._slots[op % 2]) < size:
            self._slots[op % 2] = np.empty(size, np.uint8)
        return self._slots[op % 2][:size].view(dtype)
