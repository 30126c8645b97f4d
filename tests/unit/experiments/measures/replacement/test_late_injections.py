"""Faults of trainings, replacements and multi-rail fabrics that are injected late are named, and degrade the run."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partialmethod
from types import SimpleNamespace
from typing import Any, cast

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce.faults import inject_and_repair
from railyard.experiments.measures.allreduce.reports import InjectedFault
from railyard.experiments.measures.allreduce.session import AllreduceSession
from railyard.experiments.measures.allreduce.spec import RailFaultSpec
from railyard.experiments.measures.replacement import run as replacement
from railyard.experiments.measures.replacement.job import replacement_job
from railyard.experiments.measures.replacement.measure import ReplacementMeasure
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.experiments.measures.replacement.spec import with_spares
from railyard.experiments.measures.training import run as training
from railyard.experiments.measures.training.measure import Training
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.parsing import parse
from railyard.failure import active
from railyard.failure.faults import Fault
from railyard.results.analysis.fidelity import disturbance, judge
from railyard.results.analysis.limits import FAULT_LATE
from railyard.results.runs.records import Run, Verdict
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.plan import make_plan
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engines.railyard import Ranks
from railyard.workloads.replay.run import Aborted, Replay
from railyard.workloads.schedule import Schedule
from tests.unit.stand_ins import plan_of, run_of, session_of

PREPARE_S = 0.2
MS = 1_000_000


def late_faults(run: Run, verdict: Verdict = "degraded") -> list[tuple[str, str]]:
    """Return part and text, without the seconds, of each finding about a late injection."""
    findings = [finding for finding in judge(run).evidence if finding.limit == FAULT_LATE]
    assert all(finding.verdict == verdict for finding in findings)
    assert all(finding.value == pytest.approx(PREPARE_S, abs=0.1) for finding in findings)
    return [(finding.interval.part, re.sub(r"[0-9.]+ s", "… s", finding.text)) for finding in findings]


class SlowOperator(active.Operator):
    """Preparing a fault takes PREPARE_S; there is nothing to break."""

    is_faulty = False

    def prepare(self, fault: Fault) -> None:
        time.sleep(PREPARE_S)

    def inject(self, fault: Fault) -> int:
        self.is_faulty = True
        return time.monotonic_ns()

    def repair(self, fault: Fault) -> int:
        self.is_faulty = False
        return time.monotonic_ns()

    def symptoms(self, fault: Fault) -> Sequence[bool]:
        return [self.is_faulty]


@pytest.fixture
def slow_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = SlowOperator(cast(EmulatedNet, None))
    monkeypatch.setattr(active, "operator_of", lambda fabric: operator)


@dataclass
class TrainingJob:
    """A job that has begun, and is over when its fault is repaired."""

    job: Any = field(default_factory=lambda: SimpleNamespace(addresses=()))
    has_begun: bool = True
    was_faulted: bool = False
    reports: tuple[()] = ()
    restarts: tuple[()] = ()
    meter: None = None

    def is_over(self, is_faulted: bool = False, dead: frozenset[str] = frozenset()) -> bool:
        self.was_faulted |= is_faulted
        return self.was_faulted and not is_faulted


def experiment(**parts: Any) -> ExperimentSpec:
    return parse({"name": "mine", "fabrics": [{"kind": "rail-only"}], **parts})


GPT = {"kind": "gpt", "duration": "500ms"}


@pytest.mark.usefixtures("slow_preparation")
@pytest.mark.parametrize(("at", "is_late"), [("1ms", True), ("400ms", False)])
def test_late_fault_of_a_training_is_named(monkeypatch: pytest.MonkeyPatch, at: str, is_late: bool) -> None:
    fault = {"kind": "link-down", "target": "d0g1", "at": at, "repair": "20ms"}
    (spec,) = Training().items(experiment(trainings=[{"program": "ddp", "faults": [fault]}]))
    monkeypatch.setattr(training.TrainingRun, "_job", lambda *_: nullcontext(TrainingJob()))
    training_run = training.TrainingRun(session_of(plan_of())[0], spec, 1, "on", run_of())
    training_run.with_fault(spec.faults[0], 0, training.Reference({}))
    assert late_faults(training_run.run) == ([("", "link-down d0g1 was injected … s late")] if is_late else [])


@pytest.mark.usefixtures("slow_preparation")
@pytest.mark.parametrize(("at", "is_late"), [("1ms", True), ("400ms", False)])
def test_late_fault_of_a_multi_rail_fabric_is_named(at: str, is_late: bool) -> None:
    fault = RailFaultSpec.model_validate({"kind": "link-down", "target": "n1-eth", "at": at, "repair": "20ms"})
    plan = SimpleNamespace(spec=SimpleNamespace(nodes=2))
    session = SimpleNamespace(run=run_of(), plan=plan, net=None, rails=[Rail("eth", "tcp", 1e7, 1e-3)])
    injected = InjectedFault(IntervalId("rails"), fault.kind, fault.target, 0, fault.size, 1, 0, 0)
    ranks = SimpleNamespace(begin=lambda jobs: None, finish=tuple)
    inject_and_repair(cast(AllreduceSession, session), cast(Ranks, ranks), fault, injected, 1)
    assert late_faults(session.run) == ([("", "link-down n1-eth was injected … s late")] if is_late else [])


def replay_of(
    timeline: replacement.ReplacementTimeline,
    schedule: Schedule,
    started: Callable[[int], None] = lambda start_ns: None,
    abort: threading.Event | None = None,
    is_missed: bool = False,
) -> Replay:
    """Replay nothing in no time; one that may be aborted waits for that, or until its fault would be late."""
    start_ns = time.monotonic_ns()
    started(start_ns)
    if abort and not is_missed:
        abort.wait()
        raise Aborted
    took_ns = round(PREPARE_S * 1e9) if abort else 1
    return Replay(schedule, start_ns, start_ns + took_ns, {}, {}, (), ())


@pytest.mark.usefixtures("slow_preparation")
@pytest.mark.parametrize("is_missed", [False, True])
def test_late_fault_of_a_replacement_is_named(monkeypatch: pytest.MonkeyPatch, is_missed: bool) -> None:
    """If the iteration is over by then, it is invalid, and measured again."""
    spec = experiment(replacements=[{"case": "server", "failed": "hb1", "workload": GPT}])
    (chosen,) = ReplacementMeasure().items(spec)
    plan = make_plan(with_spares(chosen, spec.gpu_fabrics[0]), 100_000_000)
    job = replacement_job(chosen, spec.gpu_fabrics[0], plan, 1, "replacements.0")
    prober = SimpleNamespace(reaches_all=lambda since_ns: True, stop=list)
    timeline = replacement.ReplacementTimeline
    monkeypatch.setattr(timeline, "play", partialmethod(replay_of, is_missed=is_missed))
    monkeypatch.setattr(timeline, "_await_event", lambda *_: time.monotonic_ns())
    monkeypatch.setattr(replacement, "Prober", lambda pairs: nullcontext(prober))
    monkeypatch.setattr(replacement, "taken_over_ns", lambda logs, since_ns: since_ns)
    monkeypatch.setattr(replacement, "relaxed_tcp_timers", lambda nodes: nullcontext())
    run, interval = run_of(), IntervalId("rail-only", script="server by direct")
    replacement.run_replacement(session_of(plan)[0], chosen, job, interval, 1, run)
    fault = chosen.fault
    text = f"{fault.kind} {fault.target} was injected … s late"
    if is_missed:
        text += ", after the end of the iteration"
    assert late_faults(run, "invalid" if is_missed else "degraded") == [("replacement", text)]
    assert bool(disturbance(run)) == is_missed
    (row,) = run.rows(REPLACEMENTS)
    assert row.iterations_lost == (0 if is_missed else 1)
