"""The repeated iteration of a training loop, found by the ends of optimizer steps; one steady iteration is kept.

Operations are compared by kind, communicator, bytes and peer, without floating-point operations and without the parts
of uneven collectives, which depend on data. A script that has two optimizers has two steps an iteration, so the period
is the smallest number of steps after which everything repeats.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

Operation = dict[str, Any]
COMPARED = ("op", "communicator", "bytes", "dtype", "root", "peer", "tag")


class Iteration(NamedTuple):
    """Steps `first` + 1 to `last` of `steps`, which are one iteration."""

    first: int
    last: int
    steps: int


def find_iteration(operations: Sequence[Operation], steps: Sequence[int]) -> Iteration | None:
    """Return the last iteration that equals the one before it; None if there is none.

    `steps`: for each optimizer step, how many operations there were at its end.
    """
    segments: list[tuple[object, ...]] = []
    start = 0
    for end in steps:
        segments.append(tuple(_signature(operation) for operation in operations[start:end]))
        start = end
    for last in range(len(segments), 1, -1):
        for period in range(1, last // 2 + 1):
            middle = last - period
            if segments[middle:last] == segments[middle - period : middle]:
                return Iteration(middle, last, len(steps))
    return None


def _signature(operation: Operation) -> tuple[object, ...]:
    return tuple(operation.get(key) for key in COMPARED)


def cut(operations: Sequence[Operation], steps: Sequence[int], iteration: Iteration) -> list[Operation]:
    """Return the operations of an iteration. What they wait for before it isn't waited for."""
    start = steps[iteration.first - 1] if iteration.first else 0
    end = steps[iteration.last - 1]
    kept: list[Operation] = []
    for operation in operations[start:end]:
        after = [position - start for position in operation["after"] if position >= start]
        kept.append({**operation, "after": after})
    return kept
