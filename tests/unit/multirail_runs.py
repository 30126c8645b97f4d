"""A multi-rail experiment whose fabric, ranks and measurements are replaced, to test the order of a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from railyard.core.errors import MissingRequirement
from railyard.experiments.measures.allreduce import run as allreduce_run
from railyard.experiments.measures.allreduce.session import AllreduceSession
from railyard.experiments.measures.definition import RunContext
from railyard.experiments.run import progress
from railyard.experiments.run import runner as common_runner
from railyard.experiments.run.progress import Steps
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.parsing import experiment_model, parse
from railyard.failure.active import Operator
from railyard.failure.faults import Fault
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run
from railyard.topologies.capacity import Capacity
from railyard.topologies.measure.counters import Counters
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.workloads.allreduce.engine.jobs import Migration, Operations, RankReport
from railyard.workloads.allreduce.peers.training import TrainingResult
from tests.unit.core.test_machine import FULL

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
"""Function that replaces `reports` of a policy's n-th call."""


class Net:
    """Stand-in for a fabric."""

    def __init__(self, plan: MultirailPlan) -> None:
        self.plan, self.build_s = plan, 0.5


class Ranks:
    """Two ranks that take a millisecond for each operation; `Runs.asked` holds their requests."""

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
    """A run whose parts are replaced; `did` and `asked` hold what would have been done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.asked: list[tuple[str, Operations]] = []
        self.steps: list[str] = []
        self.disturbances: list[str] = []  # of the machine, in the intervals in their order
        self.lacking: set[str] = set()
        self.breaking: set[str] = set()
        self.goes_well = 0  # so many calls, before it breaks
        self.tell: Tell = lambda policy, turn, reports: reports
        self.saved: list[Run] = []
        self.active_faults: list[Fault] = []
        self.trained = dict.fromkeys(("gloo", "railyard"), [TrainingResult([1.0, 0.5], [0.2, 0.1], 400, [])] * 2)
        monkeypatch.setattr(common_runner, "detect", lambda: FULL)
        carries = Capacity(2, batched_s=2 / 90_000)
        monkeypatch.setattr("railyard.topologies.measure.capacity.measure_batched", lambda *_: carries)
        monkeypatch.setattr(common_runner, "provenance", lambda *_: {"seed": 1})
        monkeypatch.setattr(allreduce_run, "calibrated_session", self.session)
        monkeypatch.setattr(AllreduceSession, "engine", lambda _, policy: Ranks(policy, self))
        monkeypatch.setattr("railyard.experiments.run.machines.count", lambda _: Counters(0, 0, 0))
        monkeypatch.setattr(Operator, "prepare", lambda *_: None)
        monkeypatch.setattr(Operator, "inject", self.inject)
        monkeypatch.setattr(Operator, "repair", self.repair)
        monkeypatch.setattr(Operator, "symptoms", lambda _, fault: (fault in self.active_faults,))
        monkeypatch.setattr("railyard.workloads.jobs.ddp.DdpRanks", lambda *_: Ranks("ddp", self))
        monkeypatch.setattr("railyard.results.run_folder.save", self._save)
        # the load is that of the machine that tests this
        monkeypatch.setattr(progress, "disturbance", lambda _: self.disturbances.pop(0) if self.disturbances else "")
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

    def inject(self, fault: Fault) -> int:
        self.did.append(fault.name)
        self.active_faults.append(fault)
        return 2 * MS

    def repair(self, fault: Fault) -> int:
        self.did.append(f"repair {fault.target}")
        self.active_faults.clear()
        return 3 * MS

    @contextmanager
    def session(self, context: RunContext, number: int, plan: MultirailPlan) -> Iterator[AllreduceSession]:
        label = context.spec.labels[number]
        with context.steps.step(f"{label}: building"):
            self.did.append(f"build {plan.dilation:g} times slower" if plan.dilation > 1 else "build")
        net: Any = Net(plan)
        spec = context.spec
        yield AllreduceSession(label, net, context.run, context.steps, number, spec.seed, spec.repeats)
        self.did.append("take down")


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
    names = experiment_model().model_fields.keys() - {"trainings"}  # of the old form, which is a workload
    own = {key: value for key, value in given.items() if key in names}
    return parse({**own, "workloads": workloads})


LABEL = "tcp+tcp, 2 nodes"
ALONE: dict[str, Any] = {"repeats": 1, "faults": [], "trainings": [], "ddp": [], "sizes": ["2KiB"], "operations": 20}


def without_rail_1(reports: Sequence[RankReport]) -> list[RankReport]:
    """Return reports without traffic on rail 1, whose death one rank alone reports."""
    first, second = (replace(report, shares=[(1.0, 0.0)] * len(report.shares)) for report in reports)
    return [first, replace(second, migrations=[Migration((1,), 0.1, 0.2)])]


def counts_of(runs: Runs, policy: str) -> list[int]:
    """Return the number of operations of each timed turn of a policy."""
    return [op.count for asked, op in runs.asked if asked == policy and not op.check and op.size_bytes > 4]
