"""Nezha's Timer (section 3.5 and 4.2): when each rail was through, over a window of operations of one size class.

A rail's time is from the last node's start to its last node's end: who begins early only waits, and on a ring a node
that begins late isn't the one that ends late, so no single node sees how long its rail took. All nodes are on one
machine and share its CLOCK_MONOTONIC; on a cluster it would have to be a clock that PTP keeps, such as CLOCK_TAI.

A window's times are medians, not the paper's means: an operation during which the machine stood still tells nothing of
the rails, and among five it would be most of a mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from railyard.workloads.allreduce.balancing.balancer import size_class

_MAX_REPORTED: Final = 10  # operations of a window: messages of a hundred would fill a slow rail's control lane

Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Of some of its operations, `_MAX_REPORTED` at most: their median bytes, when this node began each, and when each
    rail was through."""

    size: int
    starts: Times
    ends: tuple[Times, ...]


@dataclass
class _SizeClass:
    sizes: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[Times] = field(default_factory=list)


class Timer:
    """`add` every operation; it returns a window when one is full."""

    def __init__(self) -> None:
        self._classes: dict[int, _SizeClass] = {}

    def add(self, size: int, start: float, ends: Sequence[float], window: Callable[[int], int]) -> Window | None:
        """`ends`: a rail that had nothing to do ended at `start`. `window(size)`: over how many operations; 0 never."""
        window_length = window(size)
        if not window_length:
            return None
        samples = self._classes.setdefault(size_class(size), _SizeClass())
        samples.sizes.append(size)
        samples.starts.append(start)
        samples.ends.append(tuple(ends))
        if len(samples.sizes) < window_length:
            return None
        del self._classes[size_class(size)]
        reported = slice(
            None, None, -(-len(samples.sizes) // _MAX_REPORTED) | 1
        )  # odd: programs repeat themselves in twos and tens
        sizes = samples.sizes[reported]
        return Window(int(median(sizes)), tuple(samples.starts[reported]), tuple(samples.ends[reported]))

    def clear(self) -> None:
        """The rails aren't what they were."""
        self._classes.clear()


def rail_seconds(starts: Sequence[float], ends: Sequence[Times]) -> Times:
    """Of one operation, an entry a node: from the last start to each rail's last end, 0 for one that ended before.

    A rail with nothing to do ended, on each node, when the node began.
    """
    begun = max(starts)
    return tuple(max(0.0, max(rail) - begun) for rail in zip(*ends, strict=True))


def median_rail_seconds(windows: Sequence[Window]) -> Times:
    """Of a window, an entry a node."""
    starts = zip(*(window.starts for window in windows), strict=True)
    ends = zip(*(window.ends for window in windows), strict=True)
    rows = [rail_seconds(*operation) for operation in zip(starts, ends, strict=True)]
    return tuple(median(column) for column in zip(*rows, strict=True))
