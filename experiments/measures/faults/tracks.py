"""Faults on the timeline: each with the steps of its recovery, connectivity checks, detours, and goodput around it."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import permutations
from typing import Final

from railyard.controller.failover.detours import choose, usable
from railyard.core.errors import RailyardError
from railyard.core.records import IntervalId, Recovery
from railyard.experiments.measures.faults.analysis import FROM_REPAIR, STEP_NAMES
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.states import first_packet
from railyard.failure.faults import Fault
from railyard.failure.pairs import broken_by
from railyard.results.analysis.link_rates import fabric_specs
from railyard.results.runs.records import Run
from railyard.results.timeline import CONTROLLER
from railyard.results.views.tracks import Slice, Track
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import path_name
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec

# A recovery has its steps in rounded ms, so their times differ from those of events.
_MATCH_NS: Final = 1000
# These steps are events of the controller.
_CONTROLLED: Final = ("detect_ms", "decided_ms", "reroute_ms")
# GPUs; in larger fabrics one fault has thousands of detours
_MAX_PAIRS_OF: Final = 64
# The rate of rails in place of `auto`: paths don't depend on it.
_NOMINAL_BPS: Final = 100_000_000


def add_tracks(root: Track, run: Run) -> None:
    """Draw the faults of a run, with everything that was recorded around them."""
    recoveries = run.rows(RECOVERIES)
    for number, recovery in enumerate(recoveries, 1):
        _add_fault(root.child("faults"), recovery, number)
    _checks(root.child("connectivity checks"), run)
    _detours(root.child("detours"), recoveries, fabric_specs(run))
    _goodput(root.child("goodput around faults"), run)


def event_arrows(run: Run) -> dict[tuple[str, int], list[int]]:
    """Return the arrows that go on from a fault through events of the controller: their numbers, by fabric and time.

    The number of an arrow is that of its fault, counted from 1.
    """
    times = _times_of_controllers(run)
    arrows: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, recovery in enumerate(run.rows(RECOVERIES), 1):
        fabric_times = times.get(recovery.fabric, ())
        for column in _CONTROLLED:
            step_ms = getattr(recovery, column)
            if not step_ms:
                continue
            at_ns = recovery.t_fault + round(step_ms * 1e6)
            place = bisect_left(fabric_times, at_ns - _MATCH_NS)
            if place < len(fabric_times) and fabric_times[place] <= at_ns + _MATCH_NS:
                arrows[recovery.fabric, fabric_times[place]].append(number)
    return dict(arrows)


def _times_of_controllers(run: Run) -> dict[str, list[int]]:
    """Return the times of the controller's events in order, by fabric."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    for event in sorted(run.events, key=lambda event: event.monotonic_ns):
        if event.source == CONTROLLER:
            times[str(event.detail.get("fabric", ""))].append(event.monotonic_ns)
    return times


def _add_fault(track: Track, recovery: Recovery, number: int) -> None:
    """Draw a fault with the steps of its recovery nested in it, and from the repair what followed that."""
    details = {
        **recovery.interval.as_dict(),
        "probes lost": recovery.probes_lost,
        "recovered": recovery.recovered,
        "first packet": first_packet(recovery),
    }
    name = f"{recovery.fault} {recovery.target}"
    title = recovery.fabric
    if recovery.reroute:
        title += f", reroute {recovery.reroute}"
    fabric_track = track.child(title)
    until = [(recovery.t_repair, name)]
    after: list[tuple[int, str]] = []
    for column, step in STEP_NAMES.items():
        step_ms = getattr(recovery, column)
        if not step_ms:
            continue
        if column in FROM_REPAIR:
            after.append((recovery.t_repair + round(step_ms * 1e6), f"until {step}"))
        else:
            until.append((recovery.t_fault + round(step_ms * 1e6), f"until {step}"))
    fabric_track.slices.append(_nested(recovery.t_fault, until, details, (number,)))
    if after:
        fabric_track.child("after the repair").slices.append(_nested(recovery.t_repair, after, {"fault": name}))


def _nested(
    start_ns: int, ends: Iterable[tuple[int, str]], details: Mapping[str, object], arrows: tuple[int, ...] = ()
) -> Slice:
    """Return slices with a common start, each within the next longer one."""
    inner: tuple[Slice, ...] = ()
    *shorter, (end_ns, name) = sorted(ends, key=lambda end: end[0])
    for inner_end_ns, inner_name in shorter:
        inner = (Slice(start_ns, inner_end_ns, inner_name, nested=inner),)
    return Slice(start_ns, end_ns, name, details, inner, arrows)


def _checks(track: Track, run: Run) -> None:
    for check in run.rows(CONNECTIVITY_CHECKS):
        result = "matches the oracle"
        if not check.done:
            result = "not done"
        elif check.mismatch_count:
            result = "differs from the oracle"
        counts = ("broken", "pairs", "reachable", "answered", "not_recovered", "unexpected_answers")
        values = {name: getattr(check, name) for name in (*counts, "forwarding_failed_parts", "mismatches")}
        track.slices.append(Slice(check.monotonic_ns, None, f"{result} after {check.last_event}", values))


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
                detail = {"fault": f"{r.fault} {r.target}"}
                pair_track.slices.append(Slice(start_ns, max(start_ns, end_ns), path, detail))


@lru_cache(maxsize=64)
def detours_of(spec: FabricSpec, kind: str, target: str) -> tuple[tuple[Gpu, Gpu, str], ...]:
    """Return source, destination and detour of each pair whose paths a fault breaks, if it leaves one."""
    plan = make_plan(spec, _NOMINAL_BPS)
    try:
        broken = broken_by(Fault(kind, target).impact(plan), plan)
    except (RailyardError, ValueError, LookupError):
        # the kind's plugin isn't loaded, or the record was changed by hand
        return ()
    nics = spec.rail_of_rank
    detours: list[tuple[Gpu, Gpu, str]] = []
    for src, dst in permutations(plan.gpus, 2):
        if all(usable(share.path, src, dst, broken, spec.kind, nics) for share in spec.paths(src, dst)):
            continue
        paths = [share.path for share in choose(spec, src, dst, broken)]
        if paths:
            names = [path_name(path, nics) for path in paths]
            detours.append((src, dst, ", ".join(names)))
    return tuple(detours)


def _goodput(track: Track, run: Run) -> None:
    """Draw the goodput around each fault, in bins from the fault; what is left of a trace ends with the next one."""
    faults: dict[tuple[IntervalId, str, str], int] = {}
    for recovery in run.rows(RECOVERIES):
        faults[recovery.interval, recovery.fault, recovery.target] = recovery.t_fault
    for trace in run.rows(GOODPUT):
        t_fault = faults.get((trace.interval, trace.fault, trace.target))
        if t_fault is None:
            continue
        for name, values in ((trace.link or "all streams", trace.bps), ("affected streams", trace.affected_bps)):
            times = [t_fault + round(ms * 1e6) for ms in trace.t_ms]
            track.child(name, "bit/s").samples += zip(times, values, strict=False)
