"""Reserved capacity of background load: ports, rates, and commands before and after."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import htb_commands, shared_htb_commands
from railyard.topologies.fabric_kinds import End
from railyard.topologies.plan import Plan
from railyard.workloads.background.flows import PORT, BackgroundFlow, flows_of, reserved, reserved_bps
from railyard.workloads.background.spec import BackgroundSpec
from tests.unit.stand_ins import plan_of

MBIT = 1_000_000


def flows(plan: Plan, *specs: dict[str, Any]) -> list[BackgroundFlow]:
    return [flow for keys in specs for flow in flows_of(BackgroundSpec.model_validate(keys), plan)]


def capacities(plan: Plan) -> dict[End, int]:
    return {end: link.rate_bps for link in plan.links for end in (link.a, link.b)}


def test_hot_rail_loads_its_own_links_in_both_directions() -> None:
    plan = plan_of(domains=3, rails=2)
    cables = [plan.rail_link(Gpu(d, 1)) for d in range(3)]
    assert reserved_bps(plan, flows(plan, {"rails": [1], "load": 0.9})) == {
        end: pytest.approx(0.9 * plan.rail_bps) for link in cables for end in (link.a, link.b)
    }


def test_traffic_of_several_senders_adds_up_at_a_port() -> None:
    plan = plan_of(domains=2, rails=3)
    found = reserved_bps(plan, flows(plan, {"domains": [0], "load": 0.5}, {"domains": [0, 1], "load": 0.25}))
    for gpu in plan.gpus:
        share = 0.75 if gpu.domain == 0 else 0.25
        assert found[plan.hb_link(gpu).a] == found[plan.hb_link(gpu).b] == pytest.approx(share * plan.hb_bps)


@given(
    domains=st.integers(2, 5), rails=st.integers(2, 5), spines=st.integers(1, 3), oversubscription=st.integers(1, 4),
    load=st.floats(0.05, 0.95),
)  # fmt: skip
def test_traffic_across_spines_fills_uplinks_equally(
    domains: int, rails: int, spines: int, oversubscription: int, load: float
) -> None:
    plan = plan_of("rail-optimized", domains, rails, spines=spines, oversubscription=float(oversubscription))
    found = reserved_bps(plan, flows(plan, {"spine": True, "load": load}))
    rates = capacities(plan)
    uplinks = {end for link in plan.uplinks for end in (link.a, link.b)}
    at_rails = {end for gpu in plan.gpus for end in (plan.rail_link(gpu).a, plan.rail_link(gpu).b)}
    assert found.keys() == uplinks | at_rails
    for end in uplinks:
        assert found[end] == pytest.approx(load * rates[end], rel=1e-6)
    for end in at_rails:
        assert found[end] == pytest.approx(load * plan.rail_bps / oversubscription, rel=1e-6)


def test_ports_have_a_second_htb_class_only_while_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    message: defaultdict[str, list[str]] = defaultdict(list)
    inside: list[str] = []

    @contextmanager
    def enter(node: str) -> Iterator[None]:
        inside.append(node)
        yield
        inside.pop()

    def run(argv: list[str], lines: str) -> str:
        assert argv == ["tc", "-batch", "-"]
        message[inside[-1]] += lines.splitlines()
        return ""

    monkeypatch.setattr(namespaces, "inside", enter)
    monkeypatch.setattr(namespaces, "run", run)
    plan = plan_of(domains=2, rails=2)
    link = plan.rail_link(Gpu(0, 1))
    delete = [f"qdisc del dev {link.a.interface} root"]
    shared = shared_htb_commands(link.a.interface, plan.rail_bps, round(0.9 * plan.rail_bps), PORT, 9000)
    with suppress(KeyboardInterrupt), reserved(plan, flows(plan, {"rails": [1], "load": 0.9})):
        assert message.keys() == {"d0g1", "d1g1", "rail1"}
        assert message["d0g1"] == delete + shared.splitlines()
        assert sum("1:20" in line for line in message["rail1"]) == 2 * 2  # a class and a filter for each of two ports
        message.clear()
        raise KeyboardInterrupt
    assert message["d0g1"] == delete + htb_commands(link.a.interface, plan.rail_bps, 9000).splitlines()
    assert message.keys() == {"d0g1", "d1g1", "rail1"}


def test_commands_of_the_shared_shaper(file_regression: FileRegressionFixture) -> None:
    file_regression.check(shared_htb_commands("rail0", 100 * MBIT, 90 * MBIT, 9, 9000))


@given(rate=st.integers(10**6, 10**11), share=st.floats(0.01, 0.95))
def test_both_htb_classes_share_and_may_use_the_whole_rate(rate: int, share: float) -> None:
    words = [line.split() for line in shared_htb_commands("rail0", rate, round(share * rate), 9, 9000).splitlines()]
    leaves = [{key: line[line.index(key) + 1] for key in ("rate", "ceil")} for line in words if "1:1" in line[5:6]]
    assert len(leaves) == 2
    assert sum(int(leaf["rate"].removesuffix("bit")) for leaf in leaves) == rate
    assert {leaf["ceil"] for leaf in leaves} == {f"{rate}bit"}
