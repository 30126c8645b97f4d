"""Max-min fair rates of flows over a fabric's links, and their completion times.

Source: progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates grow together, and a flow stops
where a link on its way is full. TCP flows of equal round-trip times come to it, and the oracle's optimum is measured by
it. Rates in bit/s, sizes in bytes, times in seconds.

A link is one direction of a port: a GPU's hb0 or rail0, or all of a rail switch's uplinks together (its group hashes
flows over them, which counts as even).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import Path, hops
from railyard.topologies.plan import Plan


class Link(NamedTuple):
    """One direction of a port. `out`: away from the GPU, or up from the rail switch. `node`: a GPU, or a rail's rank;
    or, for `own`, the number of a background flow, whose capacity is the rate that it wants.
    """

    node: Gpu | int
    side: Literal["hb", "rail", "uplink", "own"]
    out: bool


Route = tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Background:
    """Load that is there whatever the foreground does: `bps` (bit/s) from src to dst over `path`.

    `elastic`: it shares links fairly up to that rate, as paced TCP does; otherwise it takes all of it, as UDP does.
    """

    src: Gpu
    dst: Gpu
    path: Path
    bps: float
    elastic: bool = False


def route_of(path: Path, src: Gpu, dst: Gpu, kind: str) -> Route:
    """Return the links that a path loads, in the order of travel."""
    links: list[Link] = []
    for a, b, side in hops(path, src, dst):
        links.append(Link(a, side, True))
        if a.domain != b.domain and a.rank != b.rank and FABRIC_KINDS[kind].default_spines:
            links += (Link(a.rank, "uplink", True), Link(b.rank, "uplink", False))
        links.append(Link(b, side, False))
    return tuple(links)


def capacities(plan: Plan) -> dict[Link, float]:
    """Bit/s of every link of an empty fabric."""
    found: dict[Link, float] = {}
    for out in (True, False):
        found |= {Link(gpu, "hb", out): plan.hb_bps for gpu in plan.gpus}
        found |= {Link(gpu, "rail", out): plan.rail_bps for gpu in plan.gpus}
        if plan.spec.spine_count:
            uplinks_bps = plan.uplink_bps * plan.spec.spine_count
            found |= {Link(rail, "uplink", out): uplinks_bps for rail in range(plan.spec.rails)}
    return found


def under_load(plan: Plan, background: Sequence[Background]) -> tuple[dict[Link, float], list[Route]]:
    """Return (bit/s that is left of each link, the routes of elastic flows, each with its own rate as a first link)."""
    free, elastic_routes = capacities(plan), []
    for number, load in enumerate(background):
        route = route_of(load.path, load.src, load.dst, plan.spec.kind)
        if load.elastic:
            own = Link(number, "own", True)
            free[own] = load.bps
            elastic_routes.append((own, *route))
        else:
            for link in route:
                free[link] = max(0.0, free[link] - load.bps)
    return free, elastic_routes


def max_min(routes: Sequence[Route], free: Mapping[Link, float]) -> list[float]:
    """Return the max-min fair rate of each flow, bit/s.

    The link that fills first (least left for each of its flows) fixes the rates of its flows; they use that much of
    their other links, and so on with the rest. ValueError for a flow that crosses no link.
    """
    if not all(routes):
        raise ValueError("a flow crosses at least one link")
    rates, users = [0.0] * len(routes), defaultdict[Link, set[int]](set)
    for flow, route in enumerate(routes):
        for link in route:
            users[link].add(flow)
    left = {link: free[link] for link in users}
    while users:
        tightest = min(users, key=lambda link: left[link] / len(users[link]))
        share = left[tightest] / len(users[tightest])
        for flow in sorted(users[tightest]):
            rates[flow] = share
            for link in routes[flow]:
                left[link] = max(0.0, left[link] - share)
                users[link].discard(flow)
                if not users[link]:
                    del users[link]
    return rates


def completion_s(
    routes: Sequence[Route], sizes: Sequence[float], free: Mapping[Link, float], persistent: Iterable[Route] = ()
) -> list[float]:
    """Return when each of some flows that start together ends, in seconds; rates are fair anew whenever one ends.

    `sizes` in bytes. `persistent`: flows that never end. Infinite for a flow that gets nothing.
    """
    ends, persistent_routes = [math.inf] * len(routes), list(persistent)
    left = {flow: size * 8.0 for flow, size in enumerate(sizes)}
    now = 0.0
    while left:
        flows = list(left)
        rates = dict(zip(flows, max_min([routes[flow] for flow in flows] + persistent_routes, free), strict=False))
        step = min((left[flow] / rate for flow, rate in rates.items() if rate > 0), default=math.inf)
        if step == math.inf:
            break
        now += step
        for flow in flows:
            left[flow] -= rates[flow] * step
            if left[flow] <= sizes[flow] * 8e-9:  # what rounding leaves over is no flow
                ends[flow] = now
                del left[flow]
    return ends
