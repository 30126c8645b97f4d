"""timeline.json: tracks in Chrome's trace-event format, which chrome://tracing and other tools read.

A process for each track below the root, a thread for each lane of the tracks in it. Times are microseconds from the
first thing on the timeline.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

from railyard.results.views.tracks import Slice, Track

Places = defaultdict[int, list[dict[str, Any]]]  # where each arrow goes through, by its number


def encode(root: Track) -> dict[str, Any]:
    """Return all tracks as one trace object."""
    zero = min(_starts(root), default=0)
    events = list[dict[str, Any]]()
    arrows = Places(list)
    for pid, process in enumerate(root.used(), start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process.name}})
        tids = count(1)
        for name, track in _threads(process):
            for number, lane in enumerate(track.lanes()):
                where = {"pid": pid, "tid": next(tids)}
                label = {"name": f"{name} +{number}" if number else name}
                events.append({"ph": "M", "name": "thread_name", **where, "args": label})
                events.append({"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": where["tid"]}})
                for each in lane:
                    events += _events(each, where, zero, arrows)
            for at_ns, value in track.samples:
                sample = {"ts": (at_ns - zero) / 1e3, "args": {track.unit or "value": value}}
                events.append({"ph": "C", "name": name, "pid": pid, **sample})
    for number, places in arrows.items():
        places.sort(key=lambda place: place["ts"])
        for position, place in enumerate(places):
            if position == len(places) - 1:
                phase = {"ph": "f", "bp": "e"}
            elif position == 0:
                phase = {"ph": "s"}
            else:
                phase = {"ph": "t"}
            events.append({**phase, "name": "arrow", "cat": "arrow", "id": number, **place})
    return {"displayTimeUnit": "ms", "otherData": {"run": root.name}, "traceEvents": events}


def _starts(track: Track) -> Iterator[int]:
    """Yield the times of everything that may be first."""
    for each in track.slices:
        yield each.start_ns
    for at_ns, _ in track.samples:
        yield at_ns
    for child in track.children.values():
        yield from _starts(child)


def _threads(track: Track, above: str = "") -> Iterator[tuple[str, Track]]:
    """Yield the tracks of a process that have slices or samples of their own, with their names below it."""
    if track.slices or track.samples:
        yield above or track.name, track
    for child in track.used():
        yield from _threads(child, f"{above} · {child.name}" if above else child.name)


def _events(each: Slice, where: dict[str, Any], zero: int, arrows: Places) -> Iterator[dict[str, Any]]:
    start = (each.start_ns - zero) / 1e3
    for number in each.arrows:
        arrows[number].append({**where, "ts": start})
    shared = {"name": each.name, **where, "ts": start, "args": dict(each.details)}
    if each.end_ns is None:
        yield {"ph": "i", "s": "t", **shared}
        return
    yield {"ph": "X", **shared, "dur": max(0, each.end_ns - each.start_ns) / 1e3}
    for inner in each.nested:
        yield from _events(inner, where, zero, arrows)
