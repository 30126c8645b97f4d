"""Presence of the processes that a run started: which of them died or were stopped, and when.

A process is added when it starts and released before it is ended on purpose; `send_signal` stops and continues one on
purpose. Anything else is an interruption. Waits call `check` every `STEP_S`, and so end with the name of the process
that is missing. The kernel reports stops of children to waitid(2), without polling, and deaths through pidfds; a
descendant that another process started is polled.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from railyard.core.errors import RailyardError

STEP_S: Final = 0.25  # between two checks of a wait
# a process that is stopped for longer fails the waits
STOPPED_S: Final = 2.0
# descendants that aren't children have to be polled: the kernel reports only the end of children
POLL_S: Final = 0.2
THREAD_NAME: Final = "watches processes"
# signals and the kernel's reports of stops may be seen so much later
_EXCUSED_NS: Final = 2_000_000_000


class ProcessMissing(RailyardError):
    """A process that a run depends on died, or is stopped."""


class ProgramFailed(RailyardError):
    """A program ended with an exit status that says that it failed."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """A process was missing from `start_ns` to `end_ns` (monotonic). `what`: "died (signal 9)"."""

    name: str
    what: str
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


@dataclass(eq=False)
class Presence:
    """State of a process here or on another machine.

    `died`: how, unless that is in order.
    `stopped_ns`: since when it is stopped (monotonic), unless on purpose.
    """

    name: str
    died: str = ""
    stopped_ns: int = 0

    @property
    def problem(self) -> str:
        """Text that says how it is missing; empty if it is there, or was stopped only a moment ago."""
        stopped_s = (time.monotonic_ns() - self.stopped_ns) / 1e9 if self.stopped_ns else 0.0
        if stopped_s > STOPPED_S:
            return f"{self.name} is stopped, for {stopped_s:.1f} s so far"
        return f"{self.name} {self.died}" if self.died else ""

    def state(self) -> dict[str, Any]:
        """Return its fields as plain data."""
        return {"name": self.name, "died": self.died, "stopped_ns": self.stopped_ns}


class Watched(Presence):
    """A watched process.

    `may_exit`: it ends by itself, and its starter reads its exit status.
    `may_die`: it may end in any way, also by a signal, and only a stop is an interruption.
    """

    def __init__(self, name: str, pid: int, may_exit: bool, is_child: bool, may_die: bool) -> None:
        super().__init__(name)
        self.pid = pid
        self.may_exit = may_exit
        self.is_child = is_child
        self.may_die = may_die
        self.pidfd = os.pidfd_open(pid)
        self.has_ended = self.is_stopped_on_purpose = False
        self.excused_until_ns = 0

    def is_over(self) -> bool:
        """Return whether it has ended. Unlike Popen.poll it leaves the exit status, which tells how a process died."""
        with _watcher.lock:
            if _watcher.processes.get(self.pid) is self:  # else it was released
                _watcher.look(self)
        return self.has_ended

    def await_end(self, within_s: float) -> None:
        """Wait until the kernel reports its end, which is a moment after its connections were closed."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with _watcher.lock:
                if _watcher.processes.get(self.pid) is not self:  # released
                    return
                _watcher.look(self)
            if self.has_ended:
                return
            time.sleep(0.01)

    def release(self) -> None:
        """Watch it no longer, since it is about to be ended. A second call does nothing."""
        _watcher.release(self)


class WatchedElsewhere:
    """A process that another machine watches, which forwards its state; process id 0: it doesn't."""

    def __init__(self, machine: str = "", pid: int = 0) -> None:
        self._key = machine, pid

    def is_over(self) -> bool:
        """Return whether its machine has said that it died."""
        with _watcher.lock:
            presence = _watcher.elsewhere.get(self._key)
        return bool(presence and presence.died)

    def await_end(self, within_s: float) -> None:
        """Wait until its machine has said how it died, which is about when its connection ends, or is gone too."""
        deadline = time.monotonic() + within_s
        while self._key[1] and not _watcher.lost and time.monotonic() < deadline and not self.is_over():
            time.sleep(0.01)

    def release(self) -> None:
        """Watch it no longer, since it is about to be ended. A second call does nothing."""
        with _watcher.lock:
            _watcher.elsewhere.pop(self._key, None)
            self._key = "", 0


