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
    `resolution`: by how much the ticks in which the kernel counts may change `busy`, `foreign` and `stolen`; 0 for a
    machine that was not measured.
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
    resolution: float = 0.0


class LoadSample(NamedTuple):
    """Shares of the usable cores, 0 to 1, in the 100 ms before;

    `lag_ms`: the most by which a sleep was late.
    """

    monotonic_ns: int
    busy: float
    foreign: float
    lag_ms: float


class _Cpu(NamedTuple):
    """A moment, and seconds of all usable cores together until then: not idle, stolen, in interrupts; our own."""

    at: float
    busy: float
    stolen: float
    kernel: float
    ours: float

    def since(self, earlier: "_Cpu") -> "_Cpu":
        """Return the time since an earlier moment, and what was used in it."""
        return _Cpu(
            self.at - earlier.at,
            self.busy - earlier.busy,
            self.stolen - earlier.stolen,
            self.kernel - earlier.kernel,
            self.ours - earlier.ours,
        )


_NOTHING: Final = _Cpu(0.0, 0.0, 0.0, 0.0, 0.0)


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
        # All times in which it was entered, as one. Busy means not idle: the kernel times idleness by a clock, but
        # samples a busy core at its tick, 100 to 1,000 times a second. Work in step with the tick would be seen always
        # or never (17% was shown as 0.2% or 49%).
        self._spent = _NOTHING
        self._times_entered = 0
        # in ticks; of a process that began and ended between two readings nothing else is known
        self._own_ticks_s = 0.0
        self._throttled_s = 0.0
        self._paused_s = 0.0
        self._pause_s = 0.0
        self._lags: list[float] = []
        self._samples: list[LoadSample] = []
        # the CPU times that were read, one each STEP_S
        self.steps: list[_Cpu] = []
        self._worst: dict[str, float] = dict.fromkeys(("busy", "foreign", "stolen"), 0.0)
        self._recent = dict(self._worst)

    @property
    def load(self) -> MachineLoad:
        """The load so far."""
        lags = sorted(self._lags) or [0.0]
        elapsed = self.elapsed_s or math.inf
        # The differences are summed first: in a time that is as short as a tick, rounding may be most of them, and it
        # evens out over several such times.
        shares = self._shares(self._spent._replace(at=elapsed, ours=self.own_s))
        return MachineLoad(
            busy=min(1.0, shares["busy"]),
            foreign=min(1.0, shares["foreign"]),
            stolen=min(1.0, shares["stolen"]),
            throttled=min(1.0, self._throttled_s / elapsed),
            paused=min(1.0, self._paused_s / elapsed),
            pause_ms=self._pause_s * 1e3,
            lag_p99_ms=lags[int(len(lags) * 0.99)] * 1e3,
            resolution=min(1.0, math.sqrt(self._times_entered) / _TICKS / elapsed),
            **{f"{name}_100ms": min(1.0, share) for name, share in self._worst.items()},
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds for which it was entered."""
        return self._spent.at

    @property
    def own_s(self) -> float:
        """CPU seconds of the run's own processes while it was entered."""
        # the clocks are exact, but miss the last moments of a process that ended
        return max(self._spent.ours, self._own_ticks_s)

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
        # the reading that there would be if it had been entered all the time
        self._start = self._cpu().since(self._spent)
        self._thread.start()
        LoadMeter.current = self
        return self

    def __exit__(self, *_: object) -> None:
        LoadMeter.current = None
        self._end.set()
        self._thread.join()
        gc.unfreeze()
        self._spent = self._cpu().since(self._start)
        self._times_entered += 1
        self._own_ticks_s += _own_seconds() - self._own0
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
            self._note_late(now - last - SAMPLE_S - SLEEP_S)
            if now - window[-1].at >= STEP_S:
                window.append(self._cpu())
                self.steps.append(window[-1])
                self._throttled()
                if len(window) == window.maxlen:
                    self._recent = self._shares(window[-1].since(window[0]))
                    for name, share in self._recent.items():
                        self._worst[name] = max(self._worst[name], share)
                    self._sample()
            last = time.monotonic()
        # the end may come while this thread is kept waiting
        self._note_late(time.monotonic() - last - SAMPLE_S - SLEEP_S)

    def _note_late(self, late_s: float) -> None:
        """Count by how much later than due this meter's thread ran."""
        self._pause_s = max(self._pause_s, late_s)
        if late_s > self._late_s:
            self._paused_s += late_s

    def _sample(self) -> None:
        """Keep a sample of the last 100 ms, unless the one before is from these."""
        now_ns = time.monotonic_ns()
        if not self._samples or now_ns - self._samples[-1].monotonic_ns >= 1.9e9 * STEP_S:
            lag_ms = 1e3 * max(self._lags[-round(2 * STEP_S / SAMPLE_S) :])
            busy, foreign = (min(1.0, self._recent[name]) for name in ("busy", "foreign"))
            self._samples.append(LoadSample(now_ns, busy, foreign, lag_ms))

    def _shares(self, spent: _Cpu) -> dict[str, float]:
        """Return the shares of the usable cores that were used in a time. `spent`: since its beginning."""
        machine_s = spent.at * len(self._affinity)
        used_s = max(0.0, spent.busy)
        stolen_s = max(0.0, spent.stolen)
        run_s = max(0.0, spent.kernel) + max(0.0, spent.ours)
        foreign_s = max(0.0, used_s - stolen_s - run_s)
        # a quota leaves less than the cores: what is idle beyond it can't be used
        busy = max(used_s / machine_s, run_s / (spent.at * self._cores))
        return {"busy": busy, "foreign": foreign_s / machine_s, "stolen": stolen_s / machine_s}

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
