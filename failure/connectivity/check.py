"""Connectivity check: probe every ordered pair of GPUs, and compare answers and counters with the oracle.

`ConnectivityChecker` is the handle on the process that probes (worker.py); `missed_checks` finds those that were due.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Self

from railyard.core.worker import Ready, Worker
from railyard.failure.connectivity.worker import PAIRS_PER_S, Answered, Open, Probe
from railyard.failure.faults import Cable, Fault, cable
from railyard.failure.oracle.reachability import Bounds, Survivors, bounds
from railyard.failure.scenario.pairs import Pair
from railyard.failure.scenario.script import SETTLE_S, Action, QuietPeriod
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import HEARTBEAT_BPS, burst_bytes
from railyard.topologies.measure.counters import TRAFFIC, PortReader, PortStats
from railyard.topologies.plan import End, Plan
from railyard.topologies.spec import LAYERS


@dataclass(frozen=True, slots=True)
class Verdict:
    """Differences from the oracle; all empty if there are none.

    not_recovered: the fabric's own paths join the pair, and its probes weren't answered. impossible: answered, though
    nothing joins the pair, so the fault isn't there or the oracle errs. carried: dead nodes and cables that passed
    something on, with how much; and those in `slowed`, live cables, with how many bytes more than their rate allows.
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
        return [
            *(f"{a.name} -> {b.name}: a path is left, but it did not recover" for a, b in self.not_recovered),
            *(f"{a.name} -> {b.name}: answered, though nothing joins them" for a, b in self.impossible),
            *(self._carried_line(part, amount) for part, amount in self.carried),
        ]

    def _carried_line(self, part: str | Cable, amount: int) -> str:
        if part in self.slowed:
            return f"{name_of(part)}: slowed, but it carried more than what is left of its rate, by {amount} bytes"
        return f"{name_of(part)}: dead, but it carried {amount}"


def name_of(part: str | Cable) -> str:
    """Return the name of a node; of a cable, those of its ends."""
    return part if isinstance(part, str) else "-".join(sorted(part))


def judge(survivors: Survivors, answered: Mapping[Pair, bool], counter_deltas: Mapping[str | Cable, int]) -> Verdict:
    """Compare outcomes after the recovery with what the broken fabric can do.

    answered: for each ordered pair that was probed, whether a probe arrived. counter_deltas: by how much the counter of
    what a node or cable passed on (bytes, packets) grew since it was dead; of live ones any growth is right. ValueError
    for a pair of GPUs that the fabric doesn't have.
    """
    known = set(survivors.plan.gpus)
    for src, dst in answered:
        if not {src, dst} <= known:
            raise ValueError(f"{src.name} -> {dst.name}: not both in a fabric of {len(known)} GPUs")
    pairs = sorted(answered, key=lambda pair: [(gpu.domain, gpu.rank) for gpu in pair])
    return Verdict(
        tuple(pair for pair in pairs if not answered[pair] and pair in survivors.reachable),
        tuple(pair for pair in pairs if answered[pair] and pair not in survivors.connected),
        tuple(
            (part, counter_deltas[part])
            for part in sorted(counter_deltas, key=name_of)
            if counter_deltas[part] and survivors.is_dead(part)
        ),
    )


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


