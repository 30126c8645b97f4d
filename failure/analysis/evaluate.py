"""What a script's traffic, probes and controller saw, fault by fault. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from railyard.failure.analysis.detours import TOGETHER_NS, Told, home_ms, in_force, same_others
from railyard.failure.analysis.recovery_times import (
    BIN_MS,
    IN_FLIGHT_NS,
    LATE_NS,
    ProbeLog,
    Trace,
    first_packet_ms,
    goodput,
    lost_late,
    restored_ms,
    step_ms,
)
from railyard.failure.analysis.signals import tells
from railyard.failure.oracle.dead import CONTROL, Bounds, bounds
from railyard.failure.oracle.max_flow import too_fast
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.failure.scenario.pairs import Pair, Talkers
from railyard.failure.scenario.script import Script
from railyard.failure.scenario.timeline import SETTLE_S
from railyard.topologies.plan import Plan

WARM_UP_S: Final = 0.2  # of the time before the first fault: streams settle, and it doesn't count as "before"
BEFORE_S: Final = 1.5  # of goodput before a fault is in its record
AFTER_S: Final = 1.2  # after the last repair, at least; and of goodput after each
STRIKES_AGAIN: Final[frozenset[FaultKind]] = frozenset({"link-flapping", "link-gray"})
"""While they last, packets are lost again and again, whatever anybody does."""


@dataclass(frozen=True)
class FaultRun:
    """What happened. Times are ms after the fault (`back_ms`, `home_ms`: after the repair); None where it never came.

    Nobody probed (`source_probed`, `far_probed`: how many pairs): no `first_packet_ms`. Nothing streams: no
    `goodput_ms` and `back_ms`. `home_ms` is None too where other faults make it unknowable. `lost_late`: probes lost
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
    lost_late: int
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
        packets = self.first_packet_ms is not None and not self.lost_late
        goodput_is = self.goodput_ms is not None
        return (packets or not self.source_probed + self.far_probed) and (goodput_is or not self.streamed)


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
    events: Sequence[Told]

    @cached_property
    def back_ns(self) -> Sequence[int]:
        """When each repair began; of what comes back by itself or takes a while to start, when it was there again."""
        return back_ns(self.script, self.struck_ns, self.mended_ns, self.events)

    @cached_property
    def end_ns(self) -> int:
        return max(*self.mended_ns, *self.back_ns) + int(AFTER_S * 1e9)

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
            pairs &= self.left_at(now).least.reachable
        return pairs

    def left_at(self, now_ns: int) -> Bounds:
        """What the faults of a moment leave of the fabric."""
        there = frozenset(n for n, at in enumerate(self.struck_ns) if at <= now_ns < self.mended_ns[n])
        if there not in self._left:
            self._left[there] = bounds(self.plan, [self.script.faults[n].fault for n in sorted(there)])
        return self._left[there]

    @cached_property
    def _left(self) -> dict[frozenset[int], Bounds]:
        return {}

    def strikes_again(self, number: int) -> bool:
        """Whether this fault, or one that is there meanwhile, makes packets be lost again and again."""
        begin, end = self.struck_ns[number], self.mended_ns[number]
        there = (n for n, at in enumerate(self.struck_ns) if at < end and self.mended_ns[n] > begin)
        return any(self.script.faults[n].fault.kind in STRIKES_AGAIN for n in there)

    def too_fast(self, pairs: frozenset[Pair], since_ns: int, until_ns: int) -> int:
        """How many of these streams got more than was left to them; after each act they have `LATE_NS` to settle."""
        acts = sorted(at for at in (*self.struck_ns, *self.mended_ns) if since_ns < at < until_ns)
        found = frozenset[Pair]()
        for begin, end in pairwise([since_ns, *acts, until_ns]):
            settled = begin if begin == since_ns else begin + LATE_NS
            shown = slice(self.bin_of(settled) + 1, self.bin_of(end))
            traces = {pair: trace[shown] for pair, trace in self.traces.items() if pair in pairs}
            found |= too_fast(self.left_at(begin).most, traces)
        return len(found)

    def next_act_ns(self, after_ns: int) -> int:
        """When the next thing was done that wasn't done together with what was done then."""
        acts = (*self.struck_ns, *self.mended_ns)
        return min((at for at in acts if at > after_ns + TOGETHER_NS), default=self.end_ns)


def judge_all(seen: Seen, talks: Sequence[Talkers]) -> tuple[tuple[FaultRun, ...], tuple[float, ...]]:
    """Each fault of the script, and the goodput of all streams."""
    whole = seen.goodput_of(frozenset(seen.streams))
    return tuple(_judge(seen, n, talk, whole) for n, talk in enumerate(talks)), tuple(whole.tolist())


