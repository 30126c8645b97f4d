"""Impact of faults, events that announce them, and verdicts of connectivity checks on counters and answers."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import plugins
from railyard.core.records import ConnectivityCheck, IntervalId
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.active import Operation
from railyard.failure.connectivity.check import (
    Verdict,
    changed_without_controller,
    counter_excess,
    judge,
    max_bytes,
    missed_checks,
    watched_nodes,
)
from railyard.failure.faults import FAULTS, Cable, Fault, Impact, cable, fault_kinds
from railyard.failure.oracle.reachability import Bounds, Survivors, bounds
from railyard.failure.script import Action
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.measure.counters import TRAFFIC, PortStats
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric
from tests.emulation.programs import ROOT
from tests.unit.stand_ins import plan_of

PLAN = nominal_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 3}))
SPINES = nominal_plan(parse_fabric({"kind": "rail-optimized", "domains": 3, "rails": 3}))


@pytest.mark.parametrize(
    ("kind", "target", "dead"),
    [
        ("link-down", "d0g1", Impact(cables=frozenset({cable("d0g1", "rail1")}))),
        ("link-silent", "d0g1", Impact(cables=frozenset({cable("d0g1", "rail1")}))),
        ("link-flapping", "d0g1", Impact(cables=frozenset({cable("d0g1", "rail1")}))),
        ("link-gray", "d0g1", Impact(lossy=frozenset({cable("d0g1", "rail1")}))),
        ("hb-port-down", "d0g1", Impact(cables=frozenset({cable("d0g1", "hb0")}))),
        ("rail-switch-hang", "rail2", Impact(nodes=frozenset({"rail2"}))),
        ("gpu-hang", "d1g1", Impact(nodes=frozenset({"d1g1"}))),
        ("server-crash", "hb1", Impact(nodes=frozenset({"hb1", "d1g0", "d1g1", "d1g2"}))),
        ("link-slow", "d0g1", Impact(slowed={cable("d0g1", "rail1"): PLAN.rail_bps // 10})),
        ("controller-crash", "controller", Impact()),
        ("registry-crash", "registry", Impact()),
    ],
)
def test_impact_of_each_kind(kind: str, target: str, dead: Impact) -> None:
    assert Fault(kind, target).impact(PLAN) == dead


@given(data=st.data(), plan=st.sampled_from([PLAN, SPINES]))
def test_more_faults_leave_less_of_the_fabric(data: st.DataObject, plan: Plan) -> None:
    kinds = [kind for kind in fault_kinds() if FAULTS[kind].targets(plan)]
    drawn = data.draw(st.lists(st.sampled_from(kinds), max_size=4))
    faults = [Fault(kind, data.draw(st.sampled_from(FAULTS[kind].targets(plan)))) for kind in drawn]
    left = bounds(plan, faults)
    assert left.lower.reachable <= left.upper.reachable
    for n in range(len(faults)):
        fewer = bounds(plan, faults[:n] + faults[n + 1 :])
        assert left.lower.reachable <= fewer.lower.reachable
        assert left.upper.connected <= fewer.upper.connected
    down = {gpu for fault in faults for gpu in fault.impact(plan).dead_gpus}
    assert all(down.isdisjoint(pair) for pair in left.upper.connected)


def test_intermittent_parts_may_work_or_not() -> None:
    left = bounds(PLAN, [Fault("link-flapping", "d0g1"), Fault("hb-port-down", "d0g1")])
    others = (Gpu(0, 1), Gpu(1, 1))
    assert others not in left.lower.reachable
    assert others in left.upper.reachable
    for answer in (True, False):
        assert judge(left, {others: answer}, {}) == Verdict()
    within = (Gpu(0, 1), Gpu(0, 0))
    assert judge(left, {(Gpu(1, 0), Gpu(2, 0)): False}, {}).not_recovered
    assert within in left.upper.connected, "by its rail, if that is up"


@pytest.mark.parametrize(
    ("kind", "target", "what", "detail", "wanted"),
    [
        ("link-down", "d0g1", "port-down", {"switch": "rail1", "port": "d0g1"}, True),
        ("link-down", "d0g1", "port-down", {"switch": "rail1", "port": "d1g1"}, False),
        ("link-down", "d0g1", "switch-down", {"switch": "rail1"}, False),
        ("link-silent", "d0g1", "silent", {"link": "d0g1"}, True),
        ("link-silent", "d0g1", "silent", {"rail": "rail1"}, True),
        ("link-silent", "d0g1", "silent", {"rail": "rail2"}, False),
        ("link-silent", "d0g1", "silent", {"hb-link": "d0g1"}, False),
        ("link-silent", "d0g1", "resumed", {"link": "d0g1"}, False),
        ("hb-port-down", "d0g1", "silent", {"hb-link": "d0g1"}, True),
        ("hb-port-down", "d0g1", "silent", {"link": "d0g1"}, False),
        ("hb-port-down", "d0g1", "port-down", {"port": "d0g1"}, False),
        ("rail-switch-crash", "rail1", "switch-down", {"switch": "rail1"}, True),
        ("rail-switch-crash", "rail1", "switch-down", {"switch": "rail2"}, False),
        ("rail-switch-hang", "rail1", "silent", {"rail": "rail1"}, True),
        ("rail-switch-hang", "rail1", "silent", {"link": "d0g1"}, False),
        ("gpu-hang", "d0g1", "silent", {"gpu": "d0g1"}, True),
        ("gpu-crash", "d0g1", "port-down", {"port": "d0g1"}, True),
        ("server-crash", "hb1", "port-down", {"port": "d1g2"}, True),
        ("server-crash", "hb1", "silent", {"hb-domain": "hb1"}, True),
        ("server-crash", "hb1", "silent", {"gpu": "d0g2"}, False),
        ("controller-crash", "controller", "controller-crashed", {}, False),
        ("registry-crash", "registry", "registry-crashed", {}, False),
        ("registry-crash", "registry", "controller-crashed", {}, False),
    ],
)
def test_signals_of_a_fault(kind: str, target: str, what: str, detail: dict[str, Any], wanted: bool) -> None:
    assert Fault(kind, target).is_signal(PLAN, what, detail) == wanted


@pytest.mark.parametrize(
    ("event_kind", "detail", "expected"),
    [
        ("switch-down", {"switch": "spine0"}, True),
        ("switch-down", {"switch": "rail0"}, False),
        ("silent", {"rail": "rail0"}, False),
    ],
)
def test_only_switch_down_announces_a_spine_crash(event_kind: str, detail: dict[str, Any], expected: bool) -> None:
    assert Fault("spine-crash", "spine0").is_signal(SPINES, event_kind, detail) == expected


@pytest.mark.parametrize(("link", "expected"), [("d0g1", True), ("d1g1", False)])
def test_links_of_a_dead_leaf_switch_announce_its_crash(link: str, expected: bool) -> None:
    plugins.load(ROOT / "docs/examples/leaf_spine.py")
    plan = plan_of("leaf-spine", 3, 2)
    fault = Fault("rail-switch-crash", "leaf0")
    assert fault.is_signal(plan, "silent", {"link": link}) == expected


def counters(**counter_deltas: int) -> dict[str, dict[str, PortStats]]:
    """Of the ends of d0g1's rail cable: `gpu_rx`, `switch_rx`, and what the GPU sends, `gpu_tx`; in 1000 bytes each."""

    def port(rx: int, tx: int = 0) -> PortStats:
        values = {"rx_packets": rx, "tx_packets": tx, "rx_bytes": 1000 * rx, "tx_bytes": 1000 * tx}
        return PortStats(True, tuple(values.get(name, 0) for name in TRAFFIC))

    gpu = port(counter_deltas.get("gpu_rx", 0), counter_deltas.get("gpu_tx", 0))
    return {"d0g1": {"rail0": gpu, "hb0": port(0)}, "rail1": {"d0g1": port(counter_deltas.get("switch_rx", 0))}}


