"""The oracle of recovery against a search of all paths, node by node, on small fabrics with anything broken."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.detours import alternatives
from railyard.failure.faults import Cable, Impact, cable
from railyard.failure.oracle.reachability import Survivors
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.messages import messages

KINDS: tuple[str, ...] = ("rail-only", "rail-optimized", "single-switch")
RAIL, HB = 10**8, 9 * 10**8


def fabric(kind: str, domains: int, rails: int) -> Plan:
    data = {"kind": kind, "domains": domains, "rails": rails, "hb_rate": "900Mbit"}
    if kind == "rail-optimized":
        data["spines"] = 2
    return make_plan(parse_fabric(data), RAIL)


def nodes(plan: Plan) -> list[str]:
    return [*(gpu.name for gpu in plan.gpus), *plan.hb_bridges, *(switch.name for switch in plan.switches)]


def rates(plan: Plan) -> dict[Cable, int]:
    return {cable(link.a.node, link.b.node): link.rate_bps for link in plan.links}


@st.composite
def faults(draw: st.DrawFn, plan: Plan) -> Impact:
    """A few nodes and cables, and some slow ones."""
    cables = st.sampled_from(sorted(rates(plan), key=sorted))
    slow = draw(st.dictionaries(cables, st.integers(1, 100), max_size=4))
    return Impact(
        nodes=draw(st.frozensets(st.sampled_from(nodes(plan)), max_size=4)),
        cables=draw(st.frozensets(cables, max_size=6)),
        slowed={c: max(1, rates(plan)[c] * percent // 100) for c, percent in slow.items()},
    )


@st.composite
def broken(draw: st.DrawFn) -> tuple[Plan, Impact]:
    plan = fabric(draw(st.sampled_from(KINDS)), draw(st.integers(2, 3)), draw(st.integers(2, 3)))
    return plan, draw(faults(plan))


def alive(plan: Plan, dead: Impact) -> set[Cable]:
    return {c for c in rates(plan) if c not in dead.cables and not c & dead.nodes}


def routes(plan: Plan, src: Gpu, dst: Gpu) -> Iterator[list[str]]:
    """Return every path that forwarding can take, as the nodes on it: by the kinds that the controller chooses from."""
    if src.domain == dst.domain:
        yield [src.name, f"hb{src.domain}", dst.name]
        return
    if src.rank == dst.rank:
        yield from crossing(plan, src, dst)
    for path in alternatives(src, dst, plan.spec.rails, plan.spec.kind):
        far = dst.rank if path.kind == "spine" else path.rail
        near_end, far_end = Gpu(src.domain, path.rail), Gpu(dst.domain, far)
        for middle in crossing(plan, near_end, far_end):
            before = [src.name, f"hb{src.domain}"] if near_end != src else []
            after = [f"hb{dst.domain}", dst.name] if far_end != dst else []
            yield before + middle + after


def crossing(plan: Plan, a: Gpu, b: Gpu) -> Iterator[list[str]]:
    """Ways over the NIC network."""
    if plan.spec.kind == "single-switch":
        yield [a.name, "switch0", b.name]
    elif a.rank == b.rank:
        yield [a.name, f"rail{a.rank}", b.name]
    else:
        for i in range(plan.spec.spine_count):
            yield [a.name, f"rail{a.rank}", f"spine{i}", f"rail{b.rank}", b.name]


@given(broken())
def test_reachable_pairs_have_a_path_of_forwarding(case: tuple[Plan, Impact]) -> None:
    plan, dead = case
    live = alive(plan, dead)
    expected = {
        (src, dst)
        for src, dst in permutations(plan.gpus, 2)
        if any(all(cable(a, b) in live for a, b in pairwise(route)) for route in routes(plan, src, dst))
    }
    assert Survivors(plan, dead).reachable == expected


@given(broken())
def test_connected_pairs_equal_pairs_found_by_a_walk(case: tuple[Plan, Impact]) -> None:
    plan, dead = case
    live = alive(plan, dead)
    survivors = Survivors(plan, dead)
    for src in plan.gpus:
        seen, edge = {src.name}, {src.name}
        while edge:
            edge = {b for c in live if c & edge for b in c} - seen
            seen |= edge
        assert {dst for a, dst in survivors.connected if a == src} == {g for g in plan.gpus if g.name in seen} - {src}
    assert survivors.reachable <= survivors.connected


@given(broken(), st.data())
def test_the_most_of_a_pair_is_its_narrowest_cut(case: tuple[Plan, Impact], data: st.DataObject) -> None:
    """Max-flow is min-cut: over every set of GPUs on the source's side, other nodes on the side that is cheaper."""
    plan, dead = case
    src, dst = data.draw(st.sampled_from(list(permutations(plan.gpus, 2))))
    others = [gpu.name for gpu in plan.gpus if gpu not in (src, dst)]
    left = {c: min(rates(plan)[c], dead.slowed.get(c, rates(plan)[c])) for c in alive(plan, dead)}
    cuts = [
        _cut(left, {src.name, *side}, {dst.name, *others} - set(side), [n for n in nodes(plan) if n[0] != "d"])
        for size in range(len(others) + 1)
        for side in combinations(others, size)
    ]
    assert Survivors(plan, dead).max_bps(src, dst) == min(cuts)


