"""Evaluate a failure script, fault by fault, from its traffic, its probes and the controller's events. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from railyard.core.records import IN_FLIGHT_NS, IntervalId, ProbeLog, Recovered, Recovery
from railyard.failure.analysis.recovery_times import (
    BIN_MS,
    LATE_NS,
    Trace,
    first_packet_ms,
    goodput,
    late_losses,
    restored_ms,
    step_ms,
)
from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.faults.support.impact import SILENCE_KEYS, dead_rails, rail_of
from railyard.failure.oracle.reachability import Bounds, above_max_flow, bounds
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.scenario.pairs import PairSelection
from railyard.failure.scenario.script import SETTLE_S, Script
from railyard.topologies.addresses import Pair, gpu_of_name, link_of_name
from railyard.topologies.plan import Plan

SIMULTANEOUS_NS: Final = 50_000_000  # actions closer than this are simultaneous


def _counts(events: Sequence[ControllerEvent]) -> list[tuple[int, int]]:
    return sorted((at, int(detail["detours"])) for at, event_kind, detail in events if event_kind == "rerouted")


def active_detours(events: Sequence[ControllerEvent], at_ns: int | None = None) -> int:
    """Return the number of detours at a moment, or now; 0 before the first reroute."""
    counts = [count for event_ns, count in _counts(events) if at_ns is None or event_ns <= at_ns]
    return counts[-1] if counts else 0


def primary_path_ms(
    events: Sequence[ControllerEvent], repair_ns: int, until_ns: int | None, max_detours: int
) -> float | None:
    """Return the ms from a repair until at most `max_detours` are left, for good; None if not before `until_ns`.

    0 if there were no more at the repair, and none came after it.
    """
    later = [(at, n) for at, n in _counts(events) if at > repair_ns and (until_ns is None or at < until_ns)]
    reverted_ms = 0.0 if active_detours(events, repair_ns) <= max_detours else None
    for at, count in later:
        if count > max_detours:
            reverted_ms = None
        elif reverted_ms is None:
            reverted_ms = (at - repair_ns) / 1e6
    return reverted_ms


def same_other_faults(number: int, injected: Sequence[int], repair_started: Sequence[int], min_gap_ns: int) -> bool:
    """Return whether the same other faults were active just before a fault and right after its repair.

    `injected`, `repair_started`: times of each fault, ns, by number. False also if another action came within
    `min_gap_ns` before one of the two: its detours may have changed since.
    """
    begin = injected[number]
    end = repair_started[number]
    times = {n: times for n, times in enumerate(zip(injected, repair_started, strict=True)) if n != number}
    first_ns = begin - SIMULTANEOUS_NS
    last_ns = end + SIMULTANEOUS_NS
    before = {n for n, (since, until) in times.items() if since < first_ns <= until}
    after = {n for n, (since, until) in times.items() if since <= last_ns < until}
    done = [at for both in times.values() for at in both]
    recent = any(action - min_gap_ns < at < action - SIMULTANEOUS_NS for at in done for action in (begin, end))
    return before == after and not recent


REPAIR_GRACE_NS: Final = 1_000_000_000
"""Time after its repair in which a fault still explains silence: a switch takes time to start."""


def false_alarms(events: Iterable[ControllerEvent], faults: Sequence[tuple[Fault, int, int]], plan: Plan) -> int:
    """Count the links, rails and HB domains that were reported as silent without a fault that is active, or was
    repaired less than a second before. `faults`: each with the times of its injection and of its repair's begin, ns.

    A silent GPU isn't counted besides its links. Neither is a link of a rail or domain that was silent as a whole: it
    is reported because others of it have recovered.
    """
    found = 0
    silent_groups = set[tuple[str, str]]()
    for at_ns, event_kind, detail in sorted(events, key=lambda event: event[0]):
        if event_kind == "controller-crashed":
            silent_groups.clear()  # until its return, no recovery is reported
        if event_kind not in ("silent", "resumed"):
            continue
        name = next((key, str(detail[key])) for key in SILENCE_KEYS if key in detail)
        if event_kind == "resumed":
            silent_groups.discard(name)
            continue
        group = _probe_group_of(plan, name)
        active = [fault for fault, since_ns, until_ns in faults if since_ns <= at_ns <= until_ns + REPAIR_GRACE_NS]
        # some links of a dead rail switch may be reported before the switch
        reported = [(fault, group if dead_rails(fault.impact(plan), plan) else name) for fault in active]
        is_explained = any(fault.is_signal(plan, "silent", {key: label}) for fault, (key, label) in reported)
        found += name[0] != "gpu" and group not in silent_groups and not is_explained
        if name[0] in ("rail", "hb-domain"):
            silent_groups.add(name)
    return found


def _probe_group_of(plan: Plan, name: tuple[str, str]) -> tuple[str, str]:
    """Return the rail or HB domain of a link; for anything else, itself."""
    kind, label = name
    if kind == "link":
        return "rail", rail_of(plan, *link_of_name(label))
    return ("hb-domain", f"hb{gpu_of_name(label).domain}") if kind == "hb-link" else name


WARM_UP_S: Final = 0.2  # at the start: streams settle, and it doesn't count as "before"
BEFORE_S: Final = 1.5  # of goodput before a fault is in its record
AFTER_S: Final = 1.2  # after the last repair, at least; and of goodput after each


@dataclass(frozen=True)
class FaultRun:
    """A fault of a script: its record, and goodput around it, bit/s in bins that start at `t_ms` from the injection: of
    all streams, and of the affected ones.

    With several faults at once, only pairs that were reachable throughout the fault count. Probes are lost from the
    injection until `AFTER_S` after the repair, and `probes_lost_after_repair` from the repair until the next action.
    """

    fault: Fault
    recovery: Recovery
    t_ms: tuple[float, ...]
    bps: tuple[float, ...]
    affected_bps: tuple[float, ...]


def recovered(recovery: Recovery, late: int) -> Recovered:
    """Return whether packets and goodput were back before the repair, and stayed (`late`: probes lost just before it).

    If no pair was probed, goodput alone decides; without streams, packets do.
    """
    if not recovery.is_probed and not recovery.has_streams:
        return Recovered.NOT_MEASURED
    if recovery.is_probed and (recovery.first_packet_ms is None or late):
        return Recovered.NO
    if recovery.has_streams and recovery.goodput_ms is None:
        return Recovered.NO
    has_loss = recovery.is_probed and not recovery.is_unaffected
    has_fallen = recovery.has_streams and recovery.goodput_ms != 0
    return Recovered.YES if has_loss or has_fallen else Recovered.UNAFFECTED


@dataclass(frozen=True)
class ScriptObservations:
    """Observations of a script: its streams and probes, their log, and when each injection and repair began."""

    plan: Plan
    script: Script
    streams: tuple[Pair, ...]
    probes: tuple[Pair, ...]
    log: TrafficLog
    begun_ns: int
    injected_ns: Sequence[int]
    repair_start_ns: Sequence[int]
    events: Sequence[ControllerEvent]

    @cached_property
    def fault_end_ns(self) -> Sequence[int]:
        """End of each fault: when its repair began, or when what failed was back."""
        return fault_end_ns(self.script, self.injected_ns, self.repair_start_ns, self.events)

    @cached_property
    def end_ns(self) -> int:
        """End of the evaluation, ns."""
        return max(*self.repair_start_ns, *self.fault_end_ns) + int(AFTER_S * 1e9)

    def bin_of(self, at_ns: int) -> int:
        """Return the bin of a moment."""
        return int((at_ns - self.begun_ns) / (BIN_MS * 1e6))

    @cached_property
    def traces(self) -> Mapping[Pair, Trace]:
        """Goodput of each stream."""
        receipts = self.log.receipts
        return {pair: goodput(receipts.get(n, ()), self.begun_ns, self.end_ns) for n, pair in enumerate(self.streams)}

    def goodput_of(self, pairs: frozenset[Pair]) -> Trace:
        """Return the goodput of these streams together."""
        no_goodput: Trace = np.zeros(max(1, self.bin_of(self.end_ns)))
        return sum((trace for pair, trace in self.traces.items() if pair in pairs), no_goodput)

    def log_of(self, pairs: frozenset[Pair]) -> list[ProbeLog]:
        """Return the probe logs of these pairs."""
        return [log for pair, log in zip(self.probes, self.log.probes, strict=True) if pair in pairs]

    def bounds_at(self, now_ns: int) -> Bounds:
        """Return what the active faults leave of the fabric at a moment."""
        times = enumerate(zip(self.injected_ns, self.repair_start_ns, strict=True))
        return self._bounds_of(tuple(n for n, (since, until) in times if since <= now_ns < until))

    @cached_property
    def _bounds_of(self) -> Callable[[tuple[int, ...]], Bounds]:
        return cache(lambda active: bounds(self.plan, [self.script.faults[n].fault for n in active]))

    def above_max_flow(self, pairs: frozenset[Pair], since_ns: int, until_ns: int) -> int:
        """Return how many of these streams exceeded their max-flow; after each action they have `LATE_NS` to settle."""
        actions = sorted(at for at in (*self.injected_ns, *self.repair_start_ns) if since_ns < at < until_ns)
        found = frozenset[Pair]()
        for begin, end in pairwise([since_ns, *actions, until_ns]):
            settled_ns = begin if begin == since_ns else begin + LATE_NS
            window = slice(self.bin_of(settled_ns) + 1, self.bin_of(end))
            traces = {pair: trace[window] for pair, trace in self.traces.items() if pair in pairs}
            found |= above_max_flow(self.bounds_at(begin).upper, traces)
        return len(found)

    def next_action_ns(self, after_ns: int) -> int:
        """Return when the next action began that wasn't simultaneous with the one at that time."""
        actions = (*self.injected_ns, *self.repair_start_ns)
        return min((at for at in actions if at > after_ns + SIMULTANEOUS_NS), default=self.end_ns)


