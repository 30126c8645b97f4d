"""Flows of background load on a fabric, and the share of each link that is reserved for them.

In a plain queue, the sender that has more waiting gets more: a TCP window of 36 KB beside 90% of UDP has half of the
link at first, and comes down to a tenth over seconds. So each port on the way of the background has a second HTB class
with the background's rate guaranteed; the first class borrows what it leaves. Load is then load at once, and max-min
fair shares with background that doesn't yield are exactly what such a link gives.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces, shaping
from railyard.topologies.build.shaping import shaper_commands
from railyard.topologies.plan import End, Plan
from railyard.topologies.routing import Device
from railyard.topologies.spec import Layer
from railyard.workloads.background.kind import BACKGROUNDS, FlowPath
from railyard.workloads.background.spec import BackgroundSpec, Wave

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
    return tuple(
        BackgroundFlow(src, load.dst, load.device, load.path, spec.load * load.bps, spec.wave)
        for src in plan.gpus
        for load in sorted(
            (load for kind, value in spec.patterns.items() for load in BACKGROUNDS[kind].flows(src, value, plan)),
            key=lambda load: _ORDER.index(load.path),
        )
    )


def reserved_bps(plan: Plan, flows: Iterable[BackgroundFlow]) -> dict[End, float]:
    """Return what the flows take of each port that they leave by, in bit/s, if all of them are on."""
    port_bps: defaultdict[End, float] = defaultdict(float)
    for flow in flows:
        layer: Layer = "hb" if flow.device == "hb0" else "rail"
        for link in plan.cables(flow.src, layer):
            port_bps[link.a] += flow.bps
        for link in plan.cables(flow.dst, layer):
            port_bps[link.b] += flow.bps
        if flow.path == "spine":
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
    rates = {end: link.rate_bps for link in plan.links for end in (link.a, link.b)}
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
