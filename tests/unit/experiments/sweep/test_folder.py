"""A sweep's folder and the loop over its runs: every run is there once, whatever process is lost on the way."""

import io
import random
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.commands import sweep as command
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.experiments.sweep.answers import Facts, Outcome
from railyard.experiments.sweep.driver import MAX_LOST, Driver
from railyard.experiments.sweep.folder import MACHINES, SweepFolder
from railyard.experiments.sweep.machine import Task, identify
from railyard.experiments.sweep.spec import Sweep, load
from railyard.results import run_folder, sources
from railyard.results.analysis.fidelity import judge
from tests.unit.experiments.sweep.test_spec import TINY
from tests.unit.sample_runs import sample_run

QUIET = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return load(str(path), axes=["domains=2,3"], seeds="1..2")


@cache
def packed(base: str) -> bytes:
    """Return the sample run's folder as a tar archive."""
    run_folder.save(sample_run(2, 2, 2), Path(base))
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(base, arcname=".")
    return data.getvalue()


class Data(bytes):
    """Bytes that Hypothesis shows by their number."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def run_data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Data(packed(str(tmp_path_factory.mktemp("sample") / "run")))


def outcome(data: bytes | None, machine: str = "m1", status: int = 0) -> Outcome:
    return Outcome(
        status, "a line" if status else "", 1, 2_000_000_001, Facts(**{**identify(), "machine": machine}), data
    )


class Simulated:
    """Machines whose runs end at once, or are lost with their worker or with the machine."""

    def __init__(self, data: bytes, dice: random.Random, machines: Sequence[str], loss: float) -> None:
        self.data, self.dice, self.machines, self.loss = data, dice, list(machines), loss
        self.done: list[str] = []
        self.tasks: list[Task] = []
        self.busy: set[str] = set()

    def names(self) -> Sequence[str]:
        if len(self.machines) > 1 and self.dice.random() < self.loss / 4:
            gone = self.machines.pop(self.dice.randrange(len(self.machines)))
            self.busy.discard(gone)
        return tuple(self.machines)

    def submit(self, name: str, task: Task) -> "Simulated.Run":
        assert name not in self.busy, "two runs at once on a machine"
        self.busy.add(name)
        self.tasks.append(task)
        return Simulated.Run(self, name, task)

    def lost(self, error: Exception) -> str:
        return str(error)

    def stop(self) -> bool:
        return False

    class Run:
        def __init__(self, own: "Simulated", machine: str, task: Task) -> None:
            self.own, self.machine, self.task = own, machine, task

        def done(self) -> bool:
            has_ended = self.own.dice.random() < 0.9 or self.machine not in self.own.machines
            if has_ended:
                self.own.busy.discard(self.machine)
            return has_ended

        def result(self) -> Outcome:
            if self.own.dice.random() < self.own.loss or self.machine not in self.own.machines:
                raise RuntimeError("its worker is gone")
            self.own.done.append(self.task.name)
            return outcome(self.own.data, self.machine)


def test_every_task_has_the_plugins_that_its_experiment_names(tmp_path: Path, run_data: bytes) -> None:
    plugin = tmp_path / "rack_cut.py"
    plugin.write_text("")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "plugins": ["rack_cut.py"]}))
    sweep = load(str(tmp_path / "tiny.yaml"), axes=["domains=2"])
    machines = Simulated(run_data, random.Random(1), ["m1"], 0.0)
    with SweepFolder(tmp_path / "out", sweep) as folder:
        folder.claim()
        Driver(folder, machines, QUIET, lambda: None, no_queue=True).run(sweep.cells, 1)
    sentinel, run = machines.tasks
    assert sentinel.spec["plugins"] == list(sentinel.plugins) == []
    assert run.spec["plugins"] == list(run.plugins) == ["plugins/rack_cut.py"]
    assert sentinel.no_queue
    assert run.no_queue


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([0.0, 0.2]))
def test_every_run_is_there_once_whatever_is_lost(
    tmp_path_factory: pytest.TempPathFactory, sweep: Sweep, run_data: bytes, seed: int, count: int, loss: float
) -> None:
    machines = Simulated(run_data, random.Random(seed), [f"m{n}" for n in range(count)], loss)
    with SweepFolder(tmp_path_factory.mktemp("sweep"), sweep) as folder:
        folder.claim()
        try:
            progress = Driver(folder, machines, QUIET, lambda: None).run(sweep.cells, seed)
        except MissingRequirement:  # the sentinel was lost too often
            assert loss
            return
        there = {cell.name for cell in sweep.cells if folder.state(cell.name)}
        assert len(there) + len(progress.failed) == progress.done == len(sweep.cells)
        assert sorted(there) == sorted(p.name for p in (folder.path / "runs").iterdir())
        assert sorted(name for name in machines.done if name in there) == sorted(there)
        assert MAX_LOST > 1
        assert loss or not progress.failed


def test_stopped_sweep_continues_with_missing_runs(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    with SweepFolder(tmp_path / "s", sweep) as folder:
        folder.claim()
        folder.install(sweep.cells[0].name, outcome(run_data))
        part = folder.path / "runs" / f".part-{sweep.cells[1].name}-1"
        part.mkdir()
        (part / "run.json").write_text("{")  # of a sweep that was killed
    with SweepFolder(tmp_path / "s", sweep) as folder:
        folder.claim()
        assert [folder.state(cell.name) for cell in sweep.cells] == ["ok", "", "", ""]
        assert not part.exists()


def test_repeated_run_replaces_the_earlier_run(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    name = sweep.cells[0].name
    with SweepFolder(tmp_path, sweep) as folder:
        folder.claim()
        for machine in ("m1", "m2"):
            folder.install(name, outcome(run_data, machine))
        assert folder.record(name)["machine"] == "m2"
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [name]
        assert not run_folder.load(tmp_path / "runs" / name).damaged


def test_the_table_has_a_column_for_each_axis(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    with SweepFolder(tmp_path, sweep) as folder:
        folder.claim()
        for cell in sweep.cells:
            folder.install(cell.name, outcome(run_data), axes=cell.axes)
        folder.install("m1", outcome(run_data), MACHINES)
        folder.install("m2", outcome(run_data, "m2"), MACHINES)
        _, notes = command.write(sweep, folder)
    assert notes == []
    found = pd.read_parquet(tmp_path / "sweep.parquet")
    assert {*run_folder.RESULT_COLUMNS, "domains", "seed", "run", "machine", "kernel", "cores"} <= {*found.columns}
    rows = len(run_folder.load(tmp_path / "runs" / sweep.cells[0].name).measurements)
    assert found.groupby(["domains", "seed"]).size().to_dict() == dict.fromkeys([(2, 1), (2, 2), (3, 1), (3, 2)], rows)
    page = (tmp_path / "report.html").read_text()
    assert f'href="runs/{sweep.cells[0].name}/report.html"' in page
    assert "domains=3, seed=2" in page
    assert "<p>4 runs: 4 ok</p>" in page
    loaded = sources.load("A", str(tmp_path))
    assert sorted(str(source.axes) for source in loaded) == ["{'domains': 2}"] * 2 + ["{'domains': 3}"] * 2


def test_a_table_that_grows_is_that_of_all_runs(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    with SweepFolder(tmp_path, sweep) as folder:
        folder.claim()
        for machine, cell in zip("abca", (*sweep.cells[2:], *sweep.cells[:2]), strict=True):
            folder.install(cell.name, outcome(run_data, machine), axes=cell.axes)
            folder.write_results()
        folder.install(sweep.cells[3].name, outcome(run_data, "again"), axes=sweep.cells[3].axes)
        grown_tables = folder.write_results()
    with SweepFolder(tmp_path, sweep) as folder:
        tables = folder.write_results()
    grown = grown_tables["sweep.parquet"]
    assert grown_tables.keys() == tables.keys() == {"sweep.parquet", "recoveries.parquet"}
    pd.testing.assert_frame_equal(grown, tables["sweep.parquet"])
    assert list(dict.fromkeys(zip(grown.run, grown.machine, strict=True))) == list(
        zip([cell.name for cell in sweep.cells], ("c", "a", "a", "again"), strict=True)
    )


def test_report_has_missing_runs_and_each_verdict(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    with SweepFolder(tmp_path, sweep) as folder:
        folder.claim()
        folder.install(sweep.cells[0].name, outcome(run_data), axes=sweep.cells[0].axes)
        shown, _ = command.write(sweep, folder)
    page = (tmp_path / "report.html").read_text()
    assert "<p>4 runs: 3 missing, 1 ok</p>" in page
    assert page.count('href="runs/') == 1
    assert "<td>domains=3, seed=2</td><td>missing</td>" in page
    run = run_folder.load(tmp_path / "runs" / sweep.cells[0].name)
    verdicts = [judge(run).of_interval(recovery.interval) for recovery in run.rows(RECOVERIES)]
    assert pd.read_parquet(tmp_path / "recoveries.parquet").verdict.tolist() == verdicts
    assert shown[1].columns[-1].title == "verdict"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.parquet", None),
        ("results.parquet", b"x"),
        ("run.json", b"{"),
        ("summary.json", None),
        ("summary.json", b"{"),
        ("manifest.json", b"x"),
        ("sweep.json", b"{"),
    ],
)
def test_a_damaged_run_has_failed_and_is_named(
    tmp_path: Path, sweep: Sweep, run_data: bytes, name: str, content: bytes | None
) -> None:
    with SweepFolder(tmp_path / "out", sweep) as folder:
        folder.claim()
        for cell in sweep.cells:
            folder.install(cell.name, outcome(run_data))
    damaged = tmp_path / "out" / "runs" / sweep.cells[1].name / name
    damaged.unlink() if content is None else damaged.write_bytes(content)
    with SweepFolder(tmp_path / "out", sweep) as folder:
        folder.claim()
        command.write(sweep, folder)
        states = [folder.state(cell.name) for cell in sweep.cells]
        assert [number for number, state in enumerate(states) if state == "failed"] == [1]
        (line,) = command._unusable(sweep, folder)
        assert line == (
            f"failed or damaged: 1 of 4 runs, first {sweep.cells[1].label} (runs/{sweep.cells[1].name}); "
            "run again with --retry failed"
        )


def test_a_damaged_sentinel_is_a_note(tmp_path: Path, sweep: Sweep, run_data: bytes) -> None:
    with SweepFolder(tmp_path / "out", sweep) as folder:
        folder.claim()
        folder.install("m1", outcome(run_data), MACHINES)
    for path in (tmp_path / "out" / MACHINES / "m1").iterdir():
        path.unlink()
    with SweepFolder(tmp_path / "out", sweep) as folder:
        _, notes = command.write(sweep, folder)
    (note,) = notes
    assert "of m1 failed" in note


def test_machines_whose_sentinels_differ_are_named() -> None:
    machines = [{"machine": f"m{n}", "seconds": seconds, "verdict": "ok"} for n, seconds in enumerate((1.0, 1.04))]
    (line,) = command._differences(machines)
    assert "4.0% longer on m1 than on m0" in line
    assert not list(command._differences(machines[:1]))


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path, sweep: Sweep) -> None:
    with SweepFolder(tmp_path / "s", sweep) as folder:
        folder.claim()
        with SweepFolder(tmp_path / "s", sweep) as other, pytest.raises(BadInput, match="by another sweep"):
            other.claim()
    changed = Sweep(sweep.name, {**sweep.experiment, "repeats": 9}, sweep.axes, sweep.cells)
    with pytest.raises(BadInput, match="of another experiment"):
        SweepFolder(tmp_path / "s", changed)
    with pytest.raises(BadInput, match="of other axes"):
        SweepFolder(tmp_path / "s", Sweep(sweep.name, sweep.experiment, {"rails": [2]}, sweep.cells))
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is no sweep's folder"):
        SweepFolder(tmp_path, sweep)