def _judge(seen: Seen, number: int, talk: Talkers, whole: Trace) -> FaultRun:
    fault, log = seen.script.faults[number].fault, seen.log
    fault_ns, repair_ns = seen.struck_ns[number], seen.back_ns[number]
    after_ns = repair_ns + int(AFTER_S * 1e9)
    talk = _among(talk, seen.with_a_way(number)) if len(seen.script.faults) > 1 else talk
    probes = frozenset(talk.probes)
    affected = seen.goodput_of(talk.affected)
    first_ms = _first_packet_ms(seen, number, probes)
    goodput_ms = back_ms = None
    if talk.streams:
        before = _before_bps(seen, affected)
        goodput_ms = restored_ms(affected, seen.begun_ns, fault_ns, repair_ns, before)
        back_ms = restored_ms(affected, seen.begun_ns, repair_ns, after_ns, before)
    if first_ms is not None and goodput_ms is not None:
        goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
    detect_ms, decided_ms, reroute_ms = _steps_ms(fault, seen.plan, seen.events, fault_ns, repair_ns)
    flowing_ns = fault_ns + max(int((first_ms or 0) * 1e6), LATE_NS)
    shown = slice(max(0, seen.bin_of(fault_ns - int(BEFORE_S * 1e9))), seen.bin_of(after_ns))
    return FaultRun(
        fault=fault,
        fault_ns=fault_ns,
        repair_ns=repair_ns,
        detect_ms=detect_ms,
        decided_ms=decided_ms,
        reroute_ms=reroute_ms,
        first_packet_ms=first_ms,
        source_ms=_first_packet_ms(seen, number, talk.at_source),
        far_ms=_first_packet_ms(seen, number, probes - talk.at_source),
        goodput_ms=goodput_ms,
        back_ms=back_ms,
        home_ms=_home_ms(seen, number),
        source_probed=len(talk.at_source),
        far_probed=len(probes - talk.at_source),
        streamed=bool(talk.streams),
        lost_late=_lost_late(seen, number, probes),
        too_fast=seen.too_fast(talk.affected, flowing_ns, repair_ns) if flowing_ns < repair_ns else 0,
        lost_bytes=log.lost_bytes,
        probes_lost=_lost(seen, probes, fault_ns - IN_FLIGHT_NS, after_ns),
        return_lost=_lost(seen, probes, repair_ns, min(after_ns, seen.next_act_ns(repair_ns) - IN_FLIGHT_NS)),
        broken=tuple(log.broken.values()),
        t_ms=tuple(n * BIN_MS - (fault_ns - seen.begun_ns) / 1e6 for n in range(len(whole))[shown]),
        bps=tuple(whole[shown].tolist()),
        affected_bps=tuple(affected[shown].tolist()),
    )


def back_ns(
    script: Script, struck_ns: Sequence[int], mended_ns: Sequence[int], events: Sequence[Told]
) -> Sequence[int]:
    """When each fault of a script was over, which struck and began to be mended then."""
    times = zip(script.faults, struck_ns, mended_ns, strict=True)
    return [_back_ns(timed.fault, struck, mended, events) for timed, struck, mended in times]


def _back_ns(fault: Fault, struck_ns: int, mended_ns: int, events: Sequence[Told]) -> int:
    """When its repair began; of a controller or registry, when it was there again; of a reboot, when the controller
    had its switch again.
    """
    if fault.kind == "rail-switch-reboot":
        back = (at for at, what, detail in events if what == "switch-up" and detail.get("switch") == fault.target)
        return min((at for at in back if struck_ns <= at < mended_ns), default=mended_ns)
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


def _first_packet_ms(seen: Seen, number: int, pairs: frozenset[Pair]) -> float | None:
    """Of these probed pairs; None too if there are none."""
    fault_ns, repair_ns = seen.struck_ns[number], seen.back_ns[number]
    again = seen.strikes_again(number)
    by_ns = seen.next_act_ns(fault_ns)
    return first_packet_ms(seen.log_of(pairs), fault_ns, repair_ns, by_ns, again) if pairs else None


def _lost_late(seen: Seen, number: int, pairs: frozenset[Pair]) -> int:
    """Of these probed pairs, unless something else was done so late that it may be that one's outage."""
    repair_ns = seen.back_ns[number]
    others = [at for n, at in enumerate((*seen.struck_ns, *seen.mended_ns)) if n % len(seen.struck_ns) != number]
    if any(repair_ns - SETTLE_S * 1e9 < at <= repair_ns for at in others):
        return 0
    return lost_late(seen.log_of(pairs), repair_ns, seen.strikes_again(number))


def _home_ms(seen: Seen, number: int) -> float | None:
    """Until its detours are withdrawn: alone, until none is left; else until no more are than there were before."""
    fault_ns, repair_ns = seen.struck_ns[number], seen.back_ns[number]
    if len(seen.script.faults) == 1:
        return home_ms(seen.events, repair_ns, None, 0)
    if not same_others(number, seen.struck_ns, seen.mended_ns, int(SETTLE_S * 1e9)):
        return None
    return home_ms(seen.events, repair_ns, seen.next_act_ns(repair_ns), in_force(seen.events, fault_ns))


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
