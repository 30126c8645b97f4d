"""Faults, scripts and heartbeats in the checks, on the screen, in the report and on the timeline."""

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from railyard.core.records import Recovered
from railyard.experiments.measures.faults import plot as recovery
from railyard.experiments.measures.faults import plot as recovery_steps
from railyard.experiments.measures.faults import script_plot
from railyard.experiments.measures.faults import script_section as scripts
from railyard.experiments.measures.faults import tables as faults
from railyard.experiments.measures.faults.analysis import rows_of_faults, script_runs
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.section import FailuresSection
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.results.timeline import timeline
from tests.unit.replaced import replaced
from tests.unit.sample_runs import connectivity_check, recovery_run, sample_run
from tests.unit.shown import screen, summarise


@pytest.fixture(scope="module")
def run() -> Run:
    return recovery_run()


def check(run: Run, name: str) -> dict[str, Any]:
    (found,) = [c for c in summarise(run)["checks"] if name in c["name"]]
    return dict(found)


def test_mismatch_with_the_oracle_fails_and_is_named() -> None:
    run = recovery_run()
    assert check(run, "connectivity check")["passed"] is True
    at = run.rows(CONNECTIVITY_CHECKS)[-1].monotonic_ns
    run.records[CONNECTIVITY_CHECKS.name] += [
        connectivity_check(at + n, f"inject link-down d0g{n}", 0, not_recovered=n) for n in (1, 3, 2)
    ]
    found = check(run, "connectivity check")
    assert found["passed"] is False
    assert (
        "35 of 35 done, 32 match; worst: rail-only storm repeat 0 after inject link-down d0g3: 3 pairs not"
        in found["detail"]
    )
    for wrong in (
        replace(connectivity_check(at, "x", 0), unexpected_answers=1),
        replace(connectivity_check(at, "x", 0), forwarding_failed_parts=2),
    ):
        run.records[CONNECTIVITY_CHECKS.name] = [wrong]
        assert check(run, "connectivity check")["passed"] is False
    run.records[CONNECTIVITY_CHECKS.name] = [replaced(c, reroute="off") for c in run.rows(CONNECTIVITY_CHECKS)]
    assert (
        check(run, "connectivity check")["passed"] is False
    )  # no pair has to recover, but dead parts must not carry anything either


def test_half_of_the_connectivity_checks_must_be_done() -> None:
    run = recovery_run()
    due = run.rows(CONNECTIVITY_CHECKS)
    for missed, passed in ((16, True), (17, False), (32, False)):
        run.records[CONNECTIVITY_CHECKS.name] = [replace(c, answered=0, done=n >= missed) for n, c in enumerate(due)]
        found = check(run, "connectivity check")
        alt_text = f"{32 - missed} of 32 done" + (", all match" if missed < 32 else "")
        assert found == {
            **found,
            "passed": passed,
            "detail": alt_text + ("" if passed else "; too few on rail-only"),
        }
    held = [s["connectivity_checks_passed"] for s in summarise(run)["headline"]["scripts"]]
    assert held == [0, 0, 0]
    assert any(s.name.startswith("not done after") for s in timeline(run).children["connectivity checks"].slices)


def test_stream_above_max_flow_fails_with_or_without_reroute() -> None:
    for number in (0, 1):
        run = sample_run(2, 2, 1)
        assert check(run, "max-flow")["passed"] is True
        run.rows(RECOVERIES)[number] = replace(run.rows(RECOVERIES)[number], above_max_flow=2)
        found = check(run, "max-flow")
        assert (found["passed"], found["detail"]) == (
            False, "2 of them over 12 faults; most: rail-only link-down d0g1 repeat 0",
        )  # fmt: skip


