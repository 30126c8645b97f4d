"""Points set side by side: what the better single rail takes, what splitting gains, and over whom. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from railyard.core.records import IntervalId
from railyard.core.units import format_size
from railyard.results.multirail.records import Multirail, Point, Rails

SINGLE = "single"
"""A policy `single:NAME` is one rail; `single` alone chooses the best by its nominal cost."""


def is_single(policy: str) -> bool:
    return policy.partition(":")[0] == SINGLE


@dataclass(frozen=True)
class FabricMeasurements:
    """The points of one fabric, of a policy and size one for each start of its processes: medians over these, seconds.

    Small sizes may have more starts than large ones, so whatever speaks of several sizes goes by size first.
    """

    rails: Rails
    points: tuple[Point, ...]

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """Policy -> size -> seconds of an operation (the mean of a start, the median over starts)."""
        found: dict[str, dict[int, list[float]]] = {}
        for point in self.points:
            found.setdefault(point.policy, {}).setdefault(point.size, []).append(point.mean_s)
        return {policy: {size: median(times) for size, times in by.items()} for policy, by in found.items()}

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.seconds)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({point.size for point in self.points}))

    def starts(self, policy: str, size: int) -> tuple[Point, ...]:
        """As many as were measured, in their order."""
        return tuple(p for p in self.points if (p.policy, p.size) == (policy, size))

    def max_starts(self, size: int) -> int:
        """Of any policy: one that broke down has fewer."""
        return max(len(self.starts(policy, size)) for policy in self.policies)

    def relative_spread(self, size: int, policies: Iterable[str]) -> float:
        """From the fastest start to the slowest, over the median, of the policy where that is most; 0 of one start."""
        times = [[p.mean_s for p in self.starts(policy, size)] for policy in policies]
        return max(((max(each) - min(each)) / median(each) for each in times if each), default=0.0)

    def at(self, policy: str, size: int) -> float | None:
        """Seconds of an operation; None where it wasn't measured."""
        return self.seconds.get(policy, {}).get(size)

    def ratios(self, policy: str, other: str, size: int) -> list[float]:
        """What an operation usually takes over the other's, of each start: what they share, as they took turns in it,
        is in none of these."""
        own, others = ({p.repeat: p.typical_s for p in self.starts(each, size)} for each in (policy, other))
        return [own[repeat] / others[repeat] for repeat in sorted(own.keys() & others.keys())]

    def singles(self, size: int) -> dict[str, float]:
        """Every single rail's seconds, by policy. `single` itself only where no rail is given by its name."""
        found = {policy: by[size] for policy, by in self.seconds.items() if is_single(policy) and size in by}
        named = {policy: time for policy, time in found.items() if policy != SINGLE}
        return named or found

    def best_single(self, size: int) -> float | None:
        """Seconds of the better rail alone."""
        every = [by[size] for policy, by in self.seconds.items() if is_single(policy) and size in by]
        return min(every, default=None)

    def gain(self, policy: str, size: int) -> float | None:
        """How many times the throughput of the better rail alone."""
        own, best = self.at(policy, size), self.best_single(size)
        return best / own if own and best else None

    def over(self, policy: str, other: str, size: int) -> float | None:
        """How many times the other's throughput; as well, its time over ours."""
        own, others = self.at(policy, size), self.at(other, size)
        return others / own if own and others else None

    def of_ideal(self, policy: str, size: int) -> float | None:
        """Throughput over the sum of all rails' own, measured alone; None unless each was."""
        own, alone = self.at(policy, size), self.singles(size)
        if not own or len(alone) < len(self.rails.names):
            return None
        return 1 / own / sum(1 / time for time in alone.values())

    def shares(self, policy: str, size: int) -> tuple[float, ...] | None:
        """Share of each rail in the start of median time, of two in the middle the faster one.

        Not the mean over starts: of some that split and some that didn't it is a split that never was.
        """
        split_starts = sorted((p for p in self.starts(policy, size) if p.shares), key=lambda p: p.mean_s)
        return split_starts[(len(split_starts) - 1) // 2].shares if split_starts else None

    def predicted(self, policy: str, size: int) -> float | None:
        """Seconds by the equations."""
        rows = [p.predicted_s for p in self.starts(policy, size)]
        return next((value for value in rows if value is not None), None)

    def threshold(self, policy: str = "nezha") -> int | None:
        """The largest size up to which one rail carried all; None if it split from the first, or never."""
        measured = [size for size in self.sizes if self.starts(policy, size)]
        first = min((size for size in measured if self.splits(policy, size)), default=None)
        return max((size for size in measured if first is not None and size < first), default=None)

    def splits(self, policy: str, size: int) -> bool:
        """Whether more than one rail carried some of it in most of its starts."""
        starts = self.starts(policy, size)
        return 2 * sum(p.split for p in starts) > len(starts)


def by_fabric(found: Multirail) -> tuple[FabricMeasurements, ...]:
    """A `FabricMeasurements` a fabric that has points, in the order in which they were built."""
    rows = ((rails, tuple(p for p in found.points if p.fabric == rails.label)) for rails in found.fabrics)
    return tuple(FabricMeasurements(rails, points) for rails, points in rows if points)


def largest(sizes: Iterable[int], minimum: int) -> int | None:
    """The largest size, if it is one of the large ones."""
    return max((size for size in sizes if size >= minimum), default=None)


def between(sizes: Sequence[int], minimum: int, maximum: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if minimum <= size <= maximum)


def size_name(size: int) -> str:
    """2^26 -> `64MiB`; what is no whole number of those, in decimal units."""
    for name, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{name}"
    return format_size(size)


def point_interval(fabric: str, policy: str, size: int, repeat: int = 0) -> IntervalId:
    """Return the identity of the interval in which a point was measured."""
    return IntervalId(fabric, size_name(size), policy, repeat=repeat)
