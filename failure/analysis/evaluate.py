"""What a script's traffic, probes and controller saw, fault by fault. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from railyard.failure.analysis.detours import (
    SIMULTANEOUS_NS,
    active_detours,
    home_ms,
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
from railyard.failure.oracle.dead import Bounds, bounds
from railyard.failure.oracle.max_flow import too_fast
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.scenario.pairs import Pair, PairSelection
from railyard.failure.scenario.script import Script
from railyard.failure.scenario.timeline import SETTLE_S
from railyard.topologies.plan import Plan

WARM_UP_S: Final = 0.2  # of the time before the first fault: streams settle, and it doesn't count as "before"
BEFORE_S: Final = 1.5  # of goodput before a fault is in its record
AFTER_S: Final = 1.2  # after the last repair, at least; and of goodput after each


@dataclass(frozen=True)
class FaultRun:
    """What happened. Times are ms after the fault (`back_ms`, `home_ms`: after the repair); None where it never came.

    Nobody probed (`source_probed`, `far_probed`: how many pairs): no `first_packet_ms`. Nothing streams: no
    `goodput_ms` and `back_ms`. `home_ms` is None too where other faults make it unknowable. `late_losses`: probes lost
    in the last 200 ms before the repair. `too_fast`: affected streams that got more than the oracle's max-flow.

    With several faults at once, those of its pairs count that had a way at all as long as it lasted. `probes_lost` of
    them are counted from the fault until `AFTER_S` after its repair, `return_lost` from its repair until the next
    thing that happens. `lost_bytes` and `broken` connections are of the whole script.
    """

    fault: Fault
    fault_ns: int
    repair_ns: int
    detect_ms: float | None
    decided_ms: float | None
    reroute_ms: float | None
    first_packet_ms: float | None
    source_ms: float | None
    far_ms: float | None
    goodput_ms: float | None
    back_ms: float | None
    home_ms: float | None
    source_probed: int
    far_probed: int
    streamed: bool
    late_losses: int
    too_fast: int
    lost_bytes: int
    probes_lost: int
    return_lost: int
    broken: tuple[str, ...]
    t_ms: tuple[float, ...]
    bps: tuple[float, ...]
    affected_bps: tuple[float, ...]

    @property
    def recovered(self) -> bool:
        """Packets and goodput were back before the repair, and stayed. Where nobody probed, goodput alone decides;
        where nothing streamed, packets.
        """
        packets = self.first_packet_ms is not None and not self.late_losses
        goodput_is = self.goodput_ms is not None
        return (packets or not self.source_probed + self.far_probed) and (goodput_is or not self.streamed)


@dataclass(frozen=True)
class ScriptObservations:
    """A script that was played: who talked, what they saw, and when each fault struck and began to be mended."""

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
        """When each repair began; of what comes back by itself or takes a while to start, when it was there again."""
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
        """Of these streams together."""
        no_goodput: Trace = np.zeros(max(1, self.bin_of(self.end_ns)))
        return sum((trace for pair, trace in self.traces.items() if pair in pairs), no_goodput)

    def log_of(self, pairs: frozenset[Pair]) -> list[ProbeLog]:
        return [log for pair, log in zip(self.probes, self.log.probes, strict=True) if pair in pairs]

    def reachable_throughout(self, number: int) -> frozenset[Pair]:
        """The pairs that stream or are probed, and had one throughout this fault."""
        begin, end = self.injected_ns[number], self.repair_start_ns[number]
        pairs = frozenset((*self.streams, *self.probes))
        for now in {begin, *(at for at in self.injected_ns if begin < at < end)}:
            pairs &= self.bounds_at(now).lower.reachable
        return pairs

    def bounds_at(self, now_ns: int) -> Bounds:
        """What the faults of a moment leave of the fabric."""
        active = frozenset(n for n, at in enumerate(self.injected_ns) if at <= now_ns < self.repair_start_ns[n])
        if active not in self._bounds_by_faults:
            self._bounds_by_faults[active] = bounds(self.plan, [self.script.faults[n].fault for n in sorted(active)])
        return self._bounds_by_faults[active]

    @cached_property
    def _bounds_by_faults(self) -> dict[frozenset[int], Bounds]:
        return {}

    def is_intermittent(self, number: int) -> bool:
        """Whether this fault, or one that is there meanwhile, makes packets be lost again and again."""
        begin, end = self.injected_ns[number], self.repair_start_ns[number]
        active = (n for n, at in enumerate(self.injected_ns) if at < end and self.repair_start_ns[n] > begin)
        return any(self.script.faults[n].fault.definition.loses_packets_throughout for n in active)

    def too_fast(self, pairs: frozenset[Pair], since_ns: int, until_ns: int) -> int:
        """How many of these streams got more than was left to them; after each act they have `LATE_NS` to settle."""
        actions = sorted(at for at in (*self.injected_ns, *self.repair_start_ns) if since_ns < at < until_ns)
        found = frozenset[Pair]()
        for begin, end in pairwise([since_ns, *actions, until_ns]):
            settled_ns = begin if begin == since_ns else begin + LATE_NS
            window = slice(self.bin_of(settled_ns) + 1, self.bin_of(end))
            traces = {pair: trace[window] for pair, trace in self.traces.items() if pair in pairs}
            found |= too_fast(self.bounds_at(begin).upper, traces)
        return len(found)

    def next_act_ns(self, after_ns: int) -> int:
        """When the next thing was done that wasn't done together with what was done then."""
        actions = (*self.injected_ns, *self.repair_start_ns)
        return min((at for at in actions if at > after_ns + SIMULTANEOUS_NS), default=self.end_ns)


