"""Load of the machine during a measurement: whose CPU time it was, what others took, and how late threads woke.

Whole intervals hide what is short: a pause of 40 ms is 1% of 4 s, and decides a recovery time. So quantities are also
taken in windows of 100 ms, and the longest time for which this thread did not run is kept.
"""

import gc
import math
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import psutil

from railyard.core.host import cpu_cgroups, usable_cores

SLEEP_S: Final = 0.001
SAMPLE_S: Final = 0.01
STEP_S: Final = 0.05
"""CPU times are read so often; a window is two of these, since the kernel shows idle time in steps of 10 ms."""
RECENT_LAGS: Final = 1000
# other programs may use this share of all cores before results are degraded
FOREIGN_LIMIT: Final = 0.15
# on a machine that is only busy, a thread may be late by so much
PAUSE_S: Final = 0.005
LATE_FRAMES: Final = 0.25
"""On slow links a thread may be late by this part of a frame's time. A link has another frame queued while it sends
one, and a message depends on four threads at most: its sender, a rail switch, another switch or GPU, its receiver.
"""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# CPUCLOCK_SCHED of a process (linux/posix-timers_types.h), which is exact and costs a microsecond
_PROCESS_CLOCK: Final = 2


def tolerated_lateness_s(frame_s: float) -> float:
    """Return how late (s) threads may be, where links take `frame_s` to send a frame."""
    return max(PAUSE_S, LATE_FRAMES * frame_s)


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Shares of the usable cores, 0 to 1, in the whole interval and in its worst 100 ms, and lateness in ms.

    `foreign`: used by other programs.
    `stolen`: by other guests of the host.
    `throttled`: time for which a CPU quota stopped the run.
    `paused`: share of the time in pauses that are longer than threads may be late by, of which `pause_ms` is the
    longest.
    """

    busy: float
    foreign: float
    lag_p99_ms: float
    stolen: float = 0.0
    throttled: float = 0.0
    paused: float = 0.0
    pause_ms: float = 0.0
    busy_100ms: float = 0.0
    foreign_100ms: float = 0.0
    stolen_100ms: float = 0.0


class LoadSample(NamedTuple):
    """Shares of the usable cores, 0 to 1, in the 100 ms before;

    `lag_ms`: the most by which a sleep was late.
    """

    monotonic_ns: int
    busy: float
    foreign: float
    lag_ms: float


class _Cpu(NamedTuple):
    """Seconds of all usable cores together until a moment: not idle, stolen, in interrupts; our own processes."""

    at: float
    busy: float
    stolen: float
    kernel: float
    ours: float


class CpuClock:
    """CPU seconds of the processes in sight, those that ended included, and of interrupts on the usable cores.

    Inside a sandbox those processes are the run's, and the kernel forwards packets in interrupts.
    """

    def __init__(self) -> None:
        self._affinity = frozenset(os.sched_getaffinity(0))
        self._clocks: dict[int, float] = {}

    def own_s(self) -> float:
        """Return the CPU seconds until now."""
        cpu = self.read()
        return cpu.kernel + cpu.ours

    def read(self) -> _Cpu:
        """Read CPU times. Of a process that ended, its times are what they last were."""
        for pid in psutil.pids():
            with suppress(OSError):  # it has ended
                self._clocks[pid] = time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
        at = time.monotonic()
        idle = 0.0
        stolen = 0.0
        kernel = 0.0
        with Path("/proc/stat").open(encoding="ascii") as stat:
            next(stat)
            for line in stat:
                name, *ticks = line.split()
                if not name.startswith("cpu"):
                    break
                if int(name[3:]) in self._affinity:
                    idle += int(ticks[3]) + int(ticks[4])
                    kernel += int(ticks[5]) + int(ticks[6])
                    stolen += int(ticks[7])
        busy = at * len(self._affinity) - idle / _TICKS
        return _Cpu(at, busy, stolen / _TICKS, kernel / _TICKS, sum(self._clocks.values()))


class LoadMeter:
    """Meter of the time during which it is entered: `with LoadMeter() as meter: ...`, then `meter.load`.

    It costs about 1% of a core. Inside a sandbox only the run's own processes are visible: all other load is foreign.
    `late_s`: how late a thread may be; what is later is a pause.
    """

    current: ClassVar["LoadMeter | None"] = None
    """The meter that is entered now, for views of the interval under way."""

    def __init__(self, late_s: float = PAUSE_S) -> None:
        self._late_s, self._cores = late_s, usable_cores()
        self._affinity = frozenset(os.sched_getaffinity(0))
        self._throttled_by = dict.fromkeys((folder / "cpu.stat" for folder in cpu_cgroups()), 0.0)
        # Seconds, and of the usable cores together: busy, used by others, stolen, throttled, paused. Busy means not
        # idle: the kernel times idleness by a clock, but samples a busy core at its tick, 100 to 1,000 times a second.
        # Work in step with the tick would be seen always or never (17% was shown as 0.2% or 49%).
        self._elapsed_s = self._busy_s = self._foreign_s = self._stolen_s = self._throttled_s = self._paused_s = 0.0
        self._pause_s = 0.0
        self._lags: list[float] = []
        self._samples: list[LoadSample] = []
        # the CPU times that were read, one each STEP_S
        self.steps: list[_Cpu] = []
        # CPU seconds of the run's own processes
        self.own_s = 0.0
        self._worst: dict[str, float] = dict.fromkeys(("busy", "foreign", "stolen"), 0.0)
        self._recent = dict(self._worst)

    @property
    def load(self) -> MachineLoad:
        """The load so far."""
        lags = sorted(self._lags) or [0.0]
        elapsed = self._elapsed_s or math.inf
        cores = elapsed * self._cores
        machine = elapsed * len(self._affinity)
        return MachineLoad(
            busy=min(1.0, self._busy_s / cores),
            foreign=min(1.0, self._foreign_s / machine),
            stolen=min(1.0, self._stolen_s / machine),
            throttled=min(1.0, self._throttled_s / elapsed),
            paused=min(1.0, self._paused_s / elapsed),
            pause_ms=self._pause_s * 1e3,
            lag_p99_ms=lags[int(len(lags) * 0.99)] * 1e3,
            **{f"{name}_100ms": min(1.0, share) for name, share in self._worst.items()},
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds for which it was entered."""
        return self._elapsed_s

    @property
    def recent(self) -> MachineLoad:
        """The load of the last 100 ms, and the lag of the last 10 s, while entered; the pauses are those so far."""
        lags = sorted(self._lags[-RECENT_LAGS:]) or [0.0]
        shares = self._recent
        lag_ms = lags[int(len(lags) * 0.99)] * 1e3
        return MachineLoad(
            min(1.0, shares["busy"]), min(1.0, shares["foreign"]), lag_ms, min(1.0, shares["stolen"]),
            pause_ms=self._pause_s * 1e3,
        )  # fmt: skip

    def take_samples(self) -> list[LoadSample]:
        """Return the samples since the last call, one for each 100 ms."""
        taken = self._samples
        self._samples = []
        return taken

    def __enter__(self) -> "LoadMeter":
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        # A collection of all objects holds the threads of this process for 20 to 35 ms, which would look like a pause
        # of the machine. Frozen objects are left out of collections.
        gc.freeze()
        # takes a while, which is neither idle nor ours
        self._own0 = _own_seconds()
        self._throttled0 = self._throttled()
        self._cpu = CpuClock().read
        self._cpu0 = self._cpu()
        self._thread.start()
        LoadMeter.current = self
        return self

    def __exit__(self, *_: object) -> None:
        LoadMeter.current = None
        self._end.set()
        self._thread.join()
        gc.unfreeze()
        now = self._cpu()
        own_s = _own_seconds() - self._own0
        elapsed, spent = self._shares(self._cpu0._replace(ours=0.0), now._replace(ours=own_s))
        self._elapsed_s += elapsed
        self.own_s += own_s
        self._busy_s += spent["busy"] * elapsed * self._cores
        self._foreign_s += spent["foreign"] * elapsed * len(self._affinity)
        self._stolen_s += spent["stolen"] * elapsed * len(self._affinity)
        self._throttled_s += max(0.0, self._throttled() - self._throttled0)

    def _watch(self) -> None:
        """Sleep a millisecond a hundred times a second and note how much longer it was; read CPU times at each step."""
        last = time.monotonic()
        window = deque([self._cpu()], maxlen=3)
        while not self._end.wait(SAMPLE_S):
            before = time.monotonic()
            time.sleep(SLEEP_S)
            now = time.monotonic()
            self._lags.append(now - before - SLEEP_S)
            late = now - last - SAMPLE_S - SLEEP_S
            self._pause_s = max(self._pause_s, late)
            self._paused_s += late if late > self._late_s else 0.0
            if now - window[-1].at >= STEP_S:
                window.append(self._cpu())
                self.steps.append(window[-1])
                self._throttled()
                if len(window) == window.maxlen:
                    self._recent = self._shares(window[0], window[-1])[1]
                    for name, share in self._recent.items():
                        self._worst[name] = max(self._worst[name], share)
                    self._sample()
            last = time.monotonic()

    def _sample(self) -> None:
        """Keep a sample of the last 100 ms, unless the one before is from these."""
        now_ns = time.monotonic_ns()
        if not self._samples or now_ns - self._samples[-1].monotonic_ns >= 1.9e9 * STEP_S:
            lag_ms = 1e3 * max(self._lags[-round(2 * STEP_S / SAMPLE_S) :])
            busy, foreign = (min(1.0, self._recent[name]) for name in ("busy", "foreign"))
            self._samples.append(LoadSample(now_ns, busy, foreign, lag_ms))

    def _shares(self, before: _Cpu, after: _Cpu) -> tuple[float, dict[str, float]]:
        """Return the elapsed time (s), and shares of the usable cores in it."""
        elapsed = after.at - before.at
        cores = elapsed * self._cores
        busy, stolen, kernel, ours = (max(0.0, b - a) for a, b in zip(before[1:], after[1:], strict=True))
        foreign = max(0.0, busy - stolen - kernel - ours)
        # a quota leaves less than the cores: what is idle beyond it can't be used
        busy = max(busy / (elapsed * len(self._affinity)), (ours + kernel) / cores)
        machine = elapsed * len(self._affinity)
        shares = {"busy": busy, "foreign": foreign / machine, "stolen": stolen / machine}
        return elapsed, shares

    def _throttled(self) -> float:
        """Return the seconds for which quotas stopped our cgroup or one above it, until now."""
        for stat in self._throttled_by:
            # its cgroup is gone: we were moved out of it since the last step
            with suppress(OSError):
                self._throttled_by[stat] = _throttled_s(stat)
        return sum(self._throttled_by.values())


def _throttled_s(stat: Path) -> float:
    """Return throttled seconds in a cgroup's cpu.stat: cgroup 2 gives them in us, cgroup 1 in ns."""
    values = dict(line.split() for line in stat.read_text().splitlines())
    return int(values.get("throttled_usec", 0)) / 1e6 + int(values.get("throttled_time", 0)) / 1e9


def _own_seconds() -> float:
    """CPU time of every process in sight, and of the children that this one has waited for."""
    spent = [times for process in psutil.process_iter(["cpu_times"]) if (times := process.info["cpu_times"])]
    return float(sum(times.user + times.system + times.children_user + times.children_system for times in spent))
