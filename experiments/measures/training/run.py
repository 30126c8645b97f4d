"""Trainings of an experiment: real programs at the GPUs of a fabric, a fault meanwhile, and what the training lost.

Weights are compared step by step with those of a training without a fault, of the same seed.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from railyard.core import watch
from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.training import outcome as results
from railyard.experiments.measures.training.job import RunningJob
from railyard.experiments.measures.training.outcome import TrainingOutcome
from railyard.experiments.measures.training.spec import TrainingSpec
from railyard.experiments.run import observers
from railyard.experiments.run.heartbeats import heartbeats_running
from railyard.experiments.run.items import checked_fabric
from railyard.experiments.run.progress import Steps, measure_undisturbed
from railyard.experiments.run.session import (
    FabricSession,
    record_late_injection,
    repeat_suffix,
    surviving_interruptions,
)
from railyard.experiments.spec.experiment import Reroute
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.failure.active import PREPARE_S, ActiveFault
from railyard.results.runs.records import Event, Measurement, Run
from railyard.workloads.training.program import is_whole

_POLL_S: Final = 0.005
# Metric, value, unit and phase.
Row = tuple[str, float, str, str]

# The hashes that ranks reported, by step.
Weights = Mapping[int, frozenset[str]]


@dataclass(frozen=True)
class Reference:
    """The training without a fault: its weights, or the pace of a program that doesn't report steps."""

    weights: Weights
    pace: results.Pace | None = None


@dataclass(frozen=True)
class TrainingRun:
    """One training program on one built fabric, and the records that its measurements are added to."""

    session: FabricSession
    training: TrainingSpec
    seed: int
    reroute: str
    run: Run

    def interval(self, repeat: int = 0, fault: BaseFaultSpec | None = None) -> IntervalId:
        """Return the identity of a training with a fault, or of the one without."""
        # a fault is a script of its own: results.csv has a column for scripts
        script = ""
        if fault:
            script = fault.fault.name
        return replace(self.session.interval(self.training.program, repeat, script=script), reroute=self.reroute)

    def without_fault(self) -> Reference:
        """Train without a fault. CheckFailed if ranks differ, or one fails."""
        interval = self.interval()
        with tempfile.TemporaryDirectory() as folder, self._job(folder) as job:
            deadline_s = time.monotonic() + self.training.deadline
            self._await_begin(job, deadline_s)
            with self.session.watch().record_load(self.run, interval):
                while not job.is_over():
                    self._check_deadline(job, deadline_s)
                    time.sleep(_POLL_S)
        if job.meter:
            if (pace := results.pace(job.meter.sent)) is None:
                raise CheckFailed(f"{self.training.program} without a fault ended too soon, or sent too little")
            return Reference({}, pace)
        never = results.OPEN_END_NS
        outcome = results.outcome(job.reports, {}, len(job.job.addresses), self.training.steps, never, never)
        if not outcome.completed:
            raise CheckFailed(f"{self.training.program} without a fault: not all steps were done")
        if not outcome.ranks_equal:
            problem = f"ranks differ after step {outcome.first_difference}"
            raise CheckFailed(f"{self.training.program} without a fault: {problem}")
        self._record(interval, [(results.STEP_TIME, outcome.step_s[results.BEFORE], "s", "")])
        return Reference(results.weights_by_step(job.reports))

    def with_fault(self, fault: BaseFaultSpec, repeat: int, reference: Reference) -> None:
        """Train with a fault, and record what it did. CheckFailed if an earlier fault's detours stay."""
        self.session.await_detours_withdrawn()
        session = self.session
        interval = self.interval(repeat, fault)
        dead = frozenset[str]()
        if fault.fault.definition.stops_gpus:
            dead = fault.fault.impact(session.plan).nodes
        begin = 0.0
        if reference.pace:
            begin = reference.pace.begin
        with tempfile.TemporaryDirectory() as folder, self._job(folder, begin) as job:
            deadline_s = time.monotonic() + self.training.deadline
            self._await_begin(job, deadline_s)
            inject_s = time.monotonic() + fault.at
            with (
                session.watch().record_load(self.run, interval, faulted=True),
                ActiveFault(session.net, fault.fault, observers.show_fault) as active,
            ):
                is_over = self._break_and_repair(job, fault, active, dead, inject_s, deadline_s)
        t_fault = active.injected_ns
        t_repair = active.repaired_ns
        if not t_fault:
            limit = f"the deadline of {self.training.deadline:g} s"
            raise CheckFailed(f"{self.training.program} came to {limit} before {fault.fault.name}")
        ranks = list(job.job.addresses)
        killed = frozenset(map(ranks.index, dead.intersection(ranks)))
        until = results.OPEN_END_NS
        # a job that was started again as a whole doesn't notice the fault any more
        if self.training.definition.restarts == "job" and job.restarts:
            until = job.restarts[0]
        self._record_events(interval, fault, job, t_fault, t_repair)
        record_late_injection(self.run, interval, fault.fault, t_fault, active.late_ns)
        if job.meter and reference.pace:
            rows = [
                (results.STALLED, results.stalled_s(job.meter.sent, reference.pace, t_fault), "s", ""),
                (results.COMPLETED, float(is_over), "1", ""),
            ]
            detected_s = results.detected_s(job.reports, t_fault, killed, until)
        else:
            steps = self.training.steps
            times = (t_fault, t_repair, killed, until)
            outcome = results.outcome(job.reports, reference.weights, len(ranks), steps, *times)
            rows = self._outcome_rows(outcome)
            detected_s = outcome.detected_s
        if detected_s is not None:
            rows.append((results.DETECTED, detected_s, "s", ""))
        self._record(interval, rows)

    def _break_and_repair(
        self,
        job: RunningJob,
        fault: BaseFaultSpec,
        active: ActiveFault,
        dead: frozenset[str],
        inject_s: float,
        deadline_s: float,
    ) -> bool:
        """Inject and repair a fault of a running job. Return whether the job is over, or else the deadline has passed.

        `dead`: GPUs that can't run anything while the fault is active. `inject_s`, `deadline_s`: monotonic, s.
        CheckFailed if the job is over before the fault.
        """
        # probes end before the repair, which they would take for a reroute
        with ExitStack() as probing:
            show_injected: Callable[[int], None] | None = None
            while True:
                is_over = job.is_over(active.is_injected, dead)
                if is_over and active.repaired_ns:
                    return True
                now_s = time.monotonic()
                if show_injected is None and now_s >= inject_s - PREPARE_S:
                    show_injected = probing.enter_context(observers.probing(fault.fault))
                    active.prepare()
                elif show_injected and not active.injected_ns and now_s >= inject_s:
                    job.may_restart = True
                    active.inject(round(inject_s * 1e9))
                    active.confirm()
                    show_injected(active.injected_ns)
                elif active.is_injected and now_s >= active.injected_ns / 1e9 + fault.repair:
                    probing.close()
                    active.repair()
                if is_over and not active.injected_ns:
                    allowed = "it must take longer, or the fault needs an earlier `at`"
                    raise CheckFailed(f"{self.training.program} ended before {fault.fault.name}: {allowed}")
                if now_s >= deadline_s:
                    return is_over
                time.sleep(_POLL_S)

    def _job(self, folder: str, begin_segments: float = 0.0) -> RunningJob:
        job = self.training.job(self.session.plan, self.seed, Path(folder))
        return RunningJob(self.session, self.training, job, begin_segments=begin_segments)

    def _await_begin(self, job: RunningJob, deadline_s: float) -> None:
        while not job.has_begun:
            job.is_over()
            self._check_deadline(job, deadline_s)
            time.sleep(_POLL_S)

    def _check_deadline(self, job: RunningJob, deadline_s: float) -> None:
        watch.check()
        if time.monotonic() >= deadline_s:
            limit = f"within {self.training.deadline:g} s"
            raise CheckFailed(f"{self.training.program} without a fault did not end {limit}: {job.last_words()}")

    def _outcome_rows(self, outcome: TrainingOutcome) -> list[Row]:
        """Return the measurements of a training that reports steps."""
        rows: list[Row] = [
            (results.STALLED, outcome.stalled_s, "s", ""),
            (results.LOST, outcome.steps_lost, "steps", ""),
            (results.COMPLETED, outcome.completed, "1", ""),
            (results.RANKS, outcome.ranks_equal, "1", ""),
        ]
        rows += [(results.STEP_TIME, seconds, "s", part) for part, seconds in outcome.step_s.items()]
        if is_whole(self.training.arguments, len(self.training.gpus_on(self.session.plan))):
            rows.append((results.WEIGHTS, outcome.weights_equal, "1", ""))
        return rows

    def _record(self, interval: IntervalId, rows: Sequence[Row]) -> None:
        for metric, value, unit, phase in rows:
            self.run.measurements.append(Measurement(interval, phase, metric, float(value), unit))

    def _record_events(
        self, interval: IntervalId, fault: BaseFaultSpec, job: RunningJob, t_fault: int, t_repair: int
    ) -> None:
        self.session.record_fault(self.run, interval, fault.fault, t_fault, t_repair)
        for report in job.reports:
            if report.what != "step":
                detail = {**interval.as_dict(), "rank": report.rank, "step": report.step, "text": report.detail}
                self.run.events.append(Event(report.at_ns, results.TRAINING, report.what, detail))
        self.run.events += [Event(at, results.TRAINING, "restarted", interval.as_dict()) for at in job.restarts]