def evaluate_all(
    observations: ScriptObservations, selections: Sequence[PairSelection]
) -> tuple[tuple[FaultRun, ...], tuple[float, ...]]:
    """Each fault of the script, and the goodput of all streams."""
    total_goodput = observations.goodput_of(frozenset(observations.streams))
    return tuple(_evaluate(observations, n, selection, total_goodput) for n, selection in enumerate(selections)), tuple(
        total_goodput.tolist()
    )


def _evaluate(
    observations: ScriptObservations, number: int, selection: PairSelection, total_goodput: Trace
) -> FaultRun:
    fault, log = observations.script.faults[number].fault, observations.log
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    after_ns = repair_ns + int(AFTER_S * 1e9)
    selection = (
        _restrict(selection, observations.reachable_throughout(number))
        if len(observations.script.faults) > 1
        else selection
    )
    probes = frozenset(selection.probes)
    affected = observations.goodput_of(selection.affected)
    first_ms = _first_packet_ms(observations, number, probes)
    goodput_ms = back_ms = None
    if selection.streams:
        before = _before_bps(observations, affected)
        goodput_ms = restored_ms(affected, observations.begun_ns, fault_ns, repair_ns, before)
        back_ms = restored_ms(affected, observations.begun_ns, repair_ns, after_ns, before)
    if first_ms is not None and goodput_ms is not None:
        goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
    detect_ms, decided_ms, reroute_ms = _steps_ms(fault, observations.plan, observations.events, fault_ns, repair_ns)
    resumed_ns = fault_ns + max(int((first_ms or 0) * 1e6), LATE_NS)
    window = slice(max(0, observations.bin_of(fault_ns - int(BEFORE_S * 1e9))), observations.bin_of(after_ns))
    return FaultRun(
        fault=fault,
        fault_ns=fault_ns,
        repair_ns=repair_ns,
        detect_ms=detect_ms,
        decided_ms=decided_ms,
        reroute_ms=reroute_ms,
        first_packet_ms=first_ms,
        source_ms=_first_packet_ms(observations, number, selection.at_source),
        far_ms=_first_packet_ms(observations, number, probes - selection.at_source),
        goodput_ms=goodput_ms,
        back_ms=back_ms,
        home_ms=_revert_ms(observations, number),
        source_probed=len(selection.at_source),
        far_probed=len(probes - selection.at_source),
        streamed=bool(selection.streams),
        late_losses=_late_losses(observations, number, probes),
        too_fast=observations.too_fast(selection.affected, resumed_ns, repair_ns) if resumed_ns < repair_ns else 0,
        lost_bytes=log.lost_bytes,
        probes_lost=_lost(observations, probes, fault_ns - IN_FLIGHT_NS, after_ns),
        return_lost=_lost(
            observations, probes, repair_ns, min(after_ns, observations.next_act_ns(repair_ns) - IN_FLIGHT_NS)
        ),
        broken=tuple(log.broken.values()),
        t_ms=tuple(n * BIN_MS - (fault_ns - observations.begun_ns) / 1e6 for n in range(len(total_goodput))[window]),
        bps=tuple(total_goodput[window].tolist()),
        affected_bps=tuple(affected[window].tolist()),
    )


