"""What a script's traffic, probes and controller saw, fault by fault. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from failure.dead import CONTROL, bounds
from failure.kinds import Fault
from failure.pairs import Pair, Talkers
from failure.recovery import BIN_MS, IN_FLIGHT_NS, ProbeLog, Trace, first_packet_ms, goodput, restored_ms, step_ms
from failure.script import Script
from failure.tells import tells
from failure.traffic import TrafficLog
from topologies.plan import Plan

WARM_UP_S: Final = 0.2  # of the time before the first fault: streams settle, and it doesn't count as "before"
BEFORE_S: Final = 1.5  # of goodput before a fault is in its record
AFTER_S: Final = 1.2  # after the last repair, at least; and of goodput after each
TOGETHER_NS: Final = 50_000_000

Told = tuple[int, str, dict[str, Any]]


@dataclass(frozen=True)
class FaultRun:
    """What happened. Times are ms after the fault (`back_ms`: after the repair); None where it never came.

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
    lost_bytes: int
    probes_lost: int
    return_lost: int
    broken: tuple[str, ...]
    t_ms: tuple[float, ...]
    bps: tuple[float, ...]
    affected_bps: tuple[float, ...]

    @property
    def recovered(self) -> bool:
        """Packets and goodput were back before the repair."""
        return self.first_packet_ms is not None and self.goodput_ms is not None


@dataclass(frozen=True)
class Seen:
    """A script that was played: who talked, what they saw, and when each fault struck and began to be mended."""

    plan: Plan
    script: Script
    streams: tuple[Pair, ...]
    probes: tuple[Pair, ...]
    log: TrafficLog
    begun_ns: int
    struck_ns: Sequence[int]
    mended_ns: Sequence[int]

    @property
    def end_ns(self) -> int:
        return max(self.mended_ns) + int(AFTER_S * 1e9)

    def bin_of(self, at_ns: int) -> int:
        return int((at_ns - self.begun_ns) / (BIN_MS * 1e6))

    @cached_property
    def traces(self) -> Mapping[Pair, Trace]:
        """Goodput of each stream."""
        receipts = self.log.receipts
        return {pair: goodput(receipts.get(n, ()), self.begun_ns, self.end_ns) for n, pair in enumerate(self.streams)}

    def goodput_of(self, pairs: frozenset[Pair]) -> Trace:
        """Of these streams together."""
        nothing: Trace = np.zeros(max(1, self.bin_of(self.end_ns)))
        return sum((trace for pair, trace in self.traces.items() if pair in pairs), nothing)

    def log_of(self, pairs: frozenset[Pair]) -> list[ProbeLog]:
        return [log for pair, log in zip(self.probes, self.log.probes, strict=True) if pair in pairs]

    def with_a_way(self, number: int) -> frozenset[Pair]:
        """The pairs that stream or are probed, and had one throughout this fault."""
        begin, end = self.struck_ns[number], self.mended_ns[number]
        pairs = frozenset((*self.streams, *self.probes))
        for now in {begin, *(at for at in self.struck_ns if begin < at < end)}:
            there = [n for n, at in enumerate(self.struck_ns) if at <= now < self.mended_ns[n]]
            pairs &= bounds(self.plan, [self.script.faults[n].fault for n in there]).least.reachable
        return pairs

    def next_act_ns(self, after_ns: int) -> int:
        """When the next thing was done that wasn't done together with what was done then."""
        acts = (*self.struck_ns, *self.mended_ns)
        return min((at for at in acts if at > after_ns + TOGETHER_NS), default=self.end_ns)


def judge_all(
    seen: Seen, talks: Sequence[Talkers], events: Sequence[Told]
) -> tuple[tuple[FaultRun, ...], tuple[float, ...]]:
    """Each fault of the script, and the goodput of all streams."""
    whole = seen.goodput_of(frozenset(seen.streams))
    return tuple(_judge(seen, n, talk, events, whole) for n, talk in enumerate(talks)), tuple(whole.tolist())