class _Watcher:
    """All watched processes, and the threads that follow them, which start with the first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.processes: dict[int, Watched] = {}  # by process id
        self.found: list[Interruption] = []
        self.taken = 0
        self.is_unchecked = False
        # what the run can't go on without, on another machine
        self.lost = ""
        # what other machines miss: by machine and process id
        self.elsewhere: dict[tuple[str, int], Presence] = {}
        self.announce: Callable[[Interruption], None] = lambda interruption: None
        self.forward: Callable[[int, Presence], None] = lambda pid, presence: None
        # readable, with its number, when this process gets a signal
        self.signals_fd = -1
        self._added = threading.Event()
        self._deaths: select.epoll | None = None

    def start(self) -> select.epoll:
        """Start the threads, once."""
        with self.lock:
            if self._deaths is None:
                self._deaths = select.epoll()
                for loop in (self._follow_stops, self._follow_deaths):
                    threading.Thread(target=loop, name=THREAD_NAME, daemon=True).start()
            return self._deaths

    def follow_own_signals(self) -> None:
        """Let a thread know when this process is continued. A handler would wait until the main thread wakes."""
        self.signals_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCONT, lambda *_: None)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self.start().register(self.signals_fd, select.EPOLLIN)

    def add(self, process: Watched) -> None:
        deaths = self.start()
        with self.lock:
            self.processes[process.pid] = process
            deaths.register(process.pidfd, select.EPOLLIN | select.EPOLLONESHOT)
        self._added.set()

    def release(self, process: Watched) -> None:
        with self.lock:
            if self.processes.get(process.pid) is not process:
                return
            self.look(process)
            if process.stopped_ns:
                self.set_stopped(process, False)
            if process.died:
                self.forward(process.pid, Presence(process.name))
            del self.processes[process.pid]
            os.close(process.pidfd)  # epoll forgets it

    def look(self, process: Watched) -> None:
        """Note an end, and the state of a process that isn't our child."""
        if process.has_ended:
            return
        poller = select.poll()
        poller.register(process.pidfd, select.POLLIN)
        if poller.poll(0):
            self._end(process)
        elif not process.is_child:
            is_stopped = _is_stopped(process.pid)
            if is_stopped != bool(process.stopped_ns) and not process.is_stopped_on_purpose:
                self.set_stopped(process, is_stopped)

    def _end(self, process: Watched) -> None:
        code = 0
        status = 0
        # its starter has read its status, or it isn't our child
        with suppress(ChildProcessError):
            if status_info := os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                code = status_info.si_code
                status = status_info.si_status
        process.has_ended = True
        process.stopped_ns = 0
        if process.may_die:
            return
        if code == os.CLD_EXITED:
            process.died = f"died (exit status {status})" if status and not process.may_exit else ""
        elif code:
            process.died = f"died (signal {status})"
        elif not process.is_child:
            process.died = "died"
        if process.died:
            now = time.monotonic_ns()
            self.note(Interruption(process.name, process.died, now, now))
            self.forward(process.pid, process)

    def set_stopped(self, process: Watched, is_stopped: bool) -> None:
        """Note that a process was stopped or continued, unless that was on purpose."""
        now = time.monotonic_ns()
        since_ns = process.stopped_ns
        is_excused = process.is_stopped_on_purpose or now < process.excused_until_ns
        if is_stopped and not process.is_stopped_on_purpose and _is_stopped(process.pid):
            process.stopped_ns = now
            self.announce(Interruption(process.name, "was stopped", now, now))
            self.forward(process.pid, process)
        elif not is_stopped and (since_ns or not is_excused):
            process.stopped_ns = 0
            # it continued before its stop was seen
            since_ns = since_ns or now
            self.note(Interruption(process.name, f"was stopped for {(now - since_ns) / 1e9:.1f} s", since_ns, now))
            self.forward(process.pid, process)

    def note(self, interruption: Interruption) -> None:
        with self.lock:
            self.found.append(interruption)
        self.announce(interruption)

    def under_way(self) -> list[Interruption]:
        now = time.monotonic_ns()
        processes = (*self.processes.values(), *self.elsewhere.values())
        stopped = [process for process in processes if process.stopped_ns]
        texts = [f"is stopped, for {(now - process.stopped_ns) / 1e9:.1f} s so far" for process in stopped]
        return [Interruption(p.name, text, p.stopped_ns, now) for p, text in zip(stopped, texts, strict=True)]

    def _follow_stops(self) -> None:
        """In a thread: follow stops of children. Nothing else waits for these, and ends are left to their starters."""
        while True:
            self._added.clear()
            try:
                change = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED)
            except ChildProcessError:
                self._added.wait()
                continue
            with self.lock:
                if change and (process := self.processes.get(change.si_pid)):
                    self.set_stopped(process, change.si_code != os.CLD_CONTINUED)

    def _follow_deaths(self) -> None:
        """In a thread: follow ends, and poll descendants that aren't children."""
        assert self._deaths
        # the last time in which this thread did not run
        before_ns = time.monotonic_ns()
        gap_ns = (0, 0)
        while True:
            ended = {fd for fd, _ in self._deaths.poll(POLL_S)}
            now = time.monotonic_ns()
            if now - before_ns > 2 * POLL_S * 1e9:
                gap_ns = before_ns, now
            before_ns = now
            if self.signals_fd in ended and signal.SIGCONT in os.read(self.signals_fd, 64):
                start_ns, end_ns = gap_ns
                if now - end_ns < _EXCUSED_NS:
                    text = f"was stopped for {(end_ns - start_ns) / 1e9:.1f} s"
                    self.note(Interruption("the run's own process", text, start_ns, end_ns))
            with self.lock:
                for process in list(self.processes.values()):
                    if process.pidfd in ended or not process.is_child:
                        self.look(process)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped now."""
    with suppress(OSError, IndexError), Path(f"/proc/{pid}/stat").open() as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"
    return False


_watcher = _Watcher()


def _reset() -> None:
    """Forget everything: for a fork, which has none of the threads and children."""
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_reset)


def add(name: str, pid: int, may_exit: bool = False, is_child: bool = True, may_die: bool = False) -> Watched:
    """Watch a process that has just started, and call it `name` in messages.

    `may_exit`: it ends by itself, and its starter reads its exit status.
    `is_child`: this process started it.
    `may_die`: its starter reads how it ended, also by a signal; only its stops are interruptions.
    """
    process = Watched(name, pid, may_exit, is_child, may_die)
    _watcher.add(process)
    return process


def expect_signal(pid: int, number: signal.Signals) -> None:
    """Note that a process, watched or not, is about to get a signal on purpose."""
    with _watcher.lock:
        if process := _watcher.processes.get(pid):
            if number == signal.SIGKILL:
                _watcher.release(process)
            process.is_stopped_on_purpose = number == signal.SIGSTOP
            process.excused_until_ns = time.monotonic_ns() + _EXCUSED_NS


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process on purpose. ProcessLookupError if it has ended."""
    expect_signal(pid, number)
    os.kill(pid, number)


