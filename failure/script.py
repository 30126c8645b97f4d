"""Failure scripts: faults, possibly concurrent, with the times of their injection and repair; the log of a running
script; and the player, which injects and repairs faults on a running fabric and checks each at what breaks.

Each fault of a script has a thread of its own, so that simultaneous faults are injected together.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from railyard.failure.active import PREPARE_S, ActiveFault, FaultyFabric, Operation
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


SETTLE_S: Final = 0.5  # time for all reactions to an action, s
NO_DEADLINE_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Action:
    """An injection or a repair: from when it began until it was done (monotonic ns)."""

    at_ns: int
    done_ns: int
    operation: Operation  # an injection or a repair
    fault: Fault

    @property
    def name(self) -> str:
        """Operation, kind and target."""
        return f"{self.operation} {self.fault.kind} {self.fault.target}"


class QuietPeriod(NamedTuple):
    """An idle script: the `last` action, the active faults (`broken`), and when the next action is due
    (NO_DEADLINE_NS: never).
    """

    last: Action
    broken: tuple[Fault, ...]
    until_ns: int


class ActionLog:
    """Log of actions, written by all threads of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._done: list[Action] = []
        self._in_progress = 0
        self._scheduled: dict[tuple[int, Operation], int] = {}
        self._broken: dict[int, Fault] = {}

    def schedule(self, number: int, operation: Operation, due_ns: int) -> None:
        """Set when an action of a fault is due."""
        with self._lock:
            self._scheduled[number, operation] = due_ns

    def begin(self, number: int, operation: Operation) -> None:
        """Note that an action begins."""
        with self._lock:
            self._in_progress += 1
            self._scheduled.pop((number, operation), None)

    def end(self, number: int, operation: Operation, at_ns: int) -> None:
        """Log an action that is done."""
        with self._lock:
            self._in_progress -= 1
            fault = self._script.faults[number].fault
            self._done.append(Action(at_ns, time.monotonic_ns(), operation, fault))
            if operation == "inject":
                self._broken[number] = fault
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
            last = self._done[-1]
            until_ns = min(self._scheduled.values(), default=NO_DEADLINE_NS)
            if now_ns < last.done_ns + int(SETTLE_S * 1e9) or until_ns <= now_ns:
                return None
            return QuietPeriod(last, tuple(self._broken.values()), until_ns)


_POLL_S: Final = 0.001

PhaseEnds = Mapping[str, "Future[int]"]
"""When phases of a workload have ended for the first time, monotonic ns, by name."""
NO_PHASES: Final[PhaseEnds] = MappingProxyType({})


class ScriptEnded(Exception):
    """The script ends before this fault."""


class Player:
    """Plays one script; its threads start with `play`. ValueError for a fault after a phase that `phases` lacks.

    `injected_ns`, `repair_start_ns`: when each injection and repair began, by the fault's number.
    `late_ns`: how long after it was due an injection began.
    `actions`: their log.
    """

    def __init__(self, fabric: FaultyFabric, script: Script, phases: PhaseEnds = NO_PHASES) -> None:
        if any(timed.after and timed.after not in phases for timed in script.faults):
            raise ValueError(f"script {script.name}: faults wait for phases, but no workload runs")
        self._fabric = fabric
        self._script = script
        self._phases = phases
        self._stopped = threading.Event()
        self._begun_ns = 0
        self._fault_futures: list[Future[None]] = []
        self.actions = ActionLog(script)
        self.injected_ns: dict[int, int] = {}
        self.repair_start_ns: dict[int, int] = {}
        self.late_ns: dict[int, int] = {}

    def play(self, begun_ns: int) -> None:
        """Start; times of the script count from `begun_ns` (monotonic)."""
        self._begun_ns = begun_ns
        for number, timed in enumerate(self._script.faults):
            if not timed.after:
                self.actions.schedule(number, "inject", self._inject_at_ns(timed))
        pool = ThreadPoolExecutor(len(self._script.faults), thread_name_prefix="fault")
        self._fault_futures = [pool.submit(self._run_fault, number) for number in range(len(self._script.faults))]
        pool.shutdown(wait=False)

    def is_over(self, within_s: float) -> bool:
        """Wait at most `within_s`; return whether all faults are repaired. An error in one thread ends all."""
        done, pending = wait(self._fault_futures, within_s, FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            self.end()
        return not pending

    def end(self) -> None:
        """Inject no more faults, repair the active ones, and return when that is done. Errors are raised."""
        self._stopped.set()
        wait(self._fault_futures)
        for future in self._fault_futures:
            error = future.exception()
            if error and not isinstance(error, ScriptEnded):
                raise error

    def _run_fault(self, number: int) -> None:
        timed = self._script.faults[number]
        with ActiveFault(self._fabric, timed.fault) as fault:
            try:
                self._prepare(timed, fault)
                self._inject(number, timed, fault)
                repair_at_ns = fault.injected_ns + int(timed.repair_s * 1e9)
                self.actions.schedule(number, "repair", repair_at_ns)
                fault.confirm()
                self._sleep_until(repair_at_ns)
            except BaseException:
                self._stopped.set()
                raise
            finally:
                if fault.is_injected:
                    self._repair(number, fault)

    def _prepare(self, timed: Timed, fault: ActiveFault) -> None:
        """Prepare a fault shortly before its injection, and wait until the injection is due."""
        targets = [other.fault.target for other in self._script.faults]
        # A fault after a phase is prepared at once, unless preparations of one target would conflict.
        if not timed.after:
            self._sleep_until(self._inject_at_ns(timed) - int(PREPARE_S * 1e9))
        elif targets.count(fault.fault.target) > 1:
            self._sleep_until(self._inject_at_ns(timed))
        fault.prepare()
        self._sleep_until(self._inject_at_ns(timed))

    def _inject(self, number: int, timed: Timed, fault: ActiveFault) -> None:
        self.actions.begin(number, "inject")
        self.injected_ns[number] = fault.inject(self._inject_at_ns(timed))
        self.late_ns[number] = fault.late_ns
        self.actions.end(number, "inject", fault.injected_ns)

    def _repair(self, number: int, fault: ActiveFault) -> None:
        self.actions.begin(number, "repair")
        self.repair_start_ns[number] = fault.repair()
        self.actions.end(number, "repair", fault.repaired_ns)

    def _inject_at_ns(self, timed: Timed) -> int:
        """Wait for the fault's phase, if it has one; return when the injection is due."""
        from_ns = self._begun_ns
        if timed.after:
            while not self._phases[timed.after].done():
                if self._stopped.wait(_POLL_S):
                    raise ScriptEnded
            from_ns = self._phases[timed.after].result()
        return from_ns + int(timed.at_s * 1e9)

    def _sleep_until(self, at_ns: int) -> None:
        if self._stopped.wait(max(0.0, (at_ns - time.monotonic_ns()) / 1e9)):
            raise ScriptEnded
