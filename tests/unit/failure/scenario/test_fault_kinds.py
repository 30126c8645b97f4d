"""Kinds of faults: what an experiment may ask of each, whom it hits, and who is watched meanwhile."""

from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.detours import Broken
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.parsing import parse
from railyard.failure.faults import Fault
from railyard.failure.faults.support.links import loss_rules
from railyard.failure.pairs import broken_by, monitored_pairs
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric
from tests.unit.messages import messages
from tests.unit.path_choices import own_path


def experiment(fault: dict[str, Any], **fabric: Any) -> dict[str, Any]:
    return {"name": "mine", "fabrics": [{"kind": "rail-only", **fabric}], "faults": [fault]}


def plan_of(kind: str = "rail-only", **keys: Any) -> Plan:
    return nominal_plan(parse_fabric({"kind": kind, **keys}))


def broken_of(kind: str, target: str, plan: Plan) -> Broken:
    return broken_by(Fault(kind, target).impact(plan), plan)


def fault_of(kind: str, target: str, **keys: Any) -> FaultSpec:
    return FaultSpec.model_validate({"kind": kind, "target": target, **keys})


@pytest.mark.parametrize(
    ("kind", "target", "shown", "parameters"),
    [
        ("link-gray", "d0g1", {"loss": 0.05}, {"loss": 0.05}),
        ("link-slow", "d0g1", {"rate": 0.1}, {"rate": 0.1}),
        ("link-flapping", "d0g1", {"period": "200ms"}, {"period": 0.2}),
        ("rail-switch-reboot", "rail1", {"down": "500ms"}, {"down": 0.5}),
        ("link-silent", "d0g1", {}, {}),
    ],
)
def test_kind_has_only_its_own_parameter_with_a_default(
    kind: str, target: str, shown: dict[str, Any], parameters: dict[str, float]
) -> None:
    (data,) = parse(experiment({"kind": kind, "target": target})).resolved()["faults"]
    assert data == {"kind": kind, "target": target, "at": "1s", "repair": "2s", **shown}
    assert FaultsMeasure().faults(parse(experiment(data))) == (fault_of(kind, target),)
    assert dict(fault_of(kind, target).parameters) == parameters
    assert Fault.of(kind, target, **shown) == Fault(kind, target), "the same defaults without an experiment"


def test_given_parameters_are_used() -> None:
    assert fault_of("link-gray", "d0g1", loss=0.2).fault == Fault.of("link-gray", "d0g1", loss=0.2)
    assert fault_of("link-flapping", "d0g1", period="1s").fault == Fault.of("link-flapping", "d0g1", period="1s")


BAD_FAULTS: dict[str, dict[str, Any]] = {
    "loss of another kind": {"kind": "link-down", "target": "d0g1", "loss": 0.1},
    "down of another kind": {"kind": "link-gray", "target": "d0g1", "down": "1s"},
    "small loss": {"kind": "link-gray", "target": "d0g1", "loss": 0.001},
    "large loss": {"kind": "link-gray", "target": "d0g1", "loss": 1.5},
    "small rate": {"kind": "link-slow", "target": "d0g1", "rate": 0.001},
    "large rate": {"kind": "link-slow", "target": "d0g1", "rate": 1},
    "short fault": {"kind": "link-down", "target": "d0g1", "repair": "99ms"},
    "long period": {"kind": "link-flapping", "target": "d0g1", "period": "2s"},
    "period of the fault": {"kind": "link-flapping", "target": "d0g1", "period": "1s", "repair": "100ms"},
    "long reboot": {"kind": "rail-switch-reboot", "target": "rail1", "down": "2s"},
    "no rail switch": {"kind": "rail-switch-hang", "target": "d0g1"},
    "no spine": {"kind": "spine-crash", "target": "spine0"},
    "no server": {"kind": "server-crash", "target": "d1g0"},
}


def test_bad_faults_give_one_line(data_regression: DataRegressionFixture) -> None:
    crash = {"kind": "server-crash", "target": "hb1"}
    texts = messages(lambda fault: parse(experiment(fault)), BAD_FAULTS)
    texts |= messages(parse, {"server of two": experiment(crash, domains=2)})
    data_regression.check(texts)
    assert FaultsMeasure().items(parse(experiment(crash, domains=3)))


