"""Order of an experiment, its progress, and what is kept when it ends early."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.errors import BadInput, CheckFailed
from railyard.core.units import parse_rate
from railyard.experiments.measures.faults import run as breaks
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.faults.spec import ScriptSpec
from railyard.experiments.measures.workloads import replay as workload_replay
from railyard.experiments.measures.workloads.turn import Turn
from railyard.experiments.run import machines, measuring, runner
from railyard.experiments.run.runner import run_experiment
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import FaultSpec
from railyard.experiments.spec.heartbeats import HeartbeatsSpec
from railyard.experiments.spec.parsing import parse
from railyard.failure.analysis.state_snapshot import StateSnapshot
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import FabricRun, Run
from railyard.topologies.capacity import Capacity
from railyard.topologies.plan import Plan
from tests.unit.core.test_machine import FULL
from tests.unit.shown import summarise
from tests.unit.stand_ins import session_of

pytestmark = pytest.mark.usefixtures("figures_as_text")

COLLECTIVE = {"kind": "collective", "collective": "all-gather", "bytes": "1MB"}
FAULT = {"kind": "link-down", "target": "d0g1"}
SMALL = {"kind": "rail-only", "domains": 2, "rails": 2}


class Runs:
    """Every part of a run but its order is replaced; what would have been done is in `did`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batched_s: float = 2e-5) -> None:
        self.did: list[str] = []
        self.left: list[tuple[str, StateSnapshot]] = []
        self.steps: list[str] = []
        self.saved: list[Run] = []
        self.fail_at: dict[str, BaseException] = {}
        monkeypatch.setattr(runner, "detect", lambda: FULL)
        measured = "railyard.topologies.measure.capacity"
        monkeypatch.setattr(f"{measured}.measure_costs", lambda *_: Capacity(2, 3e-4, 1e-4, 4e-5))
        monkeypatch.setattr(f"{measured}.measure_batched", lambda *_: Capacity(2, batched_s=batched_s))
        monkeypatch.setattr(runner, "provenance", lambda *_: {"seed": 1})
        monkeypatch.setattr(measuring, "built", self._built)
        monkeypatch.setattr(measuring, "check_links", lambda session, run: self._do("calibrate"))
        monkeypatch.setattr(workload_replay, "run_workload", self._workload)
        monkeypatch.setattr(breaks, "ConnectivityChecker", lambda *_: nullcontext())
        monkeypatch.setattr(breaks, "heartbeats_running", self._beating)
        monkeypatch.setattr(breaks, "FaultInjector", self._breaker)
        monkeypatch.setattr(machines, "snapshot_state", lambda nodes: dict.fromkeys(nodes, frozenset()))
        monkeypatch.setattr("railyard.results.run_folder.save", self._save)
        monkeypatch.setattr(runner, "Steps", self._steps)

    def _save(self, run: Run, _: Path) -> Analysis:
        self.saved.append(run)
        return Analysis(run)

    def _do(self, part: str) -> None:
        if part in self.fail_at:
            raise self.fail_at[part]
        self.did.append(part)

    @contextmanager
    def _built(self, label: str, plan: Plan, datapath: object, reroute: bool, run: Run) -> Iterator[Any]:
        self._do(f"build {label} {plan.rail_bps} reroute {'on' if reroute else 'off'}")
        try:
            yield session_of(plan, label)[0]
        finally:
            self.did.append(f"stop {label}")
            run.fabrics.append(FabricRun(label, "dr", "rail-only", 2, 2, 1, 1, 9000, "a100", 0, 0, (), "system", 1, 1))

    def _workload(self, turn: Turn) -> None:
        self._do(f"{turn.workload.label} {turn.repeat} seed {turn.seed}")

    def _breaker(self, session: Any, reroute: str, checker: object, run: Run) -> Any:
        do, did, left = self._do, self.did, self.left

        class FaultInjector:
            def inject(
                self, script: FaultSpec | ScriptSpec, repeat: int, seed: int, workload: Any, progress: object
            ) -> None:
                drawn = f" seed {seed}" if isinstance(script, ScriptSpec) else ""
                beside = f" beside {workload.label}" if workload else ""
                do(f"{script.label} {reroute} {repeat}{drawn}{beside}")

            def check_restored(self, before: StateSnapshot) -> None:
                left.append((did[-1], before))

        return FaultInjector()

    @contextmanager
    def _beating(self, session: Any, heartbeats: HeartbeatsSpec | str, run: Run) -> Iterator[None]:
        if isinstance(heartbeats, HeartbeatsSpec):
            self._do(f"heartbeats every {heartbeats.period} s")
        yield
        if isinstance(heartbeats, HeartbeatsSpec):
            self.did.append("hearts stop")

    def _steps(self, console: object, total: int, *_: object) -> Any:
        recorded, self.total = self.steps, total

        class Recorder:
            def __enter__(self) -> "Recorder":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            @contextmanager
            def step(self, title: str, total: float | None = None, in_bytes: bool = False) -> Iterator[None]:
                yield
                recorded.append(title)

            def reached(self, amount: float) -> None:
                pass

        return Recorder()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def spec_of(**keys: Any) -> ExperimentSpec:
    return parse({"name": "mine", "fabrics": [SMALL], **keys})


