"""Plays a script on a fabric: each fault has a thread of its own, so that two of one time strike together."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Final

from railyard.failure.faults import confirm, prepare, repair, strike, unprepare
from railyard.failure.scenario.script import Script, Timed
from railyard.failure.scenario.timeline import Acts
from railyard.topologies.build.network import FabricNet

PREPARE_S: Final = 0.6
"""Before a fault: to look whether it is there already, and to start the programs that it needs."""
_POLL_S: Final = 0.001

WaitFor = Callable[[str], int]
"""Return when a phase has ended for the first time; monotonic ns of its end."""


class Ended(Exception):
    """The script ends before this fault."""


class Player:
    """Its threads begin with `play`. When each fault struck and its repair began is in `struck_ns` and `mended_ns`, by
    its number in the script; `acts` has what is going on.

    ValueError for faults that wait for phases if nothing tells of them.
    """

    def __init__(self, net: FabricNet, script: Script, wait_for: WaitFor | None = None) -> None:
        if any(timed.after for timed in script.faults) and wait_for is None:
            raise ValueError(f"script {script.name}: faults wait for phases, but nothing tells of them")
        self._net, self._script, self._wait_for = net, script, wait_for
        self._over = threading.Event()
        self._begun_ns = 0
        self._phases: dict[str, Future[int]] = {}
        self._plays: list[Future[None]] = []
        self.acts = Acts(script)
        self.struck_ns: dict[int, int] = {}
        self.mended_ns: dict[int, int] = {}

    def play(self, begun_ns: int) -> None:
        """Begin; times of the script count from `begun_ns` (monotonic)."""
        self._begun_ns = begun_ns
        for number, timed in enumerate(self._script.faults):
            if timed.after:
                self._listen(timed.after)
            else:
                self.acts.expect(number, "inject", self._due(timed))
        pool = ThreadPoolExecutor(len(self._script.faults), thread_name_prefix="fault")
        self._plays = [pool.submit(self._play, number) for number in range(len(self._script.faults))]
        pool.shutdown(wait=False)

    def is_over(self, within_s: float) -> bool:
        """Whether all is mended; waits so long at most. What went wrong is raised, and the others end as well."""
        done, rest = wait(self._plays, within_s, FIRST_EXCEPTION)
        if any(play.exception() for play in done):
            self.end()
        return not rest

    def end(self) -> None:
        """Strike no more, mend what is broken, and return when that is done. What went wrong is raised."""
        self._over.set()
        wait(self._plays)
        for play in self._plays:
            error = play.exception()
            if error and not isinstance(error, Ended):
                raise error

    def _play(self, number: int) -> None:
        timed = self._script.faults[number]
        try:
            self._break(number, timed)
            self.acts.expect(number, "repair", self._repair_due(number))
            confirm(self._net, timed.fault)
            self._until(self._repair_due(number))
        except BaseException:
            self._over.set()
            raise
        finally:
            if number in self.struck_ns:
                self._mend(number, timed)

    def _break(self, number: int, timed: Timed) -> None:
        prepared = False
        try:
            if not timed.after:
                self._until(self._due(timed) - int(PREPARE_S * 1e9))
            if not (timed.after and self._shares(timed)):
                prepare(self._net, timed.fault)
                prepared = True
            self._until(self._due(timed))
            if not prepared:
                prepare(self._net, timed.fault)
                prepared = True
            self.acts.begin(number, "inject")
        except BaseException:
            if prepared:
                unprepare(self._net, timed.fault)
            raise
        self.struck_ns[number] = time.monotonic_ns()  # before, so that half a strike is mended too
        self.struck_ns[number] = strike(self._net, timed.fault)
        self.acts.end(number, "inject", self.struck_ns[number])

    def _mend(self, number: int, timed: Timed) -> None:
        self.acts.begin(number, "repair")
        self.mended_ns[number] = time.monotonic_ns()
        repair(self._net, timed.fault)
        self.acts.end(number, "repair", self.mended_ns[number])

    def _shares(self, timed: Timed) -> bool:
        """Whether another fault has the same target: what both prepare would be in each other's way."""
        return sum(other.fault.target == timed.fault.target for other in self._script.faults) > 1

    def _due(self, timed: Timed) -> int:
        """When it is to strike; waits for its phase."""
        from_ns = self._await(self._phases[timed.after]) if timed.after else self._begun_ns
        return from_ns + int(timed.at_s * 1e9)

    def _repair_due(self, number: int) -> int:
        return self.struck_ns[number] + int(self._script.faults[number].repair_s * 1e9)

    def _listen(self, phase: str) -> None:
        """Let a thread wait for the phase: it may wait for ever, and the script must be able to end."""
        if phase in self._phases or self._wait_for is None:
            return
        answer, wait_for = Future[int](), self._wait_for
        self._phases[phase] = answer

        def listen() -> None:
            try:
                answer.set_result(wait_for(phase))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=listen, name=f"waits for {phase}", daemon=True).start()

    def _await(self, answer: Future[int]) -> int:
        while not answer.done():
            if self._over.wait(_POLL_S):
                raise Ended
        return answer.result()

    def _until(self, at_ns: int) -> None:
        if self._over.wait(max(0.0, (at_ns - time.monotonic_ns()) / 1e9)):
            raise Ended
