"""Workloads of an experiment on one fabric: made again for each mode and script, their scale recorded once."""

from railyard.experiments.measures.workloads.run import make_workloads
from railyard.experiments.measures.workloads.spec import workload_labels
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.runs.records import Run


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
