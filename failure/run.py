"""One fault, from first packet to last: traffic on, break it, mend it, and what was seen, in one record."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from failure.faults import Fault, inject, repair
from failure.pairs import Pair, Talkers
from failure.recovery import BIN_MS, Trace, first_packet_ms, goodput, restored_ms, step_ms
from failure.traffic import Traffic, TrafficJob, TrafficLog
from topologies.net import FabricNet

WARM_UP_S: Final = 0.2  # of the time before the fault: streams settle, and it doesn't count as "before"
AFTER_S: Final = 0.8  # after the repair, at least
DRAIN_S: Final = 6.0  # a connection that was cut off for 2 s may wait 3.2 s before it tries again
STREAM_SHARE: Final = 0.08  # of a rail for each stream: two or three from each GPU, and room for detours

Events = Callable[[], list[tuple[int, str]]]


@dataclass(frozen=True)
class FaultRun:
    """What happened. Times are ms after the fault (`back_ms`: after the repair); None where it never came."""

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


def run_fault(net: FabricNet, fault: Fault, talk: Talkers, at_s: float, repair_s: float, events: Events) -> FaultRun:
    """Run traffic for `at_s`, break something for `repair_s`, and measure. CheckFailed if the fault did not bite.

    `at_s` is longer than the warm-up, or there would be nothing to compare with.
    `events` gives what the controller has told so far, as (monotonic ns, what).
    """
    if at_s <= WARM_UP_S:
        raise ValueError(f"at_s must be above {WARM_UP_S}, not {at_s}")
    traffic = Traffic(TrafficJob(talk.streams, talk.probes, net.plan.rail_bps * STREAM_SHARE / 8))
    try:
        begun_ns = time.monotonic_ns()
        traffic.go()
        time.sleep(at_s)
        fault_ns = inject(net, fault)
        time.sleep(max(0.0, repair_s - (time.monotonic_ns() - fault_ns) / 1e9))
        repair_ns = time.monotonic_ns()
        repair(net, fault)
        time.sleep(AFTER_S)
        log = traffic.stop(DRAIN_S)
    except BaseException:
        traffic.end()
        raise
    return _judge(talk, log, begun_ns, fault_ns, repair_ns, events())


def _traces(talk: Talkers, log: TrafficLog, start_ns: int, end_ns: int) -> tuple[Trace, Trace]:
    """Goodput of all streams, and of those whose path crossed the fault."""
    everything = [r for receipts in log.receipts.values() for r in receipts]
    affected = [r for n, pair in enumerate(talk.streams) if pair in talk.affected for r in log.receipts[n]]
    return goodput(everything, start_ns, end_ns), goodput(affected, start_ns, end_ns)


def first_packet_ms_of(
    pairs: frozenset[Pair], talk: Talkers, log: TrafficLog, fault_ns: int, repair_ns: int
) -> float | None:
    """The same for some of the probed pairs; None too if there are none of them."""
    chosen = [probe for pair, probe in zip(talk.probes, log.probes, strict=True) if pair in pairs]
    return first_packet_ms(chosen, fault_ns, repair_ns) if chosen else None


def _judge(
    talk: Talkers, log: TrafficLog, begun_ns: int, fault_ns: int, repair_ns: int, events: list[tuple[int, str]]
) -> FaultRun:
    last_ns = max((at for receipts in log.receipts.values() for at, _ in receipts), default=repair_ns)
    end_ns = max(last_ns, repair_ns + int(AFTER_S * 1e9))
    whole, affected = _traces(talk, log, begun_ns, end_ns)
    warm, bite = (int(at / (BIN_MS * 1e6)) for at in (WARM_UP_S * 1e9, fault_ns - begun_ns))
    before = float(affected[warm:bite].mean())
    first_ms = first_packet_ms(log.probes, fault_ns, repair_ns)
    goodput_ms = restored_ms(affected, begun_ns, fault_ns, repair_ns, before)
    if first_ms is not None and goodput_ms is not None:
        goodput_ms = max(goodput_ms, first_ms)  # bins are coarse: goodput can't be back before the first packet
    sending_ends_ns = repair_ns + int(AFTER_S * 1e9)
    return FaultRun(
        fault_ns=fault_ns,
        repair_ns=repair_ns,
        detect_ms=step_ms(events, {"port-down", "switch-down", "silent"}, fault_ns, repair_ns),
        decided_ms=step_ms(events, {"decided"}, fault_ns, repair_ns),
        reroute_ms=step_ms(events, {"rerouted"}, fault_ns, repair_ns),
        first_packet_ms=first_ms,
        source_ms=first_packet_ms_of(talk.at_source, talk, log, fault_ns, repair_ns),
        far_ms=first_packet_ms_of(frozenset(talk.probes) - talk.at_source, talk, log, fault_ns, repair_ns),
        goodput_ms=goodput_ms,
        back_ms=restored_ms(affected, begun_ns, repair_ns, sending_ends_ns, before),
        lost_bytes=log.lost_bytes,
        probes_lost=sum(len(p.lost(0, 1 << 62)) for p in log.probes),
        return_lost=sum(len(p.lost(repair_ns, 1 << 62)) for p in log.probes),
        broken=tuple(log.broken.values()),
        t_ms=tuple(i * BIN_MS - (fault_ns - begun_ns) / 1e6 for i in range(len(whole))),
        bps=tuple(whole.tolist()),
        affected_bps=tuple(affected.tolist()),
    )
