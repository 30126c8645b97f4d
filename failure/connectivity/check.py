"""Connectivity check: probe every ordered pair of GPUs, and compare answers and counters with the oracle.

`ConnectivityChecker` is the handle on the process that probes (worker.py); `missed_checks` finds those that were due.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from railyard.core.worker import Ready, Worker
from railyard.failure.connectivity.worker import PAIRS_PER_S, Answered, Open, Probe
from railyard.failure.faults import Cable, Fault, cable
from railyard.failure.oracle.reachability import Bounds, bounds, part_name
from railyard.failure.scenario.pairs import Pair
from railyard.failure.scenario.script import SETTLE_S, Action, QuietPeriod
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import HEARTBEAT_BPS, burst_bytes
from railyard.topologies.fabric_kinds import End
from railyard.topologies.measure.counters import TRAFFIC, PortReader, PortStats
from railyard.topologies.plan import Plan
from railyard.topologies.spec import LAYERS


@dataclass(frozen=True, slots=True)
class Verdict:
    """Differences from the oracle; all empty if there are none.

    `not_recovered`: a path is left, and probes weren't answered. `impossible`: answered without a path, so the fault
    isn't there or the oracle errs. `carried`: dead parts with what they passed on, and the live cables in `slowed`
    with how many bytes more than their rate allows.
    """

    not_recovered: tuple[Pair, ...] = ()
    impossible: tuple[Pair, ...] = ()
    carried: tuple[tuple[str | Cable, int], ...] = ()
    slowed: frozenset[Cable] = frozenset()

    @property
    def holds(self) -> bool:
        """Absence of any difference."""
        return not (self.not_recovered or self.impossible or self.carried)

    def lines(self) -> list[str]:
        """Return a line for each difference, by name."""
        slow = "slowed, but it carried more than what is left of its rate, by {} bytes"
        return [
            *(f"{a.name} -> {b.name}: a path is left, but it did not recover" for a, b in self.not_recovered),
            *(f"{a.name} -> {b.name}: answered, though nothing joins them" for a, b in self.impossible),
            *(
                f"{part_name(part)}: {(slow if part in self.slowed else 'dead, but it carried {}').format(amount)}"
                for part, amount in self.carried
            ),
        ]


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
FRAME_BYTES: Final = 65_536 + 14  # the largest: with TSO a shaper gets, and passes, so much as one packet

Counters = Mapping[str, Mapping[str, PortStats]]


@dataclass(frozen=True, slots=True)
class ConnectivityResult:
    """One check, at `at_ns` after the action `act`, with these active faults. Not `taken`: it was due until then."""

    at_ns: int
    act: str
    broken: tuple[Fault, ...]
    pairs: int
    reachable: int
    answered: int
    verdict: Verdict
    taken: bool = True


def duration_s(plan: Plan) -> float:
    """Return the minimum duration of a check, s."""
    return len(plan.gpus) * (len(plan.gpus) - 1) / PAIRS_PER_S + RETRY_BUDGET_S


class ConnectivityChecker(Worker):
    """Handle on the process that probes all pairs, with open sockets. End it before the fabric is stopped."""

    def __init__(self, net: FabricNet) -> None:
        self._net = net
        super().__init__("railyard.failure.connectivity.worker", "the connectivity worker", Ready, Answered)
        self.open(Open(gpus=net.plan.gpus))

    def probe(
        self, expected: Collection[Pair], end_s: float, timeout_s: float = PROBE_TIMEOUT_S
    ) -> dict[Pair, bool] | None:
        """Probe all pairs until `end_s` (monotonic) at most; return whether each answered, None if time was too short.

        Pairs that are expected to answer, and don't within `timeout_s`, are probed again.
        """
        request = Probe(expected=frozenset(expected), timeout_s=timeout_s, end_s=end_s)
        return self.ask(request, Answered, timeout_s=None).pairs

    def check(self, quiet_time: QuietPeriod, actions: Sequence[Action]) -> ConnectivityResult | None:
        """Take a check now; return None if it did not finish before the next action. `actions`: all so far."""
        at_ns, plan, datapath = time.monotonic_ns(), self._net.plan, self._net.datapath
        remaining = bounds(
            plan, [fault for fault in quiet_time.broken if not fault.definition.keeps_forwarding(datapath)]
        )
        expected = remaining.lower.reachable
        with closing(PortReader(watched_nodes(plan, remaining))) as reader:
            start_s, before = time.monotonic(), reader.read()
            end_s = min(start_s + MAX_S, quiet_time.until_ns / 1e9 - _MARGIN_S)
            timeout_s = SLOW_PROBE_TIMEOUT_S if remaining.lower.dead.slowed else PROBE_TIMEOUT_S
            answered = self.probe(expected, end_s, timeout_s)
            after = reader.read()
            overruns = slow_cable_excess(plan, remaining, before, after, time.monotonic() - start_s)
        if answered is None or time.monotonic_ns() > quiet_time.until_ns:
            return None
        verdict = judge(remaining, answered, dead_part_deltas(plan, remaining, before, after), overruns)
        if changed_without_controller(quiet_time.broken, actions):
            verdict = replace(verdict, not_recovered=())
        counts = len(answered), len(expected), sum(answered.values())
        return ConnectivityResult(at_ns, quiet_time.last.name, quiet_time.broken, *counts, verdict)


def changed_without_controller(broken: Collection[Fault], actions: Sequence[Action]) -> bool:
    """Return whether the data plane changed while the controller was down, or just before, so that it did not react."""
    if not any(fault.definition.stops_controller for fault in broken):
        return False
    crashes = (act for act in reversed(actions) if act.operation == "inject" and act.fault.definition.stops_controller)
    since_ns = next(crashes).at_ns - SETTLE_S * 1e9
    return any(act.done_ns >= since_ns and not act.fault.definition.is_control_plane for act in actions)


def judge(
    remaining: Bounds,
    answered: Mapping[Pair, bool],
    deltas: Mapping[str | Cable, int],
    overruns: Mapping[Cable, int],
) -> Verdict:
    """Compare outcomes after the recovery with the oracle. Intermittent parts may work or not.

    `answered`: for each probed pair, whether a probe arrived. `deltas`: by how much the counter of what each part
    passed on grew; only that of dead ones must not. `overruns`: as `slow_cable_excess` has them.
    """
    lower, upper = remaining.lower, remaining.upper
    pairs = sorted(answered)
    dead = ((part, deltas[part]) for part in sorted(deltas, key=part_name) if deltas[part] and upper.is_dead(part))
    return Verdict(
        tuple(pair for pair in pairs if not answered[pair] and pair in lower.reachable),
        tuple(pair for pair in pairs if answered[pair] and pair not in upper.connected),
        (*dead, *((ends, overruns[ends]) for ends in sorted(overruns, key=part_name))),
        frozenset(overruns),
    )


def watched_nodes(plan: Plan, remaining: Bounds) -> list[str]:
    """Return the nodes whose counters must not grow, or not too much."""
    ends = [end for part in _dead_counters(plan, remaining).values() for end, _ in part]
    slowed = remaining.upper.dead.slowed
    ends += [end for cable_ends, *both in _gpu_cables(plan) if cable_ends in slowed for end in both]
    return sorted({end.node for end in ends})


def dead_part_deltas(plan: Plan, remaining: Bounds, before: Counters, after: Counters) -> dict[str | Cable, int]:
    """Return the packets that each dead part forwarded: sent by a dead node, or received from a dead cable."""
    counters = _dead_counters(plan, remaining)
    return {part: sum(_delta(before, after, *end) for end in ends) for part, ends in counters.items()}


def slow_cable_excess(
    plan: Plan, remaining: Bounds, before: Counters, after: Counters, seconds: float
) -> dict[Cable, int]:
    """Return the bytes by which slow cables, in either direction, exceeded their rate; only those that did."""
    dead, found = remaining.upper.dead, dict[Cable, int]()
    for ends, *both in _gpu_cables(plan):
        if ends in dead.slowed and ends not in dead.cables:
            carried = max(_delta(before, after, end, _RX_BYTES) for end in both)
            found[ends] = carried - max_bytes(dead.slowed[ends], plan.spec.mtu, seconds)
    return {ends: excess for ends, excess in found.items() if excess > 0}


def max_bytes(rate_bps: int, mtu: int, seconds: float) -> int:
    """Return what a shaper may pass in that time: its rate and 5%, its burst, the last frame; and heartbeats, which
    have a class of their own.
    """
    return round((rate_bps * SLACK + HEARTBEAT_BPS) * seconds / 8) + burst_bytes(rate_bps, mtu) + FRAME_BYTES


def _delta(before: Counters, after: Counters, end: End, counter: int) -> int:
    earlier, later = (counters[end.node][end.interface].traffic for counters in (before, after))
    return later[counter] - earlier[counter]


def _dead_counters(plan: Plan, remaining: Bounds) -> Mapping[str | Cable, list[tuple[End, int]]]:
    """Return the counters of each part that is certainly dead: of packets from a cable, and of those a node sent."""
    dead = remaining.upper.dead
    found: defaultdict[str | Cable, list[tuple[End, int]]] = defaultdict(list)
    for ends, *both in _gpu_cables(plan):
        if ends in dead.cables:
            found[ends] += [(end, _RX) for end in both]
    for end in (end for link in plan.links for end in (link.a, link.b)):
        if end.node in dead.nodes:
            found[end.node].append((end, _TX))
    return found


def _gpu_cables(plan: Plan) -> Iterator[tuple[Cable, End, End]]:
    """Yield each GPU cable with its two ends: the GPU's and the switch's."""
    for layer in LAYERS:
        for near, far in (plan.ends_of(name, layer) for name in plan.link_names(layer)):
            yield cable(near.node, far.node), near, far


MAX_ACTION_S: Final = 0.15
"""The expected duration of an action, s: after a longer one, the check is still due."""


def missed_checks(
    actions: Sequence[Action], taken: Sequence[ConnectivityResult], check_s: float, after_s: float
) -> list[ConnectivityResult]:
    """Return a result for each missing check. One is due after each action that is followed by enough idle time.

    `check_s`: the duration of a check. `after_s`: the time after the last action, of which there must be one. A
    controller may take its time to start: there, idle time counts from when the action was done.
    """
    ordered = sorted(actions, key=lambda action: action.at_ns)
    ends = [*(action.at_ns for action in ordered[1:]), max(action.done_ns for action in actions) + int(after_s * 1e9)]
    found, broken = list[ConnectivityResult](), list[Fault]()
    for action, end_ns in zip(ordered, ends, strict=True):
        (broken.append if action.operation == "inject" else broken.remove)(action.fault)
        counts_from_done = action is ordered[-1] or action.fault.definition.is_control_plane
        begin_ns = action.done_ns if counts_from_done else action.at_ns + int(MAX_ACTION_S * 1e9)
        is_due = end_ns - begin_ns > (SETTLE_S + check_s) * 1e9
        if is_due and not any(action.at_ns <= check.at_ns < end_ns for check in taken):
            found.append(ConnectivityResult(end_ns, action.name, tuple(broken), 0, 0, 0, Verdict(), taken=False))
    return found
