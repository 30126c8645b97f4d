"""Lost rails in a size sweep: what is repeated, recorded, waited for and kept."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest

from railyard.core.errors import MissingRequirement
from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce import engines, session
from railyard.experiments.measures.allreduce.records import AllreduceResults, LostRails, allreduce_interval
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.runner import run_experiment
from railyard.experiments.run.session import Watch
from railyard.results.analysis.fidelity import judge, repeats
from railyard.results.runs.records import Load, Run
from railyard.topologies.measure.counters import Counters
from railyard.topologies.multirail.net import MultirailNet
from railyard.workloads.allreduce.engine.jobs import RankReport
from tests.unit.multirail_runs import (
    ALONE,
    LABEL,
    NOWHERE,
    Runs,
    counts_of,
    spec_of,
    without_rail_1,
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.mark.parametrize("turn", [1, 2, 3, 5])
def test_turn_with_a_lost_rail_is_in_no_point(runs: Runs, turn: int) -> None:
    """The check, the learning turn, a later one, or the last."""
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
    reason = f"degraded: {LABEL} nezha, allreduce 2KiB, repeat 0: tcp1 lost "
    assert any(text.startswith(reason) and text.endswith(", measured anew") for text in judge(run).reasons)


def test_turn_with_a_lost_rail_is_repeated_and_nezha_restarts(runs: Runs) -> None:
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if (policy, at) == ("mrib", 3) else reports
    run_experiment(spec_of(policies=["nezha", "mrib"], **ALONE), NOWHERE, None)
    assert counts_of(runs, "mrib") == [9, 6, 6, 6, 6]
    assert counts_of(runs, "nezha") == [25, 25, 6, 6, 6], "what it has learnt is forgotten when the rail comes back"
    waited = [n for n, (_, op) in enumerate(runs.asked) if op.size_bytes == 4]
    assert len(waited) == 1, "the rail is back at once"
    assert runs.asked[waited[0] - 1][0] == "mrib"
    assert [did for did in runs.did if did.startswith("st")] == ["start nezha", "stop nezha"], "the same processes"


def test_wrong_results_of_a_repeated_check_still_count(runs: Runs) -> None:
    def tell(policy: str, at: int, reports: Sequence[RankReport]) -> Sequence[RankReport]:
        return [replace(report, wrong=3) for report in without_rail_1(reports)] if at == 1 else reports

    runs.tell = tell
    run_experiment(spec_of(policies=["mrib"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert [p.wrong for p in AllreduceResults.of(run).points] == [6]
    assert counts_of(runs, "mrib") == [9, 9, 6, 6, 6]


def test_rail_lost_repeatedly_is_recorded_as_invalid(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if policy == "mrib" else reports
    run_experiment(spec_of(policies=["nezha", "mrib", "slicing", "gloo"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert counts_of(runs, "mrib") == [9, 9, 9, 6, 6, 6]
    assert {p.policy for p in AllreduceResults.of(run).points} == {"nezha", "mrib", "slicing", "gloo"}
    anew, mrib, nezha = (
        LostRails(allreduce_interval(LABEL, policy, 2048), ("tcp1",), kept)
        for policy, kept in (("mrib", False), ("mrib", True), ("nezha", True))
    )
    # nezha learns anew in operations that count; slicing forgets nothing
    assert sorted(AllreduceResults.of(run).lost, key=str) == sorted([anew, anew, mrib, nezha], key=str)
    judgement = judge(run)
    assert judgement.verdict == "invalid"
    reason = f"invalid: {LABEL} nezha, allreduce 2KiB, repeat 0: tcp1 lost "
    (text,) = [text for text in judgement.reasons if text.startswith(reason)]
    assert text.endswith(", in operations that count (and 1 more like it)")
    marked = {(i.policy, i.workload) for i, verdict in judgement.intervals.items() if verdict == "invalid"}
    assert {("mrib", "allreduce 2KiB"), ("nezha", "allreduce 2KiB")} <= marked


def test_a_disturbed_size_is_measured_again_by_all_policies(runs: Runs) -> None:
    runs.disturbances = ["98% busy"]
    run_experiment(spec_of(policies=["nezha", "mrib"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert counts_of(runs, "mrib") == [9, 6, 6, 6] * 2
    assert sorted(p.policy for p in AllreduceResults.of(run).points) == ["mrib", "nezha"]
    assert sorted(load.policy for load in run.loads) == ["mrib", "nezha"]
    assert {interval.policy: reasons for interval, reasons in repeats(run).items()} == {
        policy: ["98% busy"] for policy in ("mrib", "nezha")
    }


def test_a_disturbed_size_with_wrong_sums_is_kept(runs: Runs) -> None:
    runs.disturbances = ["98% busy"]
    runs.tell = lambda policy, at, reports: [replace(report, wrong=3) for report in reports] if at == 1 else reports
    run_experiment(spec_of(policies=["mrib"], **ALONE), NOWHERE, None)
    assert counts_of(runs, "mrib") == [9, 6, 6, 6]
    assert [p.wrong for p in AllreduceResults.of(runs.saved[0]).points] == [6]


def test_a_disturbed_fault_is_injected_again(runs: Runs) -> None:
    runs.disturbances = ["", "98% busy"]
    once = {"repeats": 1, "fault_repeats": 1, "sizes": ["2KiB"], "trainings": [], "ddp": []}
    run_experiment(spec_of(policies=["nezha"], **once), NOWHERE, None)
    (run,) = runs.saved
    (recovery,) = run.rows(RECOVERIES)
    assert [interval for interval, reasons in repeats(run).items()] == [recovery.interval]
    assert sum(did.startswith("repair") for did in runs.did) == 2


def test_each_size_may_be_repeated(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: (
        without_rail_1(reports) if policy == "mrib" and at in (2, 4, 10, 12) else reports
    )
    run_experiment(spec_of(policies=["mrib"], **ALONE | {"sizes": ["2KiB", "4KiB"]}), NOWHERE, None)
    (run,) = runs.saved
    assert [(lost.workload, lost.kept) for lost in AllreduceResults.of(run).lost] == [
        (f"allreduce {size}", False) for size in ("2KiB", "2KiB", "4KiB", "4KiB")
    ]


def test_turns_begin_when_all_rails_are_back(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PAUSE_S", 0.0)

    def tell(policy: str, at: int, reports: Sequence[RankReport]) -> Sequence[RankReport]:
        away = (policy, at) == ("nezha", 2) or (policy == "equal" and at < 4)
        return [replace(report, dead_rails=(0,) * away) for report in reports]

    runs.tell = tell
    run_experiment(spec_of(policies=["nezha"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert [policy for policy, _ in runs.asked] == ["nezha"] * 2 + ["equal"] * 4 + ["nezha"] * 5
    assert [lost.rails for lost in AllreduceResults.of(run).lost] == [("tcp0",)]
    assert all((op.size_bytes, op.count) == (4, 1) for policy, op in runs.asked if policy == "equal")


def test_rail_that_stays_dead_is_awaited_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PAUSE_S", 0.01)
    monkeypatch.setattr(session, "RAIL_WAIT_S", 0.1)
    monkeypatch.setattr(session, "MAX_RESTARTS", 2)
    runs.tell = lambda policy, at, reports: [replace(report, dead_rails=(1,)) for report in reports]
    run_experiment(spec_of(policies=["mrib"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    asked = "".join(policy[0] for policy, _ in runs.asked).split("mm")
    assert len(asked[1]) > 2, "before the second turn"
    assert {len(waited) for waited in "m".join(asked[2:]).split("m") if waited} == {1}, "a look, and no more"
    assert [lost.kept for lost in AllreduceResults.of(run).lost] == [False, False, True]
    assert {p.policy for p in AllreduceResults.of(run).points} == {"mrib"}


def test_engines_without_rails_are_not_repeated(runs: Runs) -> None:
    run_experiment(spec_of(policies=["gloo", "mpi", "mptcp"], **ALONE), NOWHERE, None)
    (run,) = runs.saved
    assert AllreduceResults.of(run).lost == []
    assert all(op.size_bytes > 4 for _, op in runs.asked)
    assert [counts_of(runs, policy) for policy in ("gloo", "mpi", "mptcp")] == [[9, 6, 6, 6]] * 3


def test_ranks_that_die_while_a_rail_is_awaited_are_reported(runs: Runs) -> None:
    runs.tell = lambda policy, at, reports: without_rail_1(reports) if (policy, at) == ("nezha", 2) else reports
    runs.breaking = {"equal"}
    assert run_experiment(spec_of(policies=["nezha"], **ALONE), NOWHERE, None) == 1
    (run,) = runs.saved
    assert [(s.policy, s.why, s.failed) for s in AllreduceResults.of(run).skipped] == [
        ("nezha", "rank 0: rank 1 is gone", True)
    ]


def test_complete_points_are_kept_when_the_run_ends(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    take = session.SizeSweep._take_turn
    calls = iter([take] * 17 + [interrupted])
    monkeypatch.setattr(session.SizeSweep, "_take_turn", lambda *given: next(calls)(*given))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec_of(repeats=1, sizes=["2KiB", "8MiB"]), NOWHERE, None)
    (run,) = runs.saved
    assert {(p.policy, p.size) for p in AllreduceResults.of(run).points} == {("nezha", 2048), ("gloo", 2048)}


class LoadedWatch(Watch):
    """A watch of a machine that is fully busy."""

    @contextmanager
    def record_load(self, run: Run, interval_id: IntervalId, faulted: bool = False) -> Iterator[Watch]:
        yield self
        run.loads.append(Load(interval_id, 1.0, 1.0, 0.0, 0, 0, 0))


def lack_pytorch() -> None:
    raise MissingRequirement("this machine lacks PyTorch", "install it")


def test_policy_that_is_skipped_has_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of the few milliseconds until then would make the whole run invalid."""
    run = Run("r", {}, {}, "now")
    net = cast(MultirailNet, None)
    watch = LoadedWatch(net, Counters(0, 0, 0), 1.0)
    monkeypatch.setattr(session.AllreduceSession, "watch", lambda _: watch)
    stage = session.AllreduceSession("pair", net, run, Steps(None, 2, run), 0, 1, 1)
    with stage.interval("step", "gloo"):
        lack_pytorch()
    with stage.interval("step", "nezha"):
        pass
    assert [load.interval.policy for load in run.loads] == ["nezha"]
    skipped = [event.detail["policy"] for event in run.events if event.what == "policy skipped"]
    assert skipped == ["gloo"]
