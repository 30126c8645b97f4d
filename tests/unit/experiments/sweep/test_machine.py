"""One run at a time on a machine: its turn, the end of a run with its worker, and stopping. The run is a `sleep`."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import psutil

from railyard.experiments.sweep.machine import identify
from tests.emulation.fabrics import eventually

ROOT = Path(__file__).parents[4]
QUEUE = f"railyard-test-{uuid4().hex[:8]}"  # apart from this machine's own runs, which would delay these
WORKER = f"""
import json, sys, threading
from functools import partial
from railyard.experiments.sweep import machine
machine.run_queue.turn = partial(machine.run_queue.turn, prefix="{QUEUE}")
machine.program_command = lambda *words: ["sleep", sys.argv[1]]
if len(sys.argv) > 2:
    threading.Timer(float(sys.argv[2]), machine.stop).start()
print("ready", flush=True)
found = machine.execute(machine.Task("a", {{"name": "a"}}OPTIONS))
print(json.dumps([found.status, found.start_ns, found.end_ns, found.folder]))
"""


def worker(*arguments: str, scratch: str = "/tmp", options: str = "") -> "subprocess.Popen[str]":
    """Start a process that executes a task which sleeps; return it once it has begun to."""
    argv = [sys.executable, "-c", WORKER.replace("OPTIONS", options), *arguments]
    environment = {**os.environ, "TMPDIR": scratch}
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: "subprocess.Popen[str]") -> tuple[int, int, int]:
    output, _ = process.communicate(timeout=60)
    status, start_ns, end_ns, folder = json.loads(output)
    assert folder is None
    return status, start_ns, end_ns


def test_two_workers_never_run_at_once() -> None:
    times = sorted(ended(process)[1:] for process in [worker("0.3") for _ in range(3)])
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(times))


def test_a_run_dies_with_its_worker_and_frees_the_machine(tmp_path: Path) -> None:
    """Its temporary folder goes too, by another process."""
    with worker("60", scratch=str(tmp_path)) as first:
        eventually(lambda: is_running("sleep", first), 20)
        runs = psutil.Process(first.pid).children()
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("railyard-sweep-")
        os.kill(first.pid, signal.SIGKILL)
    psutil.wait_procs(runs, timeout=10)
    assert not any(run.is_running() for run in runs)
    eventually(lambda: not list(tmp_path.iterdir()), 20)
    assert ended(worker("0", scratch=str(tmp_path)))[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_the_queue_starts_beside_another() -> None:
    with worker("60") as first:
        eventually(lambda: is_running("sleep", first), 20)
        assert ended(worker("0", options=", no_queue=True"))[0] == 0
        first.kill()


def is_running(name: str, worker: "subprocess.Popen[str]") -> bool:
    """Return whether a process has a child of this name."""
    return name in {child.name() for child in psutil.Process(worker.pid).children()}


def test_stopping_ends_the_run_and_waiting_runs() -> None:
    first = worker("60", "2")
    second = worker("60", "0.5")
    assert ended(second)[0] == 130
    assert ended(first)[0] == 128 + signal.SIGINT


TWO_SWEEPS = f"""
import threading, time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from railyard.experiments.sweep import machine
machine.run_queue.turn = partial(machine.run_queue.turn, prefix="{QUEUE}")
machine.program_command = lambda *words: ["sleep", "2"]
with ThreadPoolExecutor() as pool:
    runs = [pool.submit(machine.execute, machine.Task("a", {{"name": "a"}}, sweep=own)) for own in "ab"]
    while not machine._running:
        time.sleep(0.01)
    (running,) = machine._running.values()
    machine.stop("b" if running == "a" else "a")
    machine.stop("c")
    found = dict(zip("ab", (run.result().status for run in runs)))
print(found.pop(running), *found.values())
"""


def test_a_sweep_that_is_stopped_leaves_the_run_of_another_one() -> None:
    found = subprocess.run([sys.executable, "-c", TWO_SWEEPS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "0 130\n"


def test_a_machine_has_the_same_name_in_every_process() -> None:
    script = "from railyard.experiments.sweep.machine import identify; print(identify()['machine'])"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == identify()["machine"]