def _judge(seen: Seen, number: int, talk: Talkers, events: Sequence[Told], whole: Trace) -> FaultRun:
    fault, log = seen.script.faults[number].fault, seen.log
    fault_ns, repair_ns = seen.struck_ns[number], _back_ns(fault, seen.mended_ns[number], events)
    after_ns = repair_ns + int(AFTER_S * 1e9)
    talk = _among(talk, seen.with_a_way(number)) if len(seen.script.faults) > 1 else talk
    probes = frozenset(talk.probes)
    affected = seen.goodput_of(talk.affected)
    first_ms = first_packet_ms(seen.log_of(probes), fault_ns, repair_ns, seen.next_act_ns(fault_ns))
    before = _before_bps(seen, affected)
    goodput_ms = restored_ms(affected, seen.begun_ns, fault_ns, repair_ns, before)
    if first_ms is not None and goodput_ms is not None:
        goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
    detect_ms, decided_ms, reroute_ms = _steps_ms(fault, seen.plan, events, fault_ns, repair_ns)
    shown = slice(max(0, seen.bin_of(fault_ns - int(BEFORE_S * 1e9))), seen.bin_of(after_ns))
    return FaultRun(
        fault=fault,
        fault_ns=fault_ns,
        repair_ns=repair_ns,
        detect_ms=detect_ms,
        decided_ms=decided_ms,
        reroute_ms=reroute_ms,
        first_packet_ms=first_ms,
        source_ms=_first_packet_ms(seen, talk.at_source, fault_ns, repair_ns),
        far_ms=_first_packet_ms(seen, probes - talk.at_source, fault_ns, repair_ns),
        goodput_ms=goodput_ms,
        back_ms=restored_ms(affected, seen.begun_ns, repair_ns, after_ns, before),
        lost_bytes=log.lost_bytes,
        probes_lost=_lost(seen, probes, fault_ns - IN_FLIGHT_NS, after_ns),
        return_lost=_lost(seen, probes, repair_ns, min(after_ns, seen.next_act_ns(repair_ns) - IN_FLIGHT_NS)),
        broken=tuple(log.broken.values()),
        t_ms=tuple(n * BIN_MS - (fault_ns - seen.begun_ns) / 1e6 for n in range(len(whole))[shown]),
        bps=tuple(whole[shown].tolist()),
        affected_bps=tuple(affected[shown].tolist()),
    )


def _back_ns(fault: Fault, mended_ns: int, events: Sequence[Told]) -> int:
    """When its repair began; of a controller or registry, which take a while to start, when it was there again."""
    wanted = f"{fault.target}-restarted" if fault.kind in CONTROL else ""
    return min((at for at, what, _ in events if what == wanted and at >= mended_ns), default=mended_ns)


def _among(talk: Talkers, pairs: frozenset[Pair]) -> Talkers:
    probes = tuple(pair for pair in talk.probes if pair in pairs)
    return Talkers(talk.streams, talk.affected & pairs, probes, talk.at_source & pairs)


def _before_bps(seen: Seen, trace: Trace) -> float:
    """Before the first fault of the script, without the warm-up."""
    warm = seen.bin_of(seen.begun_ns + int(WARM_UP_S * 1e9))
    stretch = trace[warm : seen.bin_of(min(seen.struck_ns))]
    return float(stretch.mean()) if len(stretch) else 0.0


def _first_packet_ms(seen: Seen, pairs: frozenset[Pair], fault_ns: int, repair_ns: int) -> float | None:
    """Of these probed pairs; None too if there are none."""
    return first_packet_ms(seen.log_of(pairs), fault_ns, repair_ns, seen.next_act_ns(fault_ns)) if pairs else None


def _lost(seen: Seen, pairs: frozenset[Pair], start_ns: int, end_ns: int) -> int:
    return sum(len(log.lost(start_ns, end_ns)) for log in seen.log_of(pairs))


def _steps_ms(
    fault: Fault, plan: Plan, events: Sequence[Told], fault_ns: int, repair_ns: int
) -> tuple[float | None, float | None, float | None]:
    """Until the controller told of this fault, next decided on something, and had next changed routes."""
    told = [(at, what) for at, what, detail in events if tells(fault, plan, what, detail)]
    detect_ms = step_ms(told, {what for _, what in told}, fault_ns, repair_ns)
    if detect_ms is None:
        return None, None, None
    plain = [(at, what) for at, what, _ in events if at >= fault_ns + detect_ms * 1e6]
    decided_ms = step_ms(plain, {"decided"}, fault_ns, repair_ns)
    if decided_ms is None:
        return detect_ms, None, None
    plain = [(at, what) for at, what in plain if at >= fault_ns + decided_ms * 1e6]
    return detect_ms, decided_ms, step_ms(plain, {"rerouted"}, fault_ns, repair_ns)
