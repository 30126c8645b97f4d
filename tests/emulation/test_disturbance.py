"""Workloads on a machine that is disturbed from outside: no interval that it slows down by over 5% may be ok.

Each disturbance runs the workload that an undisturbed run measured before. Six disturbed intervals are in the ordinary
tests, 60 in `script/test thorough`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import pytest
import yaml

from railyard.core.host import cpu_cgroups
from railyard.results.runs import store
from railyard.results.runs.fidelity import judge
from railyard.results.runs.records import Load, Verdict
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line

SPEC: Final[dict[str, Any]] = {
    "name": "disturbed",
    "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "20Mbit", "hb_rate": "240Mbit"}],
    "workloads": [{"kind": "moe", "model": "moe-1.3b-128", "duration": "3s", "compute": 0.1, "all_to_alls": 1}],
}
RUN_S: Final = 120.0
TOLERANCE: Final = 0.05
BURN: Final = """import time
while True:
    end = time.monotonic() + {0}
    while time.monotonic() < end: pass
    time.sleep({0})"""
Disturbance = Callable[[Program], AbstractContextManager[None]]


def quota(cores: float) -> Disturbance:
    """Limit the program to this many cores, as `docker --cpus` does, by a cgroup of version 1 or 2."""

    @contextmanager
    def disturb(program: Program) -> Iterator[None]:
        group = cpu_cgroups()[0] / f"railyard-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"no CPU quota can be set here: {error}")
        try:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{round(cores * 100_000)} 100000")
            else:
                (group / "cpu.cfs_quota_us").write_text(str(round(cores * 100_000)))
            (group / "cgroup.procs").write_text(str(program.process.pid))
            yield
        finally:
            program.process.kill()
            for pid in (group / "cgroup.procs").read_text().split():
                with ExitStack() as ended:
                    ended.callback(psutil.wait_procs, [psutil.Process(int(pid))], 5)
            group.rmdir()

    return disturb


@contextmanager
def one_core(program: Program) -> Iterator[None]:
    """Let the program use one core, as `taskset -c 0` does."""
    os.sched_setaffinity(program.process.pid, {0})
    yield


def bursts(length_s: float) -> Disturbance:
    """Let two other programs use a core each for this time, half of the time."""

    @contextmanager
    def disturb(_: Program) -> Iterator[None]:
        others = [subprocess.Popen([sys.executable, "-c", BURN.format(length_s)]) for _ in range(2)]
        try:
            yield
        finally:
            for other in others:
                other.kill()
                other.wait()

    return disturb


def paused_worker(length_s: float) -> Disturbance:
    """Stop a process of each replay for this time, from outside."""

    @contextmanager
    def disturb(program: Program) -> Iterator[None]:
        own, run = "tests.emulation.test_disturbance", program.process.pid
        code = f"from {own} import pause_workers; pause_workers({run}, {length_s})"
        with subprocess.Popen([sys.executable, "-c", code]) as other:
            try:
                yield
            finally:
                other.kill()

    return disturb


def pause_workers(pid: int, length_s: float) -> None:
    """Pause the first replay worker of each replay of a run a second after it appears, until killed."""
    paused = set[int]()
    while True:
        time.sleep(0.1)
        for child in psutil.Process(pid).children(recursive=True):
            if child.pid not in paused and "railyard.workloads.replay.worker" in command_line(child):
                replay = [c.pid for c in (child.parent() or child).children()]
                time.sleep(1.5)
                os.kill(child.pid, signal.SIGSTOP)
                time.sleep(length_s)
                os.kill(child.pid, signal.SIGCONT)
                paused |= {child.pid, *replay}
                break


@contextmanager
def undisturbed(_: Program) -> Iterator[None]:
    """Leave the machine as it is."""
    yield


DISTURBANCES: Final[dict[str, Disturbance]] = {
    "quota-100": quota(1.0), "quota-60": quota(0.6), "quota-40": quota(0.4), "one-core": one_core,
    "bursts-120ms": bursts(0.12), "bursts-500ms": bursts(0.5), "bursts-1s": bursts(1.0), "bursts-4s": bursts(4.0),
    "worker-paused-200ms": paused_worker(0.2), "worker-paused-1s": paused_worker(1.0),
}  # fmt: skip
ORDINARY: Final = ("quota-60", "one-core", "bursts-120ms", "bursts-1s", "worker-paused-200ms", "quota-40")


def measured(disturbance: Disturbance, repeats: int, folder: Path, slow: float) -> list[tuple[float, Verdict, Load]]:
    """Return the time (s), verdict and load of every repeat under a disturbance."""
    (folder / "spec.yaml").write_text(yaml.safe_dump({**SPEC, "repeats": repeats}))
    # it waits for a line, so that what limits it does so from its first instruction
    run_spec = [*RUN_EXPERIMENT, "run", str(folder / "spec.yaml"), "--out", str(folder / "out")]
    argv = ["sh", "-c", 'read _ && exec "$@"', "sh", *run_spec]
    with Program(argv) as program, disturbance(program):
        program.type("")
        status = program.end((RUN_S + 20 * repeats) * slow)
    assert status in (0, 1), program.output
    run = store.load(folder / "out")
    verdicts, loads = judge(run).intervals, {load.interval: load for load in run.loads}
    return [
        (m.value, verdicts[m.interval], loads[m.interval]) for m in run.measurements if m.metric == "iteration_time"
    ]


@pytest.fixture(scope="module")
def quiet_s(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, slow: float) -> float:
    """Return the time of the workload on the undisturbed machine, s."""
    repeats = 6 if pytestconfig.getoption("--thorough") else 3
    return median(s for s, _, _ in measured(undisturbed, repeats, tmp_path_factory.mktemp("quiet"), slow))


def check(name: str, repeats: int, quiet_s: float, folder: Path, slow: float) -> None:
    """AssertionError for an interval that is ok, and more than 5% from its quiet value."""
    found = measured(DISTURBANCES[name], repeats, folder, slow)
    assert len(found) == repeats
    wrong = [(s / quiet_s, load) for s, verdict, load in found if verdict == "ok" and abs(s / quiet_s - 1) > TOLERANCE]
    assert not wrong, f"{name}: ok at {wrong}"


@pytest.mark.parametrize("name", ORDINARY)
def test_disturbed_interval_off_by_five_percent_is_not_ok(
    name: str, quiet_s: float, tmp_path: Path, slow: float
) -> None:
    check(name, 1, quiet_s, tmp_path, slow)


@pytest.mark.parametrize("name", DISTURBANCES)
def test_six_disturbed_intervals_of_each_kind(name: str, quiet_s: float, tmp_path: Path, slow: float) -> None:
    check(name, 6, quiet_s, tmp_path, slow)
