"""Processes of a training job at the GPUs of a built fabric, and what they report.

The launcher is that of the definition (`restarts`): what ended is started again once the fault is repaired.
"""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from railyard.core import watch
from railyard.core.errors import CheckFailed
from railyard.experiments.measures.training.outcome import Report
from railyard.experiments.measures.training.spec import TrainingSpec
from railyard.experiments.measures.training.traffic import TrafficMeter
from railyard.experiments.run.session import FabricSession
from railyard.failure.faults.support.processes import processes_in, signal_all
from railyard.topologies.build import namespaces, programs
from railyard.workloads.training.program import Job, Launch, Line

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
