"""Uplinks in the report, the terminal and summary.json: measured imbalance beside what hashing is expected to give."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE
from railyard.experiments.measures.workloads.report.uplinks_section import UplinksSection
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Event, Measurement, Run
from tests.unit.sample_runs import sample_run
from tests.unit.shown import print_summary, render, summarise

pytestmark = pytest.mark.usefixtures("figures_as_text")


@pytest.fixture(scope="module")
def run() -> Run:
    """Return a run whose MoE step on rail-optimized had 1.4 times the mean on its busiest uplink."""
    run = sample_run(2, 2, 2)
    run.records[GOODPUT.name], run.records[RECOVERIES.name] = [], []
    measured = []
    for row in run.measurements:
        if (row.fabric, row.workload, row.metric) == ("rail-optimized", "moe", "iteration_time"):
            row = replace(row, predicted_by_uplink=1.25 * (row.predicted or 0))
            sizes = {"rail0 out": [140, 60], "rail1 out": [100, 100], "rail0 in": [100, 100], "rail1 in": [140, 60]}
            run.events.append(Event(1, "fabric", UPLINK_BYTES, {**row.interval.as_dict(), "bytes": sizes}))
            measured.append(Measurement(row.interval, "", UPLINK_IMBALANCE, 1.4, "ratio", 1.5))
        measured.append(row)
    run.measurements = measured
    return run


def test_report_and_terminal_say_that_flows_collide(run: Run) -> None:
    sentence = "moe on rail-optimized: flows collide on uplinks, the busiest of which had 1.400 of the mean"
    page, out = render(run), StringIO()
    print_summary(run, Console(file=out, width=300))
    assert sentence in page
    assert sentence in out.getvalue()
    assert (
        "Bytes of each uplink over the mean of its switch, moe on rail-optimized: at most 1.40, expected 1.500" in page
    )
    (found,) = summarise(run)["headline"]["uplink_imbalance"]
    assert (found["fabric"], found["measured"], found["expected"]) == ("rail-optimized", (1.4, 1.4), 1.5)


def test_a_run_without_spines_has_no_uplinks_to_show(run: Run) -> None:
    assert '<section id="uplinks">' in render(run)
    times = [replace(m, predicted_by_uplink=None) for m in run.measurements if m.metric != UPLINK_IMBALANCE]
    bare = replace(run, measurements=times)
    assert '<section id="uplinks">' not in render(bare)


def test_collisions_on_cables_of_a_graph_are_named(run: Run) -> None:
    graph = replace(run, measurements=[m for m in run.measurements if m.metric != UPLINK_IMBALANCE])
    sentence = "moe on rail-optimized: flows collide on cables between switches. So the time is expected to be 1.250 of"
    (found,) = UplinksSection().headline(Analysis(graph))
    assert str(found).startswith(sentence)
