"""Processes of several allreduce engines on one fabric, of which one at a time works: policies are measured in turn.

What a machine does in one second it may not do in the next (its host has other guests), so policies that are compared
are measured within the same second. All policies of Railyard's own engine share its processes and connections. When
the machine stands still for a while, an engine may declare a rail dead that no fault broke; `MonitoredEngine` waits
until it is back, since what is measured meanwhile is of another fabric.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Self

from railyard.experiments.multirail.measured import check_complete
from railyard.experiments.multirail.session import MultirailSession
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, is_own

PAUSE_S: Final = 0.05


class MonitoredEngine:
    """An engine, and the rails that it lost: those that died since it was last home, or don't stand.

    Of an engine that has no rails to tell of that is none.
    """

    def __init__(self, ranks: Group) -> None:
        self.lost: frozenset[int] = frozenset()
        self._ranks = ranks
        self._abandoned: frozenset[int] = frozenset()

    def run(self, operations: Operations) -> Sequence[RankReport]:
        reports = self._ranks.run(operations)
        self.lost |= _lost(reports)
        return reports

    def pause(self) -> None:
        self._ranks.pause()

    def resume(self) -> None:
        self._ranks.resume()

    def wait_for_rails(self, operations: Operations, within_s: float) -> None:
        """If rails were lost: do `operations`, which should be next to nothing, until all stand again, and forget it.
        What isn't back after so many seconds stays lost, and isn't waited for again. CheckFailed if the ranks can do no
        more."""
        deadline = time.monotonic() + (0 if self.lost <= self._abandoned else within_s)
        while self.lost:
            reports = self._ranks.run(operations)
            check_complete(reports)
            self.lost = _lost(reports)
            if time.monotonic() >= deadline:
                break
            if self.lost:
                time.sleep(PAUSE_S)
        self._abandoned = self.lost


def _lost(reports: Sequence[RankReport]) -> frozenset[int]:
    died = {rail for report in reports for migration in report.migrations for rail in migration.rails}
    return frozenset(died.union(*(report.dead_rails for report in reports)))


_SHARED_ENGINE: Final = "nezha"
"""What the shared processes plan by until they are told."""


class EnginePool:
    """A crew is begun when it is first asked for, and paused while another is at work."""

    def __init__(self, session: MultirailSession) -> None:
        self._session = session
        self._started: dict[str, tuple[ExitStack, MonitoredEngine]] = {}
        self._active: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:  # one that can't be ended keeps no other
            for name in reversed(self._started):
                ends.callback(self._end, name)

    def engine_for(self, policy: str) -> MonitoredEngine:
        """Who plays it, awake while all others sleep. What its engine raises where it can't begin."""
        name = _engine_name(policy)
        if self._active != name:
            self._pause_active()
            if name in self._started:
                self._started[name][1].resume()
            else:
                stack = ExitStack()
                self._started[name] = stack, MonitoredEngine(stack.enter_context(self._session.engine(name)))
            self._active = name
        return self._started[name][1]

    @staticmethod
    def share_engine(policy: str, other: str) -> bool:
        """Whether the same crew plays both."""
        return _engine_name(policy) == _engine_name(other)

    def drop(self, policy: str) -> None:
        """It broke down: who plays another of its policies next are new processes."""
        if _engine_name(policy) in self._started:
            self._end(_engine_name(policy))

    def _pause_active(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            self._started[active][1].pause()

    def _end(self, name: str) -> None:
        stack, _ = self._started.pop(name)
        self._active = None if self._active == name else self._active
        stack.close()


def _engine_name(policy: str) -> str:
    return _SHARED_ENGINE if is_own(policy) else policy
