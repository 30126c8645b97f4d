"""A small experiment from its file to its folder: by root, by a user, two at once, and killed while it is broken."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from railyard.results.views.perfetto import Trace
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import (
    RUN_EXPERIMENT,
    Program,
    as_root,
    as_user,
    assert_as_before,
    command_line,
    finished,
    machine_state,
)
from tests.emulation.runs import CUT, FABRIC, FILES, RUN_S, Stored, run_command, run_experiment, small_spec

SMALL = small_spec(fabrics=[FABRIC, {**FABRIC, "kind": "rail-optimized"}], faults=[CUT], reroute=["on"], seed=5)
OTHER_FILES = {"run.json", "connectivity.csv", "manifest.json", "machine.parquet"}
WHOLE_RUN_S = 13.0  # the small experiment on an idle machine, roughly: when to kill it
USER_ID = 65534
SENT = ["fabric", "policy", "workload", "repeat", "phase", "kind", "src", "dst", "bytes"]
"""Columns of flows that the seed decides: who sends what to whom in which phase."""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that an ordinary user may write: pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """One run as root, for all who read it or repeat it."""
    stored = run_experiment(SMALL, tmp_path_factory.mktemp("first"))
    assert f"{stored.folder / 'report.html'}" in stored.output
    return stored


def flows_of(stored: Stored) -> pd.DataFrame:
    return pd.read_parquet(stored.folder / "flows.parquet")[SENT]


def test_every_file_of_the_contract_is_there_and_can_be_read(first: Stored) -> None:
    assert {path.name for path in first.folder.iterdir()} == FILES | OTHER_FILES
    results = pd.read_csv(first.folder / "results.csv")
    columns = ["fabric", "policy", "workload", "phase", "metric", "value", "unit", "predicted", "ratio", "repeat"]
    columns += ["scene", "script", "reroute", "predicted_by_uplink", "frames", "credit_share", "shares_links_with"]
    columns += ["predicted_with_latency", "verdict", "formula", "not_compared"]
    assert list(results.columns) == columns
    same = ["fabric", "metric", "value"]
    pd.testing.assert_frame_equal(results[same], pd.read_parquet(first.folder / "results.parquet")[same])
    times = results[results["metric"] == "completion_time"]
    assert list(times["fabric"]) == ["rail-only", "rail-optimized"]
    assert times["ratio"].to_numpy() == pytest.approx((times["value"] / times["predicted"]).to_numpy())
    events = {(event["source"], event["what"]) for event in first.lines("events.jsonl")}
    fault_events = {("fault", "link-down"), ("fault", "repair"), ("controller", "rerouted")}
    assert events >= fault_events | {("workload", "started")}
    provenance = yaml.safe_load(first.text("provenance.json"))
    assert provenance.keys() >= {"kernel", "ovs", "datapath", "datapath_why", "libraries", "cpu", "seed", "git_commit"}
    assert Trace.FromString((first.folder / "timeline.pftrace").read_bytes()).packet
    assert "<html" in first.text("report.html")
    assert first.run.spec["seed"] == 5


def test_bytes_are_exact_and_every_check_but_the_machines_passes(first: Stored) -> None:
    first.assert_no_byte_is_missing()
    first.assert_only_the_machine_failed()
    assert len(first.summary["checks"]) >= 4


def test_fault_has_a_row_with_its_outcome_on_each_fabric(first: Stored) -> None:
    rows = pd.read_csv(first.folder / "recovery.csv")
    assert list(rows["fabric"]) == ["rail-only", "rail-optimized"]
    assert set(rows["fault"]) == {"link-down"}
    of_the_machine = [finding for finding in first.summary["findings"] if finding["origin"] == "machine"]
    disturbed = {finding["interval"].get("fabric") for finding in of_the_machine}
    for row in rows.itertuples():
        # the kernel may take the detour before a packet is lost
        assert row.recovered in ("yes", "unaffected") or row.fabric in disturbed, row
    assert (rows["detect_ms"] < rows["reroute_ms"]).all()
    assert (rows[["lost_bytes", "connections_lost"]] == 0).all(axis=None)


@pytest.mark.long
def test_runs_of_root_and_of_a_user_do_not_disturb_each_other(first: Stored, everybodys: Path) -> None:
    """Both from the spec that the first run wrote, without its faults. What root writes into a user's is the user's."""
    spec = yaml.safe_load(first.text("spec.yaml"))
    again = {**spec, "fabrics": spec["fabrics"][:1], "faults": []}
    (everybodys / "theirs").mkdir()
    os.chown(everybodys / "theirs", USER_ID, USER_ID)
    command = run_command(again, everybodys, "--quiet", "--no-queue", "--out")
    outs = [everybodys / "theirs" / "a" / "b", everybodys / "user"]
    with Program(as_root([*command, str(outs[0])])) as roots, Program(as_user([*command, str(outs[1])])) as users:
        statuses = [program.end(2 * RUN_S) for program in (roots, users)]
    flows = flows_of(first)
    expected = flows[flows["fabric"] == "rail-only"].reset_index(drop=True)
    for program, status, out in zip((roots, users), statuses, outs, strict=True):
        assert status in (0, 1), program.output  # 1: two at once may be too much for the machine
        assert program.output == ""
        stored = Stored(out)
        stored.assert_no_byte_is_missing()
        pd.testing.assert_frame_equal(flows_of(stored), expected)
        assert yaml.safe_load(stored.text("spec.yaml")) == again
        assert {path.name for path in out.iterdir()} >= FILES
        assert (stored.summary["seed"], stored.summary["interrupted"]) == (5, False)
        assert {path.stat().st_uid for path in (out, *out.rglob("*"))} == {USER_ID}
    assert outs[0].parent.stat().st_uid == USER_ID
    assert (outs[0] / "spec.yaml").read_bytes() == (outs[1] / "spec.yaml").read_bytes()


def test_kill_9_during_a_fault_leaves_nothing(tmp_path: Path) -> None:
    before = machine_state()
    with Program(run_command(SMALL, tmp_path, "-o", "faults.0.repair=60s")) as run:
        outer = psutil.Process(run.process.pid)
        eventually(lambda: has_traffic(outer), RUN_S)
        eventually(lambda: " UP " not in rail_link_of_d0g1(tmp_path / "out"), 30)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert_as_before(before)


def test_kill_9_of_a_run_at_random_moments_leaves_nothing(tmp_path: Path) -> None:
    """While it builds, calibrates, replays, breaks, repairs, takes down: wherever the dice say."""
    before, seed = machine_state(), random.randrange(1_000_000)
    dice = random.Random(seed)
    for number in range(2):
        delay_s = dice.uniform(0.2, scaled(WHOLE_RUN_S))
        with Program(run_command(SMALL, tmp_path, "--quiet", "--out", str(tmp_path / f"killed{number}"))) as run:
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
    done = finished([*RUN_EXPERIMENT, "exec", str(run), "d0g1", "ip", "-br", "link", "show", "rail0"], 30)
    assert done.returncode == 0, done.stderr
    return done.stdout
