"""The loop of a sweep: give each machine one run at a time, keep what comes back, and print progress."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from rich.console import Console
from rich.text import Text

from railyard.core.errors import MissingRequirement
from railyard.core.installation import PROGRAM
from railyard.experiments.spec import loading
from railyard.experiments.sweep.answers import BadAnswer, Outcome
from railyard.experiments.sweep.folder import FAILED, MACHINES, SweepFolder
from railyard.experiments.sweep.machine import Task
from railyard.experiments.sweep.spec import Cell, cell_name
from railyard.results import format as fmt

SENTINEL: Final = "sentinel"  # the experiment that each machine runs first
MAX_LOST: Final = 3  # times that a run's worker may be lost before the run counts as failed
DOCTOR: Final = f"see {PROGRAM} doctor there"
_POLL_S: Final = 0.05
_WRITE_EVERY_S: Final = 60.0
_WRITE_SHARE: Final = 0.05  # of a sweep's time, at most, that goes into tables and report before its end
_NO_SENTINEL: Final = ("", "invalid", FAILED)  # states of a sentinel that is to run
_NOT_KEPT: Final = (130, 143)  # exit statuses of a run that was stopped


class Pending(Protocol):
    """A run under way."""

    def done(self) -> bool:
        """Return whether it has ended, or is lost."""

    def result(self) -> Outcome:
        """Return what became of it, or raise what ended it."""


@dataclass(frozen=True)
class _Running:
    """A run on a machine; without a cell, its sentinel."""

    machine: str
    cell: Cell | None
    pending: Pending

    @property
    def label(self) -> str:
        return self.cell.label if self.cell else SENTINEL


class Machines(Protocol):
    """Machines that run tasks, each one at a time."""

    def names(self) -> Sequence[str]:
        """Return the machines that are there now."""

    def submit(self, name: str, task: Task) -> Pending:
        """Start a task on a machine."""

    def lost(self, error: Exception) -> str:
        """Return why a run that raised this was lost, in a line; raise the error if it is another one."""

    def stop(self) -> bool:
        """End the runs under way; return whether their results will come."""


@dataclass
class Progress:
    """Counts of the runs that a sweep has done so far."""

    total: int
    done: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def left_s(self, machines: int) -> float:
        """Return the expected time until the end, s."""
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else 0.0
        return mean * (self.total - self.done) / max(1, machines)


class Driver:
    """A sweep that is being run."""

    def __init__(
        self,
        folder: SweepFolder,
        machines: Machines,
        console: Console,
        write: Callable[[], object],
        no_queue: bool = False,
    ) -> None:
        """`write`: writes table and report of what is there. `no_queue`: runs don't wait for other runs."""
        self._folder = folder
        self._machines = machines
        self._console = console
        self._write = write
        self._no_queue = no_queue
        # the run in progress on each machine
        self._running: dict[str, _Running] = {}
        # runs that have ended, and are still to be stored
        self._ended: list[_Running] = []
        self._lost: dict[str, int] = {}
        # machines on which the sentinel was started
        self._measured = set[str]()
        self._write_at = time.monotonic() + _WRITE_EVERY_S

    def run(self, cells: Sequence[Cell], seed: int) -> Progress:
        """Run the cells in random order. A run that ends with an error, and has no records, is counted as failed."""
        queue = list(cells)
        # separates drift of the machines from effects of the axes
        random.Random(seed).shuffle(queue)
        progress = Progress(len(queue))
        # rich shows no status where there is no terminal
        state = self._console.status("", refresh_per_second=1)
        with state, self._stopping():
            while queue or self._running:
                self._ended = [run for run in self._running.values() if run.pending.done()]
                for run in self._ended:
                    del self._running[run.machine]
                # a sentinel says whether its machine gets runs
                self._ended.sort(key=lambda run: run.cell is not None)
                while self._ended and self._ended[0].cell is None:
                    self._end(queue, progress)
                # started first, so that no machine waits until the run before is written
                self._start(queue)
                state.update(self._state(progress))
                if not self._ended:
                    time.sleep(_POLL_S)
                while self._ended:
                    self._end(queue, progress)
        return progress

    def _state(self, progress: Progress) -> str:
        """Return what is under way, in a line."""
        running = "; ".join(f"{run.label} on {run.machine}" for run in self._running.values())
        failed = f", {len(progress.failed)} failed" if progress.failed else ""
        return f"{progress.done} of {progress.total} done{failed}; running: {running}"

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            under_way = list(self._running.values()) if self._machines.stop() else []
            for run in (*self._ended, *under_way):
                try:
                    self._keep(run, run.pending.result())
                except Exception:  # it was lost with its worker
                    continue
            raise

    def _start(self, queue: list[Cell]) -> None:
        for name in self._machines.names():
            if name in self._running or not queue:
                continue
            if name not in self._measured and self._folder.state(name, MACHINES) in _NO_SENTINEL:
                self._measured.add(name)
                # the sweep's plugins, which a resolved experiment names, are no part of what compares machines
                spec = loading.load_any(SENTINEL).resolved() | {"plugins": []}
                task = Task(cell_name(spec), spec, no_queue=self._no_queue)
                cell = None
            else:
                cell = queue.pop()
                task = Task(cell.name, cell.spec, cell.plugins, no_queue=self._no_queue)
            self._running[name] = _Running(name, cell, self._machines.submit(name, task))

    def _lose(self, run: _Running, queue: list[Cell], progress: Progress, why: str) -> None:
        """Put a run back that was lost on a machine, or count it as failed if it was lost too often."""
        name = run.machine
        cell = run.cell
        key = cell.name if cell else name
        self._lost[key] = self._lost.get(key, 0) + 1
        self._console.print(Text(f"lost: {run.label} on {name}: {why}"), highlight=False, soft_wrap=True)
        is_last = self._lost[key] >= MAX_LOST
        if cell is None:
            self._measured.discard(name)
            if is_last:
                raise MissingRequirement(f"the sentinel experiment was lost on {name} {MAX_LOST} times: {why}", DOCTOR)
        elif is_last:
            progress.done += 1
            progress.failed.append(f"{run.label}: {why}")
        else:
            queue.insert(0, cell)

    def _end(self, queue: list[Cell], progress: Progress) -> None:
        """Keep the first run that has ended. It is among those until it is written: Ctrl-C may come before."""
        run = self._ended[0]
        name = run.machine
        label = run.label
        cell = run.cell
        try:
            outcome = run.pending.result()
            problem = self._keep(run, outcome)
        except Exception as error:
            del self._ended[0]
            why = str(error) if isinstance(error, BadAnswer) else self._machines.lost(error)
            self._lose(run, queue, progress, why)
            return
        seconds = (outcome.end_ns - outcome.start_ns) / 1e9
        del self._ended[0]
        if cell is None:
            if problem:
                raise MissingRequirement(f"the sentinel experiment failed on {name}: {problem}", DOCTOR)
            return
        progress.done += 1
        progress.seconds.append(seconds)
        if problem:
            progress.failed.append(f"{label}: {problem}")
        left_s = progress.left_s(len(self._machines.names()))
        state = problem or self._folder.state(cell.name)
        number = f"[{progress.done:>{len(str(progress.total))}}/{progress.total}]"
        remaining_text = f", {fmt.seconds(left_s)} left" if progress.done < progress.total else ""
        line = Text(f"{number} {seconds:7.1f} s  {label}  {state}  on {name}{remaining_text}")
        self._console.print(line, soft_wrap=True, highlight=False)
        if (start := time.monotonic()) > self._write_at:
            self._write()
            took_s = time.monotonic() - start
            self._write_at = start + max(_WRITE_EVERY_S, took_s / _WRITE_SHARE)

    def _keep(self, run: _Running, outcome: Outcome) -> str:
        """Put a run in the folder; return why it isn't kept, or "" if it is. BadAnswer if it can't be one."""
        if outcome.machine["machine"] != run.machine:
            raise BadAnswer(f"its answer is of the machine {outcome.machine['machine']}")
        if outcome.status in _NOT_KEPT:
            return "stopped"
        if outcome.folder is None:
            return outcome.line or f"ended with exit status {outcome.status}"
        if run.cell is None:
            self._folder.install(outcome.machine["machine"], outcome, MACHINES)
        else:
            self._folder.install(run.cell.name, outcome, axes=run.cell.axes)
        return ""
