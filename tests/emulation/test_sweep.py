"""Sweeps on packets: on this machine and over Dask workers, killed at random moments and called again."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from railyard.results import run_folder
from tests.emulation import preloaded
from tests.emulation.deadlines import scaled
from tests.emulation.fabrics import eventually
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program, finished
from tests.unit.experiments.sweep.test_spec import TINY

SWEEP_S = 240.0  # for some short runs on a slow machine
RUNS = 2
KILLS = 1
NO_SCHEDULER = "no Dask scheduler answers at "
UNREACHABLE = {
    "tcp://127.0.0.1:9": (3, f"{NO_SCHEDULER}tcp://127.0.0.1:9"),
    "tcp://nowhere.invalid:8786": (3, f"{NO_SCHEDULER}tcp://nowhere.invalid:8786"),
    "tls://127.0.0.1:9": (3, "tls://127.0.0.1:9 needs certificates"),
    "tcp://": (2, "--on: 'tcp://' must be local"),
    "ssh:,": (2, "--on: 'ssh:,' must name hosts"),
    "ssh:nowhere.invalid": (3, "Dask can't be started on nowhere.invalid"),
}
"""Values of --on: the exit status, and words of the message."""
KEYS = ["seed", "fabric", "policy", "workload", "phase", "metric", "unit", "predicted", "repeat"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    slow = {**TINY["fabrics"][0], "rail_rate": "10Mbit", "hb_rate": "40Mbit"}  # which a busy machine carries too
    path.write_text(yaml.safe_dump({**TINY, "fabrics": [slow]}))
    return str(path)


def sweep(spec: str, out: Path, *options: str, runs: int = RUNS) -> Program:
    argv = [*RUN_EXPERIMENT, "sweep", spec, "--seeds", f"1..{runs}", "--out", str(out), *options]
    return Program(argv)


def assert_whole(out: Path, runs: int = RUNS) -> pd.DataFrame:
    """Check that every run is there once and undamaged, and that never two ran at once. Return the table."""
    records = []
    for run in yaml.safe_load((out / "sweep.yaml").read_text())["runs"]:
        folder = out / "runs" / run["folder"]
        assert run_folder.load(folder).damaged == []
        records.append(json.loads((folder / "sweep.json").read_text()))
    assert len(records) == len(list((out / "runs").iterdir())) == runs
    times = sorted((record["start_ns"], record["end_ns"]) for record in records)
    assert all(end <= start for (_, end), (start, _) in pairwise(times)), "two runs at once"
    table = pd.read_parquet(out / "sweep.parquet")
    assert table.run.nunique() == runs
    return table


def sandboxes() -> list[str]:
    """Return the command lines of the runs that are alive."""
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if "railyard-sweep-" in line]


@contextmanager
def dask(workers: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Yield the address of a scheduler and the processes of the scheduler and the workers, which share this machine."""
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    common = ["--no-dashboard", "--protocol", "tcp"]
    scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), *common]
    worker = ["-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    with ExitStack() as stack:
        started = []
        own = stack.enter_context(tempfile.TemporaryDirectory())  # a killed worker leaves its folder
        worker += ["--resources", "railyard=1"]
        for arguments in (scheduler, *[worker] * workers):
            environment = {**os.environ, "TMPDIR": own}
            process = preloaded.start([sys.executable, *arguments], ROOT, environment, stdout=subprocess.DEVNULL)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(psutil.Process(process.pid))
        yield address, started


@pytest.mark.long
def test_a_sweep_of_this_machine_has_every_run_once(spec: str, tmp_path: Path) -> None:
    with sweep(spec, tmp_path / "out") as program:
        assert program.end(SWEEP_S) in (0, 1), program.output
    assert assert_whole(tmp_path / "out").seed.nunique() == RUNS


@pytest.fixture(scope="module")
def looped(spec: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep on this machine, whose program was killed at a random moment, and then called again."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    dice = random.Random(7)
    for _ in range(KILLS):
        with sweep(spec, out) as program:
            time.sleep(scaled(dice.uniform(1, 12)))
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()
        eventually(lambda: not sandboxes(), 10)
    with sweep(spec, out) as program:
        assert program.end(SWEEP_S) in (0, 1), program.output
    return out


@pytest.mark.long
def test_a_sweep_killed_at_random_moments_has_every_run_once(looped: Path) -> None:
    assert assert_whole(looped).seed.nunique() == RUNS


def test_workers_on_one_machine_do_the_same_runs_one_at_a_time(spec: str, looped: Path, tmp_path: Path) -> None:
    """Two workers share the machine; one is killed during the first run, and the other does what it had."""
    # with the sentinel run of the same machine, as a valid one: an invalid one is done again
    shutil.copytree(looped, tmp_path / "out", ignore=shutil.ignore_patterns("runs", "*.parquet"))
    (summary,) = (tmp_path / "out" / "machines").glob("*/summary.json")
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"verdict": "ok"}))
    with dask(2) as (address, (_, victim, *_)), sweep(spec, tmp_path / "out", "--on", address, "--insecure") as program:
        program.await_text("[1/2]", SWEEP_S)
        victim.kill()
        assert program.end(SWEEP_S) in (0, 1), program.output
    assert sandboxes() == []
    pd.testing.assert_frame_equal(sorted_keys(assert_whole(tmp_path / "out")), sorted_keys(assert_whole(looped)))


def test_runs_on_three_workers_equal_a_plain_loop(spec: str, tmp_path: Path) -> None:
    frames = []
    for seed in range(1, 13):
        argv = [*RUN_EXPERIMENT, "run", spec, "--seed", str(seed), "--out", str(tmp_path / str(seed))]
        done = finished(argv, SWEEP_S)
        assert done.returncode in (0, 1), done.stderr
        table = pd.read_csv(tmp_path / str(seed) / "results.csv", dtype={"phase": str, "policy": str})
        frames.append(table.assign(seed=seed))
    with dask(3) as (address, _), sweep(spec, tmp_path / "out", "--on", address, "--insecure", runs=12) as program:
        assert program.end(2 * SWEEP_S) in (0, 1), program.output
    assert sandboxes() == []
    swept = sorted_keys(assert_whole(tmp_path / "out", 12))
    pd.testing.assert_frame_equal(swept, sorted_keys(pd.concat(frames)), check_dtype=False)


def sorted_keys(table: pd.DataFrame) -> pd.DataFrame:
    """Return what must not differ between two sweeps."""
    return table[KEYS].fillna({"phase": "", "policy": ""}).sort_values(KEYS).reset_index(drop=True)


@pytest.mark.parametrize("where", UNREACHABLE)
def test_machines_that_do_not_answer_give_one_line(where: str, spec: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    assert_refused(where, *UNREACHABLE[where], spec, tmp_path)


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_port_where_no_scheduler_speaks_gives_one_line(words: bytes, spec: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    with socket.socket() as listener, ExitStack() as open_files:

        def accept() -> None:
            with suppress(OSError):  # closed
                while True:
                    connection = open_files.enter_context(listener.accept()[0])
                    connection.sendall(words)

        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        where = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert_refused(where, 3, f"{NO_SCHEDULER}{where}", spec, tmp_path)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def assert_refused(where: str, status: int, line: str, spec: str, out: Path) -> None:
    argv: Sequence[str] = [*RUN_EXPERIMENT, "sweep", spec, "--seeds", "1..2", "--on", where, "--out", str(out)]
    argv = [*argv, *["--insecure"] * where.startswith("tcp://")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert line in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
