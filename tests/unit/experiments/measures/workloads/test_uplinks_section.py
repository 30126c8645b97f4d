"""Uplinks in the report, the terminal and summary.json: measured imbalance beside what hashing is expected to give."""

import json
from dataclasses import replace

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE
from railyard.experiments.measures.workloads.report.uplinks_section import UplinksSection
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Event, Measurement, Run
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")


@pytest.fixture(scope="module")
def run() -> Run:
    """Return a run whose MoE step on rail-optimized had 1.4 times the mean on its busiest uplink."""
    run = sample_run(2, 2, 2)
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


def test_views_have_measured_and_expected_loads(run: Run, data_regression: DataRegressionFixture) -> None:
    section = UplinksSection()
    analysis = Analysis(run)
    counted = {
        "headline": list(section.headline(analysis)),
        "figures": [plot.alt for plot in section.parts(analysis)["plots"]],
        "summary": section.summary(analysis),
    }
    times = [row for row in run.measurements if row.metric != UPLINK_IMBALANCE]
    graph = Analysis(replace(run, measurements=times))
    on_cables = {"headline": list(section.headline(graph)), "figures": section.parts(graph)["plots"]}
    data_regression.check(json.loads(json.dumps({"uplinks": counted, "cables of a graph": on_cables})))
    alone = [replace(row, predicted_by_uplink=None) for row in times]
    assert section.applies(analysis)
    assert not section.applies(Analysis(replace(run, measurements=alone)))
