"""Several rail links per GPU: tables spread over all planes, detours leave out the dead ones and nothing else."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import DETOUR_METRIC, Broken, Detours, detours, gpus_without_link
from railyard.failure.faults import Impact
from railyard.failure.oracle.reachability import Survivors
from railyard.topologies.addresses import Gpu, plane_of_device
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import FROM_HB, Route, source_routes, transit_routes
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_kernel import FakeKernel

DOMAINS, RAILS = 3, 3


def plan_of(policy: str) -> Plan:
    data = {"kind": "dual-plane", "policy": policy, "domains": DOMAINS, "rails": RAILS, "rail_rate": "20Mbit"}
    return make_plan(parse_fabric(data), 10**8)


def planes_of(route: Route) -> set[int]:
    """The planes that a route uses; none if it leaves by hb0."""
    return {plane_of_device(hop.device) for hop in route.hops if hop.device != "hb0"}


def test_each_gpu_has_a_link_to_each_planes_switch() -> None:
    plan = plan_of("dr")
    ends = [(link.a.interface, link.b.node, link.rate_bps) for link in plan.rail_links(Gpu(1, 2))]
    assert ends == [("rail0", "rail2", 10_000_000), ("rail1", "rail2p1", 10_000_000)]
    assert [switch.name for switch in plan.switches] == [f"rail{g}{p}" for p in ("", "p1") for g in range(RAILS)]
    assert plan.devices == ("hb0", "rail0", "rail1")


@pytest.mark.parametrize("policy", ["dr", "rd"])
def test_routes_by_a_rail_use_all_planes(policy: str) -> None:
    plan = plan_of(policy)
    for gpu in plan.gpus:
        routes = [*source_routes(plan, gpu), *transit_routes(plan, gpu)]
        assert {frozenset(planes_of(route)) for route in routes} == {frozenset(), frozenset({0, 1})}


def test_gpu_is_cut_off_from_its_rail_without_any_link() -> None:
    dead_links = {(Gpu(0, 0), 0), (Gpu(0, 0), 1), (Gpu(1, 0), 1)}
    assert gpus_without_link(dead_links, planes=2) == {Gpu(0, 0)}


links = st.tuples(st.builds(Gpu, st.integers(0, DOMAINS - 1), st.integers(0, RAILS - 1)), st.integers(0, 1))


@given(
    policy=st.sampled_from(["dr", "rd"]),
    cut=st.frozensets(links, max_size=3),
    killed=st.frozensets(st.tuples(st.integers(0, RAILS - 1), st.integers(0, 1)), max_size=2),
    flow=st.integers(0, 1),
)
def test_detours_reach_all_that_any_plane_joins(
    policy: str, cut: frozenset[tuple[Gpu, int]], killed: frozenset[tuple[int, int]], flow: int
) -> None:
    plan = plan_of(policy)
    kind = plan.spec.definition
    dead_cables = {frozenset({gpu.name, plan.network_end(gpu, "rail", plane).node}) for gpu, plane in cut}
    nodes = frozenset(kind.rail_switch(*switch).name for switch in killed)
    survivors = Survivors(plan, Impact(nodes, frozenset(dead_cables)))
    broken = Broken(
        links=gpus_without_link(cut, planes=2),
        rails=frozenset(kind.rail_switch(*switch).index for switch in killed),
        planes=cut,
    )
    kernel = PlaneKernel(plan, cut, killed, detours(plan, broken), flow)
    for src, dst in permutations(plan.gpus, 2):
        assert (kernel.walk(src, dst) is not None) == ((src, dst) in survivors.reachable), f"{src.name} -> {dst.name}"


class PlaneKernel(FakeKernel):
    """Frames cross a plane if both links and the switch live. No backup routes."""

    def __init__(
        self,
        plan: Plan,
        cut: frozenset[tuple[Gpu, int]],
        killed: frozenset[tuple[int, int]],
        found: Detours,
        flow: int,
    ) -> None:
        extra = {gpu: list(routes.values()) for gpu, routes in found.items()}
        super().__init__(plan, lambda a, b: a.rank == b.rank, choice=flow, extra=extra)
        self._cut, self._killed = cut, killed

    def _step(self, here: Gpu, route: Route, target: Gpu) -> Gpu | None:
        there = super()._step(here, route, target)
        device = route.hops[0].device
        if there is None or device == "hb0":
            return there
        plane = plane_of_device(device)
        dead = (here, plane) in self._cut or (there, plane) in self._cut or (here.rank, plane) in self._killed
        return None if dead else there


def test_a_dead_plane_narrows_transit_routes_of_its_rail_alone() -> None:
    plan = plan_of("dr")
    found = detours(plan, Broken(rails=frozenset({plan.spec.definition.rail_switch(1, 1).index})))
    assert {gpu.rank for gpu in found} == {1}
    for routes in found.values():
        assert {planes_of(route) == {0} and route.metric == DETOUR_METRIC for route in routes.values()} == {True}
        assert {route.table == FROM_HB for route in routes.values()} == {True, False}
