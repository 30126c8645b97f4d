"""The best path for every flow, if all load is known: what a policy can be measured against.

Each flow takes one path, so spraying a flow over several may beat this oracle. Up to `EXACT` assignments are tried, all
of them, by the times of max_min.py: the least time until the last flow is done, then the least sum of times. Where
there are more it is greedy by marginal gain: the largest flow first, each to the path whose busiest link is then done
soonest; after that flows move to better paths until none improves, and the result is kept only if it beats all flows on
near paths. That is no optimum; tests compare it with the exact one.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from railyard.controller.health.max_min import Background, Link, completion_s, route_of, under_load
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import Path, Share, Shares, path_of
from railyard.topologies.plan import Plan

EXACT: Final = 512
ROUNDS: Final = 20
"""Limit of rounds of improvement: 1 to 3 were enough where it was tried; there is no proof that it ends."""


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
        """The time of the busiest link of all."""
        bits: defaultdict[Link, float] = defaultdict(float)
        count: Counter[Link] = Counter()
        for flow, routes, number in zip(self._flows, self._routes, chosen, strict=True):
            for link in routes[number]:
                bits[link] += flow.size * 8
                count[link] += 1
        return max(self._drain_s(link, total, count[link]) for link, total in bits.items())
