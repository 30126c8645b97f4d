"""Fabric kinds that are graphs: plan, flows, routes, faults and predictions of the example, and refused graphs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.detours import Broken, detours
from railyard.controller.openflow.flows import graph_tables
from railyard.core import plugins
from railyard.core.errors import BadInput
from railyard.core.plugins import BadDefinition
from railyard.experiments.measures.faults.script_plot import component_kind, component_title
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.oracle.reachability import bounds
from railyard.failure.pairs import affected_pairs, broken_by
from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.predict import explained_ratios, predict_phase
from railyard.topologies.addresses import Gpu, gpu_at, role_of
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.graph import Cable, Network, Size
from railyard.topologies.plan import Plan, make_plan, write_active_plan
from railyard.topologies.routing import ON_RAIL, neighbours, source_routes
from railyard.topologies.spec import parse_fabric
from railyard.workloads.collectives.algorithm import Sizes
from railyard.workloads.schedule import Phase, Rates, Schedule
from tests.unit.experiments.measures.faults.test_run import fault_run
from tests.unit.messages import messages

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "leaf_spine.py"
RAIL_BPS = 100_000_000
READ_PLAN = """
import pathlib, sys
from railyard.topologies import plan
plan.PLAN_FILE = pathlib.Path(sys.argv[1])
print([switch.name for switch in plan.read_active_plan().switches])
"""
RATES = Rates(hb=1000.0, rail=100.0)


@pytest.fixture
def plan() -> Plan:
    """leaf0, leaf1 and leaf2 with two GPUs each, spine0 and spine1."""
    plugins.load(EXAMPLE)
    return make_plan(parse_fabric({"kind": "leaf-spine", "domains": 3, "rails": 2}), RAIL_BPS)


def follow(plan: Plan, src: Gpu, dst: Gpu, dead: frozenset[str], cut: frozenset[frozenset[str]]) -> set[str]:
    """The switches that flows let frames pass on some way from one rail link to another; KeyError for a dropped one."""
    graph, passed = plan.graph, set[str]()
    names = {(end.node, end.port): other.node for link in plan.uplinks for end, other in permutations((link.a, link.b))}
    waiting = {graph.switch_of[src]}
    while waiting:
        here = waiting.pop()
        assert here not in dead
        passed.add(here)
        tables = graph_tables(graph, here, dead, cut)
        flow = {flow.eth_dst: flow for flow in tables.flows}[dst.mac("rail")]
        ports = (flow.port,) if flow.group is None else tables.groups[flow.group]
        if graph.switch_of[dst] == here:
            assert [gpu_at(graph.dpids[here], port or 0) for port in ports] == [dst]
            continue
        for port in ports:
            assert frozenset((here, names[here, port])) not in cut
            waiting.add(names[here, port])
    return passed


def test_another_process_reads_the_plan_of_a_plugins_kind(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trace` and `watch` enter a run from outside, without the plugins of its command line."""
    file = tmp_path / "plan.json"
    monkeypatch.setattr("railyard.topologies.plan.PLAN_FILE", file)
    write_active_plan(plan)
    environment = {name: value for name, value in os.environ.items() if name != plugins.ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", READ_PLAN, str(file)], capture_output=True, text=True, env=environment)
    assert done.stdout == "['leaf0', 'leaf1', 'leaf2', 'spine0', 'spine1']\n", done.stderr


def test_plan_of_the_example(plan: Plan) -> None:
    assert [switch.name for switch in plan.switches] == ["leaf0", "leaf1", "leaf2", "spine0", "spine1"]
    assert [switch.role for switch in plan.switches] == ["leaf"] * 3 + ["core"] * 2
    assert all(role_of(switch.dpid) == (switch.role, switch.index) for switch in plan.switches)
    assert {link.b.node for link in plan.links if link.kind == "rail"} == {"leaf0", "leaf1", "leaf2"}
    assert all(plan.rail_link(gpu).b.node == f"leaf{gpu.domain}" for gpu in plan.gpus)
    assert {(link.a.node, link.b.node): link.rate_bps for link in plan.uplinks} == {
        (f"leaf{d}", f"spine{i}"): RAIL_BPS for d in range(3) for i in range(2)
    }
    ends = [(end.node, end.port) for link in plan.links for end in (link.a, link.b) if end.port]
    assert len(ends) == len(set(ends))


def test_flows_lead_over_every_shortest_path(plan: Plan) -> None:
    for src, dst in permutations(plan.gpus, 2):
        expected = {f"leaf{src.domain}"}
        if src.domain != dst.domain:
            expected |= {f"leaf{dst.domain}", "spine0", "spine1"}
        assert follow(plan, src, dst, frozenset(), frozenset()) == expected


@pytest.mark.parametrize(
    ("dead", "cut"),
    [((), [("leaf0", "spine1")]), (("spine1",), []), ((), [("leaf0", "spine1"), ("leaf1", "spine1")])],
)
def test_flows_avoid_dead_links_and_switches(plan: Plan, dead: tuple[str, ...], cut: list[tuple[str, str]]) -> None:
    cables = frozenset(map(frozenset[str], cut))
    for src, dst in permutations(plan.gpus, 2):
        passed = follow(plan, src, dst, frozenset(dead), cables)
        if src.domain != dst.domain and 0 in (src.domain, dst.domain):
            assert "spine1" not in passed


def test_detour_over_another_leaf_is_found() -> None:
    """Of leaf0-spine0 and leaf1-spine1 alone, frames pass leaf2 between the spines."""
    plugins.load(EXAMPLE)
    plan = make_plan(parse_fabric({"kind": "leaf-spine", "domains": 3, "rails": 2}), RAIL_BPS)
    cut = frozenset({frozenset({"leaf0", "spine1"}), frozenset({"leaf1", "spine0"})})
    passed = follow(plan, Gpu(0, 0), Gpu(1, 1), frozenset(), cut)
    assert passed == {"leaf0", "spine0", "leaf2", "spine1", "leaf1"}


def test_routes_at_gpus_follow_the_policy(plan: Plan) -> None:
    routes = {route.prefix: route.hops for route in source_routes(plan, Gpu(0, 0))}
    assert all(hops == ON_RAIL for prefix, hops in routes.items() if not prefix.endswith("/32"))
    assert {gpu for gpu, device in neighbours(plan, Gpu(0, 0)) if device == "rail0"} == {*plan.gpus} - {Gpu(0, 0)}


def test_faults_agree_with_the_oracle(plan: Plan) -> None:
    pairs = set(permutations(plan.gpus, 2))
    within = {(a, b) for a, b in pairs if a.domain == b.domain}
    beside_leaf0 = {(a, b) for a, b in pairs if 0 not in (a.domain, b.domain)}
    for fault, expected in (
        (Fault("uplink-down", "leaf0-spine1"), pairs),
        (Fault("spine-crash", "spine0"), pairs),
        (Fault("rail-switch-crash", "leaf0"), within | beside_leaf0),
        (Fault("link-down", "d0g0"), pairs),
    ):
        impact = fault.impact(plan)
        assert bounds(plan, [fault]).lower.reachable == expected, fault
        broken = broken_by(impact, plan)
        assert bool(broken.islands) == (fault.target == "leaf0")
        affected = affected_pairs(fault, plan)
        crossed = {(a, b) for a, b in pairs if a.domain != b.domain and affected.crosses(a, b)}
        hit = {gpu for gpu in plan.gpus if gpu.domain == 0} if fault.kind != "link-down" else {Gpu(0, 0)}
        if fault.kind != "spine-crash":
            assert crossed == {(a, b) for a, b in pairs - within if a in hit or b in hit}


@pytest.mark.parametrize(
    ("kind", "title"), [("rail-switch-crash", "leaf"), ("rail-switch-hang", "leaf"), ("spine-crash", "spine")]
)
def test_messages_call_switches_by_the_kinds_names(plan: Plan, kind: str, title: str) -> None:
    problem = FAULTS[kind].target_problem(plan, "rail0")
    assert problem.startswith(f"is no {title} of the leaf-spine fabric")
    names = [f"{title}0", f"{title}1"]
    recoveries = [fault_run(Fault(kind, name)).recovery for name in names]
    assert component_title(component_kind(kind), recoveries) == title


def test_dead_nic_is_passed_by_the_domain(plan: Plan) -> None:
    """G(d1,g0) reaches G(d0,g0) by way of G(d0,g1)."""
    found = detours(plan, Broken(links=frozenset({Gpu(0, 0)})))
    assert {gpu for gpu in found if gpu.domain != 0} == {gpu for gpu in plan.gpus if gpu.domain != 0}
    assert detours(plan, Broken(islands=plan.graph.islands({"leaf0"}))) == {}


@pytest.mark.parametrize(("oversubscription", "factor"), [(1.0, 1.0), (4.0, 4.0)])
def test_prediction_counts_cables_between_switches(oversubscription: float, factor: float) -> None:
    """Each leaf sends the bytes of its 2 GPUs to 4 others over two cables of 100 / oversubscription."""
    plugins.load(EXAMPLE)
    keys = {"kind": "leaf-spine", "domains": 3, "rails": 2, "oversubscription": oversubscription}
    fabric = parse_fabric(keys)
    phase = Phase("x", "", data_bytes=300, collective="all-to-all", x=2, y=3)
    assert predict_phase(phase, RATES, fabric) == pytest.approx(factor * 4 * 300 / 100.0)


@pytest.mark.parametrize("spines", [1, 2])
def test_no_rail_switch_bounds_a_graph(spines: int) -> None:
    """A GPU's 1000 bytes fill its own cable of 100 bytes/s; the cables of its leaf carry as much together."""
    plugins.load(EXAMPLE)
    fabric = parse_fabric({"kind": "leaf-spine", "domains": 2, "rails": 4, "spines": spines, "oversubscription": 4})
    assert bottleneck_s([Sizes.of({(0, 5): 1000.0})], 4, 2, RATES, fabric) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("flows", "expected"),
    [
        ({(0, 5): 1000.0}, 20.0),  # on either of two cables of 50 bytes/s
        ({(0, 5): 1000.0, (1, 4): 1000.0}, 30.0),  # on the same cable in half of all cases
        ({(0, 1): 1000.0}, 1.0),  # over the HB domain
    ],
)
def test_expected_time_on_a_graph_is_the_mean_over_hashes(flows: dict[tuple[int, int], float], expected: float) -> None:
    plugins.load(EXAMPLE)
    fabric = parse_fabric({"kind": "leaf-spine", "domains": 2, "rails": 4, "spines": 2, "oversubscription": 4})
    stages = [Sizes.of(flows)]
    assert bottleneck_s(stages, 4, 2, RATES, fabric, "expected") == pytest.approx(expected, rel=0.05)


