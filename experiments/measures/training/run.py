"""Trainings of an experiment: real programs at the GPUs of a fabric, a fault meanwhile, and what the training lost.

The launcher is that of the definition (`restarts`): what ended is started again once the fault is repaired. Weights are
compared step by step with those of a training without a fault, of the same seed.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from railyard.core import watch
from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import Measure, RunContext
from railyard.experiments.measures.training import outcome as results
from railyard.experiments.measures.training.outcome import Report, TrainingOutcome
from railyard.experiments.measures.training.spec import TrainingSpec
from railyard.experiments.measures.training.traffic import TrafficMeter
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
from railyard.failure.faults.support.processes import processes_in, signal_all
from railyard.results.runs.records import Event, Measurement, Run
from railyard.topologies.build import namespaces, programs
from railyard.workloads.training.program import Job, Launch, Line, is_whole

_POLL_S: Final = 0.005
# Lines of a process's output that error messages may need.
_KEPT_LINES: Final = 20
# A process that a program has started may hold the pipe of its output open for ever.
_OUTPUT_S: Final = 1.0
MAX_RESTARTS: Final = 20
# Time between two searches for processes that programs have started.
_SCAN_S: Final = 1.0
# The variable is in the environment of all processes of a job, also of those that its programs start.
_JOB: Final = "RAILYARD_TRAINING"
_KILLED: Final = (-signal.SIGKILL, -signal.SIGTERM)
# mpirun returns this status, like a shell, if a rank was killed.
_LAUNCHER_KILLED: Final = 128 + signal.SIGKILL
# Metric, value, unit and phase.
Row = tuple[str, float, str, str]

# The hashes that ranks reported, by step.
Weights = Mapping[int, frozenset[str]]


@dataclass(frozen=True)
class Reference:
    """The training without a fault: its weights, or the pace of a program that doesn't report steps."""

    weights: Weights
    pace: results.Pace | None = None


@dataclass
class _Program:
    """A process that was started. `last`: its last lines that are no reports; `reader` ends with its output."""

    launch: Launch
    process: "subprocess.Popen[bytes]"
    watched: watch.Watched
    reader: threading.Thread
    last: "deque[str]"
    is_noted: bool = False  # its end is among the reports

    @property
    def last_words(self) -> str:
        """Its last line with a word in it, for messages."""
        for line in reversed(self.last):
            if any(map(str.isalpha, line)):
                return line
        return ""


