"""A small experiment from its file to its folder: by root, by a user, two at once, and killed while it is broken."""

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import yaml

from railyard.results import run_folder
from railyard.results.views.perfetto import Trace
from tests.emulation.fabrics import eventually
from tests.emulation.programs import (
    RUN_EXPERIMENT,
    Program,
    as_root,
    as_user,
    assert_as_before,
    command_line,
    machine_state,
)

SIDES = {"domains": 2, "rails": 2, "rail_rate": "10Mbit"}
SMALL: dict[str, Any] = {
    "name": "small",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", **SIDES}, {"kind": "rail-optimized", **SIDES}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "300ms"}],
    "faults": [{"kind": "link-down", "target": "d0g1", "at": "500ms", "repair": "1s"}],
    "reroute": ["on"],
    "seed": 5,
}
FILES = {
    "spec.yaml", "results.csv", "results.parquet", "flows.parquet", "recovery.csv", "events.jsonl", "summary.json",
    "provenance.json", "report.html", "timeline.pftrace", "run.json", "connectivity.csv", "manifest.json",
    "machine.parquet",
}  # fmt: skip
RUN_S = 180.0
WHOLE_RUN_S = 13.0  # the small experiment on an idle machine, roughly: when to kill it
BELIEVABLE = "the emulation is believable"  # the one check that a busy machine may fail


@dataclass
class Folder:
    """A run's folder, read as anybody would read it."""

    path: Path

    def flows(self) -> pd.DataFrame:
        """Return who sent what to whom in which phase: what the seed decides."""
        columns = ["fabric", "policy", "workload", "repeat", "phase", "kind", "src", "dst", "bytes"]
        return pd.read_parquet(self.path / "flows.parquet")[columns]

    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return data

    def assert_all_delivered(self) -> None:
        flows = pd.read_parquet(self.path / "flows.parquet")
        assert len(flows) > 0
        assert (flows["delivered"] == flows["bytes"]).all()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = machine_state()
    yield
    assert_as_before(before)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that an ordinary user may write, with the experiment's file in it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(SMALL))
        (Path(name) / "small.yaml").chmod(0o644)
        yield Path(name)


