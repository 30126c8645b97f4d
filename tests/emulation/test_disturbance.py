"""Workloads on a machine that is disturbed from outside: no time that it changes by over 5% may be ok.

Each disturbance runs the workload that an undisturbed run measured before. Six disturbed intervals are in the ordinary
tests, 200 in `script/test thorough`, which also requires that 95% of the undisturbed ones are ok. As a program it
prints a table of them: python -m tests.emulation.test_disturbance [INTERVALS], as root, 15 minutes for 200.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psutil
import pytest
import yaml

from railyard.core.host import cpu_cgroups
from railyard.results.runs import store
from railyard.results.runs.fidelity import judge
from railyard.results.runs.records import Verdict
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line

pytestmark = pytest.mark.alone
SPEC: Final[dict[str, Any]] = {
    "name": "disturbed",
    "workloads": [{"kind": "moe", "model": "moe-1.3b-128", "duration": "2s", "compute": 0.1, "all_to_alls": 1}],
}
RUN_S: Final = 120.0
TOLERANCE: Final = 0.05
QUIET_OK: Final = 0.95
BURN: Final = """import time
while True:
    end = time.monotonic() + {0}
    while time.monotonic() < end: pass
    time.sleep({1})"""
FILL_MEMORY: Final = """import mmap
while True:
    with mmap.mmap(-1, {0}) as block:
        for page in range(0, {0}, 4096): block[page] = 1"""
Disturbance = Callable[[Program], AbstractContextManager[None]]


def quota(cores: float) -> Disturbance:
    """Limit the program to this many cores, as `docker --cpus` does, by a cgroup of version 1 or 2."""

    @contextmanager
    def disturb(program: Program) -> Iterator[None]:
        group = cpu_cgroups()[0] / f"railyard-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            raise NotPossible(f"no CPU quota can be set here: {error}") from None
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


def others(code: str) -> Disturbance:
    """Run two other programs beside it, of this Python code."""

    @contextmanager
    def disturb(_: Program) -> Iterator[None]:
        programs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
        try:
            yield
        finally:
            for program in programs:
                program.kill()
                program.wait()

    return disturb


def bursts(length_s: float) -> Disturbance:
    """Let two other programs use a core each for this time, half of the time."""
    return others(BURN.format(length_s, length_s))


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
    """Pause the first replay worker of each replay of a run while it sends, until killed."""
    paused = set[int]()
    while True:
        time.sleep(0.1)
        for child in psutil.Process(pid).children(recursive=True):
            if child.pid not in paused and "railyard.workloads.replay.worker" in command_line(child):
                replay = [c.pid for c in (child.parent() or child).children()]
                time.sleep(1.0)
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
    "one-core": (one_core, 20), "burners": (others(BURN.format(60, 0)), 20),
    "bursts-120ms": (bursts(0.12), 20), "bursts-500ms": (bursts(0.5), 20), "bursts-1s": (bursts(1.0), 20),
    "bursts-4s": (bursts(4.0), 20), "memory": (others(FILL_MEMORY.format(2**28)), 20),
    "worker-paused-200ms": (paused_worker(0.2), 20), "worker-paused-1s": (paused_worker(1.0), 20),
}  # fmt: skip
"""Disturbances, and the rails' Mbit/s that a run accepts under them: a quota leaves less."""
ORDINARY: Final = ("quota-60", "quota-40", "one-core", "bursts-120ms", "bursts-1s", "worker-paused-1s")
INTERVALS: Final = 200


class NotPossible(Exception):
    """A disturbance that this machine does not allow."""


class Time(NamedTuple):
    """A row of results: its repeat and phase ("" for the whole), measured over predicted, its verdict."""

    repeat: int
    phase: str
    ratio: float
    verdict: Verdict


