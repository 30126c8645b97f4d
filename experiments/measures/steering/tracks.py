"""Steering on the timeline and on the live page: paths of pairs, h-scores, and the load that these follow from."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.records import CHOICES, HEALTH, Choice
from railyard.results.analysis.aggregate import grouped, labels
from railyard.results.runs.records import Flow, Run
from railyard.results.views.tracks import Slice, Track, interval_track


def add_tracks(root: Track, run: Run) -> None:
    """Add the paths below the track of each interval, and the scores of all elements."""
    names = labels(run)
    flows: Mapping[IntervalId, Sequence[Flow]] = grouped(run.flows, "interval")
    for interval, choices in grouped(run.rows(CHOICES), "interval").items():
        if interval in flows:
            end_ns = max(flow.end_ns for flow in flows[interval])
            _add_paths(interval_track(root, names, interval).child("paths"), choices, end_ns)
    for sample in run.rows(HEALTH):
        element = f"{sample.element} {sample.index}"
        root.child("health scores").child(element).samples.append((sample.monotonic_ns, sample.score))
        root.child("load of links").child(element, "share").samples.append((sample.monotonic_ns, sample.load))


def _add_paths(track: Track, choices: Sequence[Choice], end_ns: int) -> None:
    """Draw which paths each pair had, from one change to the next."""
    for (src, dst), changes in grouped(choices, "src", "dst").items():
        pair = track.child(f"{src} → {dst}")
        times = [change.monotonic_ns for change in changes]
        ends = [*times[1:], max(end_ns, times[-1])]
        for change, change_end_ns in zip(changes, ends, strict=True):
            pair.slices.append(Slice(change.monotonic_ns, change_end_ns, change.paths))


def page_messages(run: Run, fabric_label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for each time the load and the score of every element of a fabric, by kind of element."""
    samples = [sample for sample in run.rows(HEALTH) if sample.fabric == fabric_label]
    for time_ns, simultaneous in groupby(samples, key=attrgetter("monotonic_ns")):
        points = defaultdict[str, list[tuple[float, int]]](list)
        for sample in sorted(simultaneous, key=attrgetter("index")):
            points[sample.element].append((sample.load, sample.score))
        yield "health", {"ns": time_ns, **points}
