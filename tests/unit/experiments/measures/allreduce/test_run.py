"""Order of a multi-rail run, its progress, missing and failing policies, trainings and dilation."""

from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.measures.allreduce.measure import AllreduceMeasure
from railyard.experiments.measures.allreduce.records import AllreduceResults
from railyard.experiments.run.runner import run_experiment
from railyard.failure.active import Operator
from railyard.workloads.allreduce.peers.training import TrainingResult
from tests.unit.multirail_runs import EXPERIMENT, NOWHERE, Runs, spec_of


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def test_workloads_are_measured_in_order_and_then_faults(runs: Runs) -> None:
    run_experiment(spec_of(repeats=1), NOWHERE, None)
    assert [did for did in runs.did if not did.startswith(("pause", "resume"))] == [
        "build",
        *("start nezha", "start gloo", "stop nezha", "stop gloo"),
        *("start nezha", "stop nezha", "start gloo", "stop gloo"),
        *("start ddp", "train gloo", "train railyard nezha", "stop ddp"),
        *("start nezha", *["rail-switch-crash rail1", "repair rail1"] * 2, "stop nezha"),
        "take down",
    ]


TWO = {"fabrics": EXPERIMENT["fabrics"] * 2, "only": {"nezha": [0], "gloo": [0]}}


@pytest.mark.parametrize("keys", [{}, {"sizes": []}, {"faults": [], "trainings": []}, {"repeats": 1, "ddp": []}, TWO])
def test_progress_reaches_its_end(runs: Runs, keys: dict[str, Any]) -> None:
    spec = spec_of(**keys)
    run_experiment(spec, NOWHERE, None)
    assert len(runs.steps) == 1 + AllreduceMeasure().steps(spec)


def test_every_size_is_checked_then_timed_small_ones_first(runs: Runs) -> None:
    run_experiment(spec_of(repeats=1, faults=[], trainings=[], ddp=[]), NOWHERE, None)
    mine = [op for policy, op in runs.asked if policy == "nezha"]
    timed = [op for op in mine if not op.check]
    assert [op.dtype for op in mine if op.check] == ["int32"] * 2
    assert mine[0].check
    assert {op.dtype for op in timed} == {"float32"}
    assert [op.size_bytes for op in timed] == sorted(op.size_bytes for op in timed)
    (run,) = runs.saved
    small, large = (p for p in AllreduceResults.of(run).points if p.policy == "nezha")
    assert (small.size, large.size) == (2048, 8 * 2**20)
    turns = [sum(op.size_bytes == size for op in timed) for size in sorted({op.size_bytes for op in timed})]
    assert turns[0] == 8
    for point, taken in zip((small, large), turns, strict=True):
        assert point.measured >= 5 * taken
        uncounted = 20 + taken - 1
        assert point.operations - point.measured == uncounted, "learning doesn't count, nor what warms a turn up"
    assert small.mean_s == pytest.approx(0.001)
    names = {(load.policy, load.workload) for load in run.loads}
    assert names == {(p, f"allreduce {s}") for p in ("nezha", "gloo") for s in ("2KiB", "8MiB")}


def test_policies_take_turns_in_each_start(runs: Runs) -> None:
    spec = spec_of(repeats=1, starts={"128KiB": 3}, faults=[], trainings=[], ddp=[])
    run_experiment(spec, NOWHERE, None)
    begun = [did for did in runs.did if not did.startswith(("pause", "resume"))]
    start = ["start nezha", "start gloo", "stop nezha", "stop gloo"]
    assert begun == ["build", *start * 3, "take down"]
    assert len(runs.steps) == 1 + AllreduceMeasure().steps(spec)
    (run,) = runs.saved
    nezhas = [(p.size, p.repeat) for p in AllreduceResults.of(run).points if p.policy == "nezha"]
    assert nezhas == [(2048, 0), (8 * 2**20, 0), (2048, 1), (2048, 2)]


def test_policies_take_turns_both_ways_and_others_are_paused(runs: Runs) -> None:
    alone: dict[str, Any] = {"repeats": 1, "faults": [], "trainings": [], "ddp": []}
    run_experiment(
        spec_of(policies=["nezha", "gloo", "equal"], sizes=["2KiB"], operations=10, **alone), Path("x"), None
    )
    took = [(policy, op.count) for policy, op in runs.asked if not op.check]
    assert took == [("nezha", 25), ("gloo", 9), ("equal", 9), ("equal", 6), ("gloo", 6), ("nezha", 6)]
    assert runs.did == [
        *("build", "start nezha", "pause nezha", "start gloo", "pause gloo", "resume nezha"),  # all begin
        *("pause nezha", "resume gloo", "pause gloo", "resume nezha"),  # there
        *("pause nezha", "resume gloo", "pause gloo", "resume nezha"),  # and back
        *("stop nezha", "stop gloo", "take down"),
    ]


