"""In what order a multi-rail experiment is run, that its bar reaches its end, and what it does when a policy can't."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.run import rail_fabrics, rail_session
from railyard.experiments.run import runner as common_runner
from railyard.experiments.run import session as common_session
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.rail_session import MultirailSession
from railyard.experiments.run.runner import run_experiment
from railyard.experiments.spec.experiment import ExperimentSpec, parse
from railyard.failure.faults import Fault
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.allreduce import AllreduceResults, LostRails, allreduce_interval
from railyard.results.runs.fidelity import judge
from railyard.results.runs.records import Run
from railyard.topologies.measure.counters import Counters
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.workloads.allreduce.engine.jobs import Migration, Operations, RankReport
from railyard.workloads.allreduce.peers.training import TrainingResult
from tests.unit.test_machine import FULL

MS = 1_000_000
EXPERIMENT: dict[str, Any] = {
    "name": "mine",
    "fabrics": [{"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "auto"}] * 2}],
    "policies": ["nezha", "gloo"],
    "sizes": ["8MiB", "2KiB"],
    "learning": 20,
    "operations": 40,
    "faults": [{"kind": "rail-switch-crash", "target": "rail1", "at": "1ms", "repair": "1ms", "learning": 20}],
    "fault_repeats": 2,
    "trainings": [{"model": "alexnet", "volume": 0.1, "steps": 2}],
    "ddp": [{"steps": 2}],
    "repeats": 2,
}


Tell = Callable[[str, int, Sequence[RankReport]], Sequence[RankReport]]
"""What ranks tell in place of `reports`, of a policy's so-manieth call."""


class Net:
    """A fabric that isn't there."""

    def __init__(self, plan: MultirailPlan) -> None:
        self.plan, self.build_s = plan, 0.5


class Ranks:
    """Two ranks that have done everything in a millisecond each; what they were asked is in `asked`."""

    def __init__(self, policy: str, runs: "Runs") -> None:
        self.policy, self.runs = policy, runs

    def __enter__(self) -> Self:
        if self.policy in self.runs.lacking:
            raise MissingRequirement("PyTorch isn't installed", "type: install it")
        self.runs.did.append(f"start {self.policy}")
        return self

    def __exit__(self, *_: object) -> None:
        self.runs.did.append(f"stop {self.policy}")

    def pause(self) -> None:
        self.runs.did.append(f"pause {self.policy}")

    def resume(self) -> None:
        self.runs.did.append(f"resume {self.policy}")

    def run(self, operations: Operations) -> Sequence[RankReport]:
        policy = operations.policy or self.policy
        self.runs.asked.append((policy, operations))
        turns = sum(asked == policy for asked, _ in self.runs.asked)
        errors = ["rank 1 is gone"] if policy in self.runs.breaking and turns > self.runs.goes_well else []
        count = range(operations.count)
        whole = [
            RankReport(
                rank,
                starts_ns=[n * MS for n in count],
                ends_ns=[(n + 1) * MS for n in count],
                shares=[(0.5, 0.5) for _ in count],
                rail_seconds=[(0.001, 0.001) for _ in count],
                errors=errors,
            )
            for rank in range(2)
        ]
        return self.runs.tell(policy, turns, whole)

    def begin(self, operations: Sequence[Operations]) -> None:
        self.begun = operations[0]

    def finish(self) -> Sequence[RankReport]:
        return self.run(self.begun)

    def train(self, backend: str, training: object, policy: str = "") -> Sequence[TrainingResult]:
        self.runs.did.append(f"train {backend} {policy}".rstrip())
        return self.runs.trained[backend]


