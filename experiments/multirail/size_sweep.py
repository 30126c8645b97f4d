"""Size sweep: an allreduce of every size under all policies in turn, checked against numpy's sum, then timed.

Policies take turns forward, then backward, so that none always follows the same one. A turn in which a rail was lost
that no fault broke is void, and so is what a policy had learnt of the size until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.experiments.multirail.measured import check_complete, merge_turns, point, undilated
from railyard.experiments.multirail.session import EnginePool, MonitoredEngine, MultirailSession
from railyard.experiments.run.progress import Steps
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.runs.allreduce import LostRails, Point, allreduce_interval
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import definition_of, engine_of, peer_rail, predicted_s
from railyard.workloads.allreduce.workload import ITEM, learning_operations, sent_bytes
from railyard.workloads.jobs.allreduce import AllreduceSpec, turns

CHECKED: Final = 3
"""Operations whose every element is compared: the results come from the same code as those that are timed."""
MAX_RESTARTS: Final = 5
"""Void turns of a size, so that the sweep ends on a machine that loses rails again and again."""
RAIL_WAIT_S: Final = 10.0
"""Seconds of the fabric's own time that a lost rail may take to return before a turn."""


@dataclass
class PolicyRun:
    """A policy's operations of one size: a check, then its turns. `predicted_s`: of one operation.

    `lost`: rails that were lost in the last turn or before it; `kept`: those lost in turns that count. `restarts`: how
    often turns were void. `wrong`: wrong elements in void checks.
    """

    interval: IntervalId
    size: int
    sent: int
    seed: int
    predicted_s: float
    turns: Sequence[tuple[int, int]]
    checked: Sequence[RankReport] = ()
    timed: list[Sequence[RankReport]] = field(default_factory=list)
    is_broken: bool = False
    lost: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    restarts: int = 0
    wrong: int = 0

    @property
    def policy(self) -> str:
        """The policy."""
        return self.interval.policy

    @property
    def is_done(self) -> bool:
        """All turns were taken."""
        return len(self.timed) == len(self.turns)

    @property
    def is_under_way(self) -> bool:
        """True while turns are left and the engine works."""
        return not (self.is_done or self.is_broken)

    def take_turn(self, ranks: MonitoredEngine) -> None:
        """Run the next turn; before the first, the check."""
        if not self.timed:
            self.checked = self._run(ranks, "int32", CHECKED, check=True)
        self.timed.append(self._run(ranks, "float32", sum(self.turns[len(self.timed)])))

    def restart(self) -> None:
        """Discard all turns and the check, but keep what was wrong."""
        self.wrong += sum(report.wrong for report in self.checked)
        self.checked, self.kept = (), frozenset()
        self.timed.clear()

    def discard_last_turn(self) -> None:
        """Discard the last turn; with the first, the check too."""
        if len(self.timed) == 1:
            self.restart()
        else:
            self.timed.pop()

    def point(self) -> Point:
        """Return the point, once all turns were taken."""
        merged = merge_turns(self.timed)
        found = point(self.interval, self.size, self.sent, merged, self.checked, self.turns, self.predicted_s)
        return replace(found, wrong=found.wrong + self.wrong)

    def predicted_total_s(self, turns: int | None = None) -> float:
        """Return the predicted time of all turns, or of the first ones, in s."""
        return sum(map(sum, self.turns[:turns])) * self.predicted_s

    def _run(self, ranks: MonitoredEngine, dtype: str, count: int, check: bool = False) -> Sequence[RankReport]:
        policy = self.policy if engine_of(self.policy).runs_policies else ""
        reports = ranks.run(Operations("allreduce", dtype, self.sent, count, self.seed, check, policy=policy))
        check_complete(reports)
        return reports