@dataclass
class RunningJob:
    """Processes of a training job on a built fabric, and what they have reported. They end with the context."""

    session: FabricSession
    training: TrainingSpec
    job: Job
    reports: list[Report] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)  # when processes were started again, monotonic ns
    begin_segments: float = 0.0  # that a program without reports has sent when it has begun
    may_restart: bool = False  # before a fault, a process that fails is an error
    meter: TrafficMeter | None = None
    _ranks: list[_Program] = field(default_factory=list)
    _services: list[_Program] = field(default_factory=list)
    _descendants: dict[int, watch.Watched] = field(default_factory=dict)  # processes that programs started, by id
    _scanned_s: float = 0.0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if not self.training.definition.reports_steps:
                self.meter = stack.enter_context(TrafficMeter(self.job.addresses))
            stack.callback(self._kill)
            self._start_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_all(self) -> None:
        definition = self.training.definition
        for gpu, address in self.job.addresses.items():
            if command := definition.setup(address):
                with namespaces.inside(gpu):
                    namespaces.run(command)
        self._services = [self._start(launch) for launch in definition.services(self.job)]
        self._ranks = [self._start(launch) for launch in definition.launches(self.job)]

    def _start(self, launch: Launch) -> _Program:
        # Open MPI leaves files there when it is killed
        temporary = self.job.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        job_variables = {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary), _JOB: str(id(self))}
        environment = {**os.environ, **job_variables, **launch.environment}
        streams = (subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT)
        try:
            process = programs.start(launch.node, launch.argv, streams, environment, launch.cwd)
        except OSError as error:
            raise CheckFailed(f"{launch.argv[0]} can't be started: {error.strerror}") from None
        watched = watch.add(self._name(launch.node), process.pid, may_die=True)
        last = deque[str](maxlen=_KEPT_LINES)
        reader = threading.Thread(target=self._read, args=(launch.rank, process, last), daemon=True)
        reader.start()
        return _Program(launch, process, watched, reader, last)

    def _name(self, gpu: str) -> str:
        return f"{self.training.program} at {gpu}"

    def _read(self, rank: int, process: "subprocess.Popen[bytes]", last: "deque[str]") -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for raw in output:
                at_ns = time.monotonic_ns()
                text = raw.decode(errors="replace")
                if line := Line.parse(text, rank):
                    self.reports.append(Report(at_ns, line.rank, line.what, line.step, line.detail))
                elif text.strip():
                    last.append(text.strip())

    def _kill(self) -> None:
        """Kill everything at the GPUs: mpirun, for one, starts processes of its own at them."""
        everything = (*self._ranks, *self._services)
        watched_programs = [program.watched for program in everything]
        for watched in (*watched_programs, *self._descendants.values()):
            watched.release()
        self._descendants.clear()
        for gpu in self.job.addresses:
            signal_all(gpu, signal.SIGKILL)
        for program in everything:
            # only a process that left its GPU's namespace is still alive
            with suppress(ProcessLookupError):
                program.process.kill()
            program.process.wait()
            program.reader.join(_OUTPUT_S)

    @property
    def has_begun(self) -> bool:
        """True if every rank has reported a step, or the start of a program that reports none is over."""
        if self.meter:
            return self.meter.has_begun(self.begin_segments)
        ranks = {report.rank for report in self.reports if report.what == "step"}
        return len(ranks) == len(self.job.addresses)

    def is_over(self, is_faulted: bool = False, dead: frozenset[str] = frozenset()) -> bool:
        """Note which processes have ended, start again what has to be, and return whether all ranks are done.

        `dead`: GPUs that can't run anything while the fault is active. CheckFailed for a program that can't go on.
        ProcessMissing if a process is stopped, or was killed by something else than the fault.
        """
        watch.check()
        # after the repair, all GPUs run programs again
        dead_now = dead if is_faulted else frozenset[str]()
        self._watch_descendants(dead_now)
        started = (*self._services, *self._ranks)
        for program in started:
            if program.process.poll() is not None and not program.is_noted:
                self._note_end(program, dead)
        failed = [program for program in started if program.process.returncode]
        if failed and (not self.may_restart or len(self.restarts) >= MAX_RESTARTS):
            error_message = failed[0].last_words or f"exit status {failed[0].process.returncode}"
            raise CheckFailed(f"{self.training.program} at {failed[0].launch.node} ended: {error_message}")
        restarts = self.training.definition.restarts
        if failed and restarts == "job" and not is_faulted:
            self._kill()
            self._start_all()
            self.restarts.append(time.monotonic_ns())
        elif restarts == "process":
            self._restart_failed(dead_now)
        return all(program.process.returncode == 0 for program in self._ranks)

    def _restart_failed(self, dead: frozenset[str]) -> None:
        """Start each program again that has failed, except at `dead` GPUs."""
        for started in (self._services, self._ranks):
            for number, program in enumerate(started):
                if program.process.returncode and program.launch.node not in dead:
                    program.watched.release()
                    started[number] = self._start(program.launch)
                    self.restarts.append(time.monotonic_ns())

    def _note_end(self, program: _Program, dead: frozenset[str]) -> None:
        program.is_noted = True
        program.reader.join(_OUTPUT_S)
        status = program.process.returncode
        node = program.launch.node
        now = time.monotonic_ns()
        reason = ""
        if status:
            reason = program.last_words
        self.reports.append(Report(now, program.launch.rank, "ended", status, reason))
        if (status in _KILLED and node not in dead) or (status == _LAUNCHER_KILLED and not dead):
            missing = watch.Interruption(self._name(node), f"died (signal {abs(status) % 128})", now, now)
            watch.note(missing)
            raise watch.ProcessMissing(str(missing))

    def _watch_descendants(self, dead: frozenset[str]) -> None:
        """Watch processes that others started at GPUs, such as mpirun's ranks: they may be stopped.

        Not those of anyone else, and none at GPUs whose processes the fault itself has stopped.
        """
        if time.monotonic() < self._scanned_s + _SCAN_S:
            return
        self._scanned_s = time.monotonic()
        watched_pids = {program.process.pid for program in (*self._ranks, *self._services)}
        watched_pids.update(self._descendants)
        for gpu in self.job.addresses:
            if gpu in dead:
                continue
            for pid in processes_in(gpu):
                # a process that has ended meanwhile has no environment
                with suppress(OSError):
                    if pid not in watched_pids and self._is_of_job(pid):
                        self._descendants[pid] = watch.add(self._name(gpu), pid, is_child=False, may_die=True)
        for pid, watched in list(self._descendants.items()):
            if watched.has_ended:
                self._descendants.pop(pid).release()

    def _is_of_job(self, pid: int) -> bool:
        """Return whether a program of this job has started a process, directly or not. OSError if it has ended."""
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return f"{_JOB}={id(self)}".encode() in environment

    def last_words(self) -> str:
        """Return the last line of any rank that is no report, for messages."""
        return next(filter(None, (program.last_words for program in self._ranks)), "no output")


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
