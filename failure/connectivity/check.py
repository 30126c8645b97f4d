"""A census: every ordered pair of GPUs is probed, and the answers are held against the oracle.

`CensusTaker` is the handle on the process that probes (census_worker.py).
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Self

from railyard.core.errors import RailyardError
from railyard.core.worker import PickledProcess
from railyard.failure.connectivity.verdict import Verdict, judge, name_of
from railyard.failure.connectivity.worker import PAIRS_PER_S
from railyard.failure.oracle.dead import CONTROL, Bounds, bounds
from railyard.failure.oracle.reachability import Cable, cable
from railyard.failure.scenario.kinds import Fault
from railyard.failure.scenario.pairs import Pair
from railyard.failure.scenario.timeline import SETTLE_S, Act, Moment
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import BEATS_BPS, burst_bytes
from railyard.topologies.measure.port_counters import TRAFFIC, PortReader, PortStats
from railyard.topologies.optical import LAYERS
from railyard.topologies.plan import End, Plan

TRIES_S: Final = 0.15  # a census has so long after its first pass, at least
MOST_S: Final = 2.0
TRY_S: Final = 0.06
SLOW_TRY_S: Final = 0.35
"""Where a link is slow: its queue holds the windows of all streams that cross it, at a share of the rate."""
_MARGIN_S: Final = 0.01
_RX: Final = TRAFFIC.index("rx_packets")
_TX: Final = TRAFFIC.index("tx_packets")
_RX_BYTES: Final = TRAFFIC.index("rx_bytes")
SLACK: Final = 1.05
FRAME_BYTES: Final = 65_536 + 14  # the largest: with TSO a shaper is handed, and passes, so much as one

Counters = Mapping[str, Mapping[str, PortStats]]


@dataclass(frozen=True, slots=True)
class CensusRun:
    """One census: taken at `at_ns` after the act `act`, with these faults there. Not `taken`: it was due until then."""

    at_ns: int
    act: str
    broken: tuple[Fault, ...]
    pairs: int
    reachable: int
    answered: int
    verdict: Verdict
    taken: bool = True


def duration_s(plan: Plan) -> float:
    """How long a census must have, to be taken at all."""
    return len(plan.gpus) * (len(plan.gpus) - 1) / PAIRS_PER_S + TRIES_S


class CensusTaker:
    """The process that probes all pairs, with its sockets open. To be closed before the fabric is stopped."""

    def __init__(self, net: FabricNet) -> None:
        self._net = net
        self._process = PickledProcess("railyard.failure.connectivity.worker", "the census process")
        self._process.tell(net.plan.gpus)
        if self._process.hear() != "ready":
            raise RailyardError("the census could not open its sockets")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.end()

    def probe(self, expected: Collection[Pair], end_s: float, try_s: float = TRY_S) -> dict[Pair, bool] | None:
        """Probe all pairs until `end_s` (monotonic) at most; whether each answered, or None if the time didn't do.

        Those that are expected to answer, and don't in `try_s`, are asked again.
        """
        self._process.tell((frozenset(expected), try_s, end_s))
        answered: dict[Pair, bool] | None = self._process.hear()
        return answered

    def take(self, moment: Moment, acts: Sequence[Act]) -> CensusRun | None:
        """Take one now; None if it could not be done before the next act. `acts`: all that was done so far."""
        at_ns, plan = time.monotonic_ns(), self._net.plan
        left = bounds(plan, [fault for fault in moment.broken if not self._is_passed_by(fault)])
        expected = left.least.reachable
        with closing(PortReader(watched_nodes(plan, left))) as reader:
            begun_s, before = time.monotonic(), reader.read()
            end_s = min(time.monotonic() + MOST_S, moment.until_ns / 1e9 - _MARGIN_S)
            answered = self.probe(expected, end_s, SLOW_TRY_S if left.least.dead.slowed else TRY_S)
            after = reader.read()
            over = excess(plan, left, before, after, time.monotonic() - begun_s)
        if answered is None or time.monotonic_ns() > moment.until_ns:
            return None
        verdict = held_against(left, answered, growth(plan, left, before, after), over)
        if unattended(moment.broken, acts):
            verdict = replace(verdict, not_recovered=())
        return CensusRun(
            at_ns, moment.last.name, moment.broken, len(answered), len(expected), sum(answered.values()), verdict
        )

    def _is_passed_by(self, fault: Fault) -> bool:
        """The kernel's datapath goes on under a switch that hangs."""
        return fault.kind == "rail-switch-hang" and self._net.datapath == "system"