class SizeSweep:
    """Measurement of sizes over the same connections; whatever is measured goes into the session's run."""

    def __init__(
        self, workload: AllreduceSpec, seed: int, session: MultirailSession, pool: EnginePool, steps: Steps
    ) -> None:
        self._workload, self._seed = workload, seed
        self._session, self._pool, self._steps = session, pool, steps
        self._watch = session.watch()

    def attempt(self, policy: str, do: Callable[[MonitoredEngine], None]) -> bool:
        """Do something with a policy's engine; return whether it worked. If not, the reason is recorded."""
        worked = False
        with self._session.recording_skips(policy):
            try:
                do(self._pool.engine_for(policy))
                worked = True
            finally:
                if not worked:
                    self._pool.drop(policy)
        return worked

    def measure(self, policies: Sequence[str], size: int, repeat: int) -> list[str]:
        """Measure a size under all policies; return those that got through."""
        runs = [self._policy_run(policy, size, repeat) for policy in policies]
        name = f"{self._session.label}: {size_name(size)}, {len(runs)} policies in turn"
        try:
            with self._steps.step(name, sum(run.predicted_total_s() for run in runs)):
                self._take_turns(runs)
        finally:
            done = [run for run in runs if run.is_done]
            for run in done:
                undilated(run.point(), self._session.dilation).add_to(self._session.run)
                if run.kept:
                    self._record_lost_rails(run, run.kept, kept=True)
        return [run.policy for run in done]

    def _policy_run(self, policy: str, size: int, repeat: int) -> PolicyRun:
        session, workload = self._session, self._workload
        sent = sent_bytes(size, session.plan.scale)
        operation_s = predicted_s(policy, session.rails, session.nodes, sent, peer_rail(session.plan.spec))
        parts = turns(learning_operations(policy, workload.learning), workload.counted(operation_s))
        interval = allreduce_interval(session.label, policy, size, repeat)
        return PolicyRun(interval, size, sent, self._seed, operation_s, parts)

    def _take_turns(self, runs: Sequence[PolicyRun]) -> None:
        """Let each policy take a turn, forward and backward, until none is under way.

        When a policy's engine fails, the others that share it start anew, with new processes.
        """
        backward = False
        while under_way := [run for run in runs if run.is_under_way]:
            for run in reversed(under_way) if backward else under_way:
                sharing = [
                    other
                    for other in under_way
                    if other is not run and other.is_under_way and self._pool.share_engine(run.policy, other.policy)
                ]
                if not self._take_turn(run):
                    run.is_broken = True
                    for other in sharing:
                        other.restart()
                elif run.lost:
                    self._after_loss(run, sharing)
                self._steps.reached(sum(each.predicted_total_s(len(each.timed)) for each in runs))
            backward = not backward

    def _take_turn(self, run: PolicyRun) -> bool:
        """Take a policy's next turn when all rails are there, with its load recorded; return whether it worked."""
        policy = "equal" if engine_of(run.policy).runs_policies else ""  # fixed weights: no policy learns from it
        minimal = Operations("allreduce", "float32", ITEM, 1, run.seed, policy=policy)

        def turn(ranks: MonitoredEngine) -> None:
            ranks.wait_for_rails(minimal, RAIL_WAIT_S * self._session.dilation)
            with self._watch.record_load(self._session.run, run.interval):
                run.take_turn(ranks)
            run.lost = ranks.lost

        return self.attempt(run.policy, turn)

    def _after_loss(self, run: PolicyRun, sharing: Sequence[PolicyRun]) -> None:
        """Discard a turn in which a rail was lost. Policies that relearn start the size anew: they learn once more when
        the rail returns. After `MAX_RESTARTS` the turn is kept, and they learn in operations that count.
        """
        relearning = [each for each in (run, *sharing) if definition_of(each.policy).relearns]
        if run.restarts == MAX_RESTARTS:
            for each in (run, *(each for each in relearning if each.timed)):
                each.kept |= run.lost
            return
        self._record_lost_rails(run, run.lost, kept=False)
        if run not in relearning:
            run.discard_last_turn()
        for each in relearning:
            each.restart()
        for each in (run, *sharing):
            each.restarts += 1

    def _record_lost_rails(self, run: PolicyRun, lost: frozenset[int], kept: bool) -> None:
        """Record lost rails; the engine `virtual` has channels in place of rails."""
        rails = self._session.rails
        names = tuple(rails[n].name if engine_of(run.policy).runs_policies else f"channel {n}" for n in sorted(lost))
        LostRails(run.interval, names, kept).add_to(self._session.run)


def run_sizes(
    workload: AllreduceSpec, spec: ExperimentSpec, session: MultirailSession, number: int, steps: Steps
) -> None:
    """Measure all sizes that have this session's dilation, with new processes for each repeat. A policy that can't run,
    or fails, is left out of the rest of the repeat.
    """
    fabric = session.plan.spec
    for repeat in count():
        sizes = workload.sizes_to_measure(number, fabric, session.dilation, repeat, spec.repeats)
        if not sizes:
            return
        with EnginePool(session) as pool:
            sweep = SizeSweep(workload, spec.seed, session, pool, steps)
            left = [p for p in workload.policies_on(number, fabric) if sweep.attempt(p, lambda _: None)]
            for size in sizes:
                left = sweep.measure(left, size, repeat)