def check() -> None:
    """Raise ProcessMissing if a watched process died, or is stopped for longer than `STOPPED_S`."""
    with _watcher.lock:
        if _watcher.lost:
            raise ProcessMissing(_watcher.lost)
        if _watcher.is_unchecked:
            return
        for process in list(_watcher.processes.values()):
            _watcher.look(process)
            if problem := process.problem:
                raise ProcessMissing(problem)
        for presence in _watcher.elsewhere.values():
            if problem := presence.problem:
                raise ProcessMissing(problem)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let checks pass while entered, unless something is gone without which the run can't go on."""
    _watcher.is_unchecked = True
    try:
        yield
    finally:
        _watcher.is_unchecked = False


def since(start_ns: int) -> list[Interruption]:
    """Return the interruptions that ended after `start_ns` (monotonic), or go on."""
    with _watcher.lock:
        for process in list(_watcher.processes.values()):
            _watcher.look(process)
        return [
            interruption for interruption in _watcher.found if interruption.end_ns >= start_ns
        ] + _watcher.under_way()


def take() -> list[Interruption]:
    """Return the interruptions that no earlier call has returned, and those that go on."""
    with _watcher.lock:
        new = since(0)[_watcher.taken :]
        _watcher.taken = len(_watcher.found)
        return new


