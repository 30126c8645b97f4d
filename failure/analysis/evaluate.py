"""Evaluate a failure script, fault by fault, from its traffic, its probes and the controller's events. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from railyard.core.records import IntervalId, Recovery
from railyard.failure.analysis.controller_events import (
    SIMULTANEOUS_NS,
    active_detours,
    primary_path_ms,
    same_other_faults,
)
from railyard.failure.analysis.recovery_times import (
    BIN_MS,
    IN_FLIGHT_NS,
    LATE_NS,
    ProbeLog,
    Trace,
    first_packet_ms,
    goodput,
    late_losses,
    restored_ms,
    step_ms,
)
from railyard.failure.faults import Fault
from railyard.failure.faults.definition import ControllerEvent
from railyard.failure.oracle.reachability import Bounds, above_max_flow, bounds
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.scenario.pairs import Pair, PairSelection
from railyard.failure.scenario.script import SETTLE_S, Script
from railyard.topologies.plan import Plan

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


def is_recovered(first_packet_ms: float | None, late: int, probed: int, goodput_ms: float | None, streams: int) -> bool:
    """Whether packets and goodput were back before the repair, and stayed.

    `late`: probes lost just before the repair. If no pair was `probed`, goodput alone decides; without `streams`,
    packets do.
    """
    packets = first_packet_ms is not None and not late
    return (packets or not probed) and (goodput_ms is not None or not streams)


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
        """When each fault was over: when its repair began, or when what failed was back."""
        return fault_end_ns(self.script, self.injected_ns, self.repair_start_ns, self.events)

    @cached_property
    def end_ns(self) -> int:
        return max(*self.repair_start_ns, *self.fault_end_ns) + int(AFTER_S * 1e9)

    def bin_of(self, at_ns: int) -> int:
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
        return [log for pair, log in zip(self.probes, self.log.probes, strict=True) if pair in pairs]

    def reachable_throughout(self, number: int) -> frozenset[Pair]:
        """Return the pairs that stream or are probed, and had a path throughout this fault."""
        begin, end = self.injected_ns[number], self.repair_start_ns[number]
        pairs = frozenset((*self.streams, *self.probes))
        for now in {begin, *(at for at in self.injected_ns if begin < at < end)}:
            pairs &= self.bounds_at(now).lower.reachable
        return pairs

    def bounds_at(self, now_ns: int) -> Bounds:
        """Return what the active faults leave of the fabric at a moment."""
        active = frozenset(n for n, at in enumerate(self.injected_ns) if at <= now_ns < self.repair_start_ns[n])
        if active not in self._bounds_by_faults:
            self._bounds_by_faults[active] = bounds(self.plan, [self.script.faults[n].fault for n in sorted(active)])
        return self._bounds_by_faults[active]

    @cached_property
    def _bounds_by_faults(self) -> dict[frozenset[int], Bounds]:
        return {}

    def is_intermittent(self, number: int) -> bool:
        """Whether this fault or a concurrent one loses packets again and again."""
        begin, end = self.injected_ns[number], self.repair_start_ns[number]
        active = (n for n, at in enumerate(self.injected_ns) if at < end and self.repair_start_ns[n] > begin)
        return any(self.script.faults[n].fault.definition.loses_packets_throughout for n in active)

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
    runs = (_evaluate(observations, n, selection, total) for n, selection in enumerate(selections))
    return tuple(runs), tuple(total.tolist())


def _evaluate(observations: ScriptObservations, number: int, selection: PairSelection, total: Trace) -> FaultRun:
    fault, log = observations.script.faults[number].fault, observations.log
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    after_ns = repair_ns + int(AFTER_S * 1e9)
    if len(observations.script.faults) > 1:
        selection = _restrict(selection, observations.reachable_throughout(number))
    probes, at_source = frozenset(selection.probes), selection.at_source
    affected = observations.goodput_of(selection.affected)
    first_ms = _first_packet_ms(observations, number, probes)
    goodput_ms = goodput_after_repair_ms = None
    if selection.streams:
        before = _before_bps(observations, affected)
        goodput_ms = restored_ms(affected, observations.begun_ns, fault_ns, repair_ns, before)
        goodput_after_repair_ms = restored_ms(affected, observations.begun_ns, repair_ns, after_ns, before)
    if first_ms is not None and goodput_ms is not None:
        goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
    late = _late_losses(observations, number, probes)
    detect_ms, decided_ms, reroute_ms = _steps_ms(fault, observations.plan, observations.events, fault_ns, repair_ns)
    resumed_ns = fault_ns + max(int((first_ms or 0) * 1e6), LATE_NS)
    return_end_ns = min(after_ns, observations.next_action_ns(repair_ns) - IN_FLIGHT_NS)
    recovery = Recovery(
        interval=IntervalId(),  # the caller's to know
        fault=fault.kind,
        target=fault.target,
        t_fault=fault_ns,
        t_repair=repair_ns,
        detect_ms=detect_ms,
        decided_ms=decided_ms,
        reroute_ms=reroute_ms,
        first_packet_ms=first_ms,
        source_side_ms=_first_packet_ms(observations, number, at_source),
        far_side_ms=_first_packet_ms(observations, number, probes - at_source),
        goodput_ms=goodput_ms,
        goodput_after_repair_ms=goodput_after_repair_ms,
        primary_path_ms=_revert_ms(observations, number),
        source_side_probed=len(at_source),
        far_side_probed=len(probes - at_source),
        above_max_flow=observations.above_max_flow(selection.affected, resumed_ns, repair_ns)
        if resumed_ns < repair_ns
        else 0,
        lost_bytes=log.lost_bytes,
        probes_lost=_lost(observations, probes, fault_ns - IN_FLIGHT_NS, after_ns),
        probes_lost_after_repair=_lost(observations, probes, repair_ns, return_end_ns),
        connections_lost=len(log.broken),
        recovered=is_recovered(first_ms, late, len(probes), goodput_ms, len(selection.streams)),
    )
    window = slice(max(0, observations.bin_of(fault_ns - int(BEFORE_S * 1e9))), observations.bin_of(after_ns))
    t_ms = tuple(n * BIN_MS - (fault_ns - observations.begun_ns) / 1e6 for n in range(len(total))[window])
    return FaultRun(fault, recovery, t_ms, tuple(total[window].tolist()), tuple(affected[window].tolist()))


def fault_end_ns(
    script: Script, injected_ns: Sequence[int], repair_start_ns: Sequence[int], events: Sequence[ControllerEvent]
) -> Sequence[int]:
    """Return when each fault of a script was over."""
    times = zip(script.faults, injected_ns, repair_start_ns, strict=True)
    return [
        timed.fault.definition.end_ns(timed.fault.target, injected, repair_started, events)
        for timed, injected, repair_started in times
    ]


def _restrict(selection: PairSelection, pairs: frozenset[Pair]) -> PairSelection:
    probes = tuple(pair for pair in selection.probes if pair in pairs)
    return PairSelection(selection.streams, selection.affected & pairs, probes, selection.at_source & pairs)


def _before_bps(observations: ScriptObservations, trace: Trace) -> float:
    """Return the mean before the first fault of the script, without the warm-up."""
    warm_up_end = observations.bin_of(observations.begun_ns + int(WARM_UP_S * 1e9))
    baseline = trace[warm_up_end : observations.bin_of(min(observations.injected_ns))]
    return float(baseline.mean()) if len(baseline) else 0.0


def _first_packet_ms(observations: ScriptObservations, number: int, pairs: frozenset[Pair]) -> float | None:
    """Return the time to the first packet of the slowest of these probed pairs; None also if there are none."""
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    intermittent = observations.is_intermittent(number)
    limit_ns = observations.next_action_ns(fault_ns)
    return first_packet_ms(observations.log_of(pairs), fault_ns, repair_ns, limit_ns, intermittent) if pairs else None


def _late_losses(observations: ScriptObservations, number: int, pairs: frozenset[Pair]) -> int:
    """Count late losses of these probed pairs, unless another action shortly before may be their cause."""
    repair_ns = observations.fault_end_ns[number]
    others = [
        at
        for n, at in enumerate((*observations.injected_ns, *observations.repair_start_ns))
        if n % len(observations.injected_ns) != number
    ]
    if any(repair_ns - SETTLE_S * 1e9 < at <= repair_ns for at in others):
        return 0
    return late_losses(observations.log_of(pairs), repair_ns, observations.is_intermittent(number))


def _revert_ms(observations: ScriptObservations, number: int) -> float | None:
    """Return the time until the fault's detours are withdrawn: until no more are left than before the fault."""
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    if len(observations.script.faults) == 1:
        return primary_path_ms(observations.events, repair_ns, None, 0)
    if not same_other_faults(number, observations.injected_ns, observations.repair_start_ns, int(SETTLE_S * 1e9)):
        return None
    return primary_path_ms(
        observations.events,
        repair_ns,
        observations.next_action_ns(repair_ns),
        active_detours(observations.events, fault_ns),
    )


def _lost(observations: ScriptObservations, pairs: frozenset[Pair], start_ns: int, end_ns: int) -> int:
    return sum(len(log.lost(start_ns, end_ns)) for log in observations.log_of(pairs))


def _steps_ms(
    fault: Fault, plan: Plan, events: Sequence[ControllerEvent], fault_ns: int, repair_ns: int
) -> tuple[float | None, float | None, float | None]:
    """Return the times until the controller detected this fault, decided, and had changed routes."""
    signals = [(at, event_kind) for at, event_kind, detail in events if fault.is_signal(plan, event_kind, detail)]
    detect_ms = step_ms(signals, {event_kind for _, event_kind in signals}, fault_ns, repair_ns)
    if detect_ms is None:
        return None, None, None
    later_events = [(at, event_kind) for at, event_kind, _ in events if at >= fault_ns + detect_ms * 1e6]
    decided_ms = step_ms(later_events, {"decided"}, fault_ns, repair_ns)
    if decided_ms is None:
        return detect_ms, None, None
    later_events = [(at, event_kind) for at, event_kind in later_events if at >= fault_ns + decided_ms * 1e6]
    return detect_ms, decided_ms, step_ms(later_events, {"rerouted"}, fault_ns, repair_ns)
