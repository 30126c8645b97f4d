"""Evaluate a failure script, fault by fault, from its traffic, its probes and the controller's events. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise, product
from typing import Any, Final

import numpy as np

from railyard.core.records import IN_FLIGHT_NS, RESTORED, IntervalId, ProbeLog, Recovered, Recovery
from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.faults.support.impact import SILENCE_KEYS, dead_rails, rail_of
from railyard.failure.oracle.reachability import Bounds, above_max_flow, bounds
from railyard.failure.pairs import STREAM_SHARE, PairSelection
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.recovery_times import (
    BIN_MS,
    LATE_NS,
    Trace,
    first_packet_ms,
    goodput,
    late_losses,
    restored_ms,
    step_ms,
)
from railyard.failure.script import SETTLE_S, Script
from railyard.topologies.addresses import Pair, gpu_of_name, link_of_name
from railyard.topologies.plan import Plan

# actions closer than this are simultaneous
SIMULTANEOUS_NS: Final = 50_000_000


def _detour_counts(events: Sequence[ControllerEvent]) -> list[tuple[int, int]]:
    """Return the time of each reroute, and the number of detours since, in order of time."""
    counts: list[tuple[int, int]] = []
    for at_ns, kind, detail in events:
        if kind == "rerouted":
            counts.append((at_ns, int(detail["detours"])))
    return sorted(counts)


def active_detours(events: Sequence[ControllerEvent], at_ns: int | None = None) -> int:
    """Return the number of detours at a moment, or now; 0 before the first reroute."""
    active = 0
    for event_ns, count in _detour_counts(events):
        if at_ns is None or event_ns <= at_ns:
            active = count
    return active


def primary_path_ms(
    events: Sequence[ControllerEvent], repair_ns: int, until_ns: int | None, max_detours: int
) -> float | None:
    """Return the ms from a repair until at most `max_detours` are left, for good; None if not before `until_ns`.

    0 if there were no more at the repair, and none came after it.
    """
    reverted_ms = 0.0 if active_detours(events, repair_ns) <= max_detours else None
    for at_ns, count in _detour_counts(events):
        if at_ns <= repair_ns or (until_ns is not None and at_ns >= until_ns):
            continue
        if count > max_detours:
            reverted_ms = None
        elif reverted_ms is None:
            reverted_ms = (at_ns - repair_ns) / 1e6
    return reverted_ms


def same_other_faults(number: int, injected: Sequence[int], repair_started: Sequence[int], min_gap_ns: int) -> bool:
    """Return whether the same other faults were active just before a fault and right after its repair.

    `injected`, `repair_started`: times of each fault, ns, by number. False also if another action came within
    `min_gap_ns` before one of the two.
    """
    begin = injected[number]
    end = repair_started[number]
    just_before_ns = begin - SIMULTANEOUS_NS
    just_after_ns = end + SIMULTANEOUS_NS
    for other, (since_ns, until_ns) in enumerate(zip(injected, repair_started, strict=True)):
        if other == number:
            continue
        was_active = since_ns < just_before_ns <= until_ns
        is_active = since_ns <= just_after_ns < until_ns
        if was_active != is_active:
            return False
        # the detours of another action may have changed until now
        for action_ns, own_ns in product((since_ns, until_ns), (begin, end)):
            if own_ns - min_gap_ns < action_ns < own_ns - SIMULTANEOUS_NS:
                return False
    return True


REPAIR_GRACE_NS: Final = 1_000_000_000
"""Time after its repair in which a fault still explains silence: a switch takes time to start."""
Component = tuple[str, str]
"""Something that heartbeats report as silent: one of `SILENCE_KEYS`, and a name."""


def false_alarms(events: Iterable[ControllerEvent], faults: Sequence[tuple[Fault, int, int]], plan: Plan) -> int:
    """Count the links, rails and HB domains that were reported as silent although no fault explains it.

    `faults`: each with the times of its injection and of its repair's begin, ns. A fault explains silence while it is
    active, and for `REPAIR_GRACE_NS` after its repair.

    """
    count = 0
    silent_groups: set[Component] = set()
    for at_ns, event_kind, detail in sorted(events, key=lambda event: event[0]):
        # a controller that is away reports no recovery, and its successor reports anew what is silent
        if event_kind == "controller-crashed":
            silent_groups.clear()
        if event_kind not in ("silent", "resumed"):
            continue
        component = _component_of(detail)
        if event_kind == "resumed":
            silent_groups.discard(component)
            continue
        # A silent GPU is reported besides its links, which count. A link of a rail or domain that was silent as a whole
        # is reported because other links there have recovered.
        is_counted = component[0] != "gpu" and _probe_group_of(plan, component) not in silent_groups
        active = [fault for fault, since_ns, until_ns in faults if since_ns <= at_ns <= until_ns + REPAIR_GRACE_NS]
        if is_counted and not any(_explains(fault, plan, component) for fault in active):
            count += 1
        if component[0] in ("rail", "hb-domain"):
            silent_groups.add(component)
    return count


def _component_of(detail: Mapping[str, Any]) -> Component:
    """Return the component that the detail of a "silent" or "resumed" event names. ValueError if it names none."""
    for key in SILENCE_KEYS:
        if key in detail:
            return key, str(detail[key])
    raise ValueError(f"no component of {', '.join(SILENCE_KEYS)}: {dict(detail)}")


def _explains(fault: Fault, plan: Plan, name: Component) -> bool:
    """Return whether an active fault explains that a component is reported as silent."""
    # some links of a dead rail switch may be reported before the switch
    kind, label = _probe_group_of(plan, name) if dead_rails(fault.impact(plan), plan) else name
    return fault.is_signal(plan, "silent", {kind: label})


def _probe_group_of(plan: Plan, name: Component) -> Component:
    """Return the rail or HB domain of a link; for anything else, itself."""
    kind, label = name
    if kind == "link":
        return "rail", rail_of(plan, *link_of_name(label))
    if kind == "hb-link":
        return "hb-domain", f"hb{gpu_of_name(label).domain}"
    return name


# streams settle at the start: this time doesn't count as "before"
WARM_UP_S: Final = 0.2
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


def recovered(recovery: Recovery, late: int, is_overloaded: bool = False) -> Recovered:
    """Return whether packets and goodput were back before the repair, and stayed (`late`: probes lost just before it).

    If no pair was probed, goodput alone decides; without streams, packets do. `is_overloaded`: streams offered more
    than the fault left, so that it affected them even if goodput never fell below that.
    """
    if not recovery.is_probed and not recovery.has_streams:
        return Recovered.NOT_MEASURED
    if recovery.is_probed and (recovery.first_packet_ms is None or late):
        return Recovered.NO
    if recovery.has_streams and recovery.goodput_ms is None:
        return Recovered.NO
    has_loss = recovery.is_probed and not recovery.is_unaffected
    has_fallen = recovery.has_streams and (recovery.goodput_ms != 0 or is_overloaded)
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
        traces: dict[Pair, Trace] = {}
        for number, pair in enumerate(self.streams):
            traces[pair] = goodput(self.log.receipts.get(number, ()), self.begun_ns, self.end_ns)
        return traces

    def goodput_of(self, pairs: frozenset[Pair]) -> Trace:
        """Return the goodput of these streams together."""
        total: Trace = np.zeros(max(1, self.bin_of(self.end_ns)))
        for pair, trace in self.traces.items():
            if pair in pairs:
                total = total + trace
        return total

    def log_of(self, pairs: frozenset[Pair]) -> list[ProbeLog]:
        """Return the probe logs of these pairs."""
        return [log for pair, log in zip(self.probes, self.log.probes, strict=True) if pair in pairs]

    def bounds_at(self, now_ns: int) -> Bounds:
        """Return what the active faults leave of the fabric at a moment."""
        active: list[int] = []
        for number, since_ns in enumerate(self.injected_ns):
            if since_ns <= now_ns < self.repair_start_ns[number]:
                active.append(number)
        return self._bounds_of(tuple(active))

    @cached_property
    def _bounds_of(self) -> Callable[[tuple[int, ...]], Bounds]:
        """Bounds by the numbers of the active faults, each computed once: many moments have the same faults."""

        def bounds_of(active: tuple[int, ...]) -> Bounds:
            return bounds(self.plan, [self.script.faults[number].fault for number in active])

        return cache(bounds_of)

    def above_max_flow(self, pairs: frozenset[Pair], since_ns: int, until_ns: int) -> int:
        """Return how many of these streams exceeded their max-flow; after each action they have `LATE_NS` to settle."""
        times = (*self.injected_ns, *self.repair_start_ns)
        actions = sorted(at_ns for at_ns in times if since_ns < at_ns < until_ns)
        too_fast = frozenset[Pair]()
        for begin, end in pairwise([since_ns, *actions, until_ns]):
            settled_ns = begin if begin == since_ns else begin + LATE_NS
            window = slice(self.bin_of(settled_ns) + 1, self.bin_of(end))
            traces = {pair: trace[window] for pair, trace in self.traces.items() if pair in pairs}
            too_fast |= above_max_flow(self.bounds_at(begin).upper, traces)
        return len(too_fast)

    def next_action_ns(self, after_ns: int) -> int:
        """Return when the next action began that wasn't simultaneous with the one at that time."""
        actions = (*self.injected_ns, *self.repair_start_ns)
        return min((at for at in actions if at > after_ns + SIMULTANEOUS_NS), default=self.end_ns)