@pytest.fixture(scope="module")
def first() -> Iterator[Folder]:
    """One run as root, for all who read it or repeat it."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "small.yaml").write_text(yaml.safe_dump(SMALL))
        out = Path(name) / "out"
        with Program([*RUN_EXPERIMENT, "run", str(Path(name) / "small.yaml"), "--out", str(out)]) as run:
            status = run.end(RUN_S)
        assert "Traceback" not in run.output
        assert out.is_dir(), run.output
        assert status == (0 if Folder(out).summary()["passed"] else 1), run.output
        assert f"{out / 'report.html'}" in run.output
        yield Folder(out)


def test_every_file_of_the_contract_is_there_and_can_be_read(first: Folder) -> None:
    assert {path.name for path in first.path.iterdir()} == FILES
    results = pd.read_csv(first.path / "results.csv")
    columns = ["fabric", "policy", "workload", "phase", "metric", "value", "unit", "predicted", "ratio", "repeat"]
    columns += ["scene", "script", "reroute", "predicted_by_uplink", "frames", "credit_share", "shares_links_with"]
    columns += ["predicted_with_latency", "verdict", "formula", "not_compared"]
    assert list(results.columns) == columns
    pd.testing.assert_frame_equal(
        results[["fabric", "metric", "value"]],
        pd.read_parquet(first.path / "results.parquet")[["fabric", "metric", "value"]],
    )
    times = results[results["metric"] == "completion_time"]
    assert list(times["fabric"]) == ["rail-only", "rail-optimized"]
    assert times["ratio"].to_numpy() == pytest.approx((times["value"] / times["predicted"]).to_numpy())
    events = [json.loads(line) for line in (first.path / "events.jsonl").read_text().splitlines()]
    assert {(e["source"], e["what"]) for e in events} >= {
        ("workload", "started"), ("fault", "link-down"), ("fault", "repair"), ("controller", "rerouted"),
    }  # fmt: skip
    provenance = json.loads((first.path / "provenance.json").read_text())
    assert provenance.keys() >= {"kernel", "ovs", "datapath", "datapath_why", "libraries", "cpu", "seed", "git_commit"}
    assert Trace.FromString((first.path / "timeline.pftrace").read_bytes()).packet
    assert "<html" in (first.path / "report.html").read_text()
    assert run_folder.load(first.path).spec["seed"] == 5


def test_bytes_are_exact_and_every_check_but_the_machines_passes(first: Folder) -> None:
    first.assert_all_delivered()
    checks = {check["name"]: check["passed"] for check in first.summary()["checks"]}
    assert len(checks) >= 4
    assert {name for name, passed in checks.items() if not passed} <= {BELIEVABLE}


def test_fault_has_a_row_with_its_outcome_on_each_fabric(first: Folder) -> None:
    rows = pd.read_csv(first.path / "recovery.csv")
    assert list(rows["fabric"]) == ["rail-only", "rail-optimized"]
    assert set(rows["fault"]) == {"link-down"}
    findings = first.summary()["findings"]
    disturbed = {finding["interval"].get("fabric") for finding in findings if finding["origin"] == "machine"}
    for row in rows.itertuples():
        # the kernel may take the detour before a packet is lost
        assert row.recovered in ("yes", "unaffected") or row.fabric in disturbed, row
    assert (rows["detect_ms"] < rows["reroute_ms"]).all()
    assert (rows[["lost_bytes", "connections_lost"]] == 0).all(axis=None)


def test_runs_of_root_and_of_a_user_do_not_disturb_each_other(first: Folder, everybodys: Path, slow: float) -> None:
    """Both from the spec that the first run wrote, without its faults: the same matrices once more."""
    spec = yaml.safe_load((first.path / "spec.yaml").read_text())
    again = {**spec, "fabrics": spec["fabrics"][:1], "faults": []}
    (everybodys / "again.yaml").write_text(yaml.safe_dump(again))
    line = [*RUN_EXPERIMENT, "run", str(everybodys / "again.yaml"), "--quiet", "--no-queue", "--out"]
    outs = [Folder(everybodys / "root"), Folder(everybodys / "user")]
    argvs = [who([*line, str(out.path)]) for who, out in zip((as_root, as_user), outs, strict=True)]
    with Program(argvs[0]) as one, Program(argvs[1]) as other:
        statuses = [program.end(2 * RUN_S * slow) for program in (one, other)]
    flows = first.flows()
    of_the_fabric = flows[flows["fabric"] == "rail-only"].reset_index(drop=True)
    for program, status, out in zip((one, other), statuses, outs, strict=True):
        assert status in (0, 1), program.output  # 1: two at once may be too much for the machine
        assert program.output == ""
        out.assert_all_delivered()
        pd.testing.assert_frame_equal(out.flows(), of_the_fabric)
        assert yaml.safe_load((out.path / "spec.yaml").read_text()) == again
    assert (outs[0].path / "spec.yaml").read_bytes() == (outs[1].path / "spec.yaml").read_bytes()
    assert outs[0].path.stat().st_uid == 0
    assert outs[1].path.stat().st_uid == 65534


def test_kill_9_during_a_fault_leaves_nothing(everybodys: Path, slow: float) -> None:
    before = machine_state()
    line = ["run", str(everybodys / "small.yaml"), "-o", "faults.0.repair=60s", "--out", str(everybodys / "out")]
    with Program([*RUN_EXPERIMENT, *line]) as run:
        outer = psutil.Process(run.process.pid)
        eventually(lambda: has_traffic(outer), RUN_S * slow)
        eventually(lambda: " UP " not in rail_link_of_d0g1(everybodys / "out"), 30 * slow)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert_as_before(before)


def test_kill_9_of_a_run_at_random_moments_leaves_nothing(everybodys: Path, slow: float) -> None:
    """While it builds, calibrates, replays, breaks, repairs, takes down: wherever the dice say."""
    before, seed = machine_state(), random.randrange(1_000_000)
    dice = random.Random(seed)
    for number in range(2):
        delay_s = dice.uniform(0.2, WHOLE_RUN_S * slow)
        line = ["run", str(everybodys / "small.yaml"), "--quiet", "--out", str(everybodys / f"killed{number}")]
        with Program([*RUN_EXPERIMENT, *line]) as run:
            time.sleep(delay_s)
            os.kill(run.process.pid, signal.SIGKILL)
            run.process.wait()
            try:
                assert_as_before(before)
            except AssertionError as left:
                raise AssertionError(f"killed after {delay_s:.3f} s (seed {seed}): {left}") from left


def has_traffic(run: psutil.Process) -> bool:
    """Return whether the streams and probes of a fault run."""
    return any("railyard.failure.probes.traffic" in command_line(process) for process in run.children(recursive=True))


def rail_link_of_d0g1(run: Path) -> str:
    """Return what a look into the run says of the link that is to be cut."""
    with Program([*RUN_EXPERIMENT, "exec", str(run), "d0g1", "ip", "-br", "link", "show", "rail0"]) as looking:
        assert looking.end(30) == 0, looking.output
        return looking.output
