"""Faults, scripts and heartbeats in the checks, on the screen, in the report and on the timeline."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from railyard.core.records import Recovered
from railyard.experiments.measures.faults import plot as recovery
from railyard.experiments.measures.faults import script_plot
from railyard.experiments.measures.faults import script_section as scripts
from railyard.experiments.measures.faults import tables as faults
from railyard.experiments.measures.faults.analysis import rows_of_faults, script_runs
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.section import FailuresSection
from railyard.experiments.measures.faults.targets import shown_outcomes
from railyard.experiments.measures.replacement.analysis import OPTICAL_REPLACEMENT
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.results.views.targets import targets_table
from tests.unit.replaced import replaced
from tests.unit.sample_runs import connectivity_check, recovery_run, sample_run
from tests.unit.shown import screen, summarise


@pytest.fixture(scope="module")
def run() -> Run:
    return recovery_run()


def test_targets_of_one_fault_kind_have_rows_of_their_own() -> None:
    run = sample_run(2, 2, 1)
    kind = "link-down"
    rows = [r for r in run.rows(RECOVERIES) if r.fault == kind]
    traces = [t for t in run.rows(GOODPUT) if t.fault == kind]
    other_rows = [replace(r, target="d1g0", first_packet_ms=None) for r in rows if r.fabric == "rail-only"]
    other_traces = [replace(t, target="d1g0") for t in traces if t.fabric == "rail-only"]
    run = run.with_rows(RECOVERIES, rows + other_rows).with_rows(GOODPUT, traces + other_traces)
    names = [f"{kind} d0g1", f"{kind} d1g0", kind]
    found = [(row.name, row.reroute) for row in rows_of_faults(run)]
    assert found == [(name, reroute) for name in names for reroute in ("on", "off")]
    lines = [line for line in screen(run, 120) if line.startswith(kind)]
    sides = [re.split(" {2,}", line)[0] for line in lines]
    assert sides == [f"{name}, {side}" for name in names for side in ("source", "far")]
    assert [part["name"] for part in FailuresSection().parts(Analysis(run))["failures"]] == names
    summary = summarise(run)["headline"]["recovery"]
    assert [row["target"] for row in summary[::2]] == ["d0g1", "d1g0", "d0g1"]


@pytest.mark.parametrize(
    ("goodput_ms", "recovered", "cells"),
    [(0.0, Recovered.UNAFFECTED, ("unaffected", "did not fall")), (None, Recovered.NO, ("0 of 1", "never"))],
)
def test_unprobed_fault_shows_its_goodput(
    goodput_ms: float | None, recovered: Recovered, cells: tuple[str, str]
) -> None:
    run = sample_run(2, 2, 1)
    hang = replace(
        run.rows(RECOVERIES)[0], fault="gpu-hang", first_packet_ms=None, source_side_probed=0, far_side_probed=0
    )
    rows = rows_of_faults(run.with_rows(RECOVERIES, [replace(hang, goodput_ms=goodput_ms, recovered=recovered)]))
    assert faults.first_packets_table(rows, judge(run)).cells[0][6] == "not probed"
    (steps,) = faults.steps_table(rows).cells
    assert (steps[3], steps[7]) == cells


def test_heading_has_the_share_that_counts_as_back() -> None:
    first, second, *_ = rows_of_faults(sample_run(2, 2, 1))
    half = replace(first, repeats=tuple(replace(repeat, goodput_share=0.5) for repeat in first.repeats))
    headings: list[list[str]] = []
    for rows in ([first, second], [half], [half, second]):
        columns = faults.steps_table(rows).columns
        headings.append([column.title for column in columns if column.group.startswith("goodput")])
    assert headings == [
        ["back to 95%", "after repair"],
        ["back to 50%", "after repair"],
        ["back to", "goodput back", "after repair"],
    ]
    assert [cells[7] for cells in faults.steps_table([half, second]).cells] == ["50%", "95%"]


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
    for line in rows:
        assert ("degraded" in line) == line.startswith("link-down")


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
    assert "first packet" not in recovery.steps_text(replace(on, repeats=tuple(unseen)))
    assert recovery.median_repeat(on).first_packet_ms == on.steps["first_packet_ms"].median


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
    last_line = screen(run, 100)[-1]
    assert re.fullmatch(r"recovery targets met: (\d+) of \1", last_line)
    assert summarise(run)["targets_missed"] == []
    table = targets_table(shown_outcomes(Analysis(run)))
    assert last_line.endswith(f" of {len(table.rows)}"), "it counts the rows of the table"
    late = [replace(t, replaced_ms=200.0) for t in run.rows(REPLACEMENTS)]
    run = run.with_rows(REPLACEMENTS, late)
    missed = f"{OPTICAL_REPLACEMENT.quantity}, on rail-only"
    assert re.search(rf"recovery targets met: \d+ of \d+; not: {missed}", screen(run, 200)[-1])
    assert summarise(run)["targets_missed"] == [missed]
    unrouted = [replaced(r, reroute="off") for r in run.rows(RECOVERIES)]
    run = run.with_rows(RECOVERIES, unrouted).with_rows(REPLACEMENTS, [])
    assert not [line for line in screen(run, 100) if line.startswith("recovery targets met")]
    assert summarise(run)["targets_missed"] == []
