"""Workloads of an experiment on one fabric: made again for each mode and script, their scale recorded once."""

from railyard.core.records import IntervalId
from railyard.experiments.measures.workloads.records import WAITS, WaitRecord
from railyard.experiments.measures.workloads.report.section import waiting_lines
from railyard.experiments.measures.workloads.run import make_workloads
from railyard.experiments.measures.workloads.spec import workload_labels
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import seconds
from railyard.results.runs.records import Run
from railyard.workloads.matrix.waiting import REMEDY
from tests.unit.shown import summarise


def test_scale_of_workloads_is_recorded_once_for_a_fabric() -> None:
    workloads = [{"kind": "moe", "duration": "1s"}, {"kind": "gpt", "duration": "1s"}]
    fabric = {"kind": "rail-only", "domains": 2, "rails": 2}
    spec = parse({"name": "mine", "fabrics": [fabric], "workloads": workloads})
    run = Run("mine", {}, {}, "2026-01-01")
    plan = nominal_plan(spec.gpu_fabrics[0])
    for seed in (1, 1, 2):
        made = make_workloads(spec, plan, "rail-only", run, seed)
        assert [workload.label for workload in made] == list(workload_labels(spec))
    assert [scale["workload"] for scale in run.scale] == list(workload_labels(spec))


def test_a_communicator_that_waited_is_one_line_of_a_summary() -> None:
    run = Run("mine", {}, {}, "2026-01-01")
    line = "ring communicator waits for ever"
    for repeat, waited_s in enumerate((3.0, 3.2, 3.1)):
        interval = IntervalId("rail-only", "ring", "isolated", repeat=repeat)
        run.rows(WAITS).append(WaitRecord(interval, "ring", "all-reduce", "", "d0g1 -> d1g0", 2, waited_s, 0, line))
    (waited, remedy) = waiting_lines(Analysis(run))
    assert waited == f"ring on rail-only, ended by its time limit after {seconds(3.1)}: {line}"
    assert remedy == REMEDY
    assert summarise(run)["headline"]["waiting"] == [waited, remedy]