def _cut(left: dict[Cable, int], near: set[str], far: set[str], middle: list[str]) -> int:
    """The least that crosses from `near` to `far`, both without switches, which are placed best: spines by hand."""
    spines = [name for name in middle if name.startswith("spine")]
    least = []
    for count in range(len(spines) + 1):
        for over in combinations(spines, count):
            here, there = near | set(over), far | (set(spines) - set(over))
            least.append(
                _direct(left, here, there) + sum(_placed(left, here, there, n) for n in middle if n not in spines)
            )
    return min(least)


def _direct(left: dict[Cable, int], here: set[str], there: set[str]) -> int:
    return sum(rate for c, rate in left.items() if len(c & here) == 1 and len(c & there) == 1)


def _placed(left: dict[Cable, int], here: set[str], there: set[str], node: str) -> int:
    """Return what a switch costs on the better side; switches of one tier have no cables to each other."""
    ins = sum(rate for c, rate in left.items() if node in c and (c - {node}) <= here)
    outs = sum(rate for c, rate in left.items() if node in c and (c - {node}) <= there)
    return min(ins, outs)


@given(broken(), st.data())
def test_another_fault_never_adds_a_path_or_a_rate(case: tuple[Plan, Impact], data: st.DataObject) -> None:
    plan, dead = case
    before = Survivors(plan, dead)
    after = Survivors(plan, dead | data.draw(faults(plan)))
    assert after.reachable <= before.reachable
    assert after.connected <= before.connected
    src, dst = data.draw(st.sampled_from(list(permutations(plan.gpus, 2))))
    assert after.max_bps(src, dst) <= before.max_bps(src, dst)
    # both directions are alike, and a path has a rate
    assert {(b, a) for a, b in before.reachable} == before.reachable
    assert before.max_bps(src, dst) == before.max_bps(dst, src)
    assert (before.max_bps(src, dst) > 0) == ((src, dst) in before.connected)


def test_two_faults_at_once_are_both_there() -> None:
    one, other, third = cable("d0g0", "rail0"), cable("d0g1", "rail1"), cable("d1g0", "hb1")
    both = Impact(frozenset({"d1g1"}), slowed={one: 5, other: 7}) | Impact(cables=frozenset({third}), slowed={one: 3})
    assert both == Impact(frozenset({"d1g1"}), frozenset({third}), {one: 3, other: 7})


@pytest.mark.parametrize("kind", KINDS)
def test_fabric_connects_all_pairs_at_their_links_rate(kind: str) -> None:
    plan = fabric(kind, 3, 3)
    whole = Survivors(plan, Impact())
    assert whole.reachable == whole.connected == set(permutations(plan.gpus, 2))
    assert whole.max_bps(Gpu(0, 0), Gpu(0, 1)) == RAIL + HB
    # to another domain it has three rails, of which HB carries two to it
    assert whole.max_bps(Gpu(0, 0), Gpu(1, 0)) == 3 * RAIL


def test_two_faults_can_leave_only_a_way_over_a_third_domain() -> None:
    """d0 lives on rail 0 alone, d1 on rail 1 alone: only d2 has both."""
    plan = fabric("rail-only", 3, 2)
    survivors = Survivors(plan, Impact(cables=frozenset({cable("d0g1", "rail1"), cable("d1g0", "rail0")})))
    pair = (Gpu(0, 0), Gpu(1, 1))
    assert pair not in survivors.reachable
    assert pair in survivors.connected
    assert survivors.max_bps(*pair) == RAIL


def test_a_dead_gpu_is_no_ones_way_and_has_none() -> None:
    plan = fabric("rail-only", 2, 2)
    survivors = Survivors(plan, Impact(nodes=frozenset({"d0g1"})))
    assert survivors.reachable == set(permutations([Gpu(0, 0), Gpu(1, 0), Gpu(1, 1)], 2))  # d0g0 to d1g1 by rd only
    assert survivors.max_bps(Gpu(0, 0), Gpu(0, 1)) == 0
    assert survivors.max_bps(Gpu(0, 0), Gpu(1, 1)) == RAIL


@pytest.mark.parametrize("kind", KINDS)
def test_64_gpus_take_well_under_a_second(kind: str) -> None:
    plan = fabric(kind, 8, 8)
    start = time.process_time()
    survivors = Survivors(plan, Impact(nodes=frozenset({"d0g1"}), cables=frozenset({cable("d1g1", "hb1")})))
    assert len(survivors.reachable) > 3800
    assert len(survivors.connected) == 63 * 62
    assert time.process_time() - start < 1


UNKNOWN_PARTS = {
    "node": Impact(nodes=frozenset({"rail9"})),
    "cable": Impact(cables=frozenset({cable("d0g0", "rail1")})),
    "no rate": Impact(slowed={cable("d0g0", "rail0"): 0}),
    "more than its rate": Impact(slowed={cable("d0g0", "rail0"): RAIL + 1}),
}


def test_parts_that_the_plan_lacks_are_refused(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(partial(Survivors, fabric("rail-only", 2, 2)), UNKNOWN_PARTS, ValueError))
