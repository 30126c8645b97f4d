"""Tracks of a timeline: slices, instants, counters, and arrows between slices. Times are CLOCK_MONOTONIC in ns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from railyard.core.records import IntervalId
from railyard.results.format import workload_label


@dataclass(frozen=True, slots=True)
class Slice:
    """An activity from `start_ns` to `end_ns`, or an event at `start_ns` if there is no end.

    `nested`: slices that lie within it. `arrows`: numbers of the arrows that go through it, in the order of time from
    slice to slice.
    """

    start_ns: int
    end_ns: int | None
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)
    nested: tuple["Slice", ...] = ()
    arrows: tuple[int, ...] = ()

    @property
    def last_ns(self) -> int:
        """The end of a slice, the time of an instant."""
        return self.start_ns if self.end_ns is None else self.end_ns


@dataclass(eq=False, slots=True)
class Track:
    """A track with slices, a counter with samples (ns, value) in `unit`, or a group; children by name, in order."""

    name: str
    unit: str = ""
    slices: list[Slice] = field(default_factory=list)
    samples: list[tuple[int, float]] = field(default_factory=list)
    children: dict[str, "Track"] = field(default_factory=dict)

    def child(self, name: str, unit: str = "") -> "Track":
        """Return the child of this name; make it if there is none."""
        return self.children.setdefault(name, Track(name, unit))

    def used(self) -> Iterator["Track"]:
        """Yield the children that have anything to show, themselves or below."""
        for child in self.children.values():
            if child.slices or child.samples or any(child.used()):
                yield child

    def lanes(self) -> list[list[Slice]]:
        """Return the slices in order of time, in as few lanes as keep them apart; instants are in the first one."""
        lanes: list[list[Slice]] = [[]]
        # lanes that are idle again, lowest first
        free = [0]
        # the end (ns) and number of each busy lane
        busy: list[tuple[int, int]] = []
        for each in sorted(self.slices, key=lambda s: (s.start_ns, s.last_ns)):
            while busy and busy[0][0] <= each.start_ns:
                heappush(free, heappop(busy)[1])
            if each.end_ns is None:
                lanes[0].append(each)
                continue
            if not free:
                heappush(free, len(lanes))
                lanes.append([])
            lane = heappop(free)
            lanes[lane].append(each)
            heappush(busy, (each.end_ns, lane))
        return lanes


def interval_track(root: Track, labels: Mapping[tuple[str, str], str], interval: IntervalId) -> Track:
    """Return the track of what ran in an interval. `labels`: of fabrics, by fabric and policy (aggregate.labels)."""
    fabric = labels.get((interval.fabric, interval.policy), interval.fabric)
    return root.child(f"{fabric} · {workload_label(interval)} · repeat {interval.repeat}")
