"""Failure scripts as plain data: faults, possibly concurrent, with the times of their injection and repair; and the log
of a running script: which actions are done, which faults are active, and when the script is idle.
"""

import threading
import time
from dataclasses import dataclass
from typing import Final

from railyard.failure.faults import Fault


@dataclass(frozen=True, slots=True)
class Timed:
    """A fault of a script: `at_s` seconds after the traffic starts, repaired `repair_s` seconds after its injection.

    `after`: a phase of the workload that runs meanwhile; `at_s` then counts from the end of that phase's first run.
    """

    fault: Fault
    at_s: float
    repair_s: float
    after: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """`name` is what records call it."""

    name: str
    faults: tuple[Timed, ...]


SETTLE_S: Final = 0.5
"""Time for all reactions to an action, s."""
NO_DEADLINE_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Action:
    """An injection or a repair: from when it began until it was done (monotonic ns)."""

    at_ns: int
    done_ns: int
    operation: str  # "inject" or "repair"
    fault: Fault

    @property
    def name(self) -> str:
        """Operation, kind and target."""
        return f"{self.operation} {self.fault.kind} {self.fault.target}"


@dataclass(frozen=True, slots=True)
class QuietPeriod:
    """An idle script: the `last` action, the active faults (`broken`), and when the next action is due
    (NO_DEADLINE_NS: never).
    """

    last: Action
    broken: tuple[Fault, ...]
    until_ns: int


class ActionLog:
    """Log of actions, written by all threads of a script."""

    def __init__(self, script: Script) -> None:
        self._lock = threading.Lock()
        self._done: list[Action] = []
        self._in_progress = 0
        self._scheduled: dict[tuple[int, str], int] = {}
        self._broken: dict[int, Timed] = {}
        self._script = script

    def schedule(self, number: int, operation: str, scheduled_ns: int) -> None:
        """Set when an action of a fault is due."""
        with self._lock:
            self._scheduled[number, operation] = scheduled_ns

    def begin(self, number: int, operation: str) -> None:
        """Note that an action begins."""
        with self._lock:
            self._in_progress += 1
            self._scheduled.pop((number, operation), None)

    def end(self, number: int, operation: str, at_ns: int) -> None:
        """Log an action that is done."""
        with self._lock:
            self._in_progress -= 1
            timed = self._script.faults[number]
            self._done.append(Action(at_ns, time.monotonic_ns(), operation, timed.fault))
            if operation == "inject":
                self._broken[number] = timed
            else:
                self._broken.pop(number, None)

    @property
    def done(self) -> tuple[Action, ...]:
        """The actions so far, in the order in which they ended."""
        with self._lock:
            return tuple(self._done)

    def quiet_period(self, now_ns: int) -> QuietPeriod | None:
        """Return the idle period, if the last action ended `SETTLE_S` ago and none is running or due."""
        with self._lock:
            if self._in_progress or not self._done:
                return None
            last = max(self._done, key=lambda action: action.done_ns)
            until_ns = min(self._scheduled.values(), default=NO_DEADLINE_NS)
            if now_ns < last.done_ns + int(SETTLE_S * 1e9) or until_ns <= now_ns:
                return None
            return QuietPeriod(last, tuple(timed.fault for timed in self._broken.values()), until_ns)
