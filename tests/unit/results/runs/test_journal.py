"""The journal of a run that is under way: what is read back from it is what was recorded."""

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.commands import report as command
from railyard.results import run_folder
from railyard.results.runs import journal
from railyard.results.runs.journal import Journal
from railyard.results.runs.records import Event, Run, record_kinds
from railyard.results.views import report
from tests.unit.sample_runs import recovery_run, sample_run
from tests.unit.steered_runs import steered_run

SAMPLES = (sample_run(2, 3, 2), recovery_run(), steered_run())


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and test_results_report does it."""
    monkeypatch.setattr(report, "render", lambda analysis: f"<title>{analysis.run.name}</title>")


def written(run: Run, folder: Path, steps: int = 3) -> None:
    """Record a run in as many steps, each of which adds a part of every kind of record."""
    under_way = Run(run.name, run.spec, {}, run.started_utc)
    with Folder(folder, make=True) as opened:
        found = Journal(under_way, opened)
        for step in range(steps):
            for kind in record_kinds().values():
                rows = run.rows(kind)
                under_way.rows(kind)[:] = rows[: len(rows) * (step + 1) // steps]
            under_way.provenance, under_way.scale = run.provenance, run.scale
            under_way.files = run.files
            found.flush()
        found.close(remove=False)


def redraw(folder: Path) -> dict[str, object]:
    """Finish a killed run's folder and return its summary."""
    with Folder(folder) as opened:
        run_folder.redraw(run_folder.load(opened), opened, Console(file=io.StringIO()))
    summary: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return summary


@pytest.mark.parametrize("run", SAMPLES, ids=lambda run: run.name)
def test_records_of_a_killed_run_read_back_the_same(run: Run, tmp_path: Path) -> None:
    run = replace(run, files={"traces/one/0.json": b"{}"})
    written(run, tmp_path)
    found = run_folder.load(tmp_path)
    assert found.duration_s > 0
    assert (found.interrupted, found.failed) == (True, journal.KILLED)
    found.interrupted, found.failed, found.duration_s, found.verified = False, run.failed, run.duration_s, True
    assert found == run


def test_a_killed_runs_folder_is_finished_once(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    written(run, tmp_path)
    summary = redraw(tmp_path)
    assert (summary["complete"], summary["interrupted"], summary["passed"]) == (False, True, False)
    assert not (tmp_path / journal.NAME).exists()
    finished = run_folder.load(tmp_path)
    assert finished.verified
    assert not finished.damaged
    assert finished.flows == run.flows
    assert {**redraw(tmp_path), "duration_s": 0} == {**summary, "duration_s": 0}


@given(cut=st.integers(0, 10_000))
def test_a_journal_cut_anywhere_keeps_all_whole_lines(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    run, folder = sample_run(2, 2, 1), tmp_path_factory.mktemp("cut")
    written(run, folder)
    data = (folder / journal.NAME).read_bytes()
    data = data[: cut * len(data) // 10_000]
    (folder / journal.NAME).write_bytes(data)
    found = run_folder.load(folder)
    assert not found.damaged
    assert found.interrupted
    assert found.flows == run.flows[: len(found.flows)]
    assert found.measurements == run.measurements[: len(found.measurements)]
    rows = Counter[str]()
    for line in map(json.loads, data.split(b"\n")[:-1]):
        rows[line.get("kind", "")] += len(line.get("rows", ()))
    assert rows["flows"] == len(found.flows)


def test_run_killed_while_saving_is_complete(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    with Folder(tmp_path) as opened:
        Journal(run, opened).flush(has_ended=True)
    assert replace(run_folder.load(tmp_path), verified=True) == run
    (tmp_path / "spec.yaml").write_text("half: a file")
    assert redraw(tmp_path)["interrupted"] is False
    assert run_folder.load(tmp_path) == run


DAMAGED_LINES = {
    "no JSON": b"nonsense\n",
    "no object": b"[]\n",
    "a place after the end": b'{"kind":"flows","at":99999,"columns":[],"rows":[]}\n',
    "an unknown kind": b'{"kind":"flaws","at":0,"columns":[],"rows":[]}\n',
    "no columns": b'{"kind":"events","at":0,"rows":[[1]]}\n',
    "a row of another length": b'{"kind":"events","at":0,"columns":["what"],"rows":[[]]}\n',
    "a missing column": b'{"kind":"events","at":0,"columns":["what"],"rows":[[1]]}\n',
}


def test_a_damaged_journal_is_named_and_the_rest_kept(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    run = sample_run(2, 2, 1)
    written(run, tmp_path)
    whole = (tmp_path / journal.NAME).read_bytes()
    damages: dict[str, list[str]] = {}
    for case, line in DAMAGED_LINES.items():
        (tmp_path / journal.NAME).write_bytes(whole + line)
        loaded = run_folder.load(tmp_path)
        assert loaded.flows == run.flows
        damages[case] = loaded.damaged
    data_regression.check(damages)
    for folder in ("journal", "finished"):
        summary = redraw(tmp_path)
        assert (summary["complete"], summary["passed"]) == (False, False), folder


def test_a_replaced_load_replaces_the_row_of_the_journal(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    with Folder(tmp_path) as opened:
        found = Journal(run, opened)
        run.loads[1] = replace(run.loads[1], rerouted=True)
        run.fabrics[0] = replace(run.fabrics[0], stop_s=2.0)
        found.flush()
    read = run_folder.load(tmp_path)
    assert (read.loads, read.fabrics) == (run.loads, run.fabrics)


def test_a_journal_that_cannot_be_written_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run(2, 2, 1)
    with Folder(tmp_path) as opened:
        found = Journal(run, opened)
        monkeypatch.setattr(journal, "MOST_BYTES", 0)
        found._free_bytes = 0
        run.events.append(Event(1, "run", "something"))
        found.flush()
        found.flush()
        found.close(remove=True)
    assert [e.what for e in run.events if e.source == "run"] == ["something", "journal-failed"]
    assert not (tmp_path / journal.NAME).exists()


def test_report_refuses_the_folder_of_a_run_under_way(tmp_path: Path) -> None:
    with Folder(tmp_path / "out", make=True) as claimed:
        claimed.claim()
        Journal(sample_run(2, 2, 1), claimed)
        with pytest.raises(BadInput, match="under way"):
            command.command(tmp_path / "out")
    assert command.command(tmp_path / "out") == 0
