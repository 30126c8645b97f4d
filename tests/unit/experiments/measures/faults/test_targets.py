"""Recovery targets: met, missed, or not measured, and by which time."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import Recovered, Recovery
from railyard.experiments.measures.faults.analysis import SIDES, recovery_rows, rows_of_faults, side_values, verdict
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.measures.faults.tables import lines_of
from railyard.experiments.measures.faults.targets import (
    NO_LOSS_ON_RETURN,
    NO_LOSS_WITHOUT_CONTROLLER,
    PUBLISHED_SYSTEMS,
    RECOVERY_AFTER_CONTROLLER_RESTART,
    SOURCE_SIDE_WITHOUT_CONTROLLER,
    TRAFFIC_RESTORED,
    first_packet_target,
    times_slower,
)
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.repeats import MIN_REPEATS_FOR_P95, median_and_p95, median_p95_ms
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Target, missed_targets
from railyard.results.runs.records import Load, Run
from tests.unit.replaced import replaced
from tests.unit.sample_runs import SECOND, add_away, recovery_run, row, sample_run
from tests.unit.shown import outcomes


def of(run: Run, what: str) -> list[Outcome]:
    found = [o for o in outcomes(run) if o.target.quantity.startswith(what)]
    assert found, what
    return found


def empty() -> Run:
    return Run("r", {}, {}, "now")


def fault(kind: str, ms: float | None, source: float | None = None, repeat: int = 0) -> Recovery:
    return row(kind, "d0g1", repeat, SECOND, 3 * SECOND, ms, "", source)


def test_target_is_met_by_median_and_p95() -> None:
    for slow, outcome in ((39.0, True), (41.0, False), (None, False)):
        run = empty()
        run.records[RECOVERIES.name] = [fault("link-down", 10.0, 2.0, n) for n in range(18)]
        run.records[RECOVERIES.name] += [
            fault("link-down", slow, 2.0, n) for n in (18, 19)
        ]  # one of 20 may be slow, not two
        (far,), (source,) = of(run, "link down, far"), of(run, "link down, source")
        assert (far.met, source.met) == (outcome, True)
        run.rows(RECOVERIES)[-1] = fault("link-down", 10.0, 2.0, 19)
        assert of(run, "link down, far")[0].met is True


@given(st.integers(0, MIN_REPEATS_FOR_P95 - 2), st.floats(1, 1e6))
def test_median_alone_is_judged_with_few_repeats(others: int, slow: float) -> None:
    run = empty()
    run.records[RECOVERIES.name] = [fault("link-down", slow, 2.0)] + [
        fault("link-down", 10.0, 2.0, n + 1) for n in range(others)
    ]
    (far,) = of(run, "link down, far")
    middle = slow if others == 0 else (slow + 10) / 2 if others == 1 else 10.0
    assert far.met == (middle <= 15)
    cells = "{} (n={})".format(f"{middle:,.1f}", others + 1)
    (cable,) = rows_of_faults(run)
    _, line = lines_of(cable, both_sides=False)
    assert (median_p95_ms(line.first), line.met) == (cells, far.met)
    assert far.text == f"{middle:,.1f}\u00a0ms"
    assert median_and_p95(line.first)[1] == "–"


def test_each_fault_target_is_judged_by_itself() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [fault("link-down", ms, 2.0, n) for n, ms in enumerate((9.0, 12.0))]
    slow = [replace(r, target="d1g2", far_side_ms=90.0, first_packet_ms=90.0) for r in run.rows(RECOVERIES)]
    (far,) = of(run, "link down, far")
    assert (far.name, far.met) == (far.target.quantity, True)
    run.records[RECOVERIES.name] += slow
    assert [(o.name, o.values, o.met) for o in of(run, "link down, far")] == [
        (f"{far.name}, d0g1", (9.0, 12.0), True), (f"{far.name}, d1g2", (90.0, 90.0), False),
    ]  # fmt: skip
    assert len(of(run, "probes lost after")) == 1  # of whatever was repaired


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("link-silent", "heartbeats"), ("rail-switch-hang", "heartbeats"), ("rail-switch-crash", "OpenFlow connection"),
        ("gpu-crash", "PORT_STATUS"),
    ],
)  # fmt: skip
def test_each_target_names_the_detection_of_its_fault(kind: str, what: str) -> None:
    target = first_packet_target(kind, None)
    assert target is not None
    assert what in target.source
    assert ("heartbeats" in target.source) == (what == "heartbeats")


def test_fault_without_a_repeat_is_not_measured() -> None:
    assert [(o.met, o.fabric) for o in outcomes(empty())] == [(None, "")] * len(outcomes(empty()))
    run = empty()
    run.records[RECOVERIES.name] = [replace(fault("gpu-crash", 0.0), probes_lost=0)]  # cut no pair off
    assert of(run, "GPU crash")[0].met is None
    run.records[RECOVERIES.name] = [replaced(fault("link-silent", 500.0), reroute="off")]
    assert of(run, "silent link")[0].met is None


@pytest.mark.parametrize(
    ("source", "far", "sides"),
    [
        ((2.0, 3), (9.0, 4), ([2.0], [9.0])),
        ((None, 0), (9.0, 4), ([], [9.0])),  # not probed
        ((2.0, 3), (None, 4), ([2.0], [None])),  # never
        ((None, 3), (None, 4), ([None], [None])),
    ],
)
def test_none_of_a_side_is_never_or_not_probed(
    source: tuple[float | None, int], far: tuple[float | None, int], sides: tuple[list[float | None], ...]
) -> None:
    one = replace(fault("link-down", 9.0), source_side_ms=source[0], source_side_probed=source[1])
    one = replace(one, far_side_ms=far[0], far_side_probed=far[1])
    assert (side_values([one], "source"), side_values([one], "far")) == sides


def test_a_total_failure_is_not_met_and_reads_never() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [replace(fault("link-down", None, 2.0, n), source_side_ms=None) for n in range(5)]
    found = [*of(run, "link down, source"), *of(run, "link down, far")]
    assert [(o.met, o.text) for o in found] == [(False, "never"), (False, "never")]
    (cable,) = rows_of_faults(run)
    assert [(line.side, line.met) for line in lines_of(cable, both_sides=False)] == [
        ("source", False), ("far", False),
    ]  # fmt: skip


def test_unprobed_fault_is_not_measured() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [replace(fault("gpu-crash", None), source_side_probed=0, far_side_probed=0)]
    assert of(run, "GPU crash")[0].met is None
    (crash,) = rows_of_faults(run)
    assert [line.met for line in lines_of(crash, both_sides=True)] == [None]


def test_a_controller_crash_may_lose_no_packet() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [row("controller-crash", "controller", n, 0, SECOND, 0.0, "") for n in range(3)]
    assert of(run, NO_LOSS_WITHOUT_CONTROLLER.quantity)[0].met is True
    run.rows(RECOVERIES)[1] = replace(run.rows(RECOVERIES)[1], probes_lost=1)
    (outcome,) = of(run, NO_LOSS_WITHOUT_CONTROLLER.quantity)
    assert (outcome.met, outcome.text, outcome.target.limits_text) == (
        False,
        "1\u00a0probes",
        "0\u00a0probes",
    )


@pytest.mark.parametrize(("far_side_ms", "after"), [(700.0, 200.0), (1100.0, 600.0), (300.0, 0.0), (None, None)])
def test_fault_during_controller_outage_counts_from_its_return(far_side_ms: float | None, after: float | None) -> None:
    run = empty()
    add_away(run, 5 * SECOND, far_side_ms)  # cut 500 ms before it is back
    (far,) = of(run, RECOVERY_AFTER_CONTROLLER_RESTART.quantity)
    assert far.values == (after,)
    assert far.met == (after is not None and after <= 500)
    (source,) = of(run, SOURCE_SIDE_WITHOUT_CONTROLLER.quantity)
    assert (source.values, source.met) == ((2.5,), True)


def test_fault_after_controller_return_has_no_outage_target() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [row("controller-crash", "controller", 0, 0, SECOND, 0.0, "s")]
    run.records[RECOVERIES.name] += [row("link-down", "d0g1", 0, 2 * SECOND, 4 * SECOND, 900.0, "s", 90.0)]
    assert of(run, RECOVERY_AFTER_CONTROLLER_RESTART.quantity)[0].met is None
    run.records[RECOVERIES.name] += [row("link-down", "d0g3", 0, SECOND // 2, 3 * SECOND // 2, None, "s")]
    assert (
        of(run, RECOVERY_AFTER_CONTROLLER_RESTART.quantity)[0].met is None
    )  # mended before the controller had its time
    run.records[RECOVERIES.name] += [row("link-silent", "d0g2", 0, SECOND // 2, 4 * SECOND, 900.0, "s", 90.0)]
    assert of(run, RECOVERY_AFTER_CONTROLLER_RESTART.quantity)[0].values == (400.0,)
    assert of(run, SOURCE_SIDE_WITHOUT_CONTROLLER.quantity)[0].met is None  # no kernel sees what is only silent


def test_traffic_returns_within_a_second_without_loss() -> None:
    run = sample_run(2, 2, 2)
    for name in (TRAFFIC_RESTORED.quantity, NO_LOSS_ON_RETURN.quantity):
        assert [(o.fabric, o.met, len(o.values)) for o in of(run, name)] == [
            ("rail-only", True, 6), ("rail-optimized", True, 6),
        ]  # fmt: skip
    on = next(i for i, r in enumerate(run.rows(RECOVERIES)) if r.reroute == "on")
    run.rows(RECOVERIES)[on] = replace(
        run.rows(RECOVERIES)[on], goodput_after_repair_ms=None, probes_lost_after_repair=3
    )
    assert [o.met for name in ("traffic back", "probes lost after") for o in of(run, name)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert of(run, "traffic back")[0].worst.of == "link-down d0g1, repeat 0"


@pytest.mark.parametrize(
    ("kind", "goodput_ms", "detours_ms", "worst"),
    [
        ("link-down", 20.0, 300.0, 300.0),
        ("link-down", 300.0, 0.0, 300.0),
        ("link-down", 20.0, 1200.0, 1200.0),
        ("link-down", 20.0, None, None),
        ("link-down", None, 20.0, None),
        ("controller-crash", None, 30.0, 30.0),  # moves no traffic
    ],
)
def test_traffic_is_restored_with_detours_gone_and_goodput_back(
    kind: str, goodput_ms: float | None, detours_ms: float | None, worst: float | None
) -> None:
    run = empty()
    row = replace(fault(kind, 9.0), goodput_after_repair_ms=goodput_ms, primary_path_ms=detours_ms)
    run.records[RECOVERIES.name] = [row]
    (outcome,) = of(run, "traffic back")
    assert (outcome.values, outcome.met) == ((worst,), worst is not None and worst <= 1000)


def test_return_in_scripts_counts_if_no_other_fault_is_active() -> None:
    run = empty()
    pair = [row("link-down", f"d0g{n}", 0, SECOND, 2 * SECOND + n * 10**7, 9.0, "two") for n in range(2)]
    late = row("link-down", "d1g1", 0, 3 * SECOND, 5 * SECOND, 9.0, "two")
    within = row("link-silent", "d0g1", 0, 4 * SECOND, 4 * SECOND + 10**8, 9.0, "two")
    run.records[RECOVERIES.name] = [replace(r, probes_lost_after_repair=n) for n, r in enumerate([*pair, late, within])]
    assert of(run, "probes lost after")[0].values == (0, 1, 2)  # not within


def test_fault_without_rerouting_has_no_loss_on_return() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [replace(fault("link-gray", 9.0), probes_lost_after_repair=3)]
    run.records[RECOVERIES.name] += [
        replace(fault("link-silent", ms, repeat=n), probes_lost_after_repair=n) for n, ms in enumerate((9.0, None))
    ]
    assert of(run, "probes lost after")[0].values == (0,)
    run.records[RECOVERIES.name] = [
        replaced(r, script="s", repeat=0, t_repair=r.t_repair + n * SECOND) for n, r in enumerate(run.rows(RECOVERIES))
    ]
    assert of(run, "probes lost after")[0].met is None  # the last, which outlasts the others, was never got round


def test_only_optical_replacements_count_beyond_link_down_time() -> None:
    run = recovery_run()
    (outcome,) = of(run, "optical replacement")
    assert (outcome.fabric, outcome.values, outcome.met) == ("rail-only", (31.0, 32.0, 33.0), True)
    run.rows(REPLACEMENTS)[:] = [replace(t, replaced_ms=t.replaced_ms + 18) for t in run.rows(REPLACEMENTS)]
    assert of(run, "optical replacement")[0].met is False


def test_link_fault_has_a_line_per_side() -> None:
    run = empty()
    run.records[RECOVERIES.name] = [fault(kind, 30.0, 2.0) for kind in ("link-down", "link-silent")]
    cable, silent = rows_of_faults(run)
    assert [line.side for line in lines_of(cable, both_sides=False)] == ["source", "far"]
    assert [line.side for line in lines_of(silent, both_sides=False)] == [None]
    assert [(line.side, line.met) for line in lines_of(silent, both_sides=True)] == [("source", True), ("far", True)]


def test_every_kind_with_a_target_has_it_on_both_sides() -> None:
    kinds = ("link-down", "link-silent", "rail-switch-crash", "rail-switch-hang", "gpu-crash")
    assert all(isinstance(first_packet_target(kind, side), Target) for kind, side in product(kinds, SIDES))
    assert first_packet_target("link-gray", "far") is None


def test_published_systems_are_multiples_of_our_time() -> None:
    nezha, nccl = PUBLISHED_SYSTEMS
    assert (nezha.ms, nccl.ms) == (200, 500)
    assert (times_slower(nezha, 50.0), times_slower(nccl, 50.0)) == (4.0, 10.0)
    assert times_slower(nezha, None) is times_slower(nezha, 0.0) is None


def test_row_verdict_is_of_its_own_intervals() -> None:
    run = recovery_run()
    storm = [r for r in run.rows(RECOVERIES) if r.script == "storm"]
    alone = [r for r in run.rows(RECOVERIES) if not r.script]
    assert verdict(run.rows(RECOVERIES), judge(run)) == "ok"
    run.loads = [replace(x, lag_p99_ms=9.0) if x.script == "storm" else x for x in run.loads]
    assert (verdict(storm, judge(run)), verdict(alone, judge(run))) == ("degraded", "ok")
    run.loads = [replaced(x, workload="moe") if x.script == "storm" else x for x in run.loads]
    storm = [replaced(r, workload="moe") for r in storm]
    assert (verdict(storm, judge(run)), verdict(alone, judge(run))) == ("degraded", "ok")


def test_target_missed_in_a_pause_of_the_machine_is_not_judged() -> None:
    """In one of ten repeats the machine paused for 50 ms, so that goodput seems not to return before the repair."""
    run = empty()
    healed = [replaced(fault("link-down", 3.0), repeat=repeat) for repeat in range(10)]
    lost = replace(healed[7], goodput_after_repair_ms=None, goodput_ms=None, recovered=Recovered.NO)
    run.records[RECOVERIES.name] = [*healed[:7], lost, *healed[8:]]
    run.loads = [Load(r.interval, 0.4, 0.0, 1.0, 0, 1, 0, transfers_faulted=True) for r in run.rows(RECOVERIES)]
    assert [o.met for o in Analysis(run).outcomes if o.target.quantity.startswith("traffic back")] == [False]
    run.loads[7] = replace(run.loads[7], pause_ms=50.0)
    analysis = Analysis(run)
    (outcome,) = (o for o in analysis.outcomes if o.target.quantity.startswith("traffic back"))
    assert (outcome.met, outcome.not_judged, len(outcome.samples)) == (True, 1, 9)
    assert not missed_targets(analysis.outcomes)
    (check,) = (c for c in analysis.checks if c.name.startswith("traffic recovers"))
    assert check.passed
    assert check.detail.startswith("9 of 9 faults; not judged")
    assert analysis.judgement.intervals[run.rows(RECOVERIES)[7].interval] == "invalid"


def test_first_packets_of_disturbed_intervals_are_not_judged() -> None:
    run = empty()
    slow = replace(fault("link-silent", 900.0), first_packet_ms=900.0)
    run.records[RECOVERIES.name] = [replaced(slow, repeat=repeat) for repeat in range(2)]
    run.loads = [Load(r.interval, 0.4, 0.0, 1.0, 0, 1, 0, transfers_faulted=True) for r in run.rows(RECOVERIES)]
    results = []
    for number in range(3):
        analysis = Analysis(run)
        (row,) = recovery_rows(analysis)
        (line,) = lines_of(row, False, analysis.judgement.disturbed)
        results.append((line.first.n, line.judged.n if line.judged else 0, line.result))
        run.loads[min(number, 1)] = replace(run.loads[min(number, 1)], pause_ms=50.0)
    assert results == [(2, 2, "not met"), (2, 1, "not met"), (2, 0, "not judged")]
