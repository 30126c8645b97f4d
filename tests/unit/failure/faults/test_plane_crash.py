"""A plane that dies: what it takes along, the streams that fill the rails meanwhile, and the goodput that is left."""

import pytest

from railyard.core.records import RESTORED, Recovered, Recovery
from railyard.experiments.measures.faults.targets import goodput_targets
from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.analysis.evaluate import ScriptObservations, evaluate_all
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.pairs import broken_by, monitored_pairs
from railyard.failure.probes.traffic import TrafficLog
from railyard.failure.script import Script, Timed
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric

MS = 1_000_000
BEGUN_NS = 10**12
FAULT_MS = 1000
REPAIR_MS = 3000
LENGTH_MS = 4500


def plan_of(kind: str = "dual-plane") -> Plan:
    return nominal_plan(parse_fabric({"kind": kind, "domains": 4, "rails": 4}))


def test_a_plane_takes_its_switches_along() -> None:
    plan = plan_of()
    definition = FAULTS["plane-crash"]
    assert definition.targets(plan) == ["plane0", "plane1"]
    impact = Fault("plane-crash", "plane1").impact(plan)
    assert impact.nodes == {"rail0p1", "rail1p1", "rail2p1", "rail3p1"}
    assert len(broken_by(impact, plan).rails) == 4
    assert "it has none" in definition.target_problem(plan_of("rail-only"), "plane1")


def test_streams_fill_the_rails_of_every_gpu() -> None:
    selection = monitored_pairs(Fault.of("plane-crash", "plane0", stream_load=0.6), plan_of())
    assert len(selection.streams) == 16 * 3
    assert selection.affected == set(selection.streams)
    assert selection.stream_share == pytest.approx(0.2)
    assert not selection.probes


def recovery_of(load: float, living_share: float, pause_ms: int = 60) -> Recovery:
    """Return the recovery where all streams stop for a while, and then this share of them goes on."""
    plan = plan_of()
    fault = Fault.of("plane-crash", "plane1", stream_load=load)
    selection = monitored_pairs(fault, plan)
    log = TrafficLog()
    for number in range(len(selection.streams)):
        begin_ms = FAULT_MS + pause_ms
        if number >= living_share * len(selection.streams):
            begin_ms = REPAIR_MS
        times = range(number % 20, LENGTH_MS, 20)
        log.receipts[number] = [(BEGUN_NS + ms * MS, 1000) for ms in times if ms < FAULT_MS or ms >= begin_ms]
        log.sent[number] = 1000 * len(log.receipts[number])
    script = Script("", (Timed(fault, FAULT_MS / 1e3, (REPAIR_MS - FAULT_MS) / 1e3),))
    injected = [BEGUN_NS + FAULT_MS * MS]
    repaired = [BEGUN_NS + REPAIR_MS * MS]
    observed = ScriptObservations(plan, script, selection.streams, (), log, BEGUN_NS, injected, repaired, [])
    ((run,), _) = evaluate_all(observed, [selection])
    return run.recovery


def goodput_ms(load: float, living_share: float) -> float | None:
    return recovery_of(load, living_share).goodput_ms


def test_half_of_the_goodput_is_all_that_is_left() -> None:
    assert goodput_ms(0.9, 0.6) == pytest.approx(60, abs=20)
    assert goodput_ms(0.9, 0.3) is None
    # streams that fit into one plane have to come back as they were
    assert goodput_ms(0.4, 0.6) is None
    assert goodput_ms(0.4, 1.0) == pytest.approx(60, abs=20)
    assert recovery_of(0.4, 1.0).goodput_share == RESTORED


def test_a_crash_affects_streams_even_if_half_goes_on() -> None:
    recovery = recovery_of(0.9, 0.6, pause_ms=0)
    assert recovery.goodput_ms == 0
    assert recovery.goodput_share == 0.5
    assert recovery.recovered is Recovered.YES


def test_goodput_has_a_target() -> None:
    assert goodput_targets()["plane-crash"].limits == {"most": 100}
