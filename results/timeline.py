"""The run on a timeline: faults and recovery, controller and routes, workloads, scores and load of the machine.

timeline.pftrace has it for ui.perfetto.dev (perfetto.py), timeline.json for other tools (chrome_trace.py).
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count, permutations
from typing import Final

from railyard.controller.failover.detours import choose, usable
from railyard.core.errors import RailyardError
from railyard.core.records import IntervalId, Recovery
from railyard.failure.faults import Fault
from railyard.failure.pairs import broken_by
from railyard.results.analysis.link_rates import fabric_specs
from railyard.results.analysis.recovery import FROM_REPAIR, STEP_NAMES
from railyard.results.analysis.recovery_states import first_packet
from railyard.results.format import workload_label
from railyard.results.measured import MEASURED
from railyard.results.runs.records import RUN, STEP, Event, Run
from railyard.results.views.tracks import Slice, Track
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec

CONTROLLER: Final = "controller"
"""Source of the events of controllers."""
_MATCH_NS: Final = 1000  # a recovery has its steps in ms, rounded
_CONTROLLED: Final = ("detect_ms", "decided_ms", "reroute_ms")  # steps that are events of the controller
_MAX_PAIRS_OF: Final = 64  # GPUs; in larger fabrics one fault has thousands of detours
_NOMINAL_BPS: Final = 100_000_000  # of rails whose rate is `auto`: paths don't depend on it
_ENDS: Final = {"started": "finished", "on": "off"}
"""Events that begin something, with those that end it."""


def timeline(run: Run) -> Track:
    """Return everything that a run recorded with a time, as one track with others below it."""
    root = Track(run.name)
    faults, controller, routes = (root.child(name) for name in ("faults", "controller", "routes"))
    events = sorted(run.events, key=lambda e: e.monotonic_ns)
    arrows = _faults(faults, run.recoveries, _times(events))
    _controller(controller, routes, [e for e in events if e.source == CONTROLLER], arrows)
    _events(root, [e for e in events if e.source != CONTROLLER])
    _checks(root.child("connectivity checks"), run)
    for measure in MEASURED.values():
        measure.add_tracks(root, run)
    _detours(root.child("detours"), run.recoveries, fabric_specs(run))
    _goodput(root.child("goodput around faults"), run)
    _machine(root.child("machine"), run)
    return root


Times = Mapping[str, Sequence[int]]  # of the controller's events in order, by fabric


def _times(events: Iterable[Event]) -> Times:
    times: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.source == CONTROLLER:
            times[str(event.detail.get("fabric", ""))].append(event.monotonic_ns)
    return times


def _faults(track: Track, recoveries: Iterable[Recovery], times: Times) -> dict[tuple[str, int], list[int]]:
    """Draw each fault with the steps of its recovery nested in it, and from the repair what followed that.

    Return the numbers of the arrows that go on from a fault through events of the controller, by fabric and time.
    """
    arrows: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    numbers = count(1)
    for r in recoveries:
        number = next(numbers)
        known_times = times.get(r.fabric, ())
        for column in _CONTROLLED:
            step_ms = getattr(r, column)
            if step_ms:
                at = r.t_fault + round(step_ms * 1e6)
                place = bisect_left(known_times, at - _MATCH_NS)
                if place < len(known_times) and known_times[place] <= at + _MATCH_NS:
                    arrows[r.fabric, known_times[place]].append(number)
        details = {
            **r.interval.as_dict(),
            "probes lost": r.probes_lost,
            "recovered": r.recovered,
            "first packet": first_packet(r),
        }
        fabric_track = track.child(r.fabric + (f", reroute {r.reroute}" if r.reroute else ""))
        steps = [
            (r.t_fault + round(step_ms * 1e6), f"until {step}")
            for column, step in STEP_NAMES.items()
            if column not in FROM_REPAIR and (step_ms := getattr(r, column))
        ]
        fabric_track.slices.append(
            _nested(r.t_fault, [(r.t_repair, f"{r.fault} {r.target}"), *steps], details, (number,))
        )
        after = [
            (r.t_repair + round(step_ms * 1e6), f"until {STEP_NAMES[column]}")
            for column in FROM_REPAIR
            if (step_ms := getattr(r, column))
        ]
        if after:
            fabric_track.child("after the repair").slices.append(
                _nested(r.t_repair, after, {"fault": f"{r.fault} {r.target}"})
            )
    return arrows


def _nested(
    start_ns: int, ends: Iterable[tuple[int, str]], details: Mapping[str, object], arrows: tuple[int, ...] = ()
) -> Slice:
    """Return slices with a common start, each within the next longer one."""
    inner: tuple[Slice, ...] = ()
    *shorter, (end_ns, name) = sorted(ends, key=lambda end: end[0])
    for own_ns, own_name in shorter:
        inner = (Slice(start_ns, own_ns, own_name, nested=inner),)
    return Slice(start_ns, end_ns, name, details, inner, arrows)


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


def _checks(track: Track, run: Run) -> None:
    for check in run.connectivity_checks:
        result = "differs from the oracle" if check.mismatch_count else "matches the oracle"
        counts = ("broken", "pairs", "reachable", "answered", "not_recovered", "unexpected_answers")
        values = {name: getattr(check, name) for name in (*counts, "forwarding_failed_parts", "mismatches")}
        text = f"{result if check.done else 'not done'} after {check.last_event}"
        track.slices.append(Slice(check.monotonic_ns, None, text, values))


def _detours(track: Track, recoveries: Iterable[Recovery], specs: Mapping[str, FabricSpec]) -> None:
    """Draw the path of each pair that a fault cut off, from the last new route until the path before is back.

    The events have only the number of detours; the controller's choice is a function of what is broken, so it is made
    again here. Faults of a script overlap, and are left out.
    """
    for r in recoveries:
        spec = specs.get(r.fabric)
        if spec and spec.gpus <= _MAX_PAIRS_OF and r.reroute == "on" and not r.script and r.reroute_ms is not None:
            start_ns = r.t_fault + round(r.reroute_ms * 1e6)
            end_ns = r.t_repair + round((r.primary_path_ms or 0.0) * 1e6)
            for src, dst, path in detours_of(spec, r.fault, r.target):
                pair_track = track.child(r.fabric).child(f"{src.name} → {dst.name}")
                pair_track.slices.append(
                    Slice(start_ns, max(start_ns, end_ns), path, {"fault": f"{r.fault} {r.target}"})
                )


@lru_cache(maxsize=64)
def detours_of(spec: FabricSpec, kind: str, target: str) -> tuple[tuple[Gpu, Gpu, str], ...]:
    """Return source, destination and detour of each pair whose paths a fault breaks, if it leaves one."""
    plan = make_plan(spec, _NOMINAL_BPS)
    try:
        broken = broken_by(Fault(kind, target).impact(plan), plan)
    except (RailyardError, ValueError, LookupError):  # of a plugin that isn't loaded, or a record that was changed
        return ()
    detours = []
    for src, dst in permutations(plan.gpus, 2):
        paths = [share.path for share in spec.paths(src, dst)]
        is_usual = all(usable(path, src, dst, broken, spec.kind) for path in paths)
        if not is_usual and (shares := choose(spec, src, dst, broken)):
            detours.append((src, dst, ", ".join(f"{s.path.kind} by rail {s.path.rail}" for s in shares)))
    return tuple(detours)


def _goodput(track: Track, run: Run) -> None:
    """Draw the goodput around each fault, in bins from the fault; what is left of a trace ends with the next one."""
    faults = {(r.interval, r.fault, r.target): r.t_fault for r in run.recoveries}
    for trace in run.goodput:
        t_fault = faults.get((trace.interval, trace.fault, trace.target))
        if t_fault is None:
            continue
        for name, values in ((trace.link or "all streams", trace.bps), ("affected streams", trace.affected_bps)):
            times = (t_fault + round(ms * 1e6) for ms in trace.t_ms)
            track.child(name, "bit/s").samples += zip(times, values, strict=False)


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
    It ends at a line that isn't of that form, such as the last one of a run that was killed.
    """
    busy_links: list[tuple[Track, float]] = []  # of the fabric's links, with the bit/s of a thousandth of their rates
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for kind, data in ((line["kind"], line["data"]) for line in map(json.loads, record.splitlines())):
            if kind == "fabric":
                label, links = (data["label"], data["links"]) if data else ("", ())
                fabric_track = root.child("links").child(label)
                busy_links = [(fabric_track.child(f"{link['a']} – {link['b']}"), link["rate"] / 1000) for link in links]
            elif kind == "sample":
                at_ns = range(2**63)[data["ns"]]
                samples = zip(*data["links"], strict=True)
                for (track, unit), (_, out, into, queue, drops) in zip(busy_links, samples, strict=True):
                    for name, bps in (("to the network", unit * out), ("from the network", unit * into)):
                        track.child(name, "bit/s").samples.append((at_ns, float(bps)))
                    for name, value, unit_name in (("queue", queue, "B"), ("drops", drops, "")):
                        if value or name in track.children:
                            track.child(name, unit_name).samples.append((at_ns, float(value)))
