"""Connectivity check: probe every ordered pair of GPUs, and compare answers and counters with the oracle.

`ConnectivityChecker` is the handle on the processes that probe (worker.py); `missed_checks` finds those that were due.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from railyard.core.records import ConnectivityCheck, IntervalId
from railyard.core.worker import ANSWER_S
from railyard.failure.connectivity.worker import PAIRS_PER_S, Answered, Open, Ports, Probe, ReadPorts
from railyard.failure.faults import Cable, Fault, cable
from railyard.failure.oracle.reachability import Bounds, bounds, part_name
from railyard.failure.probes.sites import Site, SiteWorkers
from railyard.failure.script import SETTLE_S, Action, QuietPeriod
from railyard.topologies.addresses import Pair
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import HEARTBEAT_BPS, burst_bytes
from railyard.topologies.fabric_kinds import LAYERS, End
from railyard.topologies.measure.counters import TRAFFIC, PortStats
from railyard.topologies.plan import Plan


@dataclass(frozen=True, slots=True)
class Verdict:
    """Differences from the oracle; none if all are empty.

    `not_recovered`: a path is left, and probes weren't answered.
    `impossible`: answered without a path, so the fault isn't there or the oracle errs.
    `carried`: dead parts with what they passed on, and the live cables in `slowed` with how many bytes more than their
    rate allows.
    """

    not_recovered: tuple[Pair, ...] = ()
    impossible: tuple[Pair, ...] = ()
    carried: tuple[tuple[str | Cable, int], ...] = ()
    slowed: frozenset[Cable] = frozenset()

    def lines(self) -> list[str]:
        """Return a line for each difference, by name."""
        lines: list[str] = []
        for src, dst in self.not_recovered:
            lines.append(f"{src.name} -> {dst.name}: a path is left, but it did not recover")
        for src, dst in self.impossible:
            lines.append(f"{src.name} -> {dst.name}: answered, though nothing joins them")
        for part, amount in self.carried:
            problem = f"dead, but it carried {amount}"
            if part in self.slowed:
                problem = f"slowed, but it carried more than what is left of its rate, by {amount} bytes"
            lines.append(f"{part_name(part)}: {problem}")
        return lines


WORKER: Final = "railyard.failure.connectivity.worker"
# a gray link of 5% loses as many probes of one pair once in three million times
TRIES: Final = 5
MIN_TRIES: Final = 2
FINAL_WAIT_S: Final = 0.02  # for unexpected answers
RETRY_BUDGET_S: Final = 0.15  # the minimum time after the first pass
MAX_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 0.06
SLOW_PROBE_TIMEOUT_S: Final = 0.35
"""For slow links: the queue holds the windows of all streams that cross it, at a share of the rate."""
_MARGIN_S: Final = 0.01
_RX: Final = TRAFFIC.index("rx_packets")
_TX: Final = TRAFFIC.index("tx_packets")
_RX_BYTES: Final = TRAFFIC.index("rx_bytes")
SLACK: Final = 1.05
# the largest frame: with TSO a shaper gets, and passes, so much as one packet
FRAME_BYTES: Final = 65_536 + 14

Counters = Mapping[str, Mapping[str, PortStats]]


def duration_s(plan: Plan) -> float:
    """Return the minimum duration of a check, s."""
    return len(plan.gpus) * (len(plan.gpus) - 1) / PAIRS_PER_S + RETRY_BUDGET_S


class ConnectivityChecker(SiteWorkers):
    """Handle on the processes that probe all pairs, with open sockets. End it before the fabric is stopped.

    `reroute`: whether pairs have to recover; without, it only counts how many are cut off.
    `sites`: the machines of the fabric.
    """

    def __init__(self, net: FabricNet, reroute: bool = True, sites: Sequence[Site] = (Site(),)) -> None:
        self._net = net
        self._reroute = reroute
        self._gpus = net.plan.gpus
        self._number = 0
        n = len(self._gpus)
        self._pairs: list[tuple[int, int]] = []
        # in each round each GPU probes another one, so that no GPU receives many probes at once
        for step in range(1, n):
            self._pairs += [(a, (a + step) % n) for a in range(n)]
        opening = (lambda site: Open(gpus=self._gpus, here=site.nodes),)
        super().__init__(sites, WORKER, "the connectivity worker", (Answered, Ports), opening)

    def probe(
        self, expected: Collection[Pair], end_s: float, timeout_s: float = PROBE_TIMEOUT_S
    ) -> dict[Pair, bool] | None:
        """Probe all pairs until `end_s` (monotonic) at most; return whether each answered, None if time was too short.

        Pairs that are expected to answer, and don't within `timeout_s`, are probed again. Time is too short if not
        every pair without an answer was probed `MIN_TRIES` times: a missing answer means nothing then.
        """
        self._number = (self._number + 1) % 2**32
        index_of = {gpu: index for index, gpu in enumerate(self._gpus)}
        awaited = frozenset((index_of[a], index_of[b]) for a, b in expected)
        pending = self._pairs
        tries = 0
        answered = frozenset[tuple[int, int]]()
        in_time = True
        while pending and tries < TRIES and in_time:
            answered, in_time = self._try(pending, awaited, timeout_s, end_s)
            tries += in_time
            pending = [pair for pair in self._pairs if pair in awaited and pair not in answered]
        wait_s = max(0.0, min(FINAL_WAIT_S, end_s - time.monotonic()))
        answered, _ = self._try([], frozenset(), wait_s, end_s)
        min_tries = MIN_TRIES if pending else 1
        if tries < min_tries:
            return None
        return {(self._gpus[a], self._gpus[b]): (a, b) in answered for a, b in self._pairs}

    def _try(
        self, pairs: list[tuple[int, int]], awaited: frozenset[tuple[int, int]], timeout_s: float, end_s: float
    ) -> tuple[frozenset[tuple[int, int]], bool]:
        """Let all machines probe these pairs once; return all that have answered, and whether there was time for it."""
        within_s = max(0.0, end_s - time.monotonic())
        probe = Probe(
            number=self._number, pairs=pairs, awaited=awaited, send_s=len(pairs) / PAIRS_PER_S, timeout_s=timeout_s,
            within_s=within_s,
        )  # fmt: skip
        for worker in self._workers:
            worker.send(probe)
        answered = frozenset[tuple[int, int]]()
        in_time = True
        for worker in self._workers:
            result = worker.receive(Answered, within_s + timeout_s + ANSWER_S)
            answered = answered.union(result.pairs)
            in_time = in_time and result.in_time
        return answered, in_time

    def _read_ports(self, nodes: Collection[str]) -> dict[str, dict[str, PortStats]]:
        """Return the counters of nodes, by node and interface. All machines read at the same time."""
        reading = []
        for site, worker in zip(self._sites, self._workers, strict=True):
            local_nodes = tuple(node for node in nodes if site.has(node))
            if local_nodes:
                worker.send(ReadPorts(nodes=local_nodes))
                reading.append(worker)
        counters: dict[str, dict[str, PortStats]] = {}
        for worker in reading:
            counters |= worker.receive(Ports).ports
        return counters

    def check(self, quiet_time: QuietPeriod, actions: Sequence[Action]) -> ConnectivityCheck | None:
        """Take a check now; return None if it did not finish before the next action. `actions`: all so far."""
        at_ns = time.monotonic_ns()
        plan = self._net.plan
        datapath = self._net.datapath
        # the kernel's datapath forwards on after its switch's process has died: the oracle must not take it for dead
        effective = [fault for fault in quiet_time.broken if not fault.definition.keeps_forwarding(datapath)]
        remaining = bounds(plan, effective)
        expected = remaining.lower.reachable
        nodes = watched_nodes(plan, remaining)
        start_s = time.monotonic()
        before = self._read_ports(nodes)
        end_s = min(start_s + MAX_S, quiet_time.until_ns / 1e9 - _MARGIN_S)
        timeout_s = SLOW_PROBE_TIMEOUT_S if remaining.lower.dead.slowed else PROBE_TIMEOUT_S
        answered = self.probe(expected, end_s, timeout_s)
        after = self._read_ports(nodes)
        excess = counter_excess(plan, remaining, before, after, time.monotonic() - start_s)
        if answered is None or time.monotonic_ns() > quiet_time.until_ns:
            return None
        verdict = judge(remaining, answered, excess)
        if not self._reroute or changed_without_controller(quiet_time.broken, actions):
            verdict = replace(verdict, not_recovered=())
        return ConnectivityCheck(
            IntervalId(),  # the caller's to know
            monotonic_ns=at_ns,
            last_event=quiet_time.last.name,
            broken=len(quiet_time.broken),
            pairs=len(answered),
            reachable=len(expected),
            answered=sum(answered.values()),
            not_recovered=len(verdict.not_recovered),
            unexpected_answers=len(verdict.impossible),
            forwarding_failed_parts=len(verdict.carried),
            mismatches="\n".join(verdict.lines()),
        )


def changed_without_controller(broken: Collection[Fault], actions: Sequence[Action]) -> bool:
    """Return whether the data plane changed while the controller was down, or just before, so that it did not react."""
    if not any(fault.definition.stops_controller for fault in broken):
        return False
    crash_ns = 0
    for action in actions:
        if action.operation == "inject" and action.fault.definition.stops_controller:
            crash_ns = action.at_ns
    since_ns = crash_ns - SETTLE_S * 1e9
    recent = [action for action in actions if action.done_ns >= since_ns]
    return any(not action.fault.definition.is_control_plane for action in recent)


def judge(remaining: Bounds, answered: Mapping[Pair, bool], excess: Mapping[str | Cable, int]) -> Verdict:
    """Compare outcomes after the recovery with the oracle. Intermittent parts may work or not.

    `answered`: for each probed pair, whether a probe arrived.
    `excess`: as `counter_excess` returns it.
    """
    dead = remaining.upper.dead
    not_recovered: list[Pair] = []
    impossible: list[Pair] = []
    for pair in sorted(answered):
        if answered[pair] and pair not in remaining.upper.connected:
            impossible.append(pair)
        if not answered[pair] and pair in remaining.lower.reachable:
            not_recovered.append(pair)
    slowed = frozenset(dead.slowed.keys() - dead.cables)
    parts = sorted(excess, key=lambda part: (part in slowed, part_name(part)))
    carried = tuple((part, excess[part]) for part in parts)
    return Verdict(tuple(not_recovered), tuple(impossible), carried, slowed & excess.keys())


def watched_nodes(plan: Plan, remaining: Bounds) -> list[str]:
    """Return the nodes whose counters must not grow, or not too much."""
    dead = remaining.upper.dead
    cables = dead.cables | dead.slowed.keys()
    nodes = set(dead.nodes)
    for cable_name, near, far in _gpu_cables(plan):
        if cable_name in cables:
            nodes |= {near.node, far.node}
    return sorted(nodes)


def counter_excess(
    plan: Plan, remaining: Bounds, before: Counters, after: Counters, seconds: float
) -> dict[str | Cable, int]:
    """Return the parts that forwarded more than they can, and how much more.

    A part that is certainly dead: packets that a node sent, or that came from a cable. A slow cable: the bytes by
    which it exceeded its rate in either direction.
    """

    def delta(end: End, counter: int) -> int:
        earlier = before[end.node][end.interface].traffic[counter]
        later = after[end.node][end.interface].traffic[counter]
        return later - earlier

    dead = remaining.upper.dead
    excess: defaultdict[str | Cable, int] = defaultdict(int)
    for cable_name, near, far in _gpu_cables(plan):
        if cable_name in dead.cables:
            excess[cable_name] = delta(near, _RX) + delta(far, _RX)
        elif cable_name in dead.slowed:
            limit = max_bytes(dead.slowed[cable_name], plan.spec.mtu, seconds)
            excess[cable_name] = max(delta(near, _RX_BYTES), delta(far, _RX_BYTES)) - limit
    for link in plan.links:
        for end in (link.a, link.b):
            if end.node in dead.nodes:
                excess[end.node] += delta(end, _TX)
    return {part: amount for part, amount in excess.items() if amount > 0}


def max_bytes(rate_bps: int, mtu: int, seconds: float) -> int:
    """Return what a shaper may pass in that time: its rate and 5%, its burst, the last frame, and heartbeats."""
    # heartbeats have a class of their own, beside that of the rate
    bps = rate_bps * SLACK + HEARTBEAT_BPS
    return round(bps * seconds / 8) + burst_bytes(rate_bps, mtu) + FRAME_BYTES


def _gpu_cables(plan: Plan) -> Iterator[tuple[Cable, End, End]]:
    for layer in LAYERS:
        for name in plan.link_names(layer):
            near, far = plan.ends_of(name, layer)
            yield cable(near.node, far.node), near, far


# the expected duration of an action, s: after a longer one, the check is still due
MAX_ACTION_S: Final = 0.15


def missed_checks(
    actions: Sequence[Action], taken: Sequence[ConnectivityCheck], check_s: float, after_s: float
) -> list[ConnectivityCheck]:
    """Return a record for each missing check. One is due after each action that is followed by enough idle time.

    `check_s`: the duration of a check.
    `after_s`: the time after the last action, of which there must be one.
    """
    ordered = sorted(actions, key=lambda action: action.at_ns)
    script_end_ns = max(action.done_ns for action in actions) + int(after_s * 1e9)
    ends = [action.at_ns for action in ordered[1:]]
    ends.append(script_end_ns)
    missing: list[ConnectivityCheck] = []
    broken: list[Fault] = []
    for action, end_ns in zip(ordered, ends, strict=True):
        if action.operation == "inject":
            broken.append(action.fault)
        else:
            broken.remove(action.fault)
        # a controller may take its time to start: there, idle time counts from when the action was done
        counts_from_done = action is ordered[-1] or action.fault.definition.is_control_plane
        begin_ns = action.done_ns if counts_from_done else action.at_ns + int(MAX_ACTION_S * 1e9)
        is_due = end_ns - begin_ns > (SETTLE_S + check_s) * 1e9
        if is_due and not any(action.at_ns <= check.monotonic_ns < end_ns for check in taken):
            # of pairs, reachable and answered ones, and differences from the oracle
            zeros = (0, 0, 0, 0, 0, 0)
            missing.append(ConnectivityCheck(IntervalId(), end_ns, action.name, len(broken), *zeros, done=False))
    return missing
