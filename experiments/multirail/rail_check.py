"""Whether a crew has all its rails. When the machine stands still for a while, an engine may take one for dead that
nobody cut; its work moves, it joins again, and what was measured meanwhile is of another fabric than it's named for.
"""

import time
from collections.abc import Sequence
from typing import Final

from railyard.experiments.multirail.measured import check_complete
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group

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