def test_only_traffic_that_fills_the_fabric_is_compared(plan: Plan) -> None:
    whole = Phase("whole", "", data_bytes=300, collective="all-to-all", x=2, y=3)
    ring = Phase("ring", "", data_bytes=300, collective="all-reduce-ring", x=1, y=3)
    explained = explained_ratios(Schedule("mine", 6, 2, (whole, ring), ()), RATES, plan.spec)
    assert explained["whole"] == (1.0, float("inf"))
    assert explained["ring"] == explained[""] == (0.0, float("inf")), "two steps have no formula as a whole"


def kind_with(change: Callable[[Size, Network], Network]) -> type[FabricKind]:
    """A leaf-spine kind whose graph has a mistake."""

    class Changed(FabricKind):
        default_policy = "spine"

        def network(self, size: Size) -> Network:
            leaves = [f"leaf{domain}" for domain in range(size.domains)]
            cables = [Cable(gpu.name, leaves[gpu.domain]) for gpu in size.gpus]
            cables += [Cable(leaf, "spine0", 2.0) for leaf in leaves]
            return change(size, Network((*leaves, "spine0"), tuple(cables)))

    return Changed


def with_cables(*cables: Cable) -> Callable[[Size, Network], Network]:
    """Add cables to the graph."""
    return lambda size, network: network._replace(cables=(*network.cables, *cables))