def test_probe_lost_on_return_fails_the_run() -> None:
    run = recovery_run()
    assert check(run, "while traffic returns")["passed"] is True
    script_timeline = [n for n, r in enumerate(run.rows(RECOVERIES)) if r.script == "storm" and r.repeat == 0]
    last = max(script_timeline, key=lambda n: run.rows(RECOVERIES)[n].t_repair)
    held = run.rows(RECOVERIES)[last]
    run.rows(RECOVERIES)[last] = replace(held, probes_lost_after_repair=3)  # whole again after it
    found = check(run, "while traffic returns")
    assert found["passed"] is False
    assert "3 probes lost over " in found["detail"]
    assert f"most: rail-only storm {held.fault} {held.target}, repeat 0" in found["detail"]
    run.rows(RECOVERIES)[last] = held
    first = min(script_timeline, key=lambda n: run.rows(RECOVERIES)[n].t_repair)
    early = run.rows(RECOVERIES)[first]
    run.rows(RECOVERIES)[first] = replace(early, probes_lost_after_repair=3)
    other = replace(run.rows(RECOVERIES)[last], t_fault=early.t_repair - 10**6)
    run.rows(RECOVERIES)[last] = other  # something else was broken: what was lost may be its doing
    assert check(run, "while traffic returns")["passed"] is True


def test_a_controller_that_dies_costs_no_packet() -> None:
    run = sample_run(2, 2, 1)
    assert not any("controller" in c["name"] for c in summarise(run)["checks"])
    crash = replace(run.rows(RECOVERIES)[0], fault="controller-crash", target="controller", probes_lost=0)
    run.records[RECOVERIES.name] += [
        replaced(crash, source_side_probed=0, far_side_probed=3, repeat=n) for n in range(4)
    ]
    found = check(run, "controller")
    assert (found["passed"], found["detail"]) == (True, "0 probes lost over 4 faults, of 12 probed pairs")
    run.rows(RECOVERIES)[-1] = replace(run.rows(RECOVERIES)[-1], probes_lost=1)
    found = check(run, "controller")
    assert found["passed"] is False
    assert found["detail"].startswith("1 probes lost over 4 faults, of 12 probed pairs; most: rail-only controller")


def test_traffic_that_never_returns_fails_the_run() -> None:
    run = sample_run(2, 2, 1)
    name = "primary path"
    assert check(run, name)["detail"] == "6 of 6 faults"  # no pair has to without rerouting
    away = replace(run.rows(RECOVERIES)[0], primary_path_ms=None)
    run.records[RECOVERIES.name] += [replaced(away, script="storm", repeat=9)]  # others may make it unknowable
    beside = (("controller-crash", "controller"), ("registry-crash", "registry"), ("link-gray", "d0g1"))
    run.records[RECOVERIES.name] += [replace(away, fault=fault, target=target) for fault, target in beside]
    assert check(run, name) == {**check(run, name), "passed": True, "detail": "6 of 6 faults"}
    run.rows(RECOVERIES).append(replace(away, fault="link-flapping"))
    found = check(run, name)
    assert (found["passed"], found["detail"]) == (
        False, "6 of 7 faults; not: rail-only link-flapping d0g1 repeat 0",
    )  # fmt: skip


def test_targets_of_one_fault_kind_have_rows_of_their_own() -> None:
    run = sample_run(2, 2, 2)
    kind, fabric = "link-down", "rail-only"
    mine = [r for r in run.rows(RECOVERIES) if (r.fault, r.fabric) == (kind, fabric)]
    run.records[RECOVERIES.name] += [replace(r, target="d1g0", first_packet_ms=None) for r in mine]
    traces = [t for t in run.rows(GOODPUT) if (t.fault, t.fabric) == (kind, fabric)]
    run.records[GOODPUT.name] += [replace(t, target="d1g0") for t in traces]
    rows = [row for row in rows_of_faults(run) if row.fault == kind]
    assert [(row.name, row.fabric, row.reroute, len(row.repeats)) for row in rows] == [
        *((f"{kind} {target}", fabric, reroute, 2) for target in ("d0g1", "d1g0") for reroute in ("on", "off")),
        *((kind, "rail-optimized", reroute, 2) for reroute in ("on", "off")),
    ]
    lines = [line for line in screen(run, 120) if line.startswith(kind)]
    assert [re.split(" {2,}", line)[0] for line in lines] == [
        *(f"{kind} {target}, {side}" for target in ("d0g1", "d1g0") for side in ("source", "far")),
        *(f"{kind}, {side}" for side in ("source", "far")),
    ]
    names = [part["name"] for part in FailuresSection().parts(Analysis(run))["failures"]]
    assert names == [f"{kind} d0g1", f"{kind} d1g0", kind, "rail-switch-crash", "gpu-crash"]
    assert [(r["target"], r["repeats"]) for r in summarise(run)["headline"]["recovery"][:4:2]] == [
        ("d0g1", 2), ("d1g0", 2),
    ]  # fmt: skip


