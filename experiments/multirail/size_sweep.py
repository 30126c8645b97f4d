"""All policies on one fabric, in turn: every size, checked against numpy's sum, then timed.

A turn in which a rail was lost, though nothing cut it, is void, and so is what Nezha learnt of the size until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from railyard.core.records import IntervalId
from railyard.experiments.multirail.engine_pool import EnginePool, MonitoredEngine
from railyard.experiments.multirail.measured import check_complete, merge_turns, point, undilated
from railyard.experiments.multirail.predictions import ITEM, counted, learning, sent_bytes, turns
from railyard.experiments.multirail.session import MultirailSession, Watch
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.run.progress import Steps
from railyard.results.runs.allreduce import LostRails, Point, allreduce_interval, size_name
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, definition_of, is_own, peer_rail, predicted_s

CHECKED: Final = 3
"""Operations whose every element is compared: results are the same code, whatever is timed."""
MAX_RESTARTS: Final = 5
"""Void turns of a size: on a machine that loses rails again and again it has to end."""
RAIL_WAIT_S: Final = 10.0
"""How long a rail that was lost is waited for before a turn, in the fabric's own time."""


@dataclass
class _PolicyRun:
    """A policy's operations of one size: its turns, and what ranks told so far. `predicted_s` of an operation.

    `lost`: rails that were, in the last turn or before it; `kept`: those that were in turns of its point. `restarts`:
    how often turns were void for that. `wrong`: elements, in checks that are void.
    """

    interval: IntervalId
    size: int
    sent: int
    seed: int
    predicted_s: float
    turns: Sequence[tuple[int, int]]
    checked: Sequence[RankReport] = ()
    timed: list[Sequence[RankReport]] = field(default_factory=list)
    state: Literal["under way", "done", "broken"] = "under way"
    lost: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    restarts: int = 0
    wrong: int = 0

    def turn(self, ranks: Group) -> None:
        """The next one; before the first, the check."""
        if not self.timed:
            self.checked = self._run(ranks, "int32", CHECKED, check=True)
        self.timed.append(self._run(ranks, "float32", sum(self.turns[len(self.timed)])))
        if len(self.timed) == len(self.turns):
            self.state = "done"

    def restart(self) -> None:
        """As if none had been taken, but for what was wrong."""
        self.wrong += sum(report.wrong for report in self.checked)
        self.checked, self.kept, self.state = (), frozenset(), "under way"
        self.timed.clear()

    def discard_last_turn(self) -> None:
        """The last turn; with the first goes the check."""
        if len(self.timed) == 1:
            self.restart()
        else:
            self.timed.pop()
            self.state = "under way"

    def point(self) -> Point:
        """When all turns were taken."""
        found = point(
            self.interval, self.size, self.sent, merge_turns(self.timed), self.checked, self.turns, self.predicted_s
        )
        return replace(found, wrong=found.wrong + self.wrong)

    @property
    def total_s(self) -> float:
        """What all turns should take."""
        return sum(map(sum, self.turns)) * self.predicted_s

    @property
    def done_s(self) -> float:
        """The same of those that were taken."""
        return sum(map(sum, self.turns[: len(self.timed)])) * self.predicted_s

    def _run(self, ranks: Group, dtype: str, count: int, check: bool = False) -> Sequence[RankReport]:
        policy = self.interval.policy if is_own(self.interval.policy) else ""
        reports = ranks.run(Operations("allreduce", dtype, self.sent, count, self.seed, check, policy=policy))
        check_complete(reports)
        return reports


def run_sizes(
    spec: MultirailExperiment, session: MultirailSession, number: int, sizes: Sequence[int], repeat: int, steps: Steps
) -> None:
    """These sizes of fabric `number`, over the same connections; of each size a turn of every policy, then the next one
    of every policy. Whoever can't, or breaks down, is left out of the rest."""
    with EnginePool(session) as engine_pool:
        left = [policy for policy in spec.policies_on(number) if _attempt(session, engine_pool, policy, lambda _: None)]
        watch = session.watch()
        for size in sizes:
            policy_runs = [_policy_run(spec, session, policy, size, repeat) for policy in left]
            name = f"{session.label}: {size_name(size)}, {len(policy_runs)} policies in turn"
            try:
                with steps.step(name, sum(policy_run.total_s for policy_run in policy_runs)):
                    _run_turns(session, engine_pool, watch, policy_runs, steps)
            finally:
                done = [policy_run.point() for policy_run in policy_runs if policy_run.state == "done"]
                for each in done:
                    undilated(each, session.plan.dilation).add_to(session.run)
                for policy_run in policy_runs:
                    if policy_run.state == "done" and policy_run.kept:
                        _record_lost_rails(session, policy_run, policy_run.kept, kept=True)
            left = [policy_run.interval.policy for policy_run in policy_runs if policy_run.state == "done"]