def test_policies_get_new_processes_after_a_failure(runs: Runs) -> None:
    runs.breaking = {"equal"}
    alone: dict[str, Any] = {"repeats": 1, "faults": [], "trainings": [], "ddp": []}
    assert run_experiment(spec_of(policies=["nezha", "equal", "mrib"], **alone), NOWHERE, None) == 1
    (run,) = runs.saved
    assert {p.policy for p in AllreduceResults.of(run).points} == {"nezha", "mrib"}
    assert [(s.policy, s.failed) for s in AllreduceResults.of(run).skipped] == [("equal", True)]
    assert runs.did == ["build", "start nezha", "stop nezha", "start nezha", "stop nezha", "take down"]


def test_break_in_a_later_turn_restarts_policies_of_the_engine(runs: Runs) -> None:
    runs.breaking, runs.goes_well = {"equal"}, 3  # the check and two turns
    alone: dict[str, Any] = {"repeats": 1, "faults": [], "trainings": [], "ddp": [], "sizes": ["2KiB"]}
    run_experiment(spec_of(policies=["nezha", "equal", "gloo"], **alone), NOWHERE, None)
    (run,) = runs.saved
    timed = [(policy, op.count) for policy, op in runs.asked if not op.check]
    assert [count for policy, count in timed if policy == "nezha"] == [25, 6, 6, 25, *[6] * 7], "it learns once more"
    assert [count for policy, count in timed if policy == "gloo"] == [9, *[6] * 7]
    assert {p.policy: p.operations for p in AllreduceResults.of(run).points} == {"nezha": 67, "gloo": 51}


def test_missing_engine_is_skipped_by_name_and_the_rest_runs(runs: Runs) -> None:
    runs.lacking = {"gloo"}
    fabric = {**EXPERIMENT["fabrics"][0], "dilation": {"128KiB": 5}}
    run_experiment(spec_of(fabrics=[fabric]), NOWHERE, None)
    (run,) = runs.saved
    assert [(s.policy, s.failed) for s in AllreduceResults.of(run).skipped] == [("gloo", False)], "once"
    assert {p.policy for p in AllreduceResults.of(run).points} == {"nezha"}
    assert AllreduceResults.of(run).cuts


def test_policy_that_fails_is_named_and_fails_the_run(runs: Runs) -> None:
    runs.breaking = {"gloo"}
    assert run_experiment(spec_of(repeats=1, faults=[]), NOWHERE, None) == 1
    (run,) = runs.saved
    assert {(s.policy, s.why) for s in AllreduceResults.of(run).skipped} == {("gloo", "rank 0: rank 1 is gone")}
    assert [t.policy for t in AllreduceResults.of(run).trainings] == ["nezha"]


def test_a_training_is_replayed_in_its_order_after_learning(runs: Runs) -> None:
    run_experiment(spec_of(repeats=1, sizes=[], faults=[], ddp=[], policies=["nezha"]), NOWHERE, None)
    (run,) = runs.saved
    (training,) = AllreduceResults.of(run).trainings
    groups = [(op.size_bytes, op.count) for _, op in runs.asked]
    learnt = next(n for n, (_, op) in enumerate(runs.asked) if op.gap_s > 0)
    assert sum(count for _, count in groups[:learnt]) >= 20
    assert sum(size * count for size, count in groups[learnt:]) == 2 * training.bytes
    assert sum(op.gap_s * op.count for _, op in runs.asked[learnt:]) == pytest.approx(2 * training.compute_s)


def test_measurements_are_kept_when_the_run_ends_early(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Operator, "inject", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec_of(repeats=1), NOWHERE, None)
    (run,) = runs.saved
    assert run.interrupted
    assert len(AllreduceResults.of(run).points) == 4
    assert {m.metric for m in run.measurements} >= {"completion_time", "throughput"}