class ConnectivityChecker:
    """Handle on the process that probes all pairs, with open sockets. Close it before the fabric is stopped."""

    def __init__(self, net: FabricNet) -> None:
        self._net = net
        self._worker = Worker("railyard.failure.connectivity.worker", "the connectivity worker", Ready, Answered)
        try:
            self._worker.ask(Open(gpus=net.plan.gpus), Ready)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._worker.end()

    def probe(
        self, expected: Collection[Pair], end_s: float, timeout_s: float = PROBE_TIMEOUT_S
    ) -> dict[Pair, bool] | None:
        """Probe all pairs until `end_s` (monotonic) at most; return whether each answered, None if time was too short.

        Pairs that are expected to answer, and don't within `timeout_s`, are probed again.
        """
        request = Probe(expected=frozenset(expected), timeout_s=timeout_s, end_s=end_s)
        return self._worker.ask(request, Answered, timeout_s=None).pairs

    def check(self, quiet_time: QuietPeriod, actions: Sequence[Action]) -> ConnectivityResult | None:
        """Take a check now; return None if it did not finish before the next action. `actions`: all so far."""
        at_ns, plan = time.monotonic_ns(), self._net.plan
        remaining = bounds(plan, [fault for fault in quiet_time.broken if not self._keeps_forwarding(fault)])
        expected = remaining.lower.reachable
        with closing(PortReader(watched_nodes(plan, remaining))) as reader:
            start_s, before = time.monotonic(), reader.read()
            end_s = min(time.monotonic() + MAX_S, quiet_time.until_ns / 1e9 - _MARGIN_S)
            answered = self.probe(
                expected, end_s, SLOW_PROBE_TIMEOUT_S if remaining.lower.dead.slowed else PROBE_TIMEOUT_S
            )
            after = reader.read()
            overrun_bytes = slow_cable_excess(plan, remaining, before, after, time.monotonic() - start_s)
        if answered is None or time.monotonic_ns() > quiet_time.until_ns:
            return None
        verdict = compare_with_bounds(
            remaining, answered, dead_part_deltas(plan, remaining, before, after), overrun_bytes
        )
        if changed_without_controller(quiet_time.broken, actions):
            verdict = replace(verdict, not_recovered=())
        return ConnectivityResult(
            at_ns,
            quiet_time.last.name,
            quiet_time.broken,
            len(answered),
            len(expected),
            sum(answered.values()),
            verdict,
        )

    def _keeps_forwarding(self, fault: Fault) -> bool:
        """Return whether what the fault kills keeps forwarding by this fabric's datapath."""
        return fault.definition.keeps_forwarding(self._net.datapath)


def changed_without_controller(broken: Collection[Fault], actions: Sequence[Action]) -> bool:
    """Return whether the data plane changed while the controller was down, or just before, so that it did not react."""
    if not any(fault.definition.stops_controller for fault in broken):
        return False
    crashes = (act for act in reversed(actions) if act.operation == "inject" and act.fault.definition.stops_controller)
    since_ns = next(crashes).at_ns - SETTLE_S * 1e9
    return any(act.done_ns >= since_ns and not act.fault.definition.is_control_plane for act in actions)


def compare_with_bounds(
    remaining: Bounds,
    answered: Mapping[Pair, bool],
    counter_deltas: Mapping[str | Cable, int],
    overrun_bytes: Mapping[Cable, int],
) -> Verdict:
    """Compare answers and counters with the oracle: what must work, what can't, what dead and slow parts carried.

    Intermittent parts may work or not.
    """
    lower, upper = judge(remaining.lower, answered, {}), judge(remaining.upper, answered, counter_deltas)
    overruns = tuple((ends, overrun_bytes[ends]) for ends in sorted(overrun_bytes, key=name_of))
    return Verdict(lower.not_recovered, upper.impossible, (*upper.carried, *overruns), frozenset(overrun_bytes))


def watched_nodes(plan: Plan, remaining: Bounds) -> list[str]:
    """Return the nodes whose counters must not grow, or not too much."""
    slow = {
        end.node for ends, *cable_ends in _gpu_cables(plan) if ends in remaining.upper.dead.slowed for end in cable_ends
    }
    return sorted(slow.union(end.node for ends in _watched(plan, remaining).values() for end, _ in ends))


def dead_part_deltas(plan: Plan, remaining: Bounds, before: Counters, after: Counters) -> dict[str | Cable, int]:
    """Return the packets that each dead part forwarded: sent by a dead node, or received from a dead cable."""
    found: dict[str | Cable, int] = {}
    for part, ends in _watched(plan, remaining).items():
        found[part] = sum(_counter_delta(before, after, *end) for end in ends)
    return found