class Runs:
    """Every part of a run but its order is replaced; what would have been done is in `did` and `asked`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.asked: list[tuple[str, Operations]] = []
        self.steps: list[str] = []
        self.lacking: set[str] = set()
        self.breaking: set[str] = set()
        self.goes_well = 0  # so many calls, before it breaks
        self.tell: Tell = lambda policy, turn, reports: reports
        self.saved: list[Run] = []
        self.trained = dict.fromkeys(("gloo", "railyard"), [TrainingResult([1.0, 0.5], [0.2, 0.1], 400, [])] * 2)
        monkeypatch.setattr(common_runner, "detect", lambda: FULL)
        monkeypatch.setattr("railyard.topologies.measure.rates.measure", lambda *_: 90_000.0)
        monkeypatch.setattr(common_runner, "provenance", lambda *_: {"seed": 1})
        monkeypatch.setattr(rail_fabrics, "built", self.built)
        monkeypatch.setattr(MultirailSession, "engine", lambda _, policy: Ranks(policy, self))
        monkeypatch.setattr(common_session, "count", lambda _: Counters(0, 0, 0))
        monkeypatch.setattr(rail_fabrics, "Ranks", lambda _, policy: Ranks(policy, self))
        for name in ("prepare", "confirm"):
            monkeypatch.setattr(rail_fabrics, name, lambda *_: None)
        monkeypatch.setattr(rail_fabrics, "apply", self.inject)
        monkeypatch.setattr(rail_fabrics, "repair", lambda _, fault: self.did.append(f"repair {fault.target}"))
        monkeypatch.setattr("railyard.workloads.jobs.ddp.DdpRanks", lambda *_: Ranks("ddp", self))
        monkeypatch.setattr("railyard.results.runs.store.save", self._save)
        step = Steps.step

        @contextmanager
        def noted(steps: Steps, what: str, total: float | None = None) -> Iterator[None]:
            self.steps.append(what)
            with step(steps, what, total):
                yield

        monkeypatch.setattr(Steps, "step", noted)

    def _save(self, run: Run, _: Path) -> Analysis:
        self.saved.append(run)
        return Analysis(run)

    def inject(self, _: object, fault: Fault) -> int:
        self.did.append(fault.name)
        return 2 * MS

    @contextmanager
    def built(
        self, label: str, plan: MultirailPlan, _: object, run: Run, steps: Steps, *numbers: int
    ) -> Iterator[MultirailSession]:
        with steps.step(f"{label}: building"):
            self.did.append(f"build {plan.dilation:g} times slower" if plan.dilation > 1 else "build")
        yield MultirailSession(label, Net(plan), run, steps, *numbers)  # type: ignore[arg-type]
        self.did.append("take down")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


NOWHERE = Path("nowhere")


SHARED = ("policies", "only", "learning")
OF_SIZES = ("sizes", "operations", "point", "starts")


def spec_of(**keys: Any) -> ExperimentSpec:
    """Return EXPERIMENT with some keys changed, of its workloads and of its own."""
    given = {**EXPERIMENT, **keys}
    shared = {key: given[key] for key in SHARED if key in given}
    sizes = {"kind": "allreduce", **shared, **{key: given[key] for key in OF_SIZES if key in given}}
    workloads = [
        *([sizes] if given["sizes"] else []),
        *({"kind": "training", **shared, **training} for training in given["trainings"]),
        *({"kind": "ddp", **ddp} for ddp in given["ddp"]),
    ]
    own = {key: value for key, value in given.items() if key in ExperimentSpec.model_fields}
    return parse({**own, "workloads": workloads})


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
def test_the_bar_reaches_its_end(runs: Runs, keys: dict[str, Any]) -> None:
    spec = spec_of(**keys)
    run_experiment(spec, NOWHERE, None)
    assert len(runs.steps) == 1 + spec.family.step_count(spec)


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
    assert len(runs.steps) == 1 + spec.family.step_count(spec)
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


def test_policies_get_new_processes_when_one_breaks_them(runs: Runs) -> None:
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


LABEL = "tcp+tcp, 2 nodes"
ALONE: dict[str, Any] = {"repeats": 1, "faults": [], "trainings": [], "ddp": [], "sizes": ["2KiB"], "operations": 20}


def without_rail_1(reports: Sequence[RankReport]) -> list[RankReport]:
    """It died meanwhile, and one rank alone says so."""
    first, second = (replace(report, shares=[(1.0, 0.0)] * len(report.shares)) for report in reports)
    return [first, replace(second, migrations=[Migration((1,), 0.1, 0.2)])]


def counts_of(runs: Runs, policy: str) -> list[int]:
    """Operations of each of its timed turns."""
    return [op.count for asked, op in runs.asked if asked == policy and not op.check and op.size_bytes > 4]


@pytest.mark.parametrize("turn", [1, 2, 3, 5])
def test_a_turn_in_which_a_rail_was_lost_is_in_no_point(runs: Runs, turn: int) -> None:
    """Be it the check, the turn in which it learns, a later one, or its last."""
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if (policy, at) == ("nezha", turn) else reports
    run_experiment(spec_of(policies=["nezha", "mrib", "gloo"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert {p.policy: (p.operations, p.shares) for p in AllreduceResults.of(run).points} == {
        "nezha": (43, (0.5, 0.5)),
        "mrib": (27, (0.5, 0.5)),
        "gloo": (27, (0.5, 0.5)),
    }
    taken = max(1, turn - 1)
    assert counts_of(runs, "nezha") == [*[25, 6, 6, 6][:taken], 25, 6, 6, 6], "it learns once more"
    assert counts_of(runs, "gloo") == [9, 6, 6, 6], "it has processes of its own"
    assert AllreduceResults.of(run).lost == [LostRails(allreduce_interval(LABEL, "nezha", 2048), ("tcp1",), kept=False)]
    message = f"degraded: {LABEL} nezha, allreduce 2KiB, repeat 0: tcp1 lost while nothing was cut, measured anew"
    assert message in judge(run).reasons


def test_turn_with_a_lost_rail_is_repeated_and_nezha_restarts(runs: Runs) -> None:
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if (policy, at) == ("mrib", 3) else reports
    run_experiment(spec_of(policies=["nezha", "mrib"], **ALONE), NOWHERE, None)
    assert counts_of(runs, "mrib") == [9, 6, 6, 6, 6]
    assert counts_of(runs, "nezha") == [25, 25, 6, 6, 6], "what it has learnt is forgotten when the rail comes back"
    waited = [n for n, (_, op) in enumerate(runs.asked) if op.size_bytes == 4]
    assert len(waited) == 1, "the rail is back at once"
    assert runs.asked[waited[0] - 1][0] == "mrib"
    assert [did for did in runs.did if did.startswith("st")] == ["start nezha", "stop nezha"], "the same processes"


def test_what_was_wrong_in_a_void_check_is_wrong_all_the_same(runs: Runs) -> None:
    def tell(policy: str, at: int, reports: Sequence[RankReport]) -> Sequence[RankReport]:
        return [replace(report, wrong=3) for report in without_rail_1(reports)] if at == 1 else reports

    runs.tell = tell
    run_experiment(spec_of(policies=["mrib"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert [p.wrong for p in AllreduceResults.of(run).points] == [6]
    assert counts_of(runs, "mrib") == [9, 9, 6, 6, 6]


def test_rail_lost_repeatedly_is_recorded_as_invalid(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if policy == "mrib" else reports
    run_experiment(spec_of(policies=["nezha", "mrib", "slicing", "gloo"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert counts_of(runs, "mrib") == [9, 9, 9, 6, 6, 6]
    assert {p.policy for p in AllreduceResults.of(run).points} == {"nezha", "mrib", "slicing", "gloo"}
    anew, mrib, nezha = (
        LostRails(allreduce_interval(LABEL, policy, 2048), ("tcp1",), kept)
        for policy, kept in (("mrib", False), ("mrib", True), ("nezha", True))
    )
    assert sorted(AllreduceResults.of(run).lost, key=str) == sorted([anew, anew, mrib, nezha], key=str), (
        "nezha learns anew in operations that count; slicing forgets nothing"
    )
    judgement = judge(run)
    assert judgement.verdict == "invalid"
    message = f"{LABEL} nezha, allreduce 2KiB, repeat 0: tcp1 lost while nothing was cut, in operations that count"
    assert f"invalid: {message} (and 1 more like it)" in judgement.reasons
    marked = {(i.policy, i.workload) for i, verdict in judgement.intervals.items() if verdict == "invalid"}
    assert {("mrib", "allreduce 2KiB"), ("nezha", "allreduce 2KiB")} <= marked


def test_each_size_may_begin_anew(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: (
        without_rail_1(reports) if policy == "mrib" and at in (2, 4, 10, 12) else reports
    )
    run_experiment(spec_of(policies=["mrib"], **ALONE | {"sizes": ["2KiB", "4KiB"]}), NOWHERE, None)
    (run,) = runs.saved
    assert [(lost.workload, lost.kept) for lost in AllreduceResults.of(run).lost] == [
        (f"allreduce {size}", False) for size in ("2KiB", "2KiB", "4KiB", "4KiB")
    ]


def test_no_turn_begins_before_all_rails_are_back(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_session, "PAUSE_S", 0.0)

    def tell(policy: str, at: int, reports: Sequence[RankReport]) -> Sequence[RankReport]:
        away = (policy, at) == ("nezha", 2) or (policy == "equal" and at < 4)
        return [replace(report, dead_rails=(0,) * away) for report in reports]

    runs.tell = tell
    run_experiment(spec_of(policies=["nezha"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert [policy for policy, _ in runs.asked] == ["nezha"] * 2 + ["equal"] * 4 + ["nezha"] * 5
    assert [lost.rails for lost in AllreduceResults.of(run).lost] == [("tcp0",)]
    assert all((op.size_bytes, op.count) == (4, 1) for policy, op in runs.asked if policy == "equal")


def test_a_rail_that_never_comes_back_is_waited_for_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_session, "PAUSE_S", 0.01)
    monkeypatch.setattr(rail_session, "RAIL_WAIT_S", 0.1)
    monkeypatch.setattr(rail_session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: [replace(report, dead_rails=(1,)) for report in reports]
    run_experiment(spec_of(policies=["mrib"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    asked = "".join(policy[0] for policy, _ in runs.asked).split("mm")
    assert len(asked[1]) > 2, "before the second turn"
    assert {len(waited) for waited in "m".join(asked[2:]).split("m") if waited} == {1}, "a look, and no more"
    assert [lost.kept for lost in AllreduceResults.of(run).lost] == [False, False, True]
    assert {p.policy for p in AllreduceResults.of(run).points} == {"mrib"}


def test_who_has_no_rails_to_tell_of_is_left_alone(runs: Runs) -> None:
    run_experiment(spec_of(policies=["gloo", "mpi", "mptcp"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert AllreduceResults.of(run).lost == []
    assert all(op.size_bytes > 4 for _, op in runs.asked)
    assert [counts_of(runs, policy) for policy in ("gloo", "mpi", "mptcp")] == [[9, 6, 6, 6]] * 3


def test_ranks_that_break_while_a_rail_is_waited_for_are_reported(runs: Runs) -> None:
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if (policy, at) == ("nezha", 2) else reports
    runs.breaking = {"equal"}
    assert run_experiment(spec_of(policies=["nezha"], **ALONE), NOWHERE, None) == 1
    (run,) = runs.saved
    assert [(s.policy, s.why, s.failed) for s in AllreduceResults.of(run).skipped] == [
        ("nezha", "rank 0: rank 1 is gone", True)
    ]


def test_points_that_are_whole_are_kept_whatever_ends_the_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    take = rail_session.SizeSweep._take_turn
    calls = iter([take] * 17 + [interrupted])
    monkeypatch.setattr(rail_session.SizeSweep, "_take_turn", lambda *given: next(calls)(*given))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec_of(repeats=1, sizes=["2KiB", "8MiB"]), NOWHERE, None)
    (run,) = runs.saved
    assert {(p.policy, p.size) for p in AllreduceResults.of(run).points} == {("nezha", 2048), ("gloo", 2048)}


def test_missing_engine_is_skipped_by_name_and_the_rest_runs(runs: Runs) -> None:
    runs.lacking = {"gloo"}
    fabric = {**EXPERIMENT["fabrics"][0], "dilation": {"128KiB": 5}}
    run_experiment(spec_of(fabrics=[fabric]), NOWHERE, None)
    (run,) = runs.saved
    assert [(s.policy, s.failed) for s in AllreduceResults.of(run).skipped] == [("gloo", False)], "once"
    assert {p.policy for p in AllreduceResults.of(run).points} == {"nezha"}
    assert AllreduceResults.of(run).cuts


def test_a_policy_that_breaks_down_is_named_and_fails_the_run(runs: Runs) -> None:
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


def test_whatever_ends_it_early_what_was_measured_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(rail_fabrics, "apply", interrupted)
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
    assert len(runs.steps) == 1 + spec.family.step_count(spec)
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


def test_no_rail_is_dilated_to_a_standstill(runs: Runs) -> None:
    slow = [{"kind": "tcp", "rate": "20Mbit"}, {"kind": "tcp", "rate": "1Mbit"}]
    for dilation, training, field in (({"64MiB": 100}, 1, "fabrics.0"), ({}, 100, "workloads.1")):
        fabric = {"kind": "multi-rail", "nodes": 2, "rails": slow, "dilation": dilation}
        spec = spec_of(fabrics=[fabric], trainings=[{"model": "alexnet", "dilation": training}])
        with pytest.raises(BadInput) as caught:
            run_experiment(spec, NOWHERE, None)
        assert str(caught.value) == (
            f"{field}.dilation: 100.0 leaves 10kbit of tcp1, of 200kbit at least: give 5 at most, or tcp1 a higher rate"
        )
    assert runs.did == [], "before anything is built"
    fits = {"kind": "multi-rail", "nodes": 2, "rails": slow, "dilation": {"64MiB": 5}}
    run_experiment(spec_of(fabrics=[fits], faults=[], trainings=[], ddp=[]), NOWHERE, None)


def test_what_is_predicted_is_the_same_in_slow_motion(runs: Runs) -> None:
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