def evaluate_all(
    observations: ScriptObservations, selections: Sequence[PairSelection]
) -> tuple[tuple[FaultRun, ...], tuple[float, ...]]:
    """Return each fault of the script, and the goodput of all streams, bit/s in bins of `BIN_MS`."""
    total = observations.goodput_of(frozenset(observations.streams))
    runs: list[FaultRun] = []
    for number, selection in enumerate(selections):
        runs.append(_FaultObservations(observations, number, selection).run(total))
    return tuple(runs), tuple(total.tolist())


def fault_end_ns(
    script: Script, injected_ns: Sequence[int], repair_start_ns: Sequence[int], events: Sequence[ControllerEvent]
) -> Sequence[int]:
    """Return when each fault of a script was over."""
    ends: list[int] = []
    for timed, injected, repair_started in zip(script.faults, injected_ns, repair_start_ns, strict=True):
        fault = timed.fault
        ends.append(fault.definition.end_ns(fault.target, injected, repair_started, events))
    return ends


class _FaultObservations:
    """One fault of a script, and the pairs that count for it.

    If the script has several faults, only pairs count that have a path throughout.
    """

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
            # each injection during the fault may take another path away
            for at_ns in script.injected_ns:
                if begin < at_ns < end or at_ns == begin:
                    counted &= script.bounds_at(at_ns).lower.reachable
        self.has_streams = bool(selection.streams)
        self.offered_share = 0.0
        """The share of a rail that streams offer together, where they are there to fill it."""
        if selection.stream_share > STREAM_SHARE:
            self.offered_share = self.fault.definition.stream_load(self.fault.parameters)
        self.affected = selection.affected & counted
        self.probes = frozenset(selection.probes) & counted
        self.at_source = selection.at_source & counted
        self.affected_trace = script.goodput_of(self.affected)
        self.is_intermittent = False
        """Whether this fault or a concurrent one loses packets until its repair."""
        times = zip(script.script.faults, script.injected_ns, script.repair_start_ns, strict=True)
        for timed, injected_ns, repair_start_ns in times:
            if injected_ns < end and repair_start_ns > begin and timed.fault.definition.loses_packets_throughout:
                self.is_intermittent = True

    def run(self, total: Trace) -> FaultRun:
        """Return the record, with goodput around the fault. `total`: the goodput of all streams."""
        script = self.script
        recovery = self.recovery()
        is_overloaded = recovery.goodput_share < RESTORED
        outcome = recovered(recovery, self.late_losses(), is_overloaded)
        recovery = replace(recovery, recovered=outcome)
        window = slice(max(0, script.bin_of(self.fault_ns - int(BEFORE_S * 1e9))), script.bin_of(self.after_ns))
        fault_ms = (self.fault_ns - script.begun_ns) / 1e6
        t_ms = tuple(number * BIN_MS - fault_ms for number in range(len(total))[window])
        bps = tuple(total[window].tolist())
        affected_bps = tuple(self.affected_trace[window].tolist())
        return FaultRun(self.fault, recovery, t_ms, bps, affected_bps)

    def recovery(self) -> Recovery:
        """Return the times and losses of the recovery, without the conclusion from them."""
        script = self.script
        far_side = self.probes - self.at_source
        # the controller detected this fault, then decided, then had changed routes
        signals = [at for at, kind, detail in script.events if self.fault.is_signal(script.plan, kind, detail)]
        detect_ms = step_ms(signals, self.fault_ns, self.repair_ns)
        decided_ms = self.next_step_ms("decided", detect_ms)
        reroute_ms = self.next_step_ms("rerouted", decided_ms)
        first_ms = self.first_packet_ms(self.probes)
        goodput_share = self.goodput_share()
        goodput_ms = self.restored_ms(self.fault_ns, self.repair_ns, goodput_share)
        # bins are coarse: goodput can't be back before the first packet; 0 says that it never fell
        if first_ms is not None and goodput_ms:
            goodput_ms = max(goodput_ms, first_ms)
        return_end_ns = min(self.after_ns, script.next_action_ns(self.repair_ns) - IN_FLIGHT_NS)
        return Recovery(
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
            above_max_flow=self.above_max_flow(first_ms),
            lost_bytes=script.log.lost_bytes,
            probes_lost=self.probes_lost(self.fault_ns - IN_FLIGHT_NS, self.after_ns),
            probes_lost_after_repair=self.probes_lost(self.repair_ns, return_end_ns),
            connections_lost=len(script.log.broken),
            recovered=Recovered.NOT_MEASURED,
            has_streams=self.has_streams,
            goodput_share=goodput_share,
        )

    def above_max_flow(self, first_ms: float | None) -> int:
        """Return how many affected streams exceeded their max-flow from the first packet until the repair."""
        since_ns = self.fault_ns + max(int((first_ms or 0) * 1e6), LATE_NS)
        if since_ns >= self.repair_ns:
            return 0
        return self.script.above_max_flow(self.affected, since_ns, self.repair_ns)

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

    def goodput_share(self) -> float:
        """Return the share of the goodput of before from which on it counts as back while the fault lasts.

        Below RESTORED only where the streams offer more than the fault leaves of each rail: half of the goodput has to
        be back where half of a rail is left.
        """
        fault = self.fault
        share = fault.definition.remaining_share(self.script.plan, fault.target, fault.parameters)
        if self.offered_share > share:
            return min(share, RESTORED)
        return RESTORED

    def restored_ms(self, since_ns: int, until_ns: int, share: float = RESTORED) -> float | None:
        """Return when the affected goodput was back at a share of its mean before the first fault.

        The warm-up is no part of that mean.
        """
        if not self.has_streams:
            return None
        script = self.script
        warm_up_end = script.bin_of(script.begun_ns + int(WARM_UP_S * 1e9))
        before = self.affected_trace[warm_up_end : script.bin_of(min(script.injected_ns))]
        before_bps = float(before.mean()) if len(before) else 0.0
        # the function compares with RESTORED of a rate
        rate_bps = before_bps * (share / RESTORED)
        return restored_ms(self.affected_trace, script.begun_ns, since_ns, until_ns, rate_bps)

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
        since_ns = self.repair_ns - SETTLE_S * 1e9
        for times in (script.injected_ns, script.repair_start_ns):
            for number, at_ns in enumerate(times):
                if number != self.number and since_ns < at_ns <= self.repair_ns:
                    return 0
        return late_losses(script.log_of(self.probes), self.repair_ns, self.is_intermittent)
