"""The controller's choice of paths, held against the oracle: two ways to work out who still reaches whom."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import Broken, detours, find_disconnected_ranks, usable
from railyard.failure.faults import Impact, cable
from railyard.failure.oracle.reachability import Survivors
from railyard.topologies.addresses import Gpu, role_of
from railyard.topologies.plan import Plan
from railyard.topologies.routing import host_prefix
from tests.unit.broken_fabrics import plan
from tests.unit.fake_switch import cables
from tests.unit.path_choices import CHOICES, chosen_path, own_path


def as_reported(fabric: Plan, dead: Impact) -> Broken:
    """Return what the controller knows after all events of switches and heartbeats."""
    names = {switch.dpid: switch.name for switch in fabric.switches}
    away = {dpid for dpid, name in names.items() if name in dead.nodes}
    down = {a for a, b in cables(fabric).items() if cable(names[a[0]], names[b[0]]) in dead.cables}
    return Broken(
        links=frozenset(gpu for gpu in fabric.gpus if is_cut(dead, gpu, fabric.rail_link(gpu).b.node)),
        rails=frozenset(role_of(dpid)[1] for dpid in away if role_of(dpid)[0] != "spine"),
        disconnected_ranks=find_disconnected_ranks(fabric, down, away),
        hb=frozenset(
            gpu for gpu in fabric.gpus if is_cut(dead, gpu, f"hb{gpu.domain}") or f"hb{gpu.domain}" in dead.nodes
        ),
    )


def is_cut(dead: Impact, gpu: Gpu, far: str) -> bool:
    return gpu.name in dead.nodes or cable(gpu.name, far) in dead.cables


@st.composite
def broken_fabrics(draw: st.DrawFn) -> tuple[Plan, Impact]:
    kind, policy = draw(st.sampled_from(CHOICES))
    more: dict[str, Any] = {"spines": draw(st.integers(1, 3))} if kind == "rail-optimized" else {}
    fabric = plan(kind, policy, draw(st.integers(2, 4)), draw(st.integers(2, 4)), **more)
    nodes = [*(gpu.name for gpu in fabric.gpus), *fabric.hb_bridges, *(switch.name for switch in fabric.switches)]
    links = [cable(link.a.node, link.b.node) for link in fabric.links]
    dead = Impact(
        draw(st.frozensets(st.sampled_from(nodes), max_size=3)), draw(st.frozensets(st.sampled_from(links), max_size=6))
    )
    return fabric, dead


@given(case=broken_fabrics())
def test_pairs_with_a_path_equal_pairs_joined_by_the_fabric(case: tuple[Plan, Impact]) -> None:
    fabric, dead = case
    spec, broken, reachable = fabric.spec, as_reported(fabric, dead), Survivors(fabric, dead).reachable
    found = detours(fabric, broken)
    for src in fabric.gpus:
        for dst in (gpu for gpu in fabric.gpus if gpu.domain != src.domain):
            where = f"{src.name} -> {dst.name}"
            path = chosen_path(fabric.spec.chosen_policy, src, dst, broken, spec.rails, spec.kind)
            assert (path is not None) == ((src, dst) in reachable), where
            own = usable(own_path(fabric.spec.chosen_policy, src, dst), src, dst, broken, spec.kind)
            assert (host_prefix(dst) in found.get(src, {})) == (path is not None and not own), where
