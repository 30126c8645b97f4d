"""Sweeps over Dask workers, on machines that are network namespaces joined by a bridge.

    m0 ──┐
    m1 ──┼── bridge ── the scheduler and the sweep, in this namespace
    m2 ──┘

The runs sleep and copy a recorded run, so the tests are of who does what and when. Runs on packets: test_sweep.py.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from railyard.results.runs import store
from tests.emulation.programs import RUN_EXPERIMENT, Program
from tests.unit.results_sample import sample_run
from tests.unit.test_sweep_spec import TINY

pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
ROOT = Path(__file__).parents[2]
HOST, PORT = "198.18.0.1", 8786
ADDRESS = f"tcp://{HOST}:{PORT}"
RUN_S = 1.0
PRELOAD = """
from railyard.experiments.sweep import machine
SCRIPT = 'sleep {seconds}; cp -r {sample} "$3"'
machine.program_command = lambda *words: ["sh", "-c", SCRIPT, *words]
"""
MOMENTS = 3  # at which something is killed; `--thorough`: 30


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Cluster:
    """A scheduler, and machines with workers. Whatever was killed is started again by `heal`."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self.folder = stack, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.machines: dict[str, int] = {}  # name -> a process in its namespace
        store.save(sample_run(2, 2, 1), folder / "sample")
        ip("link", "add", "br0", "type", "bridge")
        ip("addr", "add", f"{HOST}/24", "dev", "br0")
        for name in ("lo", "br0"):
            ip("link", "set", name, "up")

    def add_machine(self) -> str:
        number = len(self.machines)
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._stack.callback(holder.wait)
        self._stack.callback(holder.kill)
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            time.sleep(0.01)
        name, pid = f"m{number}", str(holder.pid)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", pid)
        ip("link", "set", name, "master", "br0", "up")
        inside = ("nsenter", "-t", pid, "-n", "ip")
        for words in (f"addr add 198.18.0.{10 + number}/24 dev eth0", "link set eth0 up", "link set lo up"):
            subprocess.run([*inside, *words.split()], check=True)
        self.machines[name] = holder.pid
        return name

    def heal(self, workers: dict[str, str]) -> None:
        """Start the scheduler, and these workers (name -> machine), unless they live."""
        self._start("scheduler", [], "scheduler", "--host", HOST, "--port", str(PORT))
        preload = self.folder / "preload.py"
        preload.write_text(PRELOAD.format(seconds=RUN_S, sample=self.folder / "sample"))
        own = ("--no-nanny", "--nthreads", "1", "--resources", "railyard=1", "--preload", str(preload))
        for name, machine in workers.items():
            enter = ["nsenter", "-t", str(self.machines[machine]), "-n"]
            self._start(name, enter, "worker", ADDRESS, *own, "--name", f"{name}-{time.monotonic_ns()}")

    def _start(self, name: str, enter: list[str], program: str, *arguments: str) -> None:
        if name in self.processes and self.processes[name].poll() is None:
            return
        argv = [*enter, sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments, "--no-dashboard"]
        settings = {"WORKER__PROFILE__ENABLED": "False", "DEPLOY__LOST_WORKER_TIMEOUT": "1s"}
        environment = {**os.environ, **{f"DASK_DISTRIBUTED__{key}": value for key, value in settings.items()}}
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.processes[name] = process

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        found = Cluster(stack, tmp_path_factory.mktemp("cluster"))
        for _ in range(3):
            found.add_machine()
        (found.folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
        yield found


def sweep(cluster: Cluster, out: Path, runs: int) -> Program:
    spec = str(cluster.folder / "tiny.yaml")
    return Program([*RUN_EXPERIMENT, "sweep", spec, "--seeds", f"1..{runs}", "--on", ADDRESS, "--out", str(out)])


def records(out: Path, runs: int) -> list[dict[str, Any]]:
    """Return sweep.json of every run, which must be there once and undamaged, in the order of their starts."""
    listed = yaml.safe_load((out / "sweep.yaml").read_text())["runs"]
    assert sorted(run["folder"] for run in listed) == sorted(path.name for path in (out / "runs").iterdir())
    assert len(listed) == runs
    for run in listed:
        assert store.load(out / "runs" / run["folder"]).damaged == []
    found = [json.loads((out / "runs" / run["folder"] / "sweep.json").read_text()) for run in listed]
    return sorted(found, key=lambda record: int(record["start_ns"]))


def took_s(found: list[dict[str, Any]]) -> float:
    return float(max(record["end_ns"] for record in found) - found[0]["start_ns"]) / 1e9


def assert_one_at_a_time(found: list[dict[str, Any]]) -> None:
    for machine in {record["machine"] for record in found}:
        own = [record for record in found if record["machine"] == machine]
        assert all(earlier["end_ns"] <= later["start_ns"] for earlier, later in pairwise(own)), machine


def test_three_machines_do_twelve_runs_faster_than_one(cluster: Cluster, tmp_path: Path, slow: float) -> None:
    """Three workers of one machine, then one worker on each of three."""
    cluster.heal({f"a{n}": "m0" for n in range(3)})
    with sweep(cluster, tmp_path / "one", 12) as program:
        assert program.end(120 * slow) in (0, 1), program.output
    one = records(tmp_path / "one", 12)
    for n in range(3):
        cluster.kill(f"a{n}")
    cluster.heal({f"w{n}": f"m{n}" for n in range(3)})
    with sweep(cluster, tmp_path / "three", 12) as program:
        assert program.end(120 * slow) in (0, 1), program.output
    three = records(tmp_path / "three", 12)
    assert len({record["machine"] for record in one}) == 1
    assert len({record["machine"] for record in three}) == 3
    for found in (one, three):
        assert_one_at_a_time(found)
    print(f"one machine {took_s(one):.2f} s, three {took_s(three):.2f} s: {took_s(one) / took_s(three):.2f}x")
    assert took_s(one) / took_s(three) > 2


def test_every_run_is_there_once_whatever_is_killed(
    cluster: Cluster, tmp_path: Path, slow: float, pytestconfig: pytest.Config
) -> None:
    """At each random moment a worker, the scheduler or the sweep is killed; then all is started again."""
    dice, workers, runs = random.Random(3), {f"w{n}": f"m{n}" for n in range(3)}, 12
    kinds: list[Callable[[Program], str]] = [lambda _: dice.choice(list(workers)), lambda _: "scheduler", lambda _: ""]
    out, round_number = tmp_path / "out", 0
    for moment in range(30 if pytestconfig.getoption("--thorough") else MOMENTS):
        cluster.heal(workers)
        with sweep(cluster, out / str(round_number), runs) as program:
            time.sleep(dice.uniform(2, 10) * slow)
            name = kinds[moment % 3](program)
            if name:
                cluster.kill(name)
                status = program.end(120 * slow)
                assert status in ((3, 0, 1) if name == "scheduler" else (0, 1)), program.output
                assert "Traceback" not in program.output
            else:
                program.process.kill()
                program.process.wait()
                status = None
        if status in (0, 1):  # it went to its end: the next moments are of another sweep
            assert_one_at_a_time(records(out / str(round_number), runs))
            round_number += 1
    cluster.heal(workers)
    with sweep(cluster, out / str(round_number), runs) as program:
        assert program.end(120 * slow) in (0, 1), program.output
    assert_one_at_a_time(records(out / str(round_number), runs))
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "railyard-sweep-" in line]


def test_a_scheduler_without_workers_gives_one_line(cluster: Cluster, tmp_path: Path, slow: float) -> None:
    for name in [name for name in cluster.processes if name != "scheduler"]:
        cluster.kill(name)
    cluster.heal({})
    with sweep(cluster, tmp_path / "out", 2) as program:
        assert program.end(60 * slow) == 3
    assert f"{ADDRESS} has no worker with the resource railyard; start them with" in program.output
    assert program.output.count("\n") == 1
