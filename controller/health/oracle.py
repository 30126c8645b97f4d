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

import numpy as np
import numpy.typing as npt

from railyard.controller.health.policy import over_rail
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import Path, Share, Shares, hops, path_of
from railyard.topologies.plan import Plan


class Link(NamedTuple):
    """One direction of a port: a GPU's hb0 or rail0, or all uplinks of a rail switch, which hashes flows over them.

    `out`: away from the GPU, or up from the rail switch.
    `node`: a GPU, or a rail's rank; or, for `own`, the number of a background flow, whose capacity is the rate that it
    wants.
    """

    node: Gpu | int
    side: Literal["hb", "rail", "uplink", "own"]
    out: bool


Route = tuple[Link, ...]
Links = npt.NDArray[np.int64]
Amounts = npt.NDArray[np.float64]


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
    definition = FABRIC_KINDS[kind]
    has_uplinks = bool(definition.default_spines) and not definition.is_graph
    for a, b, side in hops(path, src, dst):
        links.append(Link(a, side, True))
        if has_uplinks and a.domain != b.domain and a.rank != b.rank:
            links.append(Link(a.rank, "uplink", True))
            links.append(Link(b.rank, "uplink", False))
        links.append(Link(b, side, False))
    return tuple(links)


def capacities(plan: Plan) -> dict[Link, float]:
    """Bit/s of every link of an empty fabric."""
    rates: dict[Link, float] = {}
    for out in (True, False):
        for gpu in plan.gpus:
            rates[Link(gpu, "hb", out)] = plan.hb_bps
            rates[Link(gpu, "rail", out)] = plan.rail_bps
        if plan.spec.spine_count:
            for rail in range(plan.spec.rails):
                rates[Link(rail, "uplink", out)] = plan.uplink_bps * plan.spec.spine_count
    return rates


def under_load(plan: Plan, background: Sequence[Background]) -> tuple[dict[Link, float], list[Route]]:
    """Return (bit/s that is left of each link, the routes of elastic flows, each with its own rate as a first link)."""
    free = capacities(plan)
    elastic_routes = list[Route]()
    for number, load in enumerate(background):
        route = route_of(load.path, load.src, load.dst, plan.spec.kind)
        if load.elastic:
            rate_limit = Link(number, "own", True)
            free[rate_limit] = load.bps
            elastic_routes.append((rate_limit, *route))
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
    rates = [0.0] * len(routes)
    users = defaultdict[Link, set[int]](set)
    for flow, route in enumerate(routes):
        for link in route:
            users[link].add(flow)
    remaining_bps = {link: free[link] for link in users}
    while users:
        tightest = min(users, key=lambda link: remaining_bps[link] / len(users[link]))
        share = remaining_bps[tightest] / len(users[tightest])
        for flow in sorted(users[tightest]):
            rates[flow] = share
            for link in routes[flow]:
                remaining_bps[link] = max(0.0, remaining_bps[link] - share)
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
    ends = [math.inf] * len(routes)
    persistent_routes = list(persistent)
    remaining_bits = {flow: size * 8.0 for flow, size in enumerate(sizes)}
    now = 0.0
    while remaining_bits:
        flows = list(remaining_bits)
        all_rates = max_min([routes[flow] for flow in flows] + persistent_routes, free)
        # the rates of persistent flows follow: they have no flow of theirs, and zip leaves them out
        rates = dict(zip(flows, all_rates, strict=False))
        step = min((remaining_bits[flow] / rate for flow, rate in rates.items() if rate > 0), default=math.inf)
        if step == math.inf:
            break
        now += step
        for flow in flows:
            remaining_bits[flow] -= rates[flow] * step
            # a remainder of a billionth is an error of rounding
            if remaining_bits[flow] <= sizes[flow] * 8e-9:
                ends[flow] = now
                del remaining_bits[flow]
    return ends