def test_unprobed_and_not_rerouted_faults_need_no_recovery() -> None:
    run = sample_run(2, 2, 1)
    counted = check(run, "recovers")["detail"]
    one = replace(
        run.rows(RECOVERIES)[0], recovered=Recovered.NO, first_packet_ms=None, far_side_ms=None, source_side_ms=None
    )
    run.records[RECOVERIES.name] += [replace(one, fault="link-gray"), replace(one, fault="link-slow")]
    unseen = replace(
        one, fault="gpu-hang", goodput_ms=0.0, recovered=Recovered.UNAFFECTED, source_side_probed=0, far_side_probed=0
    )
    run.rows(RECOVERIES).append(unseen)
    assert check(run, "recovers")["detail"] == counted == "6 of 6 faults"
    rows = rows_of_faults(run)
    (first,) = [line for line in faults.first_packets_table(rows, judge(run)).cells if line[0] == "gpu-hang"]
    (steps,) = [line for line in faults.steps_table(rows).cells if line[0] == "gpu-hang"]
    assert (first[6], steps[3]) == ("not probed", "unaffected")
    run.rows(RECOVERIES)[-1] = replace(unseen, goodput_ms=None, recovered=Recovered.NO)  # its streams never came back
    assert check(run, "recovers")["detail"].startswith("6 of 7 faults; not: rail-only gpu-hang")
    steps = next(line for line in faults.steps_table(rows_of_faults(run)).cells if line[0] == "gpu-hang")
    assert (steps[3], steps[7]) == ("0 of 1", "never")


def test_script_beside_a_workload_recovers_by_first_packets() -> None:
    run = sample_run(2, 2, 1)
    one = replaced(
        run.rows(RECOVERIES)[0],
        script="cut",
        goodput_ms=None,
        goodput_after_repair_ms=None,
        primary_path_ms=None,
        recovered=Recovered.NO,
    )
    run.rows(RECOVERIES).append(one)
    assert check(run, "recovers")["detail"] == "7 of 7 faults"
    run.rows(RECOVERIES)[-1] = replace(one, first_packet_ms=None)
    assert check(run, "recovers")["detail"] == "6 of 7 faults; not: rail-only cut link-down d0g1 repeat 0"
    run.records[CONNECTIVITY_CHECKS.name] = [
        replaced(connectivity_check(one.t_fault, "x", 0), script="cut", policy=one.policy)
    ]
    assert check(run, "recovers")["detail"] == "6 of 6 faults"  # its connectivity checks define what had to recover


def test_connections_may_be_lost_only_where_a_gpu_failed() -> None:
    run = recovery_run()
    script_timeline, away = (
        next(i for i, r in enumerate(run.rows(RECOVERIES)) if r.script == name) for name in ("storm", "controller-away")
    )
    run.rows(RECOVERIES)[script_timeline] = replace(run.rows(RECOVERIES)[script_timeline], connections_lost=2)
    assert check(run, "TCP connections")["passed"] is True  # a GPU crashed in the same script
    run.rows(RECOVERIES)[away] = replace(run.rows(RECOVERIES)[away], connections_lost=2)
    assert check(run, "TCP connections")["passed"] is False


