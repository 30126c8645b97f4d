"""The greedy assignment in arrays gives what the same rules give link by link."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.health import oracle
from railyard.controller.health.oracle import (
    ROUNDS,
    Background,
    Flow,
    Link,
    all_paths,
    assign,
    route_of,
    under_load,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.plan import Plan
from tests.unit.controller.health.test_oracle_rates import MBIT, plan_of


class ScalarGreedy:
    """Reference: bytes and flows on every link in dicts, an option at a time."""

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


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Plan, list[Flow], list[Background]]:
    kind = draw(st.sampled_from(["rail-only", "rail-optimized", "single-switch"]))
    plan = plan_of(kind, draw(st.integers(2, 4)), draw(st.integers(2, 5)))
    gpus = st.sampled_from(plan.gpus)
    pairs = st.tuples(gpus, gpus).filter(lambda pair: pair[0] != pair[1])
    sizes = st.sampled_from([1, 99_991, 1_250_000, 2_500_000])
    flows = [Flow(*pair, size) for pair, size in draw(st.lists(st.tuples(pairs, sizes), min_size=1, max_size=30))]
    rails = st.integers(0, plan.spec.rails - 1)
    loads = draw(st.lists(st.tuples(rails, st.sampled_from([0.3, 0.9, 1.0, 1.5]), st.booleans()), max_size=4))
    background = [
        Background(Gpu(0, g), Gpu(1, g), Path("r", g), 10 * MBIT * load, elastic) for g, load, elastic in loads
    ]
    return plan, flows, background


@given(tasks())
def test_greedy_paths_equal_the_scalar_reference(task: tuple[Plan, list[Flow], list[Background]]) -> None:
    plan, flows, background = task
    options = [all_paths(flow.src, flow.dst, plan.spec.rails, plan.spec.kind) for flow in flows]
    with patch.object(oracle, "EXACT", 0):
        assert assign(plan, flows, background) == ScalarGreedy(plan, flows, background, options).paths()
