"""Route tables: every policy's path is taken, in every fabric; and what the kernel does alone when a rail link dies."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.topologies import routing
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import FROM_HB, FROM_RAIL, MAIN, Route, gpu_commands, transit_routes
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_kernel import FakeKernel, Hop, shape_of
from tests.unit.path_choices import CHOICES, own_path


def plan(kind: str, policy: str, domains: int, rails: int) -> Plan:
    data: dict[str, Any] = {"kind": kind, "policy": policy, "domains": domains, "rails": rails}
    return make_plan(parse_fabric(data), 10**8)


def whole(fabric: Plan, backups: bool = False) -> FakeKernel:
    reaches_all = fabric.spec.kind != "rail-only"
    return FakeKernel(fabric, lambda a, b: reaches_all or a.rank == b.rank, backups=backups)


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize("backups", [False, True])
@pytest.mark.parametrize("domains", [2, 3, 4])
@pytest.mark.parametrize("rails", [2, 3, 4])
def test_every_pair_is_joined_by_the_policys_path(
    kind: str, policy: str, domains: int, rails: int, backups: bool
) -> None:
    fabric = plan(kind, policy, domains, rails)
    kernel = whole(fabric, backups)
    for src in fabric.gpus:
        for dst in fabric.gpus:
            hops = kernel.walk(src, dst)
            assert hops is not None, f"{src.name} -> {dst.name}"
            if src.domain == dst.domain:
                assert hops == ([Hop(src, "hb0")] if src != dst else [])
            else:
                path = own_path(policy, src, dst)
                kind_name = "direct" if path.kind in ("r", "spine") else path.kind
                assert shape_of(hops) == (kind_name, path.rail)


@settings(max_examples=8)
@given(choice=st.sampled_from(CHOICES), domains=st.integers(2, 1024), rails=st.integers(2, 256), data=st.data())
def test_the_largest_fabrics_are_joined_too(
    choice: tuple[str, str], domains: int, rails: int, data: st.DataObject
) -> None:
    kind, policy = choice
    domains = min(domains, 254) if kind == "single-switch" else domains
    if domains * rails > 4096:  # a kernel's tables grow with both; keep the test in seconds
        rails = max(2, 4096 // domains)
    fabric = plan(kind, policy, domains, rails)
    one = st.builds(Gpu, st.integers(0, domains - 1), st.integers(0, rails - 1))
    src, dst = data.draw(one), data.draw(one)
    assert whole(fabric).walk(src, dst) is not None


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize(("domains", "rails"), [(2, 2), (3, 2), (2, 3), (3, 4)])
def test_backup_routes_keep_the_domain_of_a_dead_rail_link_up(kind: str, policy: str, domains: int, rails: int) -> None:
    """The kernel alone, before any controller: own traffic leaves elsewhere, and so does what it carries for others."""
    fabric = plan(kind, policy, domains, rails)
    for dead in fabric.gpus:
        kernel = with_dead_link(fabric, dead, backups=True)
        for src in (Gpu(dead.domain, rank) for rank in range(rails)):
            for dst in fabric.gpus:
                assert kernel.walk(src, dst) is not None, f"{src.name} -> {dst.name} without the link of {dead.name}"


def with_dead_link(fabric: Plan, dead: Gpu, backups: bool) -> FakeKernel:
    reaches_all = fabric.spec.kind != "rail-only"

    def crosses(a: Gpu, b: Gpu) -> bool:
        return dead not in (a, b) and (reaches_all or a.rank == b.rank)

    return FakeKernel(fabric, crosses, dark=frozenset({dead}), backups=backups)


def test_without_backup_routes_a_dead_rail_link_cuts_off_its_gpu() -> None:
    fabric = plan("rail-only", "dr", 3, 3)
    kernel = with_dead_link(fabric, Gpu(0, 1), backups=False)
    assert kernel.walk(Gpu(0, 1), Gpu(2, 1)) is None
    assert kernel.walk(Gpu(0, 0), Gpu(2, 1)) is None  # its neighbours' way to rail 1 led through it
    assert kernel.walk(Gpu(0, 1), Gpu(2, 0)) is not None
    assert kernel.walk(Gpu(1, 0), Gpu(0, 1)) is None


def test_a_backup_never_serves_while_the_carrier_is_there() -> None:
    for kind, policy in CHOICES:
        fabric = plan(kind, policy, 3, 3)
        plain, backed = whole(fabric), whole(fabric, backups=True)
        pairs = [(src, dst) for src in fabric.gpus for dst in fabric.gpus]
        assert [plain.walk(*pair) for pair in pairs] == [backed.walk(*pair) for pair in pairs]


def test_transit_stays_on_the_forwarders_rail_then_its_domain() -> None:
    routes = transit_routes(plan("rail-only", "dr", 3, 3), Gpu(1, 2))
    from_hb, from_rail = ([r.hops[0] for r in routes if r.table == table] for table in (FROM_HB, FROM_RAIL))
    assert {hop.device for hop in from_hb} == {"rail0"}
    assert {hop.via.rank for hop in from_hb if hop.via} == {2}
    assert {hop.device for hop in from_rail} == {"hb0"}
    assert not [route for route in routes if route.table == MAIN]


def test_a_gpus_commands_are_as_stored(data_regression: DataRegressionFixture) -> None:
    commands = gpu_commands(plan("rail-only", "dr", 2, 2), Gpu(0, 1), backups=True)
    data_regression.check({"d0g1": commands.splitlines()})


def test_the_last_rank_backs_up_through_the_first() -> None:
    fabric = plan("rail-only", "dr", 2, 4)
    kernel = FakeKernel(fabric, lambda a, b: a.rank == b.rank, dark=frozenset({Gpu(0, 3)}), backups=True)
    expected = Route("198.18.0.0/15", (routing.Hop("hb0", Gpu(0, 0)),), metric=1000)
    assert kernel.look_up(Gpu(0, 3), None, Gpu(1, 3)) == expected