def with_switch(name: str) -> Callable[[Size, Network], Network]:
    """Add a switch to the graph."""
    return lambda size, network: network._replace(switches=(*network.switches, name))


CHANGES: dict[str, Callable[[Size, Network], Any]] = {
    "switches not joined": lambda size, network: network._replace(cables=network.cables[:-1]),
    "GPU without a cable": lambda size, network: network._replace(cables=network.cables[1:]),
    "switch without a cable": with_switch("leaf9"),
    "cable listed twice": with_cables(Cable("spine0", "leaf0")),
    "unknown switch": with_cables(Cable("d0g0", "lef1")),
    "unknown node": with_cables(Cable("d0g0", "hb0")),
    "two GPUs": with_cables(Cable("d0g0", "d1g0")),
    "rate of 0": with_cables(Cable("leaf0", "leaf1", 0)),
    "two NICs": with_cables(Cable("d0g0", "leaf1")),
    "switch listed twice": with_switch("leaf0"),
    "name of an HB domain": with_switch("hb7"),
    "no graph": lambda size, network: None,
    "exception": lambda size, network: 1 / 0,
}


def test_bad_graph_is_refused_in_one_line(data_regression: DataRegressionFixture) -> None:
    data_regression.check(
        messages(lambda change: FABRIC_KINDS.add("mine", kind_with(change)()), CHANGES, BadDefinition)
    )
    assert "mine" not in FABRIC_KINDS