LINK = Broken(links=frozenset({Gpu(0, 1)}))
RAIL = Broken(rails=frozenset({1}))


@pytest.mark.parametrize(
    ("kind", "target", "broken"),
    [
        *(
            (kind, "d0g1", LINK)
            for kind in ("link-down", "link-silent", "link-gray", "link-slow", "link-flapping", "gpu-hang")
        ),
        ("rail-switch-hang", "rail1", RAIL),
        ("rail-switch-reboot", "rail1", RAIL),
        ("spine-crash", "spine0", Broken()),
        ("uplink-down", "rail1-spine0", Broken()),
        ("hb-port-down", "d0g1", Broken(hb=frozenset({Gpu(0, 1)}))),
        ("server-crash", "hb2", Broken(links=frozenset(Gpu(2, g) for g in range(4)))),
        ("gpu-crash", "d3g0", Broken(links=frozenset({Gpu(3, 0)}))),
        ("rail-switch-crash", "rail2", Broken(rails=frozenset({2}))),
    ],
)
def test_impact_disables_parts_for_path_choice(kind: str, target: str, broken: Broken) -> None:
    assert broken_of(kind, target, plan_of("rail-optimized")) == broken


def test_crash_of_the_single_switch_is_rail_0() -> None:
    assert broken_of("rail-switch-crash", "switch0", plan_of("single-switch")) == Broken(rails=frozenset({0}))


def test_the_only_spine_leaves_all_rails_apart() -> None:
    plan = plan_of("rail-optimized", rails=2, spines=1)
    assert broken_of("spine-crash", "spine0", plan).disconnected_ranks == {(0, 1), (1, 0)}
    assert broken_of("uplink-down", "rail1-spine0", plan).disconnected_ranks == {(0, 1), (1, 0)}


def test_faults_of_a_cable_watch_the_same_pairs() -> None:
    wanted = monitored_pairs(Fault("link-down", "d0g1"), plan_of())
    assert wanted.probes
    for kind in ("link-silent", "link-gray", "link-slow", "link-flapping"):
        assert monitored_pairs(Fault(kind, "d0g1"), plan_of()) == wanted


def test_a_hung_gpu_is_watched_like_a_crashed_one() -> None:
    hung, crashed = (monitored_pairs(Fault(kind, "d0g1"), plan_of()) for kind in ("gpu-hang", "gpu-crash"))
    assert hung == crashed
    assert not any(Gpu(0, 1) in pair for pair in hung.streams)


def test_all_that_may_go_by_a_spine_is_watched_and_nothing_else() -> None:
    selection = monitored_pairs(Fault("spine-crash", "spine0"), plan_of("rail-optimized"))
    assert len(selection.probes) == 3
    assert selection.affected == {pair for pair in selection.streams if own_path("spine", *pair).kind == "spine"}
    assert monitored_pairs(Fault("spine-crash", "spine0"), plan_of("rail-optimized", policy="pxn")).probes == ()


@pytest.mark.parametrize(
    ("policy", "through"),
    [
        # dr: the source hands over to the GPU of the destination's rank, so its own port and the relay's are used
        ("dr", {(Gpu(0, 1), Gpu(1, 0)), (Gpu(0, 0), Gpu(1, 1))}),
        # rd: the same at the destination's end
        ("rd", {(Gpu(1, 0), Gpu(0, 1)), (Gpu(1, 1), Gpu(0, 0))}),
    ],
)
def test_pairs_that_change_rails_cross_the_hb_port(policy: str, through: set[tuple[Gpu, Gpu]]) -> None:
    plan = plan_of(domains=2, rails=2, policy=policy)
    selection = monitored_pairs(Fault("hb-port-down", "d0g1"), plan)
    assert set(selection.probes) == through
    assert selection.affected == through & set(selection.streams)


def test_crashed_server_affects_no_other_pair() -> None:
    selection = monitored_pairs(Fault("server-crash", "hb1"), plan_of(domains=3))
    assert selection.streams
    assert not any(gpu.domain == 1 for pair in selection.streams for gpu in pair)
    assert (selection.affected, selection.probes) == (frozenset(), ())


def test_rules_lose_a_share_or_everything() -> None:
    assert "numgen random mod 1000000 < 50000 fwd" in loss_rules("rail0", 0.05)
    assert "numgen" not in loss_rules("rail0", 1.0)