def slow_cable_excess(
    plan: Plan, remaining: Bounds, before: Counters, after: Counters, seconds: float
) -> dict[Cable, int]:
    """Return the bytes by which slow cables, in either direction, exceeded their rate; only those that did."""
    found: dict[Cable, int] = {}
    for ends, *cable_ends in _gpu_cables(plan):
        if ends in remaining.upper.dead.slowed and ends not in remaining.upper.dead.cables:
            carried = max(_counter_delta(before, after, end, _RX_BYTES) for end in cable_ends)
            if (overrun_bytes := carried - max_bytes(remaining.upper.dead.slowed[ends], plan.spec.mtu, seconds)) > 0:
                found[ends] = overrun_bytes
    return found


def max_bytes(rate_bps: int, mtu: int, seconds: float) -> int:
    """Return what a shaper may pass in that time: its rate and 5%; its burst, a millisecond of the rate or two frames;
    the last frame; and heartbeats, which have a class of their own.
    """
    return round((rate_bps * SLACK + HEARTBEAT_BPS) * seconds / 8) + burst_bytes(rate_bps, mtu) + FRAME_BYTES


def _counter_delta(before: Counters, after: Counters, end: End, counter: int) -> int:
    earlier, later = (counters[end.node][end.interface].traffic for counters in (before, after))
    return later[counter] - earlier[counter]


def _watched(plan: Plan, remaining: Bounds) -> Mapping[str | Cable, list[tuple[End, int]]]:
    """Return the counters of each part that is certainly dead."""
    dead = remaining.upper.dead
    found: defaultdict[str | Cable, list[tuple[End, int]]] = defaultdict(list)
    for ends, near, far in _gpu_cables(plan):
        if ends in dead.cables:
            found[ends] += [(near, _RX), (far, _RX)]
    for end in (end for link in plan.links for end in (link.a, link.b)):
        if end.node in dead.nodes:
            found[end.node].append((end, _TX))
    return found


def _gpu_cables(plan: Plan) -> Iterator[tuple[Cable, End, End]]:
    """Yield each GPU cable with its two ends: the GPU's and the switch's."""
    for layer in LAYERS:
        for name in plan.link_names(layer):
            near, far = plan.ends_of(name, layer)
            yield cable(near.node, far.node), near, far


MAX_ACTION_S: Final = 0.15
"""The expected duration of an action, s: after a longer one, the check is still due."""


def missed_checks(
    actions: Sequence[Action], taken: Sequence[ConnectivityResult], check_s: float, after_s: float
) -> list[ConnectivityResult]:
    """Return a result for each missing check. One is due after each action that is followed by enough idle time.

    `check_s`: the duration of a check. `after_s`: the time after the last action. A controller may take its time to
    start: there, idle time counts from when the action was done. ValueError without actions.
    """
    ordered = sorted(actions, key=lambda action: action.at_ns)
    ends = [*(action.at_ns for action in ordered[1:]), max(action.done_ns for action in actions) + int(after_s * 1e9)]
    found, broken = list[ConnectivityResult](), list[Fault]()
    for action, end_ns in zip(ordered, ends, strict=True):
        if action.operation == "inject":
            broken.append(action.fault)
        else:
            broken.remove(action.fault)
        counts_from_done = action is ordered[-1] or action.fault.definition.is_control_plane
        begin_ns = action.done_ns if counts_from_done else action.at_ns + int(MAX_ACTION_S * 1e9)
        is_due = end_ns - begin_ns > (SETTLE_S + check_s) * 1e9
        if is_due and not any(action.at_ns <= check.at_ns < end_ns for check in taken):
            found.append(ConnectivityResult(end_ns, action.name, tuple(broken), 0, 0, 0, Verdict(), taken=False))
    return found
