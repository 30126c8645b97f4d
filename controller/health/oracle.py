"""The best path for every flow, if all load is known: what a policy can be measured against (docs/health-routing.md).

Flows on given paths get max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2). Each
flow takes one path, so spraying may beat this oracle. Up to `EXACT` assignments, all are tried: the least time until
the last flow is done counts, then the least sum of times. More are assigned greedily by marginal gain, the largest flow
first; flows then move to better paths until none improves. Rates in bit/s, sizes in bytes, times in seconds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, NamedTuple

from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import Path, Share, Shares, hops, path_of
from railyard.topologies.plan import Plan


class Link(NamedTuple):
    """One direction of a port: a GPU's hb0 or rail0, or all uplinks of a rail switch, which hashes flows over them.

    `out`: away from the GPU, or up from the rail switch. `node`: a GPU, or a rail's rank; or, for `own`, the number of
    a background flow, whose capacity is the rate that it wants.
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
    free, elastic_routes = capacities(plan), list[Route]()
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


EXACT: Final = 512
ROUNDS: Final = 20  # of improvement, at most: 1 to 3 were enough where it was tried; there is no proof that it ends


@dataclass(frozen=True, slots=True)
class Flow:
    """Some bytes from one GPU to another."""

    src: Gpu
    dst: Gpu
    size: int


def all_paths(src: Gpu, dst: Gpu, rails: int, kind: str) -> tuple[Path, ...]:
    """Every path that the fabric carries from one GPU to another, fewest hops first, then by rail."""
    if src.domain == dst.domain:
        return (path_of("d", src.rank),)
    third = tuple(path_of("drd", rail) for rail in range(rails) if rail not in (src.rank, dst.rank))
    if src.rank == dst.rank:
        return (path_of("r", src.rank), *third)
    spine = (path_of("spine", src.rank),) if FABRIC_KINDS[kind].joins_rails else ()
    return (path_of("dr", dst.rank), path_of("rd", src.rank), *spine, *third)


def assign(plan: Plan, flows: Sequence[Flow], background: Sequence[Background] = ()) -> tuple[Path, ...]:
    """A path for each flow, as the module says. Deterministic: the first of equals, in the order of `all_paths`."""
    options = [all_paths(flow.src, flow.dst, plan.spec.rails, plan.spec.kind) for flow in flows]
    if math.prod(map(len, options)) <= EXACT:

        def last_and_sum(paths: Sequence[Path]) -> tuple[float, float]:
            """To nine digits: assignments that differ by rounding only are equals."""
            ends = finish_s(plan, flows, paths, background)
            return float(f"{max(ends, default=0.0):.9g}"), float(f"{sum(ends):.9g}")

        return min(product(*options), key=last_and_sum)
    return _Greedy(plan, flows, background, options).paths()


def finish_s(
    plan: Plan, flows: Sequence[Flow], paths: Sequence[Path], background: Sequence[Background] = ()
) -> list[float]:
    """Return when each flow ends, in seconds, if all start together on these paths."""
    free, persistent = under_load(plan, background)
    routes = [route_of(path, flow.src, flow.dst, plan.spec.kind) for flow, path in zip(flows, paths, strict=True)]
    return completion_s(routes, [flow.size for flow in flows], free, persistent)


def by_pair(flows: Iterable[Flow], paths: Iterable[Path]) -> dict[tuple[Gpu, Gpu], Shares]:
    """Return the paths of each pair for `Context.assigned`, weighted by their bytes, in lowest terms."""
    sizes: defaultdict[tuple[Gpu, Gpu], Counter[Path]] = defaultdict(Counter)
    for flow, path in zip(flows, paths, strict=True):
        sizes[flow.src, flow.dst][path] += flow.size
    common = {pair: math.gcd(*each.values()) or 1 for pair, each in sizes.items()}
    return {pair: tuple(Share(path, n // common[pair]) for path, n in each.items()) for pair, each in sizes.items()}


class _Greedy:
    """Bytes and flows on every link, while flows are assigned."""

    def __init__(
        self, plan: Plan, flows: Sequence[Flow], background: Sequence[Background], options: Sequence[tuple[Path, ...]]
    ) -> None:
        self._flows, self._options = flows, options
        self._routes = [
            [route_of(path, flow.src, flow.dst, plan.spec.kind) for path in paths]
            for flow, paths in zip(flows, options, strict=True)
        ]
        self._free, elastic_routes = under_load(plan, background)
        # how many elastic flows cross each link, and how much they demand together in bit/s
        self._elastic: defaultdict[Link, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for own, *route in elastic_routes:
            for link in route:
                elastic_count, demand_bps = self._elastic[link]
                self._elastic[link] = (elastic_count + 1, demand_bps + self._free[own])
        self._bits: defaultdict[Link, float] = defaultdict(float)
        self._count: Counter[Link] = Counter()

    def paths(self) -> tuple[Path, ...]:
        order = sorted(range(len(self._flows)), key=lambda flow: -self._flows[flow].size)
        near, chosen = [0] * len(self._flows), [0] * len(self._flows)  # the number of each flow's option
        for flow in order:
            chosen[flow] = self._assign_best(flow)
        for _ in range(ROUNDS):
            before = list(chosen)
            for flow in order:
                self._put(flow, chosen[flow], -1)
                chosen[flow] = self._assign_best(flow, chosen[flow])
            if chosen == before:
                break
        best = min(near, chosen, key=self._bottleneck_s)  # near, if both take as long
        return tuple(paths[number] for paths, number in zip(self._options, best, strict=True))

    def _assign_best(self, flow: int, current: int | None = None) -> int:
        """Put a flow on its best option: `current` unless another is better by more than rounding."""
        bits, costs = self._flows[flow].size * 8, list[tuple[float, float]]()
        for route in self._routes[flow]:  # (time of its busiest link, sum of all), once this flow is there too
            times = [self._drain_s(link, self._bits[link] + bits, self._count[link] + 1) for link in route]
            costs.append((max(times), sum(times)))
        best = min(range(len(costs)), key=costs.__getitem__)
        if current is not None and not costs[best][0] < costs[current][0] * (1 - 1e-9):
            best = current
        self._put(flow, best, 1)
        return best

    def _put(self, flow: int, option: int, sign: int) -> None:
        for link in self._routes[flow][option]:
            self._bits[link] += sign * self._flows[flow].size * 8
            self._count[link] += sign

    def _drain_s(self, link: Link, bits: float, flows: int) -> float:
        """Seconds until a link is done, if its flows share it equally with the elastic background there."""
        elastic_count, demand_bps = self._elastic[link]
        taken = min(demand_bps, self._free[link] * elastic_count / (flows + elastic_count)) if elastic_count else 0.0
        free = self._free[link] - taken
        return bits / free if free > 0 else math.inf

    def _bottleneck_s(self, chosen: Sequence[int]) -> float:
        bits: defaultdict[Link, float] = defaultdict(float)
        count: Counter[Link] = Counter()
        for flow, routes, number in zip(self._flows, self._routes, chosen, strict=True):
            for link in routes[number]:
                bits[link] += flow.size * 8
                count[link] += 1
        return max(self._drain_s(link, total, count[link]) for link, total in bits.items())