def test_bytes_lost_in_a_script_are_counted_once() -> None:
    run = recovery_run()
    run.records[RECOVERIES.name] = [
        replace(r, lost_bytes=700) if r.script == "storm" and r.repeat == 1 else r for r in run.rows(RECOVERIES)
    ]
    found = check(run, "loses a byte")
    assert found["passed"] is False
    assert found["detail"].startswith("700 bytes lost over 9 faults and scripts; most: rail-only storm repeat 1")


def test_matrix_of_faults_fits_80_columns() -> None:
    run = sample_run(2, 2, 5)
    kinds = ("rail-switch-reboot", "link-flapping", "gpu-hang", "hb-port-down", "controller-crash", "server-crash")
    first = [r for r in run.rows(RECOVERIES) if r.fault == "rail-switch-crash"]
    run.records[RECOVERIES.name] += [replace(r, fault=kind) for kind in kinds for r in first]
    names = {"rail-only": "rail-only 4x4", "rail-optimized": "rail-only 8x8"}
    run.records[RECOVERIES.name] = [replaced(r, fabric=names[r.fabric]) for r in run.rows(RECOVERIES)]
    run.fabrics = [replace(f, label=names[f.label], kind="rail-only") for f in run.fabrics]
    run.measurements, run.flows = [], []
    lines = screen(run, 80)
    assert max(map(len, lines)) <= 80
    for kind in (*kinds, "link-down, source", "link-down, far"):
        (small,) = [line for line in lines if line.startswith(f"{kind} ") and "4x4" in line and "(n=" in line]
        (large,) = [line for line in lines if line.startswith(f"{kind} ") and "8x8" in line and "(n=" in line]
        assert all(re.search(r" +\d+\.\d \(n=5\)( |$)", line) for line in (small, large))
    assert not any("more in report.html" in line for line in lines)


def test_a_doubtful_row_says_so(run: Run) -> None:
    assert not any("degraded" in line for line in screen(run, 80))
    doubtful = replace(
        run, loads=[replace(x, lag_p99_ms=9.0) if "link-down" in x.interval.part else x for x in run.loads]
    )
    rows = [line for line in screen(doubtful, 160) if line.startswith(("link-down", "rail-switch-crash"))]
    assert ["degraded" in line for line in rows] == [line.startswith("link-down") for line in rows]


def drawn(run: Run) -> list[tuple[str, str, int, int]]:
    """Script, rerouting, repeat, and of how many."""
    worst = scripts.worst_repeats(script_runs(run))
    return [(script.script, script.reroute, script.repeat, count) for script, count in worst]


def test_of_each_script_the_worst_repeat_is_drawn() -> None:
    run = recovery_run()
    script_faults = {n: [r for r in run.rows(RECOVERIES) if r.script == "storm" and r.repeat == n] for n in (0, 1)}
    slowest = max((0, 1), key=lambda n: max(r.first_packet_ms or 0.0 for r in script_faults[n]))
    away = ("controller-away", "on", 0, 1)
    assert drawn(run) == [("storm", "on", slowest, 2), away]
    other = 1 - slowest
    late = script_faults[other][0]
    run.records[RECOVERIES.name] = [replace(r, first_packet_ms=None) if r is late else r for r in run.rows(RECOVERIES)]
    assert drawn(run)[0][2] == other  # never is slower than any
    at = run.rows(CONNECTIVITY_CHECKS)[0].monotonic_ns
    run.rows(CONNECTIVITY_CHECKS).append(replace(connectivity_check(at, "x", slowest), reachable=9, answered=9))
    assert drawn(run)[0][2] == slowest  # a connectivity check comes before first packets
    run.rows(CONNECTIVITY_CHECKS).append(connectivity_check(at, "x", other, not_recovered=1))
    assert drawn(run)[0][2] == other  # and one that doesn't hold before one that few answered
    run.rows(CONNECTIVITY_CHECKS).append(replace(connectivity_check(at, "x", slowest, not_recovered=9), done=False))
    assert drawn(run)[0][2] == other  # of one that wasn't taken nothing is known
    run.rows(CONNECTIVITY_CHECKS).append(replace(connectivity_check(at, "x", slowest), unexpected_answers=2))
    assert drawn(run)[0][2] == slowest
    run.records[RECOVERIES.name] += [replaced(r, reroute="off") for r in script_faults[0]]
    assert drawn(run)[1:] == [away, ("storm", "off", 0, 1)]


