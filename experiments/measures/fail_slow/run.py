"""A job on packets of which a GPU or a link gets slow while it runs, and the detector's validation after it.

The computing of a slow GPU is a longer gap in the replay; a slow link has a lower rate at its shapers. The fault begins
when the last iteration before it has arrived. It stays while the detector plays its validation, as the job waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.experiments.measures.fail_slow.records import ITERATION_TIMES, SLOW_CASES, IterationTime, SlowCase
from railyard.experiments.measures.fail_slow.spec import FailSlowSpec, fault_of
from railyard.experiments.run.session import FabricSession
from railyard.failure.active import ActiveFault
from railyard.failure.diagnosis.cases import Case
from railyard.failure.diagnosis.definition import DETECTORS, Culprit, Diagnosis, Spans, computing_factors, diagnose
from railyard.failure.faults import Fault
from railyard.results.runs.records import Run
from railyard.results.theory.fluid.fail_slow import SimulatedJob
from railyard.workloads.combined import CombinedSchedule, PlacedJob, combined
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.replay.job import PhaseEndCallback
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.replay.run import Replay, replay, time_limit_s
from railyard.workloads.schedule import Schedule, payload_rates
from railyard.workloads.spec import build
from railyard.workloads.stragglers import with_stragglers


@dataclass
class SlowPlayer:
    """Plays schedules on a fabric of which a GPU or a link is slow. `passes`: how many it has played."""

    session: FabricSession
    culprit: Culprit | None
    seed: int
    passes: int = field(default=0, init=False)

    def play(self, schedule: Schedule) -> Spans:
        """Return start and end of each task of a schedule, with what is slow. CheckFailed as of `replayed`."""
        self.passes += 1
        factors = computing_factors(self.culprit, self.session.plan)
        return spans_of(self.replayed(with_stragglers(schedule, factors, 0.0, 0), {}))

    def replayed(self, schedule: Schedule, watched: Mapping[int, PhaseEndCallback]) -> Replay:
        """Replay a schedule. CheckFailed if any of its bytes is missing or wrong."""
        plan = self.session.plan
        ratio = 1.0
        if self.culprit is not None:
            ratio = self.culprit.ratio
        rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
        deadline_s = time_limit_s(line_rate_duration_s(schedule, rates, plan.spec) * ratio)
        # queues empty more slowly at a slow link
        queue_s = longest_queue_s(schedule, plan, self.session.windows) * ratio
        with self.session.relaxed_tcp_timers(queue_s):
            done = replay(schedule, self.session.windows, self.seed, deadline_s, watched=watched)
        if len(done.delivered) < len(schedule.transfers) or done.corrupt:
            missing = len(schedule.transfers) - len(done.delivered)
            raise CheckFailed(f"{missing} transfers are missing and {len(done.corrupt)} corrupt: {done.broken}")
        return done


def spans_of(done: Replay) -> Spans:
    """Return start and end of each task, s from the start of the replay."""
    spans = np.full((len(done.schedule.tasks), 2), np.nan)
    for number, span in done.spans.items():
        spans[number] = span
    seconds: Spans = (spans - done.start_ns) / 1e9
    return seconds


def job_of(schedule: Schedule, iterations: int, case: Case, factors: Sequence[float]) -> CombinedSchedule:
    """Return all iterations of a job, those from the case's on with the computing of a slow GPU.

    `schedule`: of one iteration. `factors`: of the computing of each GPU.
    """
    job = combined([PlacedJob("job", schedule, tuple(range(schedule.gpus)), iterations)])
    columns = job.schedule.columns
    # gates compute for no time, which no factor changes
    is_slow = job.iteration_of_task >= case.iteration
    seconds = np.where(is_slow, columns.seconds * np.asarray(factors)[columns.src], columns.seconds)
    return replace(job, schedule=replace(job.schedule, tasks=replace(columns, seconds=seconds)))


def phases_of_iteration(job: CombinedSchedule, iteration: int) -> set[int]:
    """Return the numbers of the phases in which an iteration sends."""
    block = job.blocks[iteration]
    columns = job.schedule.columns
    phases = columns.phase[block.begin : block.end]
    sends = ~columns.is_compute[block.begin : block.end]
    return set(phases[sends].tolist())


@contextmanager
def injected_after(
    fault: Fault | None, phases: set[int], session: FabricSession
) -> Iterator[dict[int, PhaseEndCallback]]:
    """Yield callbacks by phase number: when all these phases have ended, the fault begins. It ends on leaving.

    CheckFailed if the fault did not begin, or had no effect.
    """
    if fault is None:
        yield {}
        return
    remaining = set(phases)
    with ExitStack() as stack:
        active = stack.enter_context(ActiveFault(session.net, fault))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        injections: list[Future[None]] = []
        active.prepare()

        def inject() -> None:
            active.inject()
            active.confirm()

        def end_of(phase: int) -> PhaseEndCallback:
            def on_end(_: int) -> None:
                remaining.discard(phase)
                if not remaining and not injections:
                    # a thread of its own, since the one that calls reads the workers' messages
                    injections.append(pool.submit(inject))

            return on_end

        yield {phase: end_of(phase) for phase in phases}
        if not injections:
            raise CheckFailed(f"{active.name} was not injected: the iteration before it didn't end")
        # raises what went wrong
        injections[0].result()


@dataclass(frozen=True)
class MeasuredCase:
    """A case that was played, and what the detector said of it.

    `seconds`: of each iteration. `predicted`: the slow-down by the fluid simulation. `passes`: replays of the
    validation.
    """

    item: FailSlowSpec
    case: Case
    seconds: tuple[float, ...]
    predicted: float
    diagnosis: Diagnosis
    passes: int

    def iteration_times(self, interval: IntervalId) -> Iterator[IterationTime]:
        """Yield the time of each iteration."""
        for number, iteration_s in enumerate(self.seconds):
            is_slow = self.case.culprit is not None and number >= self.case.iteration
            yield IterationTime(interval, number, iteration_s, is_slow)

    def row(self, interval: IntervalId) -> SlowCase:
        """Return the case and its diagnosis as a record."""
        case = self.case
        diagnosis = self.diagnosis
        row = SlowCase(
            interval=interval,
            slow_part=self.item.part,
            target="",
            ratio=1.0,
            iteration=case.iteration,
            slowdown=median(self.seconds[case.iteration :]) / median(self.seconds[: case.iteration]),
            predicted=self.predicted,
            reported=-1,
            noticed=-1,
            named=", ".join(f"{named.title} ({named.ratio:.2f})" for named in diagnosis.culprits),
            is_right=diagnosis.is_right(case.culprit),
            passes=self.passes,
            detector=self.item.detector,
        )
        if case.culprit is not None:
            row = replace(row, target=case.culprit.name, ratio=case.culprit.ratio)
        if diagnosis.change is not None:
            row = replace(row, reported=diagnosis.change.iteration, noticed=diagnosis.change.noticed)
        return row


def measure_case(
    item: FailSlowSpec, place: int, session: FabricSession, interval: IntervalId, run: Run, seed: int
) -> None:
    """Run a job in which something gets slow, ask the detector, and record both.

    `place`: as of `FailSlowSpec.case`. CheckFailed if bytes are missing or wrong, or if the fault did not begin.
    """
    plan = session.plan
    schedule = build(item.workload, plan.spec, plan.rail_bps, plan.hb_bps, "fail_slow", seed).schedule
    case = item.case(plan, schedule, seed, interval.repeat, place)
    player = SlowPlayer(session, case.culprit, seed)
    job = job_of(schedule, item.iterations, case, computing_factors(case.culprit, plan))
    phases = phases_of_iteration(job, case.iteration - 1)
    fault = fault_of(case.culprit)
    with injected_after(fault, phases, session) as watched:
        spans = spans_of(player.replayed(job.schedule, watched))
        seconds = job.iteration_seconds(spans[:, 1])[0]

        def spans_of_iteration(iteration: int) -> Spans:
            block = job.blocks[iteration]
            return spans[block.begin : block.end]

        # the fault stays until the validation is over
        detector = DETECTORS[item.detector]
        diagnosis = diagnose(detector, plan, schedule, seconds, spans_of_iteration, player.play)
    predicted = SimulatedJob(plan, schedule).slowdown(case.culprit)
    measured = MeasuredCase(item, case, seconds, predicted, diagnosis, player.passes)
    row = measured.row(interval)
    run.rows(ITERATION_TIMES).extend(measured.iteration_times(interval))
    run.rows(SLOW_CASES).append(row)
    session.record_event(
        interval, "fail-slow", "diagnosed", named=row.named or "nothing", slow=f"{row.slow_part} {row.target}".strip()
    )
