"""Paths while parts are dead: detours over other GPUs, and living planes, uplinks and cables of a graph."""

from typing import Any

import numpy as np
import pytest

from railyard.failure.faults import Impact, cable
from railyard.results.theory.fluid.outage import DeadParts, dead_parts
from railyard.results.theory.fluid.routes import Port, Routes, routes_in_outage
from railyard.results.theory.fluid.simulation import Conditions, Outage, simulate
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from railyard.workloads.schedule import Phase, Program, Rates, Schedule

RATES = Rates(hb=8.0, rail=1.0)
PHASE = Phase("a", "collective", "", 2, 2, 1.0)


def small(kind: str = "rail-only", **keys: Any) -> Plan:
    """A fabric of 2 domains x 2 rails."""
    return make_plan(parse_fabric({"kind": kind, "domains": 2, "rails": 2, **keys}), 10**8)


def dead(plan: Plan, *nodes: str, cut: tuple[str, str] | None = None) -> DeadParts:
    """The dead parts of these nodes, and of a cable."""
    cables = frozenset({cable(*cut)}) if cut else frozenset()
    parts = dead_parts(Impact(frozenset(nodes), cables), plan)
    assert parts is not None
    return parts


def sent(*transfers: tuple[int, int, int]) -> Schedule:
    """Transfers of (source, destination, bytes)."""
    program = Program(2, 2)
    phase = program.phase(PHASE)
    for transfer in transfers:
        program.send(*transfer, phase, ())
    return program.schedule("sent")


def ends(parts: DeadParts, plan: Plan) -> list[float]:
    """When transfers of 10 bytes on each rail end, while parts are dead from 4 s to 8 s."""
    conditions = Conditions(outage=Outage(parts, 4.0, 8.0))
    run = simulate(sent((0, 2, 10), (1, 3, 10)), RATES, plan.spec, conditions)
    return list(map(float, run.end_s))


def test_a_detour_shares_its_rail_with_other_transfers() -> None:
    plan = small()
    # in 4 s both send 4 bytes, in the next 4 s 2 each
    assert ends(dead(plan, cut=("d0g1", "rail1")), plan) == pytest.approx([12, 12])
    assert ends(dead(plan, "rail1"), plan) == pytest.approx([12, 12])


def test_a_transfer_without_a_path_waits_for_the_repair() -> None:
    plan = small()
    assert ends(dead(plan, "d1g1"), plan) == pytest.approx([10, 14])
    isolated = small(policy="isolated")
    assert ends(dead(isolated, "rail1"), isolated) == pytest.approx([10, 14])


def test_a_lasting_outage_leaves_a_transfer_without_an_end() -> None:
    plan = small()
    run = simulate(sent((0, 2, 10), (1, 3, 10)), RATES, plan.spec, Conditions(outage=Outage(dead(plan, "d1g1"))))
    assert run.end_s.tolist() == [10, np.inf]


def test_a_dead_gpu_has_no_hb_port() -> None:
    plan = small()
    assert dead(plan, "d0g1").broken.hb == {Gpu(0, 1)}
    assert dead(plan, "hb1").broken.hb == {Gpu(1, 0), Gpu(1, 1)}
    assert dead_parts(Impact(slowed={cable("d0g1", "rail1"): 1}), plan) is None


def ports(routes: Routes) -> list[set[Port]]:
    """The ports of each flow."""
    flows: list[set[Port]] = []
    for crossed, shares in zip(routes.crossed.tolist(), routes.shares.tolist(), strict=True):
        flows.append({routes.ports[number] for number, share in zip(crossed, shares, strict=True) if share})
    return flows


CROSSING = ((0, 3), (2, 1))


def in_outage(plan: Plan, parts: DeadParts, pairs: tuple[tuple[int, int], ...], seed: int | None = None) -> list[Any]:
    """The ports of flows, before the outage and meanwhile."""
    flows = np.array(pairs)
    return [ports(routes) for routes in routes_in_outage(flows[:, 0], flows[:, 1], RATES, plan.spec, seed, parts)]


@pytest.mark.parametrize("seed", range(4))
def test_flows_of_a_dead_plane_take_another(seed: int) -> None:
    plan = small("dual-plane")
    before, meanwhile = in_outage(plan, dead(plan, cut=("d0g0", "rail0")), ((0, 2), (1, 3)), seed)
    assert {port.plane for port in meanwhile[0]} == {1}
    assert meanwhile[1] == before[1]


@pytest.mark.parametrize(
    ("kind", "keys", "seed"),
    [
        ("rail-optimized", {}, 0),
        ("rail-optimized", {}, 1),
        ("rail-optimized", {"policy": "round-robin"}, None),
        ("clos", {}, 0),
        ("clos", {}, 1),
        ("clos", {}, None),
    ],
)
def test_flows_leave_a_dead_spine(kind: str, keys: dict[str, Any], seed: int | None) -> None:
    plan = small(kind, spines=2, **keys)
    before, meanwhile = in_outage(plan, dead(plan, "spine0"), CROSSING, seed)
    for flow_before, flow in zip(before, meanwhile, strict=True):
        spines = {name for port in flow for name in (port.node, port.far) if name.startswith("spine")}
        assert spines == {"spine1"}
        if not any("spine0" in (port.node, port.far) for port in flow_before):
            assert flow == flow_before


def test_a_cut_uplink_is_avoided_in_both_directions() -> None:
    plan = small("rail-optimized", spines=2, policy="round-robin", domains=3)
    pairs = ((0, 3), (0, 5), (3, 0), (5, 0))
    _, meanwhile = in_outage(plan, dead(plan, cut=("rail0", "spine0")), pairs)
    assert {port.far for flow in meanwhile for port in flow if port.side == "uplink"} == {"spine1"}


def test_a_dead_last_spine_makes_gpus_forward() -> None:
    plan = small("rail-optimized", spines=1)
    before, meanwhile = in_outage(plan, dead(plan, "spine0"), ((0, 3),))
    assert any(port.side == "uplink" for port in before[0])
    # rail 0 first, then the HB domain of the destination
    assert {(port.node, port.side) for port in meanwhile[0]} == {
        ("d0g0", "rail"), ("d1g0", "rail"), ("d1g0", "hb"), ("d1g1", "hb"),
    }  # fmt: skip
