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
from typing import Any, Final, NamedTuple

import psutil
import pytest
import yaml

from railyard.core.host import cpu_cgroups
from railyard.results.runs import store
from railyard.results.runs.fidelity import judge
from railyard.results.runs.records import Load, Verdict
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line

pytestmark = pytest.mark.alone
SPEC: Final[dict[str, Any]] = {
    "name": "disturbed",
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


DISTURBANCES: Final[dict[str, tuple[Disturbance, int]]] = {
    "quota-100": (quota(1.0), 20), "quota-60": (quota(0.6), 10), "quota-40": (quota(0.4), 5),
    "one-core": (one_core, 20),
    "bursts-120ms": (bursts(0.12), 20), "bursts-500ms": (bursts(0.5), 20), "bursts-1s": (bursts(1.0), 20),
    "bursts-4s": (bursts(4.0), 20), "worker-paused-200ms": (paused_worker(0.2), 20),
    "worker-paused-1s": (paused_worker(1.0), 20),
}  # fmt: skip
"""Disturbances, and the rails' Mbit/s that a run accepts under them: a quota leaves less."""
ORDINARY: Final = ("quota-60", "quota-40", "one-core", "bursts-120ms", "bursts-1s", "worker-paused-1s")


class Time(NamedTuple):
    """A row of results: measured over predicted, its verdict, and the load of its interval."""

    ratio: float
    verdict: Verdict
    load: Load


def measured(disturbance: Disturbance, mbit: int, repeats: int, folder: Path, slow: float) -> list[Time]:
    """Return the time of every repeat under a disturbance."""
    rates = {"rail_rate": f"{mbit}Mbit", "hb_rate": f"{12 * mbit}Mbit"}
    spec = {**SPEC, "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4, **rates}], "repeats": repeats}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    # it waits for a line, so that what limits it does so from its first instruction
    run_spec = [*RUN_EXPERIMENT, "run", str(folder / "spec.yaml"), "--out", str(folder / "out")]
    with Program(["sh", "-c", 'read _ && exec "$@"', "sh", *run_spec]) as program, disturbance(program):
        program.type("")
        status = program.end((RUN_S + 20 * repeats) * slow)
    if status == 2 and "is more than this machine carries" in program.output:
        pytest.skip(f"refused under this disturbance: {mbit} Mbit/s")
    assert status in (0, 1), program.output
    run = store.load(folder / "out")
    judgement, loads = judge(run), {load.interval: load for load in run.loads}
    rows = [m for m in run.measurements if m.metric == "iteration_time"]
    return [Time(m.ratio or 0.0, judgement.of_row(m), loads[m.interval]) for m in rows]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, slow: float) -> float:
    """Return the median of measured over predicted on the undisturbed machine."""
    return median(t.ratio for t in measured(undisturbed, 20, 3, tmp_path_factory.mktemp("quiet"), slow))


def check(name: str, repeats: int, quiet: float, folder: Path, slow: float) -> None:
    """AssertionError for an interval that is ok, and more than 5% from its quiet value."""
    found = measured(*DISTURBANCES[name], repeats, folder, slow)
    assert len(found) == repeats
    wrong = [t for t in found if t.verdict == "ok" and abs(t.ratio / quiet - 1) > TOLERANCE]
    assert not wrong, f"ok, and off by more than 5% from {quiet}: {wrong}"


@pytest.mark.parametrize("name", ORDINARY)
def test_disturbed_interval_off_by_five_percent_is_not_ok(name: str, quiet: float, tmp_path: Path, slow: float) -> None:
    check(name, 1, quiet, tmp_path, slow)


@pytest.mark.parametrize("name", DISTURBANCES)
def test_six_disturbed_intervals_of_each_kind(name: str, quiet: float, tmp_path: Path, slow: float) -> None:
    check(name, 6, quiet, tmp_path, slow)
