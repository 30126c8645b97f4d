"""Flows of background load on a fabric: the share of each link that is reserved for them, and the process that sends.

Each port on the way of the background has a second HTB class with the background's rate guaranteed; the first class
borrows what it leaves. So the link gives max-min fair shares with background that doesn't yield.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final, Self

from pydantic import InstanceOf

from railyard.core.worker import Message, Ready, Worker
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces, shaping
from railyard.topologies.build.shaping import shaper_commands
from railyard.topologies.fabric_kinds import End, Layer
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device
from railyard.workloads.background.spec import BACKGROUNDS, BackgroundSpec, FlowPath, FullLoad, Wave

PORT: Final = 9
"""UDP's discard port: the destination of all background load, by which links distinguish it from other traffic."""
_ORDER: Final[tuple[FlowPath, ...]] = ("r", "d", "spine")


@dataclass(frozen=True, slots=True)
class BackgroundFlow:
    """`bps` (bit/s on the wire, Ethernet header and all) from `src`'s `device` to `dst` while `wave` is on."""

    src: Gpu
    dst: Gpu
    device: Device
    path: FlowPath
    bps: float
    wave: Wave


def flows_of(spec: BackgroundSpec, plan: Plan) -> tuple[BackgroundFlow, ...]:
    """Return all flows of a spec that fits the plan (see check_background), by source, then by path."""
    flows: list[BackgroundFlow] = []
    for src in plan.gpus:
        loads: list[FullLoad] = []
        for kind, value in spec.patterns.items():
            loads += BACKGROUNDS[kind].flows(src, value, plan)
        for load in sorted(loads, key=lambda load: _ORDER.index(load.path)):
            bps = spec.load * load.bps
            flows.append(BackgroundFlow(src, load.dst, load.device, load.path, bps, spec.wave))
    return tuple(flows)


def reserved_bps(plan: Plan, flows: Iterable[BackgroundFlow]) -> dict[End, float]:
    """Return what the flows take of each port that they leave by, in bit/s, if all of them are on."""
    # reserved whether a wave is on or off: classes can change only while links are idle
    port_bps: defaultdict[End, float] = defaultdict(float)
    for flow in flows:
        layer: Layer = "hb" if flow.device == "hb0" else "rail"
        for link in plan.cables(flow.src, layer):
            port_bps[link.a] += flow.bps
        for link in plan.cables(flow.dst, layer):
            port_bps[link.b] += flow.bps
        if plan.spec.definition.is_graph and layer == "rail":
            used = plan.graph.shares(plan.graph.switch_of[flow.src], plan.graph.switch_of[flow.dst])
            for (near, far), share in used.items():
                port_bps[End(near, far, plan.graph.ports[near][far])] += share * flow.bps
        elif flow.path == "spine":
            for link in plan.uplinks:
                ranks = {f"rail{flow.src.rank}": link.a, f"rail{flow.dst.rank}": link.b}
                if link.a.node in ranks:
                    port_bps[ranks[link.a.node]] += flow.bps / plan.spec.spine_count
    return dict(port_bps)


@contextmanager
def reserved(plan: Plan, flows: Iterable[BackgroundFlow]) -> Iterator[None]:
    """Give the flows their share of the links while this is entered. Links should be idle at both ends of it."""
    shares = reserved_bps(plan, flows)
    _shape(plan, shares)
    try:
        yield
    finally:
        _shape(plan, dict.fromkeys(shares, 0.0))


def _shape(plan: Plan, shares: Mapping[End, float]) -> None:
    # In a plain queue, the sender that has more waiting gets more: a TCP window of 36 KB beside 90% of UDP has half of
    # the link at first, and comes down to a tenth over seconds. With a class of its own, load is load at once.
    rates: dict[End, int] = {}
    for link in plan.links:
        rates[link.a] = link.rate_bps
        rates[link.b] = link.rate_bps
    lanes = shaping.ends(plan) if shaping.lanes_enabled() else frozenset[End]()
    commands: defaultdict[str, str] = defaultdict(str)
    for end, bps in shares.items():
        reserved = (round(bps), PORT) if bps else None
        has_heartbeat_lane = end in lanes
        commands[end.node] += f"qdisc del dev {end.interface} root\n"
        commands[end.node] += shaper_commands(end.interface, rates[end], plan.spec.mtu, reserved, has_heartbeat_lane)
    for node, lines in commands.items():
        with namespaces.inside(node):
            namespaces.run(["tc", "-batch", "-"], lines)


# the process has read the start time by then
START_DELAY_NS: Final = 20_000_000


class BackgroundJob(Message):
    """Open the sockets of these flows: Ready. Every datagram fills the fabric's MTU (bytes)."""

    flows: tuple[InstanceOf[BackgroundFlow], ...]
    mtu: int


class StartAt(Message):
    """Send from that time on (ns, monotonic): Ready."""

    start_ns: int


class Stop(Message):
    """Stop sending: Sent."""


class Sent(Message):
    """Wire bytes of each flow: (requested, sent)."""

    counts: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Wire bytes of a flow from the start to the stop: `requested` by its spec, and handed to the kernel."""

    flow: BackgroundFlow
    requested: int
    sent: int

    @property
    def share(self) -> float:
        """Share of the requested bytes that was sent; 1 if none were requested."""
        if not self.requested:
            return 1.0
        return self.sent / self.requested


class Background:
    """A process that sends while this is entered, or until `stop`. It dies with this process.

    `start_ns` (monotonic) is what the specs' times count from. RailyardError if sockets can't be opened.
    """

    def __init__(self, plan: Plan, specs: Sequence[BackgroundSpec]) -> None:
        self.flows = tuple(chain.from_iterable(flows_of(spec, plan) for spec in specs))
        self._worker = Worker("railyard.workloads.background.sender", "the background sender", Ready, Sent)
        try:
            self._worker.ask(BackgroundJob(flows=self.flows, mtu=plan.spec.mtu), Ready)
            self.start_ns = time.monotonic_ns() + START_DELAY_NS
            self._worker.ask(StartAt(start_ns=self.start_ns), Ready)
        except BaseException:
            self._worker.end()
            raise

    @property
    def pid(self) -> int:
        return self._worker.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.end()

    def stop(self) -> tuple[SentBytes, ...]:
        """Stop sending and end the process; what was sent, in the order of `flows`."""
        with self:
            counts = self._worker.ask(Stop(), Sent).counts
        return tuple(SentBytes(flow, *sizes) for flow, sizes in zip(self.flows, counts, strict=True))