def test_dilated_fabric_is_built_anew_with_undilated_times(runs: Runs) -> None:
    fabric = {**EXPERIMENT["fabrics"][0], "dilation": {"128KiB": 5}}
    training = {**EXPERIMENT["trainings"][0], "dilation": 4}
    spec = spec_of(repeats=1, policies=["nezha"], fabrics=[fabric], trainings=[training])
    run_experiment(spec, NOWHERE, None)
    one = ["start nezha", "stop nezha"]
    assert [did for did in runs.did if not did.startswith(("rail-switch", "repair", "train"))] == [
        *("build", *one, "start ddp", "stop ddp", *one, "take down"),  # the large size, DDP and faults
        *("build 4 times slower", *one, "take down"),
        *("build 5 times slower", *one, "take down"),
    ]
    assert len(runs.steps) == 1 + AllreduceMeasure().steps(spec)
    (run,) = runs.saved
    points = {p.size: (p.dilation, p.mean_s, p.typical_s, p.rail_s[0]) for p in AllreduceResults.of(run).points}
    assert points[2048] == pytest.approx((5.0, 0.0002, 0.0002, 0.0002))
    assert points[8 * 2**20] == pytest.approx((1.0, 0.001, 0.001, 0.001))
    loads = {(load.policy, load.workload): load.dilation for load in run.loads}
    times = [loads["nezha", name] for name in ("allreduce 2KiB", "allreduce 8MiB", "alexnet batch 32")]
    assert times == [5, 1, 4]
    (rails,) = AllreduceResults.of(run).fabrics
    (slow,) = AllreduceResults.of(run).trainings
    assert slow.dilation == 4
    assert rails.setup_s[0] == pytest.approx(163e-6, rel=0.01), "the fabric as it is"
    timed = [op for _, op in runs.asked if op.gap_s > 0]
    assert sum(op.gap_s * op.count for op in timed) == pytest.approx(2 * 4 * slow.compute_s)


def test_dilated_rails_keep_a_minimum_rate(runs: Runs) -> None:
    slow = [{"kind": "tcp", "rate": "20Mbit"}, {"kind": "tcp", "rate": "1Mbit"}]
    for dilation, training, field in (({"64MiB": 100}, 1, "fabrics.0"), ({}, 100, "workloads.1")):
        fabric = {"kind": "multi-rail", "nodes": 2, "rails": slow, "dilation": dilation}
        spec = spec_of(fabrics=[fabric], trainings=[{"model": "alexnet", "dilation": training}])
        with pytest.raises(BadInput) as caught:
            run_experiment(spec, NOWHERE, None)
        assert caught.value.field == f"{field}.dilation"
        assert "10kbit of tcp1, of 200kbit at least: give 5 at most" in caught.value.allowed
    assert runs.did == [], "before anything is built"
    fits = {"kind": "multi-rail", "nodes": 2, "rails": slow, "dilation": {"64MiB": 5}}
    run_experiment(spec_of(fabrics=[fits], faults=[], trainings=[], ddp=[]), NOWHERE, None)


def test_prediction_is_the_same_with_dilation(runs: Runs) -> None:
    for dilation in ({}, {"64MiB": 10}):
        fabric = {**EXPERIMENT["fabrics"][0], "dilation": dilation}
        run_experiment(spec_of(repeats=1, fabrics=[fabric], faults=[], trainings=[], ddp=[]), NOWHERE, None)
    real, slow = ({(p.policy, p.size): p.predicted_s for p in AllreduceResults.of(run).points} for run in runs.saved)
    assert slow == pytest.approx(real, rel=1e-4)


def test_ddp_losses_are_compared_by_rank_and_step(runs: Runs) -> None:
    gloo = [TrainingResult([1.0, 0.5], [9.0, 0.2], 400, []), TrainingResult([0.8, 0.004], [9.0, 0.3], 400, [])]
    own = [TrainingResult([1.0, 0.5], [9.0, 0.1], 400, []), TrainingResult([0.8, 0.003], [9.0, 0.1], 400, [])]
    runs.trained = {"gloo": gloo, "railyard": own}
    run_experiment(spec_of(repeats=1, sizes=[], faults=[], trainings=[]), NOWHERE, None)
    (found,) = AllreduceResults.of(runs.saved[0]).ddp_runs
    assert found.losses_apart == pytest.approx(0.1), "of what is below 0.01, over 0.01"
    assert found.gloo_losses == pytest.approx((0.9, 0.252))
    assert (found.gloo_step_s, found.step_s, found.bytes) == (0.3, 0.1, 400)
