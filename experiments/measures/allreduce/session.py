"""Session on a multi-rail fabric: the engines that run on it, and the sweep of sizes that workloads ask for.

An allreduce of every size runs under all policies in turn, checked against numpy's sum, then timed. Policies take turns
forward, then backward, so that none always follows the same one. A turn in which a rail was lost that no fault broke is
void, and so is what a policy had learnt of the size until then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from railyard.core.errors import MissingRequirement, RailyardError
from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.experiments.measures.allreduce.engines import EnginePool, MonitoredEngine, engine_name
from railyard.experiments.measures.allreduce.records import LostRails, Skipped, allreduce_interval
from railyard.experiments.measures.allreduce.reports import lost_rails, merge_turns, point
from railyard.experiments.measures.definition import RunContext
from railyard.experiments.run import observers
from railyard.experiments.run.progress import Steps, measure_undisturbed
from railyard.experiments.run.session import Session, built_net
from railyard.results.runs.records import LinkCheck, Measurement, Run
from railyard.topologies.build.shaping import IP_TCP, idle_credit_s
from railyard.topologies.measure.rates import calibration_s, measured_bps, start_flow
from railyard.topologies.multirail.commands import GSO_BURST_S, IDLE_BURST_S
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import Nic
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import GroupBroken, Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, definition_of, engine_of, peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.workload import ITEM, sent_bytes

CHECKED: Final = 3
"""Operations whose every element is compared: the results come from the same code as those that are timed."""
# Stages of an allreduce: each may begin on idle links, whose shapers have saved credit.
STAGES: Final = 2
# Void turns of a size are limited, so that the sweep ends on a machine that loses rails again and again.
MAX_RESTARTS: Final = 5
# Time, on the fabric's own clock, that a lost rail may take to return before a turn.
RAIL_WAIT_S: Final = 10.0
# (operations that don't count, operations that then do) of each turn
Turns = Sequence[tuple[int, int]]


@dataclass
class AllreduceSession(Session):
    """A built multi-rail fabric, the experiment's `number`. Whatever is measured goes into `run`."""

    net: MultirailNet
    run: Run = field(repr=False)
    steps: Steps
    number: int
    seed: int
    repeats: int

    @property
    def plan(self) -> MultirailPlan:
        """The plan of its network."""
        return self.net.plan

    @cached_property
    def rails(self) -> tuple[Rail, ...]:
        """The rails as predictions take them: rates are those of payload."""
        return rails_of(self.plan)

    def show_lost_rails(self, reports: Sequence[RankReport]) -> None:
        """Show on the live page which rails were lost, and when their work had moved to others."""
        for ns, event, detail in lost_rails(reports, [rail.name for rail in self.rails]):
            observers.show(event, detail, ns)

    @contextmanager
    def recording_skips(self, policy: str) -> Iterator[None]:
        """Record a policy that can't run here, or fails, and go on."""
        try:
            yield
        except MissingRequirement as error:
            Skipped(self.label, policy, error.what, failed=False).add_to(self.run)
        except (RailyardError, GroupBroken) as error:
            Skipped(self.label, policy, str(error), failed=True).add_to(self.run)

    @contextmanager
    def interval(self, workload: str, policy: str, repeat: int = 0, title: str = "") -> Iterator[IntervalId]:
        """Record the load and a step of progress while entered, and a policy that can't run, by `title` if given."""
        interval = IntervalId(self.label, workload, policy, repeat=repeat)
        # what is skipped has no load: shares of the few milliseconds until then would say that other programs were busy
        with (
            self.steps.step(f"{self.label}: {title or f'{workload}, {policy}'}"),
            self.recording_skips(title or policy),
            self.watch().record_load(self.run, interval),
        ):
            yield interval

    def record(
        self, where: IntervalId, metric: str, value: float, unit: str, predicted: float | None = None, phase: str = ""
    ) -> None:
        """Add a measurement."""
        self.run.measurements.append(Measurement(where, phase, metric, float(value), unit, predicted))

    def engine(self, policy: str) -> Group:
        """Return the ranks of a policy, not yet started; `recording_skips` takes what they raise."""
        return engine_of(policy).start(self.net, policy)

    def measure_sizes(
        self, sizes: Sequence[int], policies: Sequence[str], repeat: int, turns: Callable[[str, float], Turns]
    ) -> None:
        """Measure the sizes with new processes. A policy that can't run, or fails, is left out of the rest."""
        with closing(EnginePool(self.engine, self.show_lost_rails)) as pool:
            sweep = SizeSweep(self, pool)
            working = [policy for policy in policies if sweep.attempt(policy, lambda _: None)]
            for size in sizes:
                working = sweep.measure(working, size, repeat, turns)