def test_size_without_a_whole_graph_is_refused() -> None:
    """A mistake that the sizes tried at registration don't show."""

    def no_cable_to_leaf7(size: Size, network: Network) -> Network:
        return network._replace(cables=tuple(c for c in network.cables if c[:2] != ("leaf7", "spine0")))

    FABRIC_KINDS.add("mine", kind_with(no_cable_to_leaf7)())
    try:
        parse_fabric({"kind": "mine", "domains": 7, "rails": 2})
        with pytest.raises(BadInput, match=r"kind: 'mine' can't be 8 x 2: no switches join GPU d0g0 with GPU d7g0"):
            parse_fabric({"kind": "mine", "domains": 8, "rails": 2})
    finally:
        FABRIC_KINDS.remove("mine")


def test_kind_that_is_a_graph_takes_no_assigned_uplinks(plan: Plan) -> None:
    assert plan.spec.definition.policies == ("spine", "pxn", "rd")
    with pytest.raises(BadInput, match="must be 239 or less"):
        parse_fabric({"kind": "leaf-spine", "domains": 240, "rails": 2})


class Rails(FabricKind):
    """rail-only, as a graph of switches that nothing joins."""

    default_policy = "dr"

    def network(self, size: Size) -> Network:
        cables = tuple(Cable(gpu.name, f"rail{gpu.rank}") for gpu in size.gpus)
        return Network(tuple(f"rail{rank}" for rank in range(size.rails)), cables)


class Ring(FabricKind):
    """A switch for each domain, in a ring."""

    default_policy = "spine"

    def network(self, size: Size) -> Network:
        names = [f"ring{domain}" for domain in range(size.domains)]
        pairs = dict.fromkeys(frozenset((a, b)) for a, b in zip(names, [*names[1:], names[0]], strict=True))
        down = [Cable(gpu.name, names[gpu.domain]) for gpu in size.gpus]
        return Network(tuple(names), (*down, *(Cable(min(pair), max(pair), 2.0) for pair in pairs)))


@pytest.fixture
def more_kinds() -> Iterator[None]:
    """The two kinds, until the end of the test."""
    FABRIC_KINDS.add("rails-as-graph", Rails())
    FABRIC_KINDS.add("ring", Ring())
    yield
    FABRIC_KINDS.remove("rails-as-graph")
    FABRIC_KINDS.remove("ring")


@pytest.mark.usefixtures("more_kinds")
def test_rail_only_as_a_graph_has_the_routes_of_rail_only() -> None:
    graph, built_in = (
        make_plan(parse_fabric({"kind": kind, "domains": 3, "rails": 3}), RAIL_BPS)
        for kind in ("rails-as-graph", "rail-only")
    )
    assert all(source_routes(graph, gpu) == source_routes(built_in, gpu) for gpu in graph.gpus)
    assert all(neighbours(graph, gpu) == neighbours(built_in, gpu) for gpu in graph.gpus)
    for kind, target in (("rail-switch-crash", "rail1"), ("link-down", "d0g1"), ("hb-port-down", "d1g1")):
        fault = Fault(kind, target)
        reachable = [bounds(plan, [fault]).lower.reachable for plan in (graph, built_in)]
        assert reachable[0] == reachable[1]
        changed = [detours(plan, broken_by(fault.impact(plan), plan)) for plan in (graph, built_in)]
        assert changed[0] == changed[1], fault


@pytest.mark.usefixtures("more_kinds")
def test_ring_has_two_ways_and_uses_the_longer_one_after_a_cut() -> None:
    plan = make_plan(parse_fabric({"kind": "ring", "domains": 4, "rails": 2}), RAIL_BPS)
    assert follow(plan, Gpu(0, 0), Gpu(2, 1), frozenset(), frozenset()) == {f"ring{n}" for n in range(4)}
    cut = frozenset({frozenset({"ring0", "ring1"})})
    assert follow(plan, Gpu(0, 0), Gpu(1, 0), frozenset(), cut) == {f"ring{n}" for n in range(4)}
    assert plan.graph.islands(cut=cut) == frozenset()
    apart = {"ring1", "ring3"}
    groups = plan.graph.islands(apart)
    assert {frozenset(gpu.domain for gpu in group) for group in groups} == {frozenset({0}), frozenset({2})}