def unattended(broken: Collection[Fault], acts: Sequence[Act]) -> bool:
    """Whether something changed while the controller was away, or just before, so that nobody made it good."""
    if all(fault.kind != "controller-crash" for fault in broken):
        return False
    crash = next(act for act in reversed(acts) if (act.what, act.fault.kind) == ("inject", "controller-crash"))
    since_ns = crash.at_ns - SETTLE_S * 1e9
    return any(act.done_ns >= since_ns and act.fault.kind not in CONTROL for act in acts)


def held_against(
    left: Bounds, answered: Mapping[Pair, bool], grown: Mapping[str | Cable, int], over: Mapping[Cable, int]
) -> Verdict:
    """What must work did, what can't didn't, nothing dead carried anything, and nothing slow too much. What is unsteady
    may do either.
    """
    least, most = judge(left.least, answered, {}), judge(left.most, answered, grown)
    too_much = tuple((ends, over[ends]) for ends in sorted(over, key=name_of))
    return Verdict(least.not_recovered, most.impossible, (*most.carried, *too_much), frozenset(over))


def watched_nodes(plan: Plan, left: Bounds) -> list[str]:
    """Where the counters are that must not grow, or not too much."""
    slow = {end.node for ends, *both in _gpu_cables(plan) if ends in left.most.dead.slowed for end in both}
    return sorted(slow.union(end.node for ends in _watched(plan, left).values() for end, _ in ends))


def growth(plan: Plan, left: Bounds, before: Counters, after: Counters) -> dict[str | Cable, int]:
    """Packets that each dead part has passed on: what a dead node sent, and what came out of a dead cable."""
    found: dict[str | Cable, int] = {}
    for part, ends in _watched(plan, left).items():
        found[part] = sum(_grown(before, after, *end) for end in ends)
    return found


def excess(plan: Plan, left: Bounds, before: Counters, after: Counters, seconds: float) -> dict[Cable, int]:
    """Bytes by which slow cables, in either direction, carried more than they can in that time; those that did."""
    found: dict[Cable, int] = {}
    for ends, *both in _gpu_cables(plan):
        if ends in left.most.dead.slowed and ends not in left.most.dead.cables:
            carried = max(_grown(before, after, end, _RX_BYTES) for end in both)
            if (over := carried - most_bytes(left.most.dead.slowed[ends], plan.spec.mtu, seconds)) > 0:
                found[ends] = over
    return found


def most_bytes(rate_bps: int, mtu: int, seconds: float) -> int:
    """What a shaper may let through in that time: its rate and 5%; what it has saved up, a millisecond of the rate or
    two frames; the frame that comes last; and heartbeats, whose lane is beside it.
    """
    return round((rate_bps * SLACK + BEATS_BPS) * seconds / 8) + burst_bytes(rate_bps, mtu) + FRAME_BYTES


def _grown(before: Counters, after: Counters, end: End, counter: int) -> int:
    then, now = (counters[end.node][end.interface].traffic for counters in (before, after))
    return now[counter] - then[counter]


def _watched(plan: Plan, left: Bounds) -> Mapping[str | Cable, list[tuple[End, int]]]:
    """For each part that is dead for certain, the counters that stand for it."""
    dead = left.most.dead
    found: defaultdict[str | Cable, list[tuple[End, int]]] = defaultdict(list)
    for ends, near, far in _gpu_cables(plan):
        if ends in dead.cables:
            found[ends] += [(near, _RX), (far, _RX)]
    for end in (end for link in plan.links for end in (link.a, link.b)):
        if end.node in dead.nodes:
            found[end.node].append((end, _TX))
    return found


def _gpu_cables(plan: Plan) -> Iterator[tuple[Cable, End, End]]:
    """Each GPU's, with its two ends: the GPU's own and the switch's."""
    for gpu, layer in product(plan.gpus, LAYERS):
        links = plan.cables(gpu, layer)  # two where an optical switch is in between
        near, far = links[0].a, links[-1].b
        yield cable(near.node, far.node), near, far