@contextmanager
def calibrated_session(context: RunContext, number: int, plan: MultirailPlan) -> Iterator[AllreduceSession]:
    """Build a fabric, measure a NIC of each rail, and take it down again.

    `number`: of the fabric in the experiment. `plan`: of the fabric, with the dilation in which it is built.
    """
    spec = context.spec
    run = context.run
    label = spec.labels[number]
    net = MultirailNet(plan, context.datapath)
    slower = ""
    if plan.dilation > 1:
        slower = f", time {plan.dilation:g} times slower"
    with ExitStack() as stack:
        with context.steps.step(f"{label}: building and calibrating{slower}"):
            stack.enter_context(built_net(label, net, run))
            run.links += _link_checks(label, plan, slower)
        with observers.fabric(label, net, run.events):
            yield AllreduceSession(label, net, run, context.steps, number, spec.seed, spec.repeats)


def _link_checks(label: str, plan: MultirailPlan, slower: str) -> list[LinkCheck]:
    """Measure all rails at once by iperf3 from node 1 to node 0, for 2 s, or more below 7 Mbit/s.

    `slower`: added to the names of rails in slow motion.
    """
    rates = list(map(plan.payload_bps, range(len(plan.rails))))
    flows = [start_flow("n1", "n0", Nic(number, 0).ip, calibration_s(bps)) for number, bps in enumerate(rates)]
    checks: list[LinkCheck] = []
    for rail, bps, flow in zip(plan.rails, rates, flows, strict=True):
        name = f"rail {rail.name}{slower}"
        checks.append(LinkCheck(label, name, "n1 -> n0", bps, measured_bps(flow), plan.dilation))
    return checks


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
    turns: Turns
    checked: Sequence[RankReport] = ()
    timed: list[Sequence[RankReport]] = field(default_factory=list)
    is_broken: bool = False
    lost: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    restarts: int = 0
    wrong: int = 0

    @property
    def is_done(self) -> bool:
        """All turns were taken."""
        return len(self.timed) == len(self.turns)

    @property
    def is_under_way(self) -> bool:
        """Turns are left to take, and its engine works."""
        return not (self.is_done or self.is_broken)

    def shares_engine(self, other: "PolicyRun") -> bool:
        """Return whether another run's policy is one of the same engine."""
        return other is not self and engine_name(other.interval.policy) == engine_name(self.interval.policy)

    def take_turn(self, ranks: MonitoredEngine) -> None:
        """Run the next turn; before the first, the check."""
        policy = ""
        if engine_of(self.interval.policy).runs_policies:
            policy = self.interval.policy
        if not self.timed:
            check = Operations("allreduce", "int32", self.sent, CHECKED, self.seed, check=True, policy=policy)
            self.checked = ranks.run(check)
        count = sum(self.turns[len(self.timed)])
        self.timed.append(ranks.run(Operations("allreduce", "float32", self.sent, count, self.seed, policy=policy)))

    def restart(self) -> None:
        """Discard all turns and the check, but keep what was wrong."""
        self.wrong += sum(report.wrong for report in self.checked)
        self.checked = ()
        self.kept = frozenset()
        self.timed.clear()

    def predicted_total_s(self, turns: int | None = None) -> float:
        """Return the predicted time of all turns, or of the first ones, in s."""
        return sum(map(sum, self.turns[:turns])) * self.predicted_s


