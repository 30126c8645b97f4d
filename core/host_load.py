"""Load of the machine during a measurement: CPU, whose it is, and how late a sleeper wakes."""

import math
import os
import threading
import time
from dataclasses import dataclass
from typing import Final

import psutil

SLEEP_S: Final = 0.001
SAMPLE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Shares of all cores, 0 to 1, and the 99th percentile of a 1 ms sleeper's lateness in ms."""

    busy: float
    foreign: float
    lag_p99_ms: float


class LoadMeter:
    """Meter of the time during which it is entered: `with LoadMeter() as meter: ...`, then `meter.load`.

    It costs well under 1% of a core. Inside a sandbox only the run's own processes are visible: all other load is
    foreign. Busy means not idle: the kernel times idleness by a clock, but samples a busy core at its tick, 100 to
    1,000 times a second, so work in step with the tick would be seen always or never (17% was shown as 0.2% or 49%).
    """

    def __init__(self) -> None:
        # seconds of all cores together, of them busy, and of these in interrupts and in our own processes
        self._cores_s = self._busy_s = self._ours_s = 0.0
        self._lags: list[float] = []

    @property
    def load(self) -> MachineLoad:
        """The load so far."""
        lags, cores = sorted(self._lags) or [0.0], self._cores_s or math.inf
        foreign = max(0.0, min(1.0, (self._busy_s - self._ours_s) / cores))
        return MachineLoad(min(1.0, self._busy_s / cores), foreign, lags[int(len(lags) * 0.99)] * 1e3)

    def __enter__(self) -> "LoadMeter":
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure_lag, daemon=True)
        self._own0 = _own_seconds()  # takes a while, which is neither idle nor ours
        (self._idle0, self._kernel0), self._at0 = _machine_seconds(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        cores = (time.monotonic() - self._at0) * (os.cpu_count() or 1)
        (idle1, kernel1), own = _machine_seconds(), _own_seconds() - self._own0
        self._cores_s += cores
        self._busy_s += max(0.0, cores - (idle1 - self._idle0))
        self._ours_s += max(0.0, kernel1 - self._kernel0 + own)

    def _measure_lag(self) -> None:
        """Sleep a millisecond a hundred times a second, and note how much longer it was."""
        while not self._end.wait(SAMPLE_S):
            before = time.monotonic()
            time.sleep(SLEEP_S)
            self._lags.append(time.monotonic() - before - SLEEP_S)


def _machine_seconds() -> tuple[float, float]:
    """(idle time, time in interrupts) of all cores. The kernel forwards packets in the latter: here it is ours."""
    times = psutil.cpu_times()
    return float(times.idle + times.iowait), float(times.irq + times.softirq)


def _own_seconds() -> float:
    """CPU time of every process in sight, and of the children that this one has waited for."""
    spent = [times for process in psutil.process_iter(["cpu_times"]) if (times := process.info["cpu_times"])]
    return float(sum(times.user + times.system + times.children_user + times.children_system for times in spent))