def fault_end_ns(
    script: Script, injected_ns: Sequence[int], repair_start_ns: Sequence[int], events: Sequence[ControllerEvent]
) -> Sequence[int]:
    """When each fault of a script was over, which struck and began to be mended then."""
    times = zip(script.faults, injected_ns, repair_start_ns, strict=True)
    return [
        timed.fault.definition.end_ns(timed.fault.target, injected, repair_started, events)
        for timed, injected, repair_started in times
    ]


def _restrict(selection: PairSelection, pairs: frozenset[Pair]) -> PairSelection:
    probes = tuple(pair for pair in selection.probes if pair in pairs)
    return PairSelection(selection.streams, selection.affected & pairs, probes, selection.at_source & pairs)


def _before_bps(observations: ScriptObservations, trace: Trace) -> float:
    """Before the first fault of the script, without the warm-up."""
    warm_up_end = observations.bin_of(observations.begun_ns + int(WARM_UP_S * 1e9))
    baseline = trace[warm_up_end : observations.bin_of(min(observations.injected_ns))]
    return float(baseline.mean()) if len(baseline) else 0.0


def _first_packet_ms(observations: ScriptObservations, number: int, pairs: frozenset[Pair]) -> float | None:
    """Of these probed pairs; None too if there are none."""
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    intermittent = observations.is_intermittent(number)
    limit_ns = observations.next_act_ns(fault_ns)
    return first_packet_ms(observations.log_of(pairs), fault_ns, repair_ns, limit_ns, intermittent) if pairs else None


def _late_losses(observations: ScriptObservations, number: int, pairs: frozenset[Pair]) -> int:
    """Of these probed pairs, unless something else was done so late that it may be that one's outage."""
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
    """Until its detours are withdrawn: alone, until none is left; else until no more are than there were before."""
    fault_ns, repair_ns = observations.injected_ns[number], observations.fault_end_ns[number]
    if len(observations.script.faults) == 1:
        return home_ms(observations.events, repair_ns, None, 0)
    if not same_other_faults(number, observations.injected_ns, observations.repair_start_ns, int(SETTLE_S * 1e9)):
        return None
    return home_ms(
        observations.events,
        repair_ns,
        observations.next_act_ns(repair_ns),
        active_detours(observations.events, fault_ns),
    )


def _lost(observations: ScriptObservations, pairs: frozenset[Pair], start_ns: int, end_ns: int) -> int:
    return sum(len(log.lost(start_ns, end_ns)) for log in observations.log_of(pairs))


def _steps_ms(
    fault: Fault, plan: Plan, events: Sequence[ControllerEvent], fault_ns: int, repair_ns: int
) -> tuple[float | None, float | None, float | None]:
    """Until the controller told of this fault, next decided on something, and had next changed routes."""
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
