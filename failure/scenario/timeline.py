"""What a script has done so far and does next: which faults are there, and when nothing has happened for a while."""

import threading
import time
from dataclasses import dataclass
from typing import Final

from railyard.failure.scenario.kinds import Fault
from railyard.failure.scenario.script import Script, Timed

SETTLE_S: Final = 0.5
"""After an act, whatever reacts to it has had its time."""
UNKNOWN: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Act:
    """An injection or a repair: from when it began until it was done (monotonic ns)."""

    at_ns: int
    done_ns: int
    what: str  # "inject" or "repair"
    fault: Fault

    @property
    def name(self) -> str:
        return f"{self.what} {self.fault.kind} {self.fault.target}"


@dataclass(frozen=True, slots=True)
class Moment:
    """A look at a script: `last` act done, what is `broken`, and until when nothing is due (UNKNOWN: nothing is)."""

    last: Act
    broken: tuple[Fault, ...]
    until_ns: int


class Acts:
    """Kept by all threads of a script."""

    def __init__(self, script: Script) -> None:
        self._lock = threading.Lock()
        self._done: list[Act] = []
        self._doing = 0
        self._due: dict[tuple[int, str], int] = {}
        self._broken: dict[int, Timed] = {}
        self._script = script

    def expect(self, number: int, what: str, due_ns: int) -> None:
        """An act of the fault of this number comes then."""
        with self._lock:
            self._due[number, what] = due_ns

    def begin(self, number: int, what: str) -> None:
        with self._lock:
            self._doing += 1
            self._due.pop((number, what), None)

    def end(self, number: int, what: str, at_ns: int) -> None:
        with self._lock:
            self._doing -= 1
            timed = self._script.faults[number]
            self._done.append(Act(at_ns, time.monotonic_ns(), what, timed.fault))
            if what == "inject":
                self._broken[number] = timed
            else:
                self._broken.pop(number, None)

    @property
    def done(self) -> tuple[Act, ...]:
        """So far, as they ended."""
        with self._lock:
            return tuple(self._done)

    def quiet(self, now_ns: int) -> Moment | None:
        """The moment, if the last act has been over for `SETTLE_S` and none is under way or due already."""
        with self._lock:
            if self._doing or not self._done:
                return None
            last = max(self._done, key=lambda act: act.done_ns)
            until_ns = min(self._due.values(), default=UNKNOWN)
            if now_ns < last.done_ns + int(SETTLE_S * 1e9) or until_ns <= now_ns:
                return None
            return Moment(last, tuple(timed.fault for timed in self._broken.values()), until_ns)