def test_step_that_never_came_is_drawn_without_a_line() -> None:
    run = sample_run(2, 2, 3)
    rows = [r for r in rows_of_faults(run) if r.fault == "rail-switch-crash" and r.fabric == "rail-only"]
    plot = recovery.recovery(rows, [], "f")
    assert "reroute off: detected" in plot.alt
    assert "first packet never" in plot.alt
    assert plot.svg.count(">never<") == 3  # the tick, first packet and goodput with rerouting off
    assert "decided never" not in plot.alt
    on = next(r for r in rows if r.reroute == "on")
    unseen = [replace(r, first_packet_ms=None, source_side_probed=0, far_side_probed=0) for r in on.repeats]
    assert "first packet" not in recovery_steps.steps_text(replace(on, repeats=tuple(unseen)))
    assert recovery_steps.median_repeat(on).first_packet_ms == on.steps["first_packet_ms"].median


def test_many_repeats_are_a_band_and_not_a_thicket() -> None:
    run = sample_run(2, 2, 9)
    traces = [t for t in run.rows(GOODPUT) if t.fault == "link-down" and t.reroute == "on"]
    many = recovery.recovery([], traces, "f").svg
    few = recovery.recovery([], [t for t in traces if t.repeat < 8], "f").svg
    assert ("fill-opacity:0.22" in many, "stroke-opacity:0.35" in many) == (True, False)
    assert ("fill-opacity:0.22" in few, "stroke-opacity:0.35" in few) == (False, True)
    assert len(many) < len(few)


def test_script_without_streams_or_checks_is_drawn(run: Run) -> None:
    script_timeline = script_runs(run)[0]
    assert "check matches" in script_plot.script_timeline(script_timeline).svg
    bare = script_plot.script_timeline(replace(script_timeline, connectivity_checks=(), goodput=()))
    ElementTree.fromstring(bare.svg)
    assert "goodput" not in bare.svg
    wrong = replace(
        script_timeline,
        connectivity_checks=(connectivity_check(script_timeline.faults[0].t_fault, "x", 0, not_recovered=2),),
    )
    assert "connectivity checks: 1 of 1 done, 0 match" in script_plot.script_timeline(wrong).alt
    missed = replace(
        script_timeline,
        connectivity_checks=(
            replace(wrong.connectivity_checks[0], not_recovered=0, done=False),
            *script_timeline.connectivity_checks,
        ),
    )
    drawn = script_plot.script_timeline(missed)
    assert "connectivity checks: 16 of 17 done, all match" in drawn.alt
    assert ">not done<" in drawn.svg


def test_last_line_names_missed_recovery_targets() -> None:
    run = recovery_run()
    assert re.fullmatch(r"recovery targets met: (\d+) of \1", screen(run, 100)[-1])
    assert summarise(run)["targets_missed"] == []
    (table,) = (FailuresSection().parts(Analysis(run))["targets"],)
    assert screen(run, 100)[-1].endswith(f" of {len(table.rows)}"), "it counts the rows of the table"
    late = [replace(t, replaced_ms=200.0) for t in run.rows(REPLACEMENTS)]
    run = run.with_rows(REPLACEMENTS, late)
    missed = "optical replacement by an idle GPU, beyond the time its links are down, on rail-only"
    assert re.search(rf"recovery targets met: \d+ of \d+; not: {missed}", screen(run, 200)[-1])
    assert summarise(run)["targets_missed"] == [missed]
    unrouted = [replaced(r, reroute="off") for r in run.rows(RECOVERIES)]
    run = run.with_rows(RECOVERIES, unrouted).with_rows(REPLACEMENTS, [])
    assert not [line for line in screen(run, 100) if line.startswith("recovery targets met")]
    assert summarise(run)["targets_missed"] == []
