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
from railyard.experiments.sweep.folder import FAILED, MACHINES, SweepFolder
from railyard.experiments.sweep.machine import Outcome, Task
from railyard.experiments.sweep.spec import Cell, cell_name
from railyard.results.views import format as fmt

SENTINEL: Final = "sentinel"  # the experiment that each machine runs first
MAX_LOST: Final = 3  # times that a run's worker may be lost before the run counts as failed
DOCTOR: Final = f"see {PROGRAM} doctor there"
_POLL_S: Final = 0.2
_WRITE_EVERY_S: Final = 60.0
_NO_SENTINEL: Final = ("", "invalid", FAILED)  # states of a sentinel that is to run
_NOT_KEPT: Final = (130, 143)  # exit statuses of a run that was stopped


class Pending(Protocol):
    """A run under way."""

    def done(self) -> bool:
        """Return whether it has ended, or is lost."""

    def result(self) -> Outcome:
        """Return what became of it, or raise what ended it."""


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

    def __init__(self, folder: SweepFolder, machines: Machines, console: Console, write: Callable[[], object]) -> None:
        """`write`: writes table and report of what is there."""
        self._folder, self._machines, self._console, self._write = folder, machines, console, write
        self._running: dict[str, tuple[str, Cell | None, Pending]] = {}  # machine -> label, cell, run
        self._lost: dict[str, int] = {}
        self._measured = set[str]()  # machines on which the sentinel was started
        self._written = time.monotonic()

    def run(self, cells: Sequence[Cell], seed: int) -> Progress:
        """Run the cells in random order. A run that ends with an error, and has no records, is counted as failed."""
        queue = list(cells)
        random.Random(seed).shuffle(queue)  # separates drift of the machines from effects of the axes
        progress = Progress(len(queue))
        state = self._console.status("", refresh_per_second=1)  # nothing where there is no terminal
        with state, self._stopping():
            while queue or self._running:
                self._start(queue)
                ended = [name for name, (_, _, pending) in self._running.items() if pending.done()]
                for name in ended:
                    self._end(name, queue, progress)
                state.update(self._state(progress))
                if not ended:
                    time.sleep(_POLL_S)
        return progress

    def _state(self, progress: Progress) -> str:
        """Return what is under way, in a line."""
        running = "; ".join(f"{label} on {name}" for name, (label, _, _) in self._running.items())
        failed = f", {len(progress.failed)} failed" if progress.failed else ""
        return f"{progress.done} of {progress.total} done{failed}; running: {running}"

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for name in list(self._running) if self._machines.stop() else ():
                label, cell, pending = self._running.pop(name)
                try:
                    self._keep(label, cell, pending.result())
                except Exception:  # it was lost with its worker
                    continue
            raise

    def _start(self, queue: list[Cell]) -> None:
        for name in self._machines.names():
            if name in self._running or not queue:
                continue
            if name not in self._measured and self._folder.state(name, MACHINES) in _NO_SENTINEL:
                self._measured.add(name)
                spec = loading.load_any(SENTINEL).resolved()
                task, cell = Task(cell_name(spec), spec), None
            else:
                cell = queue.pop()
                task = Task(cell.name, cell.spec, cell.plugins)
            label = cell.label if cell else SENTINEL
            self._running[name] = (label, cell, self._machines.submit(name, task))

    def _lose(self, name: str, label: str, cell: Cell | None, queue: list[Cell], progress: Progress, why: str) -> None:
        """Put a run back that was lost on a machine, or count it as failed if it was lost too often."""
        key = cell.name if cell else name
        self._lost[key] = self._lost.get(key, 0) + 1
        self._console.print(Text(f"lost: {label} on {name}: {why}"), highlight=False, soft_wrap=True)
        is_last = self._lost[key] >= MAX_LOST
        if cell is None:
            self._measured.discard(name)
            if is_last:
                raise MissingRequirement(f"the sentinel experiment was lost on {name} {MAX_LOST} times: {why}", DOCTOR)
        elif is_last:
            progress.done += 1
            progress.failed.append(f"{label}: {why}")
        else:
            queue.insert(0, cell)

    def _end(self, name: str, queue: list[Cell], progress: Progress) -> None:
        label, cell, pending = self._running.pop(name)
        try:
            outcome = pending.result()
        except Exception as error:
            self._lose(name, label, cell, queue, progress, self._machines.lost(error))
            return
        seconds = (outcome.end_ns - outcome.start_ns) / 1e9
        problem = self._keep(label, cell, outcome)
        if cell is None:
            if problem:
                raise MissingRequirement(f"the sentinel experiment failed on {name}: {problem}", DOCTOR)
            return
        progress.done += 1
        progress.seconds.append(seconds)
        if problem:
            progress.failed.append(f"{label}: {problem}")
        left = progress.left_s(len(self._machines.names()))
        state = problem or self._folder.state(cell.name)
        number = f"[{progress.done:>{len(str(progress.total))}}/{progress.total}]"
        rest = f", {fmt.seconds(left)} left" if progress.done < progress.total else ""
        line = Text(f"{number} {seconds:7.1f} s  {label}  {state}  on {name}{rest}")
        self._console.print(line, soft_wrap=True, highlight=False)
        if time.monotonic() - self._written > _WRITE_EVERY_S:
            self._write()
            self._written = time.monotonic()

    def _keep(self, label: str, cell: Cell | None, outcome: Outcome) -> str:
        """Put a run in the folder; return why it isn't kept, or "" if it is."""
        if outcome.status in _NOT_KEPT:
            return "stopped"
        if outcome.folder is None:
            return outcome.line or f"ended with exit status {outcome.status}"
        if cell is None:
            self._folder.install(outcome.machine["machine"], outcome, MACHINES)
        else:
            self._folder.install(cell.name, outcome, axes=cell.axes)
        return ""