def run_trainings(context: RunContext, measure: Measure[TrainingSpec]) -> None:
    """Build a fabric for each `reroute`, and train on it: without a fault, then with each."""
    spec = context.spec
    for number, trainings in measure.items_by_fabric(spec):
        for reroute in spec.reroute:
            _train_on(context, number, reroute, trainings, measure.repeats(spec))


def _train_on(
    context: RunContext, number: int, reroute: Reroute, trainings: Sequence[TrainingSpec], repeats: int
) -> None:
    """Build a fabric, by its number, and run all its trainings."""
    spec = context.spec
    run = context.run
    heartbeats = "off" if reroute == "off" else spec.heartbeats
    with checked_fabric(context, number, reroute == "on") as session, heartbeats_running(session, heartbeats, run):
        for training in trainings:
            with surviving_interruptions(run, IntervalId(session.label)):
                _train(TrainingRun(session, training, spec.seed, reroute, run), repeats, context.steps)


def _train(training_run: TrainingRun, repeats: int, steps: Steps) -> None:
    training = training_run.training
    run = training_run.run
    title = f"{training_run.session.label}: {training.program}"
    reference: list[Reference] = []
    with steps.step(f"{title}, no fault"):
        measure_undisturbed(run, lambda: reference.append(training_run.without_fault()))
    for fault in training.faults:
        for repeat in range(repeats):
            with (
                steps.step(f"{title}, {fault.fault.name}" + repeat_suffix(repeat, repeats)),
                surviving_interruptions(run, training_run.interval(repeat, fault)),
            ):
                measure_undisturbed(run, partial(training_run.with_fault, fault, repeat, reference[-1]))