def evaluate_all(
    observations: ScriptObservations, selections: Sequence[PairSelection]
) -> tuple[tuple[FaultRun, ...], tuple[float, ...]]:
    """Return each fault of the script, and the goodput of all streams, bit/s in bins of `BIN_MS`."""
    total = observations.goodput_of(frozenset(observations.streams))
    runs = (_FaultObservations(observations, n, selection).run(total) for n, selection in enumerate(selections))
    return tuple(runs), tuple(total.tolist())


def fault_end_ns(
    script: Script, injected_ns: Sequence[int], repair_start_ns: Sequence[int], events: Sequence[ControllerEvent]
) -> Sequence[int]:
    """Return when each fault of a script was over."""
    times = zip(script.faults, injected_ns, repair_start_ns, strict=True)
    return [
        timed.fault.definition.end_ns(timed.fault.target, injected, repair_started, events)
        for timed, injected, repair_started in times
    ]


class _FaultObservations:
    """One fault of a script, and the pairs that count for it: of several faults, those with a path throughout."""

    def __init__(self, script: ScriptObservations, number: int, selection: PairSelection) -> None:
        self.script = script
        self.number = number
        self.fault = script.script.faults[number].fault
        self.fault_ns = script.injected_ns[number]
        self.repair_ns = script.fault_end_ns[number]
        self.after_ns = self.repair_ns + int(AFTER_S * 1e9)
        self.is_alone = len(script.script.faults) == 1
        begin = self.fault_ns
        end = script.repair_start_ns[number]
        counted = frozenset((*script.streams, *script.probes))
        if not self.is_alone:
            for now in {begin, *(at for at in script.injected_ns if begin < at < end)}:
                counted &= script.bounds_at(now).lower.reachable
        self.has_streams = bool(selection.streams)
        self.affected = selection.affected & counted
        self.probes = frozenset(selection.probes) & counted
        self.at_source = selection.at_source & counted
        self.affected_trace = script.goodput_of(self.affected)
        # of it or a concurrent fault
        active = (n for n, at in enumerate(script.injected_ns) if at < end and script.repair_start_ns[n] > begin)
        self.is_intermittent = any(script.script.faults[n].fault.definition.loses_packets_throughout for n in active)

    def run(self, total: Trace) -> FaultRun:
        """Return the record. `total`: the goodput of all streams."""
        script = self.script
        far_side = self.probes - self.at_source
        # the controller detected this fault, then decided, then had changed routes
        signals = [at for at, kind, detail in script.events if self.fault.is_signal(script.plan, kind, detail)]
        detect_ms = step_ms(signals, self.fault_ns, self.repair_ns)
        decided_ms = self.next_step_ms("decided", detect_ms)
        reroute_ms = self.next_step_ms("rerouted", decided_ms)
        first_ms = self.first_packet_ms(self.probes)
        goodput_ms = self.restored_ms(self.fault_ns, self.repair_ns)
        if first_ms is not None and goodput_ms:  # 0: it never fell
            goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
        resumed_ns = self.fault_ns + max(int((first_ms or 0) * 1e6), LATE_NS)
        is_back = resumed_ns < self.repair_ns
        return_end_ns = min(self.after_ns, script.next_action_ns(self.repair_ns) - IN_FLIGHT_NS)
        recovery = Recovery(
            interval=IntervalId(),  # the caller's to know
            fault=self.fault.kind,
            target=self.fault.target,
            t_fault=self.fault_ns,
            t_repair=self.repair_ns,
            detect_ms=detect_ms,
            decided_ms=decided_ms,
            reroute_ms=reroute_ms,
            first_packet_ms=first_ms,
            source_side_ms=self.first_packet_ms(self.at_source),
            far_side_ms=self.first_packet_ms(far_side),
            goodput_ms=goodput_ms,
            goodput_after_repair_ms=self.restored_ms(self.repair_ns, self.after_ns),
            primary_path_ms=self.primary_path_ms(),
            source_side_probed=len(self.at_source),
            far_side_probed=len(far_side),
            above_max_flow=script.above_max_flow(self.affected, resumed_ns, self.repair_ns) if is_back else 0,
            lost_bytes=script.log.lost_bytes,
            probes_lost=self.probes_lost(self.fault_ns - IN_FLIGHT_NS, self.after_ns),
            probes_lost_after_repair=self.probes_lost(self.repair_ns, return_end_ns),
            connections_lost=len(script.log.broken),
            recovered=Recovered.NOT_MEASURED,
            has_streams=self.has_streams,
        )
        recovery = replace(recovery, recovered=recovered(recovery, self.late_losses()))
        window = slice(max(0, script.bin_of(self.fault_ns - int(BEFORE_S * 1e9))), script.bin_of(self.after_ns))
        t_ms = tuple(n * BIN_MS - (self.fault_ns - script.begun_ns) / 1e6 for n in range(len(total))[window])
        bps, affected_bps = (tuple(trace[window].tolist()) for trace in (total, self.affected_trace))
        return FaultRun(self.fault, recovery, t_ms, bps, affected_bps)

    def next_step_ms(self, step: str, before_ms: float | None) -> float | None:
        """Return the time of the controller's step that follows another; None also if that never came."""
        if before_ms is None:
            return None
        since_ns = self.fault_ns + before_ms * 1e6
        later = [at for at, kind, _ in self.script.events if kind == step and at >= since_ns]
        return step_ms(later, self.fault_ns, self.repair_ns)

    def first_packet_ms(self, pairs: frozenset[Pair]) -> float | None:
        """Return the time to the first packet of the slowest of these probed pairs; None also if there are none."""
        if not pairs:
            return None
        limit_ns = self.script.next_action_ns(self.fault_ns)
        return first_packet_ms(self.script.log_of(pairs), self.fault_ns, self.repair_ns, limit_ns, self.is_intermittent)

    def restored_ms(self, since_ns: int, until_ns: int) -> float | None:
        """Return when the affected goodput was back at its mean before the first fault, without the warm-up."""
        if not self.has_streams:
            return None
        script = self.script
        warm_up_end = script.bin_of(script.begun_ns + int(WARM_UP_S * 1e9))
        before = self.affected_trace[warm_up_end : script.bin_of(min(script.injected_ns))]
        before_bps = float(before.mean()) if len(before) else 0.0
        return restored_ms(self.affected_trace, script.begun_ns, since_ns, until_ns, before_bps)

    def primary_path_ms(self) -> float | None:
        """Return the time until the fault's detours are withdrawn: until no more are left than before the fault."""
        script = self.script
        if self.is_alone:
            return primary_path_ms(script.events, self.repair_ns, None, 0)
        if not same_other_faults(self.number, script.injected_ns, script.repair_start_ns, int(SETTLE_S * 1e9)):
            return None
        until_ns = script.next_action_ns(self.repair_ns)
        max_detours = active_detours(script.events, self.fault_ns)
        return primary_path_ms(script.events, self.repair_ns, until_ns, max_detours)

    def probes_lost(self, start_ns: int, end_ns: int) -> int:
        """Count the lost probes that were sent in an interval."""
        return sum(len(log.lost(start_ns, end_ns)) for log in self.script.log_of(self.probes))

    def late_losses(self) -> int:
        """Count late losses of the probed pairs, unless another action shortly before may be their cause."""
        script = self.script
        actions = [at for times in (script.injected_ns, script.repair_start_ns) for at in enumerate(times)]
        since_ns = self.repair_ns - SETTLE_S * 1e9
        if any(n != self.number and since_ns < at <= self.repair_ns for n, at in actions):
            return 0
        return late_losses(script.log_of(self.probes), self.repair_ns, self.is_intermittent)
