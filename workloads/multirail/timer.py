"""Nezha's Timer (section 3.5 and 4.2): means of each rail's time over a window of operations of one size class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workloads.multirail.balancer import size_class


@dataclass(frozen=True, slots=True)
class Window:
    """Mean bytes of an operation, and mean seconds by rail."""

    size: int
    seconds: tuple[float, ...]


@dataclass
class _Sums:
    count: int = 0
    size: int = 0
    seconds: list[float] = field(default_factory=list)


class Timer:
    """`add` every operation; it returns a window when one is full."""

    def __init__(self) -> None:
        self._classes: dict[int, _Sums] = {}

    def add(self, size: int, seconds: Sequence[float], window: Callable[[int], int]) -> Window | None:
        """`window(size)`: over how many operations; 0 for never."""
        sums = self._classes.setdefault(size_class(size), _Sums())
        sums.count += 1
        sums.size += size
        sums.seconds = [a + b for a, b in zip(sums.seconds or [0.0] * len(seconds), seconds, strict=True)]
        if not 0 < window(size) <= sums.count:
            return None
        del self._classes[size_class(size)]
        return Window(sums.size // sums.count, tuple(total / sums.count for total in sums.seconds))

    def clear(self) -> None:
        """The rails aren't what they were."""
        self._classes.clear()