def _run_turns(
    session: MultirailSession, engine_pool: EnginePool, watch: Watch, policy_runs: Sequence[_PolicyRun], steps: Steps
) -> None:
    """There and back, until none is under way: so none is always next after the same. When one breaks its crew, the
    others that this plays begin anew, with new processes; when a crew lost a rail, the turn is taken anew."""
    back = False
    while under_way := [policy_run for policy_run in policy_runs if policy_run.state == "under way"]:
        for policy_run in reversed(under_way) if back else under_way:
            if not _run_turn(session, engine_pool, watch, policy_run):
                policy_run.state = "broken"
                for other in _sharing_engine(engine_pool, policy_run, under_way):
                    other.restart()
            elif policy_run.lost:
                _after_loss(session, policy_run, _sharing_engine(engine_pool, policy_run, under_way))
            steps.reached(sum(policy_run.done_s for policy_run in policy_runs))
        back = not back


def _sharing_engine(engine_pool: EnginePool, policy_run: _PolicyRun, among: Sequence[_PolicyRun]) -> list[_PolicyRun]:
    """The others that are under way, and played by the same crew."""
    policy = policy_run.interval.policy
    return [
        x
        for x in among
        if x is not policy_run and x.state == "under way" and engine_pool.share_engine(policy, x.interval.policy)
    ]


def _after_loss(session: MultirailSession, policy_run: _PolicyRun, sharing: Sequence[_PolicyRun]) -> None:
    """Its turn is void, and who forgets begins the size anew, since it learns once more when the rail comes back. After
    `MAX_RESTARTS` times the turn is kept, and who forgets learns in operations that count."""
    relearning = [each for each in (policy_run, *sharing) if definition_of(each.interval.policy).relearns]
    if policy_run.restarts == MAX_RESTARTS:
        for each in (policy_run, *(each for each in relearning if each.timed)):
            each.kept |= policy_run.lost
        return
    _record_lost_rails(session, policy_run, policy_run.lost, kept=False)
    if policy_run not in relearning:
        policy_run.discard_last_turn()
    for each in relearning:
        each.restart()
    for each in (policy_run, *sharing):
        each.restarts += 1


def _record_lost_rails(session: MultirailSession, policy_run: _PolicyRun, lost: frozenset[int], kept: bool) -> None:
    """Record rails that were lost; `virtual` has channels in place of rails."""
    interval = policy_run.interval
    names = tuple(session.rails[n].name if is_own(interval.policy) else f"channel {n}" for n in sorted(lost))
    LostRails(interval, names, kept).add_to(session.run)


def _policy_run(
    spec: MultirailExperiment, session: MultirailSession, policy: str, size: int, repeat: int
) -> _PolicyRun:
    sent = sent_bytes(size, session.plan.scale)
    operation_s = predicted_s(policy, session.rails, session.nodes, sent, peer_rail(session.plan.spec))
    parts = turns(learning(policy, spec.learning), counted(spec, operation_s))
    return _PolicyRun(
        allreduce_interval(session.label, policy, size, repeat), size, sent, spec.seed, operation_s, parts
    )


def _run_turn(session: MultirailSession, engine_pool: EnginePool, watch: Watch, policy_run: _PolicyRun) -> bool:
    """A course's next turn, with all rails, watched: small sizes keep cores busiest. Whether it went well."""

    def turn(ranks: MonitoredEngine) -> None:
        ranks.wait_for_rails(_minimal_operation(policy_run), RAIL_WAIT_S * session.plan.dilation)
        with watch.record_load(policy_run.interval):
            policy_run.turn(ranks)
        policy_run.lost = ranks.lost

    return _attempt(session, engine_pool, policy_run.interval.policy, turn)


def _minimal_operation(policy_run: _PolicyRun) -> Operations:
    """An operation of one element, planned by fixed weights: nobody learns from it."""
    policy = "equal" if is_own(policy_run.interval.policy) else ""
    return Operations("allreduce", "float32", ITEM, 1, policy_run.seed, policy=policy)


def _attempt(
    session: MultirailSession, engine_pool: EnginePool, policy: str, do: Callable[[MonitoredEngine], None]
) -> bool:
    """Whether it could; why not is noted."""
    done = False
    with session.recording_skips(policy):
        try:
            do(engine_pool.engine_for(policy))
            done = True
        finally:
            if not done:
                engine_pool.drop(policy)
    return done
