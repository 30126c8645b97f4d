"""The run's folder is what the contract says, whole or not at all, and can be read back."""

import csv
import errno
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from rich.console import Console

from railyard.core import safe_files
from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results import run_folder
from railyard.results.runs.records import Event, Run
from railyard.results.views import report
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
    assert [c for c in summary["checks"] if not c["passed"]] == [
        {"name": "the run went to its end", "passed": False, "detail": run.failed}
    ]


def test_a_run_of_nothing_can_be_saved_and_read_back(tmp_path: Path) -> None:
    run = Run("empty", {"seed": 1}, {}, "now", interrupted=True)
    run_folder.save(run, tmp_path)
    assert run_folder.load(tmp_path) == run
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["verdict"] == "invalid"
    assert summary["passed"] is False


def test_results_are_tidy_and_in_the_contracts_order(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    run_folder.save(run, tmp_path)
    with (tmp_path / "results.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == [
        "fabric", "policy", "workload", "phase", "metric", "value", "unit", "predicted", "ratio", "repeat",
        "scene", "script", "reroute", "predicted_by_uplink", "frames", "credit_share", "shares_links_with",
        "predicted_with_latency", "verdict", "formula", "not_compared",
    ]  # fmt: skip
    assert len(rows) == len(run.measurements)
    first = run.measurements[0]
    assert float(rows[0]["value"]) == first.value
    assert float(rows[0]["ratio"]) == first.value / (first.predicted or 0)
    throughput = next(r for r in rows if r["metric"] == "throughput")
    assert (throughput["predicted"], throughput["ratio"]) == ("", "")
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert set(table.columns) == {*rows[0], "part", "explained_least", "explained_most"}
    assert table["value"].tolist() == [m.value for m in run.measurements]


def test_recovery_has_the_contracts_columns_first(tmp_path: Path) -> None:
    run = sample_run(2, 2, 1)
    run_folder.save(run, tmp_path)
    with (tmp_path / "recovery.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    steps = ["detect_ms", "reroute_ms", "first_packet_ms", "goodput_ms"]
    assert list(rows[0])[:9] == ["fault", "target", "t_fault", *steps, "lost_bytes", "recovered"]
    off = next(r for r in rows if r["reroute"] == "off")
    assert (off["goodput_ms"], off["recovered"], off["goodput"]) == ("", "no", "not back")


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
    with pytest.raises(OSError, match=r"flows\.parquet: No space left on device"):
        run_folder.save(run, tmp_path)
    assert (tmp_path / "flows.parquet").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_no_run_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not a run's folder: it has no run\.json"):
        run_folder.load(tmp_path)


@pytest.mark.parametrize("name", ["run.json", "flows.parquet", "recovery.csv", "spec.yaml", "events.jsonl"])
def test_a_broken_file_of_a_folder_without_manifest_is_named(tmp_path: Path, name: str) -> None:
    run_folder.save(sample_run(2, 2, 1), tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / name).write_text("{ broken: [\nfault\nx")
    missing, broken = run_folder.load(tmp_path).damaged
    assert missing == "manifest.json is missing, so nothing can be verified"
    assert broken.startswith(name)
    assert "\n" not in broken


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    run_folder.save(sample_run(2, 2, 1), tmp_path)
    (tmp_path / "manifest.json").unlink()
    rest = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**rest, "format": 99}))
    with pytest.raises(BadInput, match=r"run\.json is of format 99, not 3"):
        run_folder.load(tmp_path)
