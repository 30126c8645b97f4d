"""Allreduces over several rails: medians by policy and size, and gains over a single rail."""

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

import pandas as pd

from railyard.experiments.measures.allreduce.records import AllreduceResults, Point, Rails
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.theory import nezha

# A policy `single:NAME` is one rail; `single` alone chooses the best rail by its nominal cost.
SINGLE: Final = "single"


def results_of(analysis: Analysis) -> AllreduceResults:
    """Return what the run recorded of allreduces; for Analysis.derived."""
    return AllreduceResults.of(analysis.run)


def believable_results_of(analysis: Analysis) -> AllreduceResults:
    """Return the results of intervals that are not invalid, of which gains and thresholds are computed."""
    verdicts = analysis.judgement.intervals.items()
    invalid = {interval for interval, verdict in verdicts if verdict == "invalid"}
    return analysis.derived(results_of).without(invalid)


def is_single(policy: str) -> bool:
    """Return if a policy uses one rail."""
    return policy.partition(":")[0] == SINGLE


@dataclass(frozen=True)
class FabricMeasurements:
    """The points of one fabric, of a policy and size one for each start of its processes: medians over these, seconds.

    Small sizes may have more starts than large ones, so whatever covers several sizes groups by size first.
    """

    rails: Rails
    points: tuple[Point, ...]
    left_out: tuple[Point, ...] = ()  # invalid ones, of which only the sizes count

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each point."""
        columns = ["policy", "size", "repeat", "mean_s", "typical_s", "split"]
        rows = map(attrgetter(*columns), self.points)
        return pd.DataFrame(list(rows), columns=columns)

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """Policy -> size -> seconds of an operation (the mean of a start, the median over starts)."""
        by_policy = self.frame.groupby("policy", sort=False)
        seconds: dict[str, dict[int, float]] = {}
        for policy, rows in by_policy:
            seconds[str(policy)] = dict(rows.groupby("size", sort=False).mean_s.median())
        return seconds

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that were measured, in the order in which they began."""
        return tuple(self.seconds)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that were measured, smallest first."""
        return tuple(sorted({point.size for point in self.points}))

    @property
    def largest(self) -> int:
        """The largest size that was measured, whether or not it is valid."""
        return max(point.size for point in self.points + self.left_out)

    @property
    def large(self) -> int | None:
        """The largest size, if it is one of the large ones. A target for it is not judged by a smaller one."""
        if self.largest < nezha.LARGE:
            return None
        return self.largest

    @property
    def small(self) -> list[int]:
        """The sizes that count as small."""
        return [size for size in self.sizes if size <= nezha.SMALL]

    def starts(self, policy: str, size: int) -> tuple[Point, ...]:
        """Return the point of each start, in their order."""
        return tuple(point for point in self.points if (point.policy, point.size) == (policy, size))

    def at(self, policy: str, size: int | None) -> float | None:
        """Return the seconds of an operation; None where it wasn't measured, or without a size."""
        if size is None:
            return None
        return self.seconds.get(policy, {}).get(size)

    def ratios(self, policy: str, other: str, size: int) -> list[float]:
        """Return what an operation usually takes over the other's, start by start.

        Policies take turns within a start, so what slows down both cancels out.
        """
        of_size = self.frame[self.frame["size"] == size]
        typical = of_size.pivot(index="repeat", columns="policy", values="typical_s")
        if not {policy, other} <= set(typical.columns):
            return []
        return list((typical[policy] / typical[other]).dropna())

    def singles(self, size: int | None) -> dict[str, float]:
        """Return the seconds of each single rail; of `single` itself only where no rail is given by its name."""
        times: dict[str, float] = {}
        for policy in filter(is_single, self.policies):
            seconds = self.at(policy, size)
            if seconds is not None:
                times[policy] = seconds
        if len(times) > 1:
            times.pop(SINGLE, None)
        return times

    def gain(self, policy: str, size: int | None) -> float | None:
        """Return the throughput over that of the better rail alone."""
        gains = [self.over(policy, single, size) for single in self.policies if is_single(single)]
        return min(filter(None, gains), default=None)

    def over(self, policy: str, other: str, size: int | None) -> float | None:
        """Return the throughput over another policy's."""
        seconds = self.at(policy, size)
        other_seconds = self.at(other, size)
        if not seconds or not other_seconds:
            return None
        return other_seconds / seconds

    def of_ideal(self, policy: str, size: int | None) -> float | None:
        """Return the throughput over the sum of all rails' own, measured alone; None unless each was."""
        seconds = self.at(policy, size)
        alone = self.singles(size)
        if not seconds or len(alone) < len(self.rails.names):
            return None
        return 1 / seconds / sum(1 / rail_seconds for rail_seconds in alone.values())

    def shares(self, policy: str, size: int) -> tuple[float, ...] | None:
        """Return each rail's share in the start of median time, of two in the middle the faster one.

        Not the mean over starts: of some that split and some that didn't it is a split that never was.
        """
        with_shares = [point for point in self.starts(policy, size) if point.shares]
        if not with_shares:
            return None
        with_shares.sort(key=lambda point: point.mean_s)
        return with_shares[(len(with_shares) - 1) // 2].shares

    def predicted(self, policy: str, size: int) -> float | None:
        """Return the seconds by the equations."""
        for point in self.starts(policy, size):
            if point.predicted_s is not None:
                return point.predicted_s
        return None

    def threshold(self, policy: str = "nezha") -> int | None:
        """Return the largest size up to which one rail carried all; None if it split from the first, or never.

        A size is split if more than one rail carried some of it in most of its starts.
        """
        rows = self.frame[self.frame.policy == policy]
        split = rows.groupby("size").split.mean() > 1 / 2
        first_split = min(split.index[split], default=None)
        if first_split is None:
            return None
        return max((int(size) for size in split.index if size < first_split), default=None)


def by_fabric(results: AllreduceResults) -> tuple[FabricMeasurements, ...]:
    """Return the measurements of each fabric that has points, in the order in which they were built."""
    points = grouped(results.points, "fabric")
    left_out = grouped(results.left_out, "fabric")
    fabrics = []
    for rails in results.fabrics:
        if rails.label in points:
            invalid = tuple(left_out.get(rails.label, ()))
            fabrics.append(FabricMeasurements(rails, tuple(points[rails.label]), invalid))
    return tuple(fabrics)
