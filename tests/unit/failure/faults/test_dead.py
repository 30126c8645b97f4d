"""Impact of faults, events that announce them, and verdicts of connectivity checks on counters and answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.connectivity.check import (
    Verdict,
    changed_without_controller,
    counter_excess,
    judge,
    max_bytes,
    watched_nodes,
)
from railyard.failure.faults import FAULTS, Fault, Impact, cable, fault_kinds
from railyard.failure.oracle.reachability import bounds
from railyard.failure.script import NO_DEADLINE_NS, SETTLE_S, Action, ActionLog, Script, Timed
from railyard.topologies.addresses import Gpu
from railyard.topologies.measure.counters import TRAFFIC, PortStats
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric

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
        ("controller-crash", "controller", Impact()),
        ("registry-crash", "registry", Impact()),
    ],
)
def test_impact_of_each_kind(kind: str, target: str, dead: Impact) -> None:
    assert Fault(kind, target).impact(PLAN) == dead


def test_a_slow_link_keeps_its_share() -> None:
    (left_bps,) = Fault.of("link-slow", "d0g1", rate=0.25).impact(PLAN).slowed.values()
    assert left_bps == PLAN.rail_bps // 4


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


def test_only_switch_down_announces_a_spine_crash() -> None:
    fault = Fault("spine-crash", "spine0")
    assert fault.is_signal(SPINES, "switch-down", {"switch": "spine0"})
    assert not fault.is_signal(SPINES, "switch-down", {"switch": "rail0"})
    assert not fault.is_signal(SPINES, "silent", {"rail": "rail0"})


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


def test_dead_cable_counts_packets_at_both_ends() -> None:
    left = bounds(PLAN, [Fault("link-silent", "d0g1")])
    assert watched_nodes(PLAN, left) == ["d0g1", "rail1"]
    after = counters(gpu_rx=2, switch_rx=1, gpu_tx=9)
    assert counter_excess(PLAN, left, counters(), after, 1.0) == {cable("d0g1", "rail1"): 3}


def test_dead_gpu_counts_its_sent_packets() -> None:
    left = bounds(PLAN, [Fault("gpu-hang", "d0g1")])
    excess = counter_excess(PLAN, left, counters(gpu_tx=1), counters(gpu_rx=2, switch_rx=1, gpu_tx=5), 1.0)
    assert excess == {"d0g1": 4}
    assert judge(left, {}, excess).carried == (("d0g1", 4),)


SLOW = Fault.of("link-slow", "d0g1", rate=0.1)
SLOW_CABLE = cable("d0g1", "rail1")


@pytest.mark.parametrize("end", ["gpu_rx", "switch_rx"])
def test_slow_cable_carries_at_most_its_remaining_rate(end: str) -> None:
    left, seconds = bounds(PLAN, [SLOW]), 2.0
    assert watched_nodes(PLAN, left) == ["d0g1", "rail1"]
    upper = max_bytes(PLAN.rail_bps // 10, PLAN.spec.mtu, seconds)
    packets = upper // 1000
    other = "switch_rx" if end == "gpu_rx" else "gpu_rx"
    begin = {"gpu_rx": 10**6, "switch_rx": 10**6}
    before = counters(**begin)
    within = counters(**{end: 10**6 + packets, other: 10**6 + packets, "gpu_tx": 10 * packets})
    assert counter_excess(PLAN, left, before, within, seconds) == {}
    beyond = counters(**begin | {end: 10**6 + packets + 1})
    over = counter_excess(PLAN, left, before, beyond, seconds)
    assert over == {SLOW_CABLE: (packets + 1) * 1000 - upper}
    assert counter_excess(PLAN, left, before, beyond, seconds * 1.01) == {}
    verdict = judge(left, {}, over)
    assert verdict.carried == ((SLOW_CABLE, over[SLOW_CABLE]),)
    assert verdict.lines() == [
        f"d0g1-rail1: slowed, but it carried more than what is left of its rate, by {over[SLOW_CABLE]} bytes"
    ]


def test_slow_cable_may_add_slack_burst_and_a_frame() -> None:
    mtu, heartbeats = 1500, 125_000
    assert max_bytes(80_000_000, mtu, 0.0) == 15_000 + 65_550, "1.5 ms of the rate, and a frame"
    assert max_bytes(8_000_000, mtu, 0.0) == 1500 + 65_550, "1,500 bytes at least"
    assert max_bytes(80_000_000, mtu, 10.0) - max_bytes(80_000_000, mtu, 0.0) == 105_000_000 + 10 * heartbeats


def test_cut_slow_cable_must_carry_nothing() -> None:
    left, none, some = bounds(PLAN, [SLOW, CUT]), counters(), counters(gpu_rx=10**9)
    assert counter_excess(PLAN, left, none, some, 1.0) == {SLOW_CABLE: 10**9}


def test_a_cable_that_is_not_slow_may_carry_anything() -> None:
    left = bounds(PLAN, [Fault("link-gray", "d0g1"), Fault("link-slow", "d1g1")])
    assert counter_excess(PLAN, left, still(), still(gpu_rx=10**9), 1.0) == {}


def test_only_certainly_dead_parts_are_watched() -> None:
    faults = [Fault("link-gray", "d0g1"), Fault("link-flapping", "d1g1"), Fault("controller-crash", "controller")]
    assert watched_nodes(PLAN, bounds(PLAN, faults)) == []


S = 1_000_000_000
AWAY = Fault("controller-crash", "controller")
CUT = Fault("link-down", "d0g1")


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


def test_script_is_idle_between_settling_and_the_next_action() -> None:
    actions = ActionLog(Script("two", (Timed(CUT, 1, 1), Timed(AWAY, 5, 1))))
    actions.schedule(1, "inject", NO_DEADLINE_NS - 1)
    assert actions.quiet_period(NO_DEADLINE_NS // 2) is None, "nothing has happened"
    actions.begin(0, "inject")
    assert actions.quiet_period(NO_DEADLINE_NS // 2) is None, "it is under way"
    actions.end(0, "inject", 77)
    (done,) = actions.done
    settled_ns = done.done_ns + int(SETTLE_S * 1e9)
    assert actions.quiet_period(settled_ns - 1) is None
    moment = actions.quiet_period(settled_ns)
    assert moment is not None
    assert (moment.last.name, moment.broken, moment.until_ns) == ("inject link-down d0g1", (CUT,), NO_DEADLINE_NS - 1)
    actions.schedule(0, "repair", settled_ns + 5)
    assert actions.quiet_period(settled_ns + 5) is None, "the next is due"
    actions.begin(0, "repair")
    actions.end(0, "repair", 99)
    after = actions.quiet_period(NO_DEADLINE_NS // 2)
    assert after is not None
    assert (after.last.name, after.broken) == ("repair link-down d0g1", ())
