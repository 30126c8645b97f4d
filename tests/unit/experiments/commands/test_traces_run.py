"""A trace in an experiment: told by dry-run, replayed, and left in the run's folder with what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.experiments import cli
from railyard.experiments.commands import dry_run
from railyard.experiments.measures.workloads.dry_run import steps as schedule_steps
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.measures.workloads.turn import Workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results import run_folder
from railyard.workloads.spec import build
from tests.unit.experiments.command_errors import command_errors
from tests.unit.experiments.measures.workloads.test_replay import no_fabric, run_once  # noqa: F401
from tests.unit.stand_ins import plan_of
from tests.unit.traces import TRACES, spec_of

pytestmark = pytest.mark.usefixtures("figures_as_text")

SMALL = ("-o", "domains=2", "-o", "rails=4")


def test_dry_run_prints_senders_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dry-run", str(TRACES / "pipeline"), *SMALL]) == 0
    reported = capsys.readouterr().out
    assert "pipeline on rail-only, 2 domains x 4 rails: bytes times 1" in reported
    assert "send over rails, 1.049MB" in reported
    assert "d0g0 d1g0 | d0g1 d1g1 | 2 more" in reported
    assert "total 218.1MB: collective 218.1MB; crossing rails: none" in reported
    assert "largest of 16 pairs: d0g0 to d0g1 25.17MB" in reported


def test_dry_run_of_an_experiment_counts_every_byte_once() -> None:
    spec = dry_run.experiment("quickstart", ["workloads.0.duration=1s"])
    assert isinstance(spec, ExperimentSpec)
    for workload in workloads_of(spec):
        schedule, *_ = build(workload, spec.gpu_fabrics[0], 10**8, 12 * 10**8)
        steps = schedule_steps(schedule)
        assert sum(step.bytes for step in steps) == sum(schedule.matrix.values())
        assert sum(step.transfers for step in steps) == len(schedule.transfers)
        far = sum(n for (a, b), n in schedule.matrix.items() if a // schedule.rails != b // schedule.rails)
        assert sum(step.rail_bytes for step in steps) == far


def test_dry_run_scales_a_trace() -> None:
    trace = str(TRACES / "ring.0.json")
    as_it_is, scaled = (dry_run.experiment(trace, overrides) for overrides in ([], ["duration=2s"]))
    assert isinstance(as_it_is, ExperimentSpec)
    assert isinstance(scaled, ExperimentSpec)
    factors = [getattr(workloads_of(spec)[0], "bytes_factor", "none") for spec in (as_it_is, scaled)]
    assert factors == [1.0, None]


def test_dry_run_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    cases = {
        "more ranks than GPUs": ["dry-run", str(TRACES / "moe.txt"), *SMALL],
        "misspelt name": ["dry-run", "quickstrat"],
        "no such trace": ["dry-run", "./nothing.et"],
    }
    data_regression.check(command_errors(capsys, cases, names={str(TRACES): "TRACES", str(Path.cwd()): "HERE"}))


def test_a_replayed_trace_is_in_the_runs_folder_with_its_times(
    no_fabric: dict[str, Any],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Every task takes 2 ms on the fabric; at a time factor of f that is 2/f ms of the real job."""
    plan = plan_of()
    spec = spec_of(TRACES / "ddp.json", duration="1s")
    schedule, scale, files, *_ = build(spec, plan.spec, plan.rail_bps, plan.hb_bps)
    run = run_once(plan, Workload("my trace", schedule, scale, True, files), no_fabric)
    names = {name: json.loads(content) for name, content in run.files.items()}
    (folder,) = {name.rpartition("/")[0] for name in names}
    assert folder.startswith("traces/")
    assert folder.endswith("/my-trace/3")
    assert names[f"{folder}/ddp.0.json"][6]["latency_us"] == pytest.approx(2000 / scale.time_factor, rel=1e-3, abs=1e-3)
    run_folder.save(run, tmp_path)
    assert (tmp_path / folder / "ddp.3.json").read_bytes() == run.files[f"{folder}/ddp.3.json"]
    whole = next(m for m in run.measurements if m.metric == "iteration_time")
    assert whole.predicted is None
    steps = {m.phase: m.predicted for m in run.measurements if m.metric == "completion_time"}
    assert len(steps) == len({p.name for p in schedule.phases})
    assert all(steps.values())


def test_a_trace_that_does_not_fit_is_reported_by_field() -> None:
    with pytest.raises(BadInput) as error:
        build(spec_of(TRACES / "nothing"), plan_of().spec, 10**8, 12 * 10**8, "workloads.0")
    assert str(error.value).startswith("workloads.0.path: ")