class SizeSweep:
    """Measurement of sizes over the same connections; whatever is measured goes into the session's run."""

    def __init__(self, session: AllreduceSession, pool: EnginePool) -> None:
        self._session = session
        self._pool = pool
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

    def measure(
        self, policies: Sequence[str], size: int, repeat: int, turns: Callable[[str, float], Turns]
    ) -> list[str]:
        """Measure a size under all policies; return those that got through.

        If the machine was busy, all of them take their turns again: they are to be compared.
        """
        session = self._session
        working = list(policies)
        predicted = sum(run.predicted_total_s() for run in self._policy_runs(working, size, repeat, turns))

        def measure() -> bool:
            nonlocal working
            self._watch = session.watch()
            runs = self._policy_runs(working, size, repeat, turns)
            try:
                self._take_turns(runs)
            finally:
                done = [run for run in runs if run.is_done]
                is_right = self._add_points(done)
                working = [run.interval.policy for run in done]
            return is_right and not any(run.is_broken for run in runs)

        with session.steps.step(f"{session.label}: {size_name(size)}, {len(working)} policies in turn", predicted):
            measure_undisturbed(session.run, measure)
        return working

    def _policy_runs(
        self, policies: Sequence[str], size: int, repeat: int, turns: Callable[[str, float], Turns]
    ) -> list[PolicyRun]:
        session = self._session
        plan = session.plan
        runs = []
        sent = sent_bytes(size, plan.scale)
        for policy in policies:
            operation_s = predicted_s(policy, session.rails, plan.spec.nodes, sent, peer_rail(plan.spec))
            interval = allreduce_interval(session.label, policy, size, repeat)
            runs.append(PolicyRun(interval, size, sent, session.seed, operation_s, turns(policy, operation_s)))
        return runs

    def _add_points(self, done: Sequence[PolicyRun]) -> bool:
        """Record what each policy measured; return whether every sum was right."""
        plan = self._session.plan
        mtu = plan.spec.mtu
        rail_credits_s = [idle_credit_s(rate, mtu, GSO_BURST_S, IDLE_BURST_S) for rate in plan.rates_bps]
        credit_s = STAGES * max(rail_credits_s)
        is_right = True
        for run in done:
            row = point(
                run.interval,
                run.size,
                run.sent,
                merge_turns(run.timed),
                run.checked,
                run.turns,
                run.predicted_s,
                dilation=plan.dilation,
                frames=run.sent / plan.spec.nodes / (mtu - IP_TCP),
                credit_s=credit_s,
            )
            row = replace(row, wrong=row.wrong + run.wrong)
            row.add_to(self._session.run)
            is_right = is_right and not row.wrong
            if run.kept:
                self._record_lost_rails(run, run.kept, kept=True)
        return is_right

    def _take_turns(self, runs: Sequence[PolicyRun]) -> None:
        """Let each policy take a turn, forward and backward, until all are done or broken.

        When a policy's engine fails, the others that share it start anew, with new processes.
        """
        order = list(runs)
        while under_way := [run for run in order if run.is_under_way]:
            for run in under_way:
                sharing = [other for other in under_way if other.is_under_way and run.shares_engine(other)]
                if not self._take_turn(run):
                    run.is_broken = True
                    for other in sharing:
                        other.restart()
                elif run.lost:
                    self._after_loss(run, sharing)
                self._session.steps.reached(sum(other.predicted_total_s(len(other.timed)) for other in runs))
            # forward and backward, so that what slows down with time is in no policy's favour
            order.reverse()

    def _take_turn(self, run: PolicyRun) -> bool:
        """Take a policy's next turn when all rails are there, with its load recorded; return whether it worked."""
        # with fixed weights no policy learns from it
        policy = ""
        if engine_of(run.interval.policy).runs_policies:
            policy = "equal"
        minimal = Operations("allreduce", "float32", ITEM, 1, run.seed, policy=policy)

        def turn(ranks: MonitoredEngine) -> None:
            ranks.wait_for_rails(minimal, RAIL_WAIT_S * self._session.plan.dilation)
            with self._watch.record_load(self._session.run, run.interval):
                run.take_turn(ranks)
            run.lost = ranks.lost

        return self.attempt(run.interval.policy, turn)

    def _after_loss(self, run: PolicyRun, sharing: Sequence[PolicyRun]) -> None:
        """Discard a turn in which a rail was lost. Policies that relearn start the size anew: they learn once more when
        the rail returns. After `MAX_RESTARTS` the turn is kept, and they learn in operations that count.
        """
        affected = (run, *sharing)
        relearning = [other for other in affected if definition_of(other.interval.policy).relearns]
        if run.restarts == MAX_RESTARTS:
            run.kept |= run.lost
            for other in relearning:
                if other.timed:
                    other.kept |= run.lost
            return
        self._record_lost_rails(run, run.lost, kept=False)
        if run not in relearning:
            # the check before the first turn is void with it
            if len(run.timed) == 1:
                run.restart()
            else:
                run.timed.pop()
        for other in relearning:
            other.restart()
        for other in affected:
            other.restarts += 1

    def _record_lost_rails(self, run: PolicyRun, lost: frozenset[int], kept: bool) -> None:
        """Record lost rails; the engine `virtual` has channels in place of rails."""
        has_rails = engine_of(run.interval.policy).runs_policies
        names: list[str] = []
        for number in sorted(lost):
            names.append(self._session.rails[number].name if has_rails else f"channel {number}")
        LostRails(run.interval, tuple(names), kept).add_to(self._session.run)
