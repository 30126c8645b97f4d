"""Detours, followed hop by hop through all three tables: who can be reached is, after any fault, by the chosen path."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import DETOUR_METRIC, Broken, Detours, changes, detours
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Hop, Route
from tests.unit.broken_fabrics import Fault, Truth, as_reported, double_faults, plan, single_faults
from tests.unit.fake_kernel import FakeKernel, shape_of
from tests.unit.path_choices import CHOICES, chosen_path


def kernel_after(fabric: Plan, fault: Fault, found: Detours, backups: bool = True) -> FakeKernel:
    """The fabric's routing with a fault in it and the detours in place."""
    dark = frozenset(gpu for gpu in fabric.gpus if any(gpu.name in cable for cable in fault.cables))
    extra = {gpu: list(routes.values()) for gpu, routes in found.items()}
    return FakeKernel(fabric, Truth(fabric, fault).carries, dark, backups, extra=extra)


def check_every_pair(fabric: Plan, fault: Fault, backups: bool) -> None:
    broken = as_reported(fabric, fault)
    kernel, truth = kernel_after(fabric, fault, detours(fabric, broken), backups), Truth(fabric, fault)
    for src in fabric.gpus:
        for dst in (gpu for gpu in fabric.gpus if gpu.domain != src.domain):
            hops = kernel.walk(src, dst)
            chosen = chosen_path(fabric.spec.chosen_policy, src, dst, broken, fabric.spec.rails, fabric.spec.kind)
            where = f"{fault}: {src.name} -> {dst.name}"
            if chosen is None:
                assert not truth.joined(fabric, src, dst), where
                continue
            assert hops is not None, where
            kind = "direct" if chosen.kind in ("r", "spine") else chosen.kind
            assert Path(*shape_of(hops)) == Path(kind, chosen.rail), where  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize(("domains", "rails", "backups"), [(2, 2, True), (2, 4, True), (4, 2, True), (3, 3, False)])
def test_after_each_single_fault_detours_join_all_pairs(
    kind: str, policy: str, domains: int, rails: int, backups: bool
) -> None:
    """Also without the backup routes of kernels."""
    fabric = plan(kind, policy, domains, rails)
    for fault in single_faults(fabric):
        check_every_pair(fabric, fault, backups)


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
def test_after_two_faults_detours_join_all_pairs(kind: str, policy: str) -> None:
    fabric = plan(kind, policy, 3, 3)
    for fault in islice(double_faults(fabric), 0, None, 17):
        check_every_pair(fabric, fault, backups=False)


def test_nothing_broken_means_no_detour() -> None:
    assert all(detours(plan(kind, policy, 3, 3), Broken()) == {} for kind, policy in CHOICES)


def test_a_dead_rail_link_of_a_rail_only_fabric_turns_just_these() -> None:
    found = detours(plan("rail-only", "dr", 2, 3), Broken(links=frozenset({Gpu(0, 1)})))
    routes = {(src.name, prefix): route for src, table in found.items() for prefix, route in table.items()}
    # to rank 1, usually by d0g1; and to d0g1 itself
    expected = {(f"d0g{rank}", "198.18.2.1/32") for rank in range(3)} | {
        (f"d1g{rank}", "198.18.2.0/32") for rank in range(3)
    }
    assert routes.keys() == expected
    assert routes["d0g0", "198.18.2.1/32"] == Route("198.18.2.1/32", (Hop("rail0", Gpu(1, 0)),), metric=DETOUR_METRIC)
    for key in (("d0g1", "198.18.2.1/32"), ("d1g1", "198.18.2.0/32")):
        assert {hop.device for hop in routes[key].hops} == {"hb0"}


forwarders = st.builds(Gpu, st.just(0), st.integers(0, 2))
hops = st.builds(Hop, st.sampled_from(["hb0", "rail0"]), forwarders, st.just(1))
routes = st.builds(Route, st.just("198.18.0.0/32"), st.tuples(hops))
tables = st.dictionaries(
    st.builds(Gpu, st.integers(0, 1), st.integers(0, 1)),
    st.dictionaries(st.sampled_from(["198.18.0.0/32", "198.18.0.1/32", "198.18.2.0/32"]), routes, min_size=1),
)


@given(old=tables, new=tables)
def test_the_changes_lead_from_old_to_new_and_touch_nothing_else(old: Detours, new: Detours) -> None:
    old, new = ({g: {p: with_prefix(r, p) for p, r in t.items()} for g, t in side.items()} for side in (old, new))
    state = {gpu: dict(table) for gpu, table in old.items()}
    for gpu, (gone, put) in changes(old, new).items():
        assert gone or put
        for route in put:
            assert old.get(gpu, {}).get(route.prefix) != route
            state.setdefault(gpu, {})[route.prefix] = route
        for route in gone:
            assert state[gpu].pop(route.prefix) == route
    assert {gpu: table for gpu, table in state.items() if table} == new


def with_prefix(route: Route, prefix: str) -> Route:
    return replace(route, prefix=prefix)