EXACT: Final = 512
# 1 to 3 rounds of improvement were enough where it was tried, but there is no proof that they end
ROUNDS: Final = 20


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
    options = list[tuple[Path, ...]]()
    assignments = 1
    for flow in flows:
        options.append(all_paths(flow.src, flow.dst, plan.spec.rails, plan.spec.kind))
        assignments *= len(options[-1])
        if assignments > EXACT:
            return _Greedy(plan, flows, background).paths()

    def last_and_sum(paths: Sequence[Path]) -> tuple[float, float]:
        """To nine digits: assignments that differ by rounding only are equals."""
        ends = finish_s(plan, flows, paths, background)
        return float(f"{max(ends, default=0.0):.9g}"), float(f"{sum(ends):.9g}")

    return min(product(*options), key=last_and_sum)


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
    assigned: dict[tuple[Gpu, Gpu], Shares] = {}
    for pair, bytes_by_path in sizes.items():
        divisor = math.gcd(*bytes_by_path.values()) or 1
        assigned[pair] = tuple(Share(path, size // divisor) for path, size in bytes_by_path.items())
    return assigned


class _Greedy:
    """Bytes and flows on every link, in arrays by link number, while flows are assigned.

    A flow's options are columns of link numbers: column x is the path by rail x, and column K, where there is one, the
    path by the spines. Rows are in the order of travel; rows that a path does not need have the link NONE, which takes
    no time.
    """

    def __init__(self, plan: Plan, flows: Sequence[Flow], background: Sequence[Background]) -> None:
        self._flows = flows
        self._plan = plan
        self._kind = FABRIC_KINDS[plan.spec.kind]
        free, elastic_routes = under_load(plan, background)
        y = plan.spec.domains
        k = plan.spec.rails
        self._hb_in, self._rail_out, self._rail_in, self._hb_out = np.arange(4 * y * k).reshape(4, y, k)
        self._up_out, self._up_in = np.arange(4 * y * k, (4 * y + 2) * k).reshape(2, k)
        self._none = (4 * y + 2) * k
        self._free, self._elastic, self._demand, self._bits, self._count = np.zeros((5, self._none + 1))
        self._free[self._none] = math.inf
        for link, bps in free.items():
            if link.side != "own":
                self._free[self._number(link)] = bps
        for rate_limit, *route in elastic_routes:
            for link in route:
                self._elastic[self._number(link)] += 1
                self._demand[self._number(link)] += free[rate_limit]

    def _number(self, link: Link) -> int:
        if not isinstance(link.node, Gpu):
            numbers = self._up_out if link.out else self._up_in
        elif link.side == "hb":
            numbers = self._hb_out if link.out else self._hb_in
        else:
            numbers = self._rail_out if link.out else self._rail_in
        return int(numbers[link.node])

    def paths(self) -> tuple[Path, ...]:
        # a link may have nothing left
        with np.errstate(divide="ignore", invalid="ignore"):
            order = sorted(range(len(self._flows)), key=lambda flow: -self._flows[flow].size)
            near: list[int] = []
            for flow in self._flows:
                # within a domain there is one option alone
                option = flow.dst.rank if flow.src.domain != flow.dst.domain else 0
                near.append(option)
            chosen = list(near)
            for number in order:
                chosen[number] = self._assign_best(self._flows[number])
            for _ in range(ROUNDS):
                before = list(chosen)
                for number in order:
                    chosen[number] = self._assign_best(self._flows[number], chosen[number])
                if chosen == before:
                    break
            # near, if both take as long
            best = min(near, chosen, key=self._bottleneck_s)
        return tuple(self._path(flow, option) for flow, option in zip(self._flows, best, strict=True))

    def _routes(self, flow: Flow) -> Links:
        """Return the link numbers of each option, (6, options)."""
        d1, g1 = flow.src
        d2, g2 = flow.dst
        k = self._plan.spec.rails
        if d1 == d2:
            return np.array([[self._hb_out[d1, g1]], [self._hb_in[d2, g2]]] + 4 * [[self._none]])
        routes = np.empty((6, k + (self._kind.joins_rails and g1 != g2)), dtype=np.int64)
        routes[0] = self._hb_out[d1, g1]
        routes[1, :k] = self._hb_in[d1]
        routes[2, :k] = self._rail_out[d1]
        routes[3, :k] = self._rail_in[d2]
        routes[4, :k] = self._hb_out[d2]
        routes[5] = self._hb_in[d2, g2]
        # the rail's GPU is the source or the destination itself
        routes[:2, g1] = routes[4:, g2] = self._none
        if routes.shape[1] > k:
            # a single switch joins rails without uplinks
            spines = (self._none, self._none)
            if self._kind.default_spines:
                spines = (self._up_out[g1], self._up_in[g2])
            routes[:, k] = (self._rail_out[d1, g1], *spines, self._rail_in[d2, g2], self._none, self._none)
        return routes

    def _path(self, flow: Flow, option: int) -> Path:
        src = flow.src
        dst = flow.dst
        if src.domain == dst.domain:
            return path_of("d", src.rank)
        if option == self._plan.spec.rails:
            return path_of("spine", src.rank)
        return over_rail(option, src, dst)

    def _assign_best(self, flow: Flow, current: int | None = None) -> int:
        """Put a flow on its best option: `current`, where it is now, unless another is better by more than rounding."""
        routes = self._routes(flow)
        bits = float(flow.size * 8)
        if current is not None:
            self._bits[routes[:, current]] -= bits
            self._count[routes[:, current]] -= 1
        # (time of its busiest link, sum of all), once this flow is there too
        times = self._drain_s(routes, self._bits[routes] + bits, self._count[routes] + 1)
        longest = times.max(axis=0)
        total = times.sum(axis=0)
        equals = np.flatnonzero(longest == longest.min())
        equals = equals[total[equals] == total[equals].min()]
        place = {flow.dst.rank: -3, flow.src.rank: -2, self._plan.spec.rails: -1}  # in `all_paths`
        best: int = min(equals.tolist(), key=lambda option: place.get(option, option))
        if current is not None and not longest[best] < longest[current] * (1 - 1e-9):
            best = current
        self._bits[routes[:, best]] += bits
        self._count[routes[:, best]] += 1
        return best

    def _drain_s(self, links: Links, bits: Amounts, flows: Amounts) -> Amounts:
        """Seconds until links are done, if their flows share them equally with the elastic background there."""
        free = self._free[links]
        elastic = self._elastic[links]
        if elastic.any():
            fair = np.minimum(self._demand[links], free * elastic / (flows + elastic))
            free = free - np.where(elastic > 0, fair, 0.0)
        return np.where(free > 0, bits / free, math.inf)

    def _bottleneck_s(self, chosen: Sequence[int]) -> float:
        self._bits[:] = self._count[:] = 0.0
        for flow, option in zip(self._flows, chosen, strict=True):
            route = self._routes(flow)[:, option]
            self._bits[route] += flow.size * 8
            self._count[route] += 1
        used = np.flatnonzero(self._count[: self._none])
        return float(self._drain_s(used, self._bits[used], self._count[used]).max())