TIMED: dict[str, Any] = {**FAULT, "after": "all-gather-hierarchical", "at": "10ms"}
TWO_FABRICS = [SMALL, {**SMALL, "kind": "rail-optimized"}]
TWO_FAULTS = [{**FAULT, "on": [1]}, {**FAULT, "target": "d0g0", "on": [1]}]
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "workloads alone": {"workloads": [COLLECTIVE]},
    "workloads and faults on two fabrics": {
        "fabrics": TWO_FABRICS, "workloads": [COLLECTIVE], "faults": [FAULT], "repeats": 2, "seed": 9,
    },
    "faults without heartbeats": {"faults": [FAULT], "reroute": ["on"], "heartbeats": "off"},
    "faults of the second fabric": {"fabrics": TWO_FABRICS, "faults": TWO_FAULTS, "heartbeats": "off"},
    "faults and scripts": {
        "reroute": ["off"], "workloads": [COLLECTIVE], "script_repeats": 2, "seed": 7, "faults": [FAULT],
        "scripts": [
            {"name": "cut", "faults": [TIMED, TIMED], "during": "all-gather"}, {"name": "two", "faults": [FAULT]},
        ],
    },
}  # fmt: skip


def test_parts_run_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_regression: DataRegressionFixture
) -> None:
    """Each fabric is built once for each mode of rerouting that is needed, and workloads run on the first of them."""
    orders: dict[str, dict[str, Any]] = {}
    for case, keys in EXPERIMENTS.items():
        runs = Runs(monkeypatch)
        spec = spec_of(**keys)
        run_experiment(spec, tmp_path, None)
        assert len(runs.steps) == runs.total
        orders[case] = {"order": runs.did, "injections": FaultsMeasure().counts(spec).faults}
    data_regression.check(orders)


def test_fabric_state_is_restored_after_the_last_fault(runs: Runs, tmp_path: Path) -> None:
    scripts = [{"name": "two", "faults": [FAULT]}]
    run_experiment(spec_of(faults=[FAULT], scripts=scripts, seed=7), tmp_path, None)
    before: StateSnapshot = {name: frozenset() for name in ("d0g0", "d0g1", "d1g0", "d1g1")}
    assert runs.left == [("two on 0 seed 7", before), ("two off 0 seed 7", before)]


counts = st.integers(1, 3)


@settings(max_examples=30)
@given(
    fabrics=counts, workloads=st.integers(0, 2), faults=st.integers(0, 2), repeats=counts, fault_repeats=counts,
    reroute=st.sampled_from([["on"], ["off"], ["off", "on"]]),
)  # fmt: skip
def test_the_bar_has_as_many_steps_as_are_taken(
    fabrics: int, workloads: int, faults: int, reroute: list[str], repeats: int, fault_repeats: int
) -> None:
    if workloads + faults == 0:
        return
    spec = spec_of(
        fabrics=[SMALL] * fabrics, workloads=[COLLECTIVE] * workloads,
        faults=[{**FAULT, "target": f"d0g{number}"} for number in range(faults)],
        reroute=reroute, repeats=repeats, fault_repeats=fault_repeats,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as monkeypatch:
        runs = Runs(monkeypatch)
        run_experiment(spec, Path("nowhere"), None)
    assert len(runs.steps) == runs.total


def test_fabrics_that_are_compared_have_one_auto_rate(runs: Runs, tmp_path: Path) -> None:
    fabrics = [SMALL, {**SMALL, "kind": "rail-optimized", "domains": 8, "rails": 8}]
    run_experiment(spec_of(fabrics=fabrics, workloads=[COLLECTIVE]), tmp_path, None)
    assert len({line.split()[2] for line in runs.did if line.startswith("build")}) == 1


def test_rate_above_machine_capacity_is_refused_before_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs(monkeypatch, batched_s=2e-4)
    spec = spec_of(fabrics=[SMALL, {**SMALL, "rail_rate": "1Gbit"}], workloads=[COLLECTIVE])
    with pytest.raises(BadInput) as caught:
        run_experiment(spec, tmp_path, None)
    assert (caught.value.field, caught.value.value) == ("fabrics.1.rail_rate", "1Gbit")
    assert parse_rate(caught.value.allowed.partition("carries: ")[2].split()[0]) == 180_000_000
    assert (runs.did, runs.saved) == ([], [])


def test_stopped_run_keeps_its_measurements(runs: Runs, tmp_path: Path) -> None:
    runs.fail_at["all-gather 1 seed 1"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec_of(workloads=[COLLECTIVE], repeats=3), tmp_path, None)
    assert runs.did[-1] == "stop rail-only"
    (run,) = runs.saved
    assert run.interrupted
    assert run.duration_s > 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CheckFailed("no detour"), "no detour"),
        (RuntimeError("a defect\nof two lines"), "RuntimeError: a defect"),
    ],
)
def test_measurements_are_kept_when_a_run_fails(error: Exception, message: str, runs: Runs, tmp_path: Path) -> None:
    runs.fail_at["link-down d0g1 off 0"] = error
    console = Console(file=io.StringIO(), width=100, record=True)
    with pytest.raises(type(error)) as caught:
        run_experiment(spec_of(faults=[FAULT]), tmp_path, console)
    assert caught.value is error
    (run,) = runs.saved
    assert (run.failed, run.interrupted) == (message, False)
    check = summarise(run)["checks"][0]
    assert (check["passed"], check["detail"]) == (False, message)
    assert f"✗ {check['name']}: {message}" in console.export_text()


def test_nothing_is_written_if_nothing_was_measured(runs: Runs, tmp_path: Path) -> None:
    runs.fail_at["build rail-only 20000000 reroute on"] = KeyboardInterrupt()
    fabric = {**SMALL, "rail_rate": "20Mbit"}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec_of(fabrics=[fabric], workloads=[COLLECTIVE]), tmp_path, None)
    assert runs.saved == []


def test_an_experiment_that_nothing_vouches_for_has_not_passed(runs: Runs, tmp_path: Path) -> None:
    assert run_experiment(spec_of(workloads=[COLLECTIVE]), tmp_path, None) == 1
