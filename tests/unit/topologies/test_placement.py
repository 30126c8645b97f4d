"""Placement on machines: HB domains whole, each rail switch once, and only rail links between machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.spec.experiment import nominal_plan
from railyard.topologies.placement import place
from railyard.topologies.spec import FabricSpec


@given(
    kind=st.sampled_from(["rail-only", "dual-plane", "single-switch"]),
    domains=st.integers(2, 40),
    rails=st.integers(2, 8),
    machines=st.integers(1, 40),
)
def test_domains_are_whole_and_every_node_has_one_machine(kind: str, domains: int, rails: int, machines: int) -> None:
    plan = nominal_plan(FabricSpec.model_validate({"kind": kind, "domains": domains, "rails": rails}))
    if machines > domains:
        with pytest.raises(ValueError, match="placed whole"):
            place(plan, machines)
        return
    placement = place(plan, machines)
    parts = [placement.nodes(n) for n in range(machines)]
    assert sorted(node for part in parts for node in part) == sorted(plan.namespaces)
    for link in plan.links:
        joins_two = sum(link.a.node in part or link.b.node in part for part in parts) == 2
        assert joins_two == (link in placement.tunnels)
        assert link.kind != "hb" or not joins_two
    sizes = [len(placement.domains(n)) for n in range(machines)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert [d for n in range(machines) for d in placement.domains(n)] == list(range(domains))
    switches = [sum(switch.name in part for switch in plan.switches) for part in parts]
    assert max(switches) - min(switches) <= 1