def measured(disturbance: Disturbance, mbit: int, repeats: int, folder: Path, slow: float) -> list[Time]:
    """Return the times of every repeat under a disturbance. NotPossible if this machine does not allow it."""
    rates = {"rail_rate": f"{mbit}Mbit", "hb_rate": f"{12 * mbit}Mbit"}
    spec = {**SPEC, "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 4, **rates}], "repeats": repeats}
    folder.mkdir(exist_ok=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    # it waits for a line, so that what limits it does so from its first instruction
    run_spec = [*RUN_EXPERIMENT, "run", str(folder / "spec.yaml"), "--out", str(folder / "out")]
    with Program(["sh", "-c", 'read _ && exec "$@"', "sh", *run_spec]) as program, disturbance(program):
        program.type("")
        status = program.end((RUN_S + 20 * repeats) * slow)
    if status == 2 and "is more than this machine carries" in program.output:
        raise NotPossible(f"refused under this disturbance: {mbit} Mbit/s")
    assert status in (0, 1), program.output
    run = store.load(folder / "out")
    judgement, times = judge(run), [m for m in run.measurements if m.unit == "s"]
    return [Time(m.repeat, m.phase, m.ratio, judgement.of_row(m)) for m in times if m.ratio]


def quiet_ratios(times: list[Time]) -> dict[str, float]:
    """Return the median of measured over predicted of each phase."""
    by_phase = groupby(sorted(times, key=lambda t: t.phase), lambda t: t.phase)
    return {phase: median(t.ratio for t in own) for phase, own in by_phase}


def off(time: Time, quiet: dict[str, float]) -> float:
    """Return by how much of its quiet value a time is off."""
    return abs(time.ratio / quiet[time.phase] - 1)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, slow: float) -> dict[str, float]:
    """Return the medians of measured over predicted on the undisturbed machine."""
    return quiet_ratios(measured(undisturbed, 20, 3, tmp_path_factory.mktemp("quiet"), slow))


@pytest.mark.parametrize("name", ORDINARY)
def test_disturbed_interval_off_by_five_percent_is_not_ok(
    name: str, quiet: dict[str, float], tmp_path: Path, slow: float
) -> None:
    try:
        found = measured(*DISTURBANCES[name], 1, tmp_path, slow)
    except NotPossible as reason:
        pytest.skip(str(reason))
    wrong = [t for t in found if t.verdict == "ok" and off(t, quiet) > TOLERANCE]
    assert not wrong, f"ok, and off by more than 5% from {quiet}: {wrong}"


class Outcome(NamedTuple):
    """Intervals of one kind: how many there were and were ok, and the most that a time that is ok was off."""

    kind: str
    intervals: int
    ok: int
    worst: float
    why_not: str = ""

    def __str__(self) -> str:
        shown = f"{self.intervals:9}  {self.ok:2}  {100 * self.worst:13.1f}%"
        return f"{self.kind:20}  {self.why_not or shown}"


def attack(intervals: int, folder: Path, slow: float, show: Callable[[object], None]) -> list[Outcome]:
    """Measure a fifth as many quiet intervals, then all disturbances in turn; `show` gets each outcome."""
    each, outcomes, quiet = -(-intervals // len(DISTURBANCES)), list[Outcome](), dict[str, float]()
    show(f"{'kind':20}  intervals  ok  worst that is ok")
    for name, (disturbance, mbit) in {"quiet": (undisturbed, 20), **DISTURBANCES}.items():
        count = each if quiet else max(3, intervals // 5)
        try:
            times = measured(disturbance, mbit, count, folder / name, slow)
        except NotPossible as reason:
            outcomes.append(Outcome(name, 0, 0, 0.0, str(reason)))
        else:
            quiet = quiet or quiet_ratios(times)
            ok = [t for t in times if t.verdict == "ok"]
            wholes = [t for t in times if not t.phase]
            worst = max((off(t, quiet) for t in ok), default=0.0)
            outcomes.append(Outcome(name, len(wholes), sum(t in ok for t in wholes), worst))
        show(outcomes[-1])
    return outcomes


def test_two_hundred_disturbed_intervals(tmp_path: Path, slow: float) -> None:
    quiet, *disturbed = attack(INTERVALS, tmp_path, slow, print)
    assert quiet.ok >= QUIET_OK * quiet.intervals
    assert all(outcome.worst <= TOLERANCE for outcome in disturbed), "\n".join(map(str, disturbed))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        attack(int(sys.argv[1]) if sys.argv[1:] else INTERVALS, Path(made), 1.0, lambda row: print(row, flush=True))
