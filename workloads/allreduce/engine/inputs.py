"""What each rank puts into an operation, and what has to come out: numpy's sum, from the same seed on every rank.

A rank's elements are drawn once for all of `Operations`; operation i has them moved on by i places, so a result that is
left over from the operation before is wrong nearly everywhere. Integers fill their type (sums wrap); floats are from
0.5 to 1, so that a sum of N has a last place to count errors in.
"""

import math
from functools import reduce
from typing import Any, Final

import numpy as np

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.allreduce.engine.buffers import Array, dtype_code
from railyard.workloads.allreduce.engine.jobs import Operations

COLLECTIVES: Final = ("allreduce", "reduce_scatter", "all_gather", "broadcast")
ROOT: Final = 0
"""Of a broadcast."""
_SUM_DTYPES: Final = {"e": np.float64, "f": np.float64, "d": np.longdouble, "F": np.complex128, "D": np.clongdouble}


def checked(operations: Operations) -> np.dtype[Any]:
    """The type of its elements. BadInput for what nobody can run."""
    if operations.collective not in COLLECTIVES:
        raise BadInput("collective", operations.collective, unknown_name_hint(operations.collective, COLLECTIVES))
    for field, value in (("size_bytes", operations.size_bytes), ("count", operations.count)):
        if value < 0:
            raise BadInput(field, value, "must be 0 or more")
    try:
        dtype = np.dtype(operations.dtype)
    except TypeError:
        raise BadInput("dtype", operations.dtype, "must be a type that numpy knows") from None
    dtype_code(dtype)
    return dtype


def elements(operations: Operations, nodes: int) -> int:
    """How many a rank puts in: as many as `size_bytes` has room for, of a ReduceScatter the same for each rank."""
    length = operations.size_bytes // checked(operations).itemsize
    return length - length % nodes if operations.collective == "reduce_scatter" else length


def draw_input(operations: Operations, nodes: int, rank: int) -> Array:
    """A rank's elements, as they are in operation 0."""
    dtype, length = checked(operations), elements(operations, nodes)
    random = np.random.default_rng((operations.seed, rank))
    if dtype.kind in "iu":
        return np.frombuffer(random.bytes(length * dtype.itemsize), dtype)
    if dtype.kind == "c":
        return (random.uniform(0.5, 1, length) + 1j * random.uniform(0.5, 1, length)).astype(dtype)
    return random.uniform(0.5, 1, length).astype(dtype)


def expected(operations: Operations, nodes: int, rank: int) -> Array:
    """What operation 0 has to give a rank; operation i gives it moved on by i places, as `rotated` has it."""
    parts = [draw_input(operations, nodes, each) for each in range(nodes)]
    match operations.collective:
        case "all_gather":
            return np.concatenate(parts)
        case "broadcast":
            return parts[ROOT]
    total: Array = reduce(np.add, (part.astype(_SUM_DTYPES.get(part.dtype.char, part.dtype)) for part in parts))
    return total.astype(parts[0].dtype)


def rotated(first: Array, index: int, parts: int = 1) -> Array:
    """Operation `index`'s elements from operation 0's, each of `parts` equal parts on its own. A copy."""
    return np.roll(first.reshape(parts, -1), index, axis=1).reshape(-1)


def outcome(operations: Operations, nodes: int, rank: int, first: Array, index: int) -> Array:
    """What operation `index` has to give a rank, from what `expected` gives it in operation 0."""
    whole = rotated(first, index, nodes if operations.collective == "all_gather" else 1)
    if operations.collective == "reduce_scatter":
        part = len(whole) // nodes
        return whole[rank * part : (rank + 1) * part]
    return whole


def wrong(result: Array, reference: Array, nodes: int) -> int:
    """Elements that aren't as they should be: at all for integers, by over log2 N units in the last place for floats,
    which N summands of 0.5 to 1 added in any order stay within (up to N = 8 always, above nearly so)."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return max(result.size, reference.size, 1)
    if result.dtype.kind in "iu":
        return int(np.count_nonzero(result != reference))
    real = np.dtype(result.dtype.char.lower())
    actual, correct = result.view(real), reference.view(real)
    mismatches = ~(np.abs(actual - correct) <= math.ceil(math.log2(max(2, nodes))) * np.spacing(correct))
    return int(np.count_nonzero(mismatches.reshape(len(reference), -1).any(axis=1))) if len(reference) else 0