def still(**counter_deltas: int) -> dict[str, dict[str, PortStats]]:
    """The same with d1g1's rail cable, which carries nothing."""
    found, nothing = counters(**counter_deltas), PortStats(True, (0,) * len(TRAFFIC))
    return {**found, "d1g1": {"rail0": nothing}, "rail1": {**found["rail1"], "d1g1": nothing}}


SLOW = Fault.of("link-slow", "d0g1", rate=0.1)
SLOW_CABLE = cable("d0g1", "rail1")
CUT = Fault("link-down", "d0g1")


@pytest.mark.parametrize(
    ("faults", "watched", "excess"),
    [
        ([Fault("link-silent", "d0g1")], ["d0g1", "rail1"], {SLOW_CABLE: 3}),  # packets that come out at both ends
        ([SLOW, CUT], ["d0g1", "rail1"], {SLOW_CABLE: 3}),
        ([Fault("gpu-hang", "d0g1")], ["d0g1"], {"d0g1": 9}),  # packets that it sends
        ([SLOW], ["d0g1", "rail1"], {}),
        ([Fault("link-gray", "d0g1"), Fault("link-flapping", "d1g1"), Fault("controller-crash", "controller")], [], {}),
    ],
)
def test_parts_that_are_certainly_dead_carry_nothing(
    faults: list[Fault], watched: list[str], excess: dict[str | Cable, int]
) -> None:
    remaining = bounds(PLAN, faults)
    assert watched_nodes(PLAN, remaining) == watched
    found = counter_excess(PLAN, remaining, counters(), counters(gpu_rx=2, switch_rx=1, gpu_tx=9), 1.0)
    assert found == excess
    assert dict(judge(remaining, {}, found).carried) == excess


