"""Processes of allreduce engines on one fabric, and the rails that they lose."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from railyard.core.wait import poll
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, engine_of
from railyard.workloads.allreduce.workload import check_complete

# Time between two minimal operations while a rail is lost.
PAUSE_S: Final = 0.05
# The shared processes start with this policy.
_SHARED_ENGINE: Final = "nezha"
ReportsCallback = Callable[[Sequence[RankReport]], None]


def _ignore(_: Sequence[RankReport]) -> None:
    """Do nothing with reports."""


class MonitoredEngine:
    """An allreduce engine, and the rails that it has lost and that aren't back.

    When the machine stands still for a while, an engine may declare a rail dead that no fault broke. Engines that
    report no rails lose none. `on_reports` is called with the reports of all operations.
    """

    def __init__(self, ranks: Group, on_reports: ReportsCallback) -> None:
        self.lost: frozenset[int] = frozenset()
        self._abandoned: frozenset[int] = frozenset()
        self._ranks = ranks
        self._on_reports = on_reports
        self.pause = ranks.pause
        self.resume = ranks.resume

    def run(self, operations: Operations, before: frozenset[int] | None = None) -> Sequence[RankReport]:
        """Run operations on all ranks. CheckFailed if a rank fails.

        Rails that are lost meanwhile are added to those that were lost `before` (None: so far).
        """
        reports = self._ranks.run(operations)
        self._on_reports(reports)
        lost = set(self.lost)
        if before is not None:
            lost = set(before)
        for report in reports:
            lost.update(report.dead_rails)
            for migration in report.migrations:
                lost.update(migration.rails)
        self.lost = frozenset(lost)
        check_complete(reports)
        return reports

    def wait_for_rails(self, operations: Operations, within_s: float) -> None:
        """Repeat `operations`, which should be minimal, until no rail is lost.

        A rail that isn't back in time isn't waited for again. CheckFailed if a rank fails.
        """

        def all_back() -> bool:
            self.run(operations, before=frozenset())
            return not self.lost

        if self.lost:
            poll(all_back, 0 if self.lost <= self._abandoned else within_s, PAUSE_S)
        self._abandoned = self.lost


class EnginePool:
    """Processes of several engines on one fabric; one engine at a time works, the others are paused.

    A machine may be slower from one second to the next (its host has other guests), so policies that are compared take
    turns. All policies of Railyard's own engine share its processes and connections. An engine is started when it is
    first needed.
    """

    def __init__(self, start: Callable[[str], Group], on_reports: ReportsCallback) -> None:
        """`start`: returns the ranks of a policy, not yet started. `on_reports`: of engines that know their rails."""
        self._start = start
        self._on_reports = on_reports
        self._started: dict[str, tuple[ExitStack, MonitoredEngine]] = {}
        self._active: str | None = None

    def close(self) -> None:
        """End all engines; one that can't be ended keeps no other from it."""
        with ExitStack() as ends:
            for name in reversed(self._started):
                ends.callback(self.drop, name)

    def engine_for(self, policy: str) -> MonitoredEngine:
        """Return a policy's engine, running, with all others paused. Raises what the engine raises at its start."""
        name = engine_name(policy)
        if self._active != name:
            active = self._active
            # no engine works if the next lines fail
            self._active = None
            if active is not None:
                self._started[active][1].pause()
            if name in self._started:
                self._started[name][1].resume()
            else:
                stack = ExitStack()
                ranks = stack.enter_context(self._start(name))
                # other engines have channels, or do not know their rails
                has_rails = engine_of(policy).runs_policies
                on_reports = self._on_reports if has_rails else _ignore
                self._started[name] = stack, MonitoredEngine(ranks, on_reports)
            self._active = name
        return self._started[name][1]

    def drop(self, policy: str) -> None:
        """End a policy's engine, which failed; the next policy that needs it gets new processes."""
        name = engine_name(policy)
        if name in self._started:
            stack, _ = self._started.pop(name)
            if self._active == name:
                self._active = None
            stack.close()


def engine_name(policy: str) -> str:
    """Return the policy whose processes a policy runs in: the same for all of Railyard's own."""
    if engine_of(policy).runs_policies:
        return _SHARED_ENGINE
    return policy