def note(interruption: Interruption) -> None:
    """Add an interruption that another process has seen."""
    _watcher.note(interruption)


def show(interruption: Interruption) -> None:
    """Announce the interruption of a process that no interval depends on."""
    _watcher.announce(interruption)


def lose(name: str, loss: str) -> None:
    """Note that something on another machine is gone, without which the run can't go on: every later check raises."""
    now = time.monotonic_ns()
    _watcher.lost = f"{name} {loss}"
    _watcher.note(Interruption(name, loss, now, now))


def set_elsewhere(machine: str, pid: int, presence: Presence) -> None:
    """Take in the state of a process that another machine watches."""
    with _watcher.lock:
        if presence.died or presence.stopped_ns:
            _watcher.elsewhere[machine, pid] = presence
        else:
            _watcher.elsewhere.pop((machine, pid), None)


def forward(callback: Callable[[int, Presence], None]) -> None:
    """Let `callback` have the process id and state of a process whenever it is missing, and when it no longer is."""
    _watcher.forward = callback


def announce(callback: Callable[[Interruption], None]) -> None:
    """Let `callback` have interruptions as they begin and as they end, from any thread."""
    _watcher.announce = callback


def include_own_pauses() -> None:
    """Take pauses of this process for interruptions too. To be called in the main thread."""
    if _watcher.signals_fd < 0:
        _watcher.follow_own_signals()


def communicate(
    process: "subprocess.Popen[str]",
    name: str,
    within_s: float = 60.0,
    statuses: Container[int] = (0,),
) -> str:
    """Wait for the end of a program, which has its input, and return its output.

    ProgramFailed with its exit status, unless that is one of `statuses`, and the last line of its output. RailyardError
    if it isn't done `within_s`. ProcessMissing if it is killed or stopped, or another process is. It ends in any case.
    """
    deadline_s = time.monotonic() + within_s
    output = ""
    errors = ""
    watched = _watcher.processes.get(process.pid)
    name = watched.name if watched else name
    try:
        while True:
            try:
                output, errors = process.communicate(timeout=STEP_S)
                break
            except subprocess.TimeoutExpired:
                # it is watched only after a while: most programs are done before
                if watched is None:
                    watched = add(name, process.pid, may_exit=True)
                    if _is_stopped(process.pid):
                        _watcher.set_stopped(watched, True)
                check()
                if time.monotonic() > deadline_s:
                    raise RailyardError(f"{name} was not done in {within_s:g} s") from None
    finally:
        if watched:
            watched.release()
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode < 0:
        is_noted = watched is not None and bool(watched.died)
        raise _death_of(name, process.returncode, is_noted)
    if process.returncode not in statuses:
        raise _failure_of(name, process.returncode, output or "", errors or "")
    return output or ""


def _death_of(name: str, returncode: int, is_noted: bool) -> ProcessMissing:
    """Return the error of a program that a signal ended, and note the interruption unless it is noted already."""
    how = f"died (signal {-returncode})"
    if not is_noted:
        now_ns = time.monotonic_ns()
        _watcher.note(Interruption(name, how, now_ns, now_ns))
    return ProcessMissing(f"{name} {how}")


def _failure_of(name: str, status: int, output: str, errors: str) -> ProgramFailed:
    """Return the error of a program that failed, with the last line of its output."""
    message = f"{name} failed (exit status {status})"
    lines = (errors.strip() or output.strip()).splitlines()
    if lines:
        message += f": {lines[-1].strip()}"
    return ProgramFailed(message)
