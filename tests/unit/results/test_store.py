"""The run's folder is what the contract says, whole or not at all, and can be read back."""

import errno
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core import safe_files
from railyard.core.safe_files import Folder
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results import run_folder
from railyard.results.runs.records import Event, Run
from railyard.results.views import report
from tests.unit.messages import messages
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")

CONTRACT = {
    "spec.yaml", "results.csv", "results.parquet", "flows.parquet", "recovery.csv", "events.jsonl", "summary.json",
    "provenance.json", "report.html", "timeline.pftrace",
}  # fmt: skip


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and test_results_report does it."""
    monkeypatch.setattr(report, "render", lambda analysis: f"<title>{analysis.run.name}</title>")


def redraw(folder: Path) -> None:
    with Folder(folder) as opened:
        run_folder.redraw(run_folder.load(opened), opened, Console(file=io.StringIO()))


def test_a_saved_run_reads_back_the_same(tmp_path: Path) -> None:
    run = sample_run(2, 3, 2)
    run.rows(RECOVERIES)[0] = replace(run.rows(RECOVERIES)[0], detect_ms=None, target='rail0, "quoted"\nand split')
    run.failed = "link-down at d0g1 had no effect"
    run_folder.save(run, tmp_path / "run")
    assert run_folder.load(tmp_path / "run") == run
    assert {p.name for p in (tmp_path / "run").iterdir()} == CONTRACT | {"run.json", "manifest.json"}


def test_a_folder_can_be_drawn_again_from_its_records_alone(tmp_path: Path) -> None:
    run_folder.save(sample_run(2, 2, 1), tmp_path)
    names = ("report.html", "timeline.pftrace", "summary.json")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    for name in names:
        (tmp_path / name).unlink()
    redraw(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


def test_failed_run_is_drawn_again_as_failed(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    run.failed = "link-down at d0g1 had no effect"
    run_folder.save(run, tmp_path)
    redraw(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["passed"] is False
    assert [check["detail"] for check in summary["checks"] if not check["passed"]] == [run.failed]


def test_a_run_of_nothing_can_be_saved_and_read_back(tmp_path: Path) -> None:
    run = Run("empty", {"seed": 1}, {}, "now", interrupted=True)
    run_folder.save(run, tmp_path)
    assert run_folder.load(tmp_path) == run
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["verdict"] == "invalid"
    assert summary["passed"] is False


def test_flows_events_and_spec_are_plain(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    run.events.append(Event(5, "controller", "läuft", {"path": Path("x")}))
    run_folder.save(run, tmp_path)
    flows = pd.read_parquet(tmp_path / "flows.parquet")
    assert flows["delivered"].sum() == sum(f.delivered for f in run.flows)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == len(run.events)
    assert json.loads(lines[0]) == asdict(run.events[0])
    assert json.loads(lines[-1])["detail"] == {"path": "x"}
    assert yaml.safe_load((tmp_path / "spec.yaml").read_text()) == run.spec


def test_saving_again_replaces_and_leaves_no_parts(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    run_folder.save(run, tmp_path)
    run.name = "other"
    run_folder.save(run, tmp_path)
    assert run_folder.load(tmp_path).name == "other"
    assert not list(tmp_path.glob(".*"))


def test_full_disk_names_the_file_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run(2, 2, 1)
    run_folder.save(run, tmp_path)
    before = (tmp_path / "flows.parquet").read_bytes()
    write = safe_files._write_all

    def full(fd: int, data: bytes) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name.startswith(".flows.parquet."):
            write(fd, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(fd, data)

    monkeypatch.setattr(safe_files, "_write_all", full)
    with pytest.raises(OSError, match=r"flows\.parquet: "):
        run_folder.save(run, tmp_path)
    assert (tmp_path / "flows.parquet").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


BROKEN_FILES = ("run.json", "flows.parquet", "recovery.csv", "spec.yaml", "events.jsonl")


def test_files_that_cannot_be_read_are_named(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    """Without a manifest, by which every damage is found before a file is read."""
    folder = tmp_path / "run"
    folder.mkdir()
    problems: dict[str, object] = {**messages(run_folder.load, {"an empty folder": folder})}
    run_folder.save(sample_run(2, 2, 1), folder)
    (folder / "manifest.json").unlink()
    for name in BROKEN_FILES:
        content = (folder / name).read_bytes()
        (folder / name).write_text("{ broken: [\nfault\nx")
        problems[name] = run_folder.load(folder).damaged
        (folder / name).write_bytes(content)
    run_data = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run_data, "format": 99}))
    problems |= messages(run_folder.load, {"a later format": folder})
    data_regression.check(json.loads(json.dumps(problems).replace(str(tmp_path), "FOLDER")))
