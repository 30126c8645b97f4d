"""The run on a timeline: faults and recovery, controller and routes, workloads, scores and load of the machine.

timeline.pftrace has it for ui.perfetto.dev (perfetto.py), timeline.json for other tools (chrome_trace.py).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from railyard.core.records import IntervalId
from railyard.results.format import workload_label
from railyard.results.measured import MEASURED
from railyard.results.runs.records import RUN, STEP, Event, Run
from railyard.results.views.tracks import Slice, Track

CONTROLLER: Final = "controller"
"""Source of the events of controllers."""
_ENDS: Final = {"started": "finished", "on": "off"}
"""Events that begin something, with those that end it."""


class _DrawnLink(NamedTuple):
    """A link on the timeline. `permille_bps`: bit/s of a thousandth of its rate, the unit of samples."""

    track: Track
    permille_bps: float

    def add(self, at_ns: int, name: str, unit: str, value: float) -> None:
        """Add a sample to a track of the link."""
        self.track.child(name, unit).samples.append((at_ns, float(value)))

    def add_once_used(self, at_ns: int, name: str, unit: str, value: float) -> None:
        """Add a sample to a track that begins with the first value other than zero."""
        if value or name in self.track.children:
            self.add(at_ns, name, unit, value)


def timeline(run: Run) -> Track:
    """Return everything that a run recorded with a time, as one track with others below it."""
    root = Track(run.name)
    # faults come first on the timeline, whatever draws them
    root.child("faults")
    events = sorted(run.events, key=lambda e: e.monotonic_ns)
    arrows: dict[tuple[str, int], list[int]] = {}
    for measure in MEASURED.values():
        arrows |= measure.event_arrows(run)
    controller_events = [event for event in events if event.source == CONTROLLER]
    other_events = [event for event in events if event.source != CONTROLLER]
    _controller(root.child("controller"), root.child("routes"), controller_events, arrows)
    _events(root, other_events)
    root.child("connectivity checks")
    for measure in MEASURED.values():
        measure.add_tracks(root, run)
    _machine(root.child("machine"), run)
    return root


def _controller(
    track: Track, routes: Track, events: Iterable[Event], arrows: Mapping[tuple[str, int], list[int]]
) -> None:
    """Draw the controller's events, and how long new routes took from the decision until all were installed."""
    decided: dict[str, int] = {}
    for event in events:
        fabric = str(event.detail.get("fabric", ""))
        through = tuple(arrows.get((fabric, event.monotonic_ns), ()))
        if event.what == "decided":
            decided[fabric] = event.monotonic_ns
        if event.what == "rerouted" and fabric in decided:
            start_ns = decided.pop(fabric)
            name = f"{event.detail.get('routes', '')} routes".strip()
            routes.child(fabric).slices.append(Slice(start_ns, event.monotonic_ns, name, event.detail, (), through))
        else:
            track.child(fabric).slices.append(Slice(event.monotonic_ns, None, event.what, event.detail, (), through))


def _events(root: Track, events: Iterable[Event]) -> None:
    """Draw the events of each source but the controller: as slices where an event ends another one."""
    begun: dict[tuple[object, ...], Event] = {}
    for event in events:
        track = root.child(event.source)
        text = str(event.detail.get("text", ""))
        interval = IntervalId.of(event.detail)
        key = (event.source, event.what, text, interval)
        if event.source == RUN and event.what == STEP:
            end_ns = event.monotonic_ns + round(event.detail["seconds"] * 1e9)
            track.slices.append(Slice(event.monotonic_ns, end_ns, text, event.detail))
        elif event.what in _ENDS:
            begun[event.source, _ENDS[event.what], text, interval] = event
        elif key in begun:
            start = begun.pop(key)
            name = text or f"{workload_label(interval)} · repeat {interval.repeat}"
            track.slices.append(Slice(start.monotonic_ns, event.monotonic_ns, name, start.detail))
        else:
            track.slices.append(Slice(event.monotonic_ns, None, event.what, event.detail))
    for (source, *_), event in begun.items():
        root.child(str(source)).slices.append(Slice(event.monotonic_ns, None, event.what, event.detail))


def _machine(track: Track, run: Run) -> None:
    """Draw the load of the machine, and at the end of each interval what it lost."""
    ends = dict[IntervalId, int]()
    for sample in run.machine:
        ends[sample.interval] = sample.monotonic_ns
        for name, share in (("CPU busy", sample.busy), ("CPU used by others", sample.foreign)):
            track.child(name, "%").samples.append((sample.monotonic_ns, 100 * share))
        track.child("scheduling lag", "ms").samples.append((sample.monotonic_ns, sample.lag_ms))
    for load in run.loads:
        if load.interval in ends:
            for name in ("drops", "retransmits"):
                track.child(f"{name} of the interval").samples.append((ends[load.interval], getattr(load, name)))


def add_links(root: Track, record: bytes) -> None:
    """Add the rate, the queue and the drops of each link, five times a second, from the record of a live page.

    `record`: lines of JSON, {"kind": "fabric", "data": {"label": ..., "links": [{"a": ..., "b": ..., "rate": bit/s}]}}
    and {"kind": "sample", "data": {"ns": ..., "links": columns}}, the columns being those of live.sampler.LinkSample.
    """
    links: list[_DrawnLink] = []
    # the record ends at a line that isn't of that form, such as the last one of a run that was killed
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for text in record.splitlines():
            line = json.loads(text)
            data = line["data"]
            if line["kind"] == "fabric":
                links = _drawn_links(root.child("links"), data)
            elif line["kind"] == "sample":
                _add_sample(links, data)


def _drawn_links(track: Track, fabric: Mapping[str, Any] | None) -> list[_DrawnLink]:
    """Return the links of a fabric, on tracks below this one; none without a fabric."""
    # without data: the fabric was removed
    if not fabric:
        return []
    fabric_track = track.child(fabric["label"])
    links: list[_DrawnLink] = []
    for link in fabric["links"]:
        links.append(_DrawnLink(fabric_track.child(f"{link['a']} – {link['b']}"), link["rate"] / 1000))
    return links


def _add_sample(links: Sequence[_DrawnLink], sample: Mapping[str, Any]) -> None:
    """Add a sample of all links to their tracks."""
    # IndexError for a time that the 64 bits of a timeline can't hold
    at_ns = range(2**63)[sample["ns"]]
    columns = zip(*sample["links"], strict=True)
    for link, (_, sent, received, queue, drops) in zip(links, columns, strict=True):
        link.add(at_ns, "to the network", "bit/s", link.permille_bps * sent)
        link.add(at_ns, "from the network", "bit/s", link.permille_bps * received)
        link.add_once_used(at_ns, "queue", "B", queue)
        link.add_once_used(at_ns, "drops", "", drops)