@pytest.mark.parametrize("end", ["gpu_rx", "switch_rx"])
def test_slow_cable_carries_at_most_its_remaining_rate(end: str) -> None:
    remaining = bounds(PLAN, [SLOW])
    seconds = 2.0
    upper = max_bytes(PLAN.rail_bps // 10, PLAN.spec.mtu, seconds)
    packets = upper // 1000
    before = counters(gpu_rx=10**6, switch_rx=10**6)
    within = counters(gpu_rx=10**6 + packets, switch_rx=10**6 + packets, gpu_tx=10 * packets)
    assert counter_excess(PLAN, remaining, before, within, seconds) == {}
    beyond = counters(**{"gpu_rx": 10**6, "switch_rx": 10**6, end: 10**6 + packets + 1})
    over = counter_excess(PLAN, remaining, before, beyond, seconds)
    assert over == {SLOW_CABLE: (packets + 1) * 1000 - upper}
    assert counter_excess(PLAN, remaining, before, beyond, seconds * 1.01) == {}
    assert judge(remaining, {}, over).carried == ((SLOW_CABLE, over[SLOW_CABLE]),)


def test_slow_cable_may_add_slack_burst_and_a_frame() -> None:
    mtu = 1500
    heartbeats = 125_000
    assert max_bytes(80_000_000, mtu, 0.0) == 15_000 + 65_550, "1.5 ms of the rate, and a frame"
    assert max_bytes(8_000_000, mtu, 0.0) == 1500 + 65_550, "1,500 bytes at least"
    assert max_bytes(80_000_000, mtu, 10.0) - max_bytes(80_000_000, mtu, 0.0) == 105_000_000 + 10 * heartbeats


def test_a_cable_that_is_not_slow_may_carry_anything() -> None:
    remaining = bounds(PLAN, [Fault("link-gray", "d0g1"), Fault("link-slow", "d1g1")])
    assert counter_excess(PLAN, remaining, still(), still(gpu_rx=10**9), 1.0) == {}


PAIRS = list(permutations(PLAN.gpus, 2))
CABLES = [cable(link.a.node, link.b.node) for link in PLAN.links]


@given(
    nodes=st.frozensets(st.sampled_from(sorted(PLAN.namespaces)), max_size=4),
    cables=st.frozensets(st.sampled_from(CABLES), max_size=6),
    answered=st.dictionaries(st.sampled_from(PAIRS), st.booleans(), max_size=30),
    excess=st.dictionaries(st.sampled_from([*PLAN.namespaces, *CABLES]), st.integers(1, 3), max_size=10),
)
def test_verdict_contains_every_outcome(
    nodes: frozenset[str], cables: frozenset[Cable], answered: dict[Pair, bool], excess: dict[str | Cable, int]
) -> None:
    survivors = Survivors(PLAN, Impact(nodes, cables))
    verdict = judge(Bounds(survivors, survivors), answered, excess)
    for pair, came in answered.items():
        assert (pair in verdict.not_recovered) == (pair in survivors.reachable and not came)
        assert (pair in verdict.impossible) == (came and pair not in survivors.connected)
    assert dict(verdict.carried) == excess
    wrong = len(verdict.not_recovered) + len(verdict.impossible) + len(verdict.carried)
    assert len(verdict.lines()) == wrong


def test_verdict_lists_differences(data_regression: DataRegressionFixture) -> None:
    a = Gpu(0, 0)
    b = Gpu(1, 0)
    gone = Gpu(1, 1)
    plan = plan_of("rail-only", 2, 2)
    # d0g0's rail is cut and rail 1 has no far end: nothing is left between the domains
    survivors = Survivors(plan, Impact(nodes=frozenset({"d1g1"}), cables=frozenset({cable("d0g0", "rail0")})))
    answered = {(a, b): False, (b, a): True, (a, gone): False, (b, gone): True}
    apart = judge(Bounds(survivors, survivors), answered, {cable("d0g0", "rail0"): 9})
    survivors = Survivors(plan, Impact(cables=frozenset({cable("d0g0", "rail0")})))
    not_recovered = judge(Bounds(survivors, survivors), {(a, b): False}, {})
    slow = judge(bounds(plan, [SLOW]), {}, {SLOW_CABLE: 1500})
    data_regression.check({"apart": apart.lines(), "not recovered": not_recovered.lines(), "slow": slow.lines()})
    assert judge(Bounds(survivors, survivors), {(a, b): True}, {}) == Verdict()


S = 1_000_000_000
AWAY = Fault("controller-crash", "controller")


@pytest.mark.parametrize(
    ("broken", "actions", "wanted"),
    [
        ([CUT], [Action(1 * S, 1 * S, "inject", CUT)], False),
        ([AWAY], [Action(1 * S, 1 * S, "inject", AWAY)], False),
        ([CUT, AWAY], [Action(1 * S, 1 * S, "inject", CUT), Action(3 * S, 3 * S, "inject", AWAY)], False),
        ([CUT, AWAY], [Action(1 * S, 1 * S, "inject", CUT), Action(S + 9, S + 9, "inject", AWAY)], True),
        ([CUT, AWAY], [Action(1 * S, 1 * S, "inject", AWAY), Action(3 * S, 3 * S, "inject", CUT)], True),
        (
            [AWAY],
            [Action(0, 0, "inject", CUT), Action(2 * S, 2 * S, "inject", AWAY), Action(4 * S, 4 * S, "repair", CUT)],
            True,
        ),
    ],
)
def test_changes_without_controller_are_not_recovered(broken: list[Fault], actions: list[Action], wanted: bool) -> None:
    assert changed_without_controller(broken, actions) == wanted


def test_control_kinds_are_those_with_a_process_as_their_target() -> None:
    assert {kind for kind in fault_kinds() if FAULTS[kind].targets(PLAN) in (["controller"], ["registry"])} == {
        kind for kind in fault_kinds() if FAULTS[kind].is_control_plane
    }


CRASH = Fault("gpu-crash", "d1g1")
CHECK_S = 0.2
AFTER_S = 1.2


def act(at_s: float, operation: Operation, fault: Fault = CUT, takes_s: float = 0.02) -> Action:
    return Action(round(at_s * S), round((at_s + takes_s) * S), operation, fault)


def check(at_s: float) -> ConnectivityCheck:
    return ConnectivityCheck(IntervalId(), round(at_s * S), "", 0, 12, 12, 12, 0, 0, 0)


def missing(actions: list[Action], *taken_s: float) -> list[tuple[str, int]]:
    found = missed_checks(actions, [check(at_s) for at_s in taken_s], CHECK_S, AFTER_S)
    assert not any(check.done or check.pairs for check in found)
    return [(check.last_event, check.broken) for check in found]


def test_check_is_due_after_an_action_with_enough_idle_time() -> None:
    actions = [act(1, "inject"), act(3, "repair")]
    first, last = ("inject link-down d0g1", 1), ("repair link-down d0g1", 0)
    assert missing(actions) == [first, last]
    assert missing(actions, 1.6) == [last]
    assert missing(actions, 1.6, 3.6) == []
    assert missing([act(1, "inject"), act(1.7, "repair")], 2.3) == [], "too short for one"


def test_of_acts_that_come_together_one_is_due_after_all() -> None:
    actions = [act(1, "inject"), act(1.01, "inject", CRASH), act(3, "repair"), act(3.01, "repair", CRASH)]
    assert missing(actions, 3.6) == [("inject gpu-crash d1g1", 2)]


@pytest.mark.parametrize(("fault", "is_due"), [(CRASH, True), (AWAY, False)])
def test_long_action_is_excused_for_a_starting_controller(fault: Fault, is_due: bool) -> None:
    actions = [act(1, "inject", fault), act(2, "repair", fault, takes_s=0.5), act(3, "inject"), act(4, "repair")]
    assert missing(actions, 1.6, 3.6, 4.6) == ([(f"repair {fault.kind} {fault.target}", 0)] if is_due else [])
