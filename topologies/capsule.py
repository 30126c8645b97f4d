"""The capsule: a run's own mount, network and PID namespaces, which the kernel ends with all that is in them, always.

    caller (shell, sudo) ── outer: our Python ── unshare ── inner: our Python again, process 1 of the capsule

The outer stays to pass signals on and to wait. Each of the three dies with the one to its left (PR_SET_PDEATHSIG), and
with the inner the kernel ends all processes in its PID namespace; so nothing has to be cleaned up, and `kill -9` of any
of them leaves nothing. SIGINT, SIGTERM and SIGHUP are blocked from before `unshare` until the inner has its handlers:
a process 1 is never sent a signal that it has no handler for, but one that is blocked waits.

A pipe leads from outer to inner. It carries what the inner is to do, and by its end tells that the outer is gone.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import POLLHUP, poll, select
from types import FrameType
from typing import Any, Final, NoReturn

import psutil

from topologies.errors import BadInput, MachineLacks
from topologies.machine import AS_USER, CAPSULE, SEARCH_PATH

MARKER: Final = "RAILYARD_CAPSULE"
RUN: Final = "RAILYARD_RUN"
_OUTSIDE: Final = "RAILYARD_OUTSIDE"
_LIFELINE: Final = "RAILYARD_LIFELINE"
COVERED: Final = ("/run", "/dev/shm")
"""Where the capsule has an empty tmpfs of its own."""
_SCRATCH: Final = Path("/run/railyard")
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_PRESS_S: Final = 1.0
_PRESSES: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_MS_NOSUID_NODEV: Final = 2 | 4
_MS_BIND: Final = 4096
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Stopped(KeyboardInterrupt):
    """Somebody wants the run to end. Raised once, in the main thread of the inner, wherever it is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


# -- from outside ---------------------------------------------------------------------------------------------------


def check_visible(field: str, path: Path) -> None:
    """BadInput for a path that a run could not see, since the capsule covers it."""
    for covered in COVERED:
        if path.resolve().is_relative_to(Path(covered).resolve()):
            raise BadInput(field, str(path), f"must not be under {covered}: a run has one of its own there")


def enter(argv: Sequence[str], task: Mapping[str, Any], run: str = "", interactive: bool = False) -> int:
    """Run a program of ours (it has to call `prepare` first) in a capsule, and return its exit status.

    `task`: what `prepare` returns there, plain data. `run`: the name by which experiments/live.py finds it.
    `interactive`: Ctrl-C is left to the terminal, which sends it to the inner too.
    """
    _die_with_sudo()
    reading, writing = os.pipe()
    environment = {
        **os.environ, "PATH": SEARCH_PATH, MARKER: "1", RUN: run, _OUTSIDE: _namespaces(), _LIFELINE: str(reading),
    }  # fmt: skip
    as_user = () if os.geteuid() == 0 else AS_USER
    signals = _Signals(drop=(signal.SIGINT,) if interactive else ())
    with signals, os.fdopen(writing, "w") as lifeline:
        process = subprocess.Popen(
            ["unshare", *as_user, *CAPSULE, "--", *argv],
            env=environment,
            pass_fds=[reading],
            preexec_fn=partial(_tie_to, os.getpid()),
        )
        os.close(reading)
        with suppress(BrokenPipeError):
            lifeline.write(json.dumps(task) + "\n")
            lifeline.flush()
        return signals.wait(process, lambda number: _tell_inner(process, number))


def _namespaces() -> str:
    return " ".join(str(Path("/proc/self/ns", kind).readlink()) for kind in ("mnt", "net"))


def _die_with_sudo() -> None:
    """Where sudo is what somebody kills, be killed with it."""
    parent = os.getppid()
    with suppress(psutil.Error):
        if psutil.Process(parent).name() == "sudo":
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)


def _tie_to(parent: int) -> None:
    """Between fork and exec: die with the parent, and hold back signals until the inner can take them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _tell_inner(unshare: "subprocess.Popen[bytes]", number: int) -> None:
    """Pass a signal on; `unshare` itself sits it out. The inner may not be born yet."""
    while unshare.poll() is None:
        with suppress(psutil.NoSuchProcess):
            for inner in psutil.Process(unshare.pid).children():
                inner.send_signal(number)
                return
        time.sleep(0.002)


class _Signals:
    """While entered: signals that would stop us become bytes in a pipe, to be waited for together with a child's end.

    Ctrl-Z is ignored: it would stop `unshare`, but not a process 1, and nobody would come to wait any more.
    """

    def __init__(self, drop: Sequence[int] = ()) -> None:
        self._drop = drop

    def __enter__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        caught = [n for n in _STOPPING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]  # SIGHUP: nohup
        self._old = {n: signal.signal(n, _noted) for n in (*caught, signal.SIGCHLD)}
        self._old[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self._old_fd = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, process: "subprocess.Popen[bytes]", pass_on: Callable[[int], None]) -> int:
        """The exit status as a shell has it (128 + n for a signal), once the child has ended."""
        while process.poll() is None:
            select([self._reading], [], [])
            for number in os.read(self._reading, 64):
                if number in _STOPPING and number not in self._drop:
                    pass_on(number)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _noted(number: int, frame: FrameType | None) -> None:
    """Nothing: that there is a handler makes Python write to the wake-up pipe."""


# -- inside ---------------------------------------------------------------------------------------------------------


def inside() -> bool:
    """Whether this process is the inner of a capsule; a variable that somebody has set doesn't make it one."""
    outside = os.environ.get(_OUTSIDE, "").split()
    here = _namespaces().split()
    return os.environ.get(MARKER) == "1" and os.getpid() == 1 and len(outside) == 2 and not set(outside) & set(here)


def prepare() -> dict[str, Any]:
    """The inner's first step: private /run, /dev/shm, scratch folders and lo. Returns the task given to `enter`."""
    if not inside():
        raise ValueError("prepare is for the first process of a capsule")
    task = _read_task()
    for place in COVERED:
        if Path(place).is_dir() and not Path(place).is_symlink():
            _mount_tmpfs(place)
    for variable, folder in (("TMPDIR", "tmp"), ("MPLCONFIGDIR", "matplotlib"), ("XDG_CACHE_HOME", "cache")):
        (_SCRATCH / folder).mkdir(parents=True)
        os.environ[variable] = str(_SCRATCH / folder)
    tempfile.tempdir = None
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return task


def _read_task() -> dict[str, Any]:
    """From the pipe, which has to be open still: had the outer died before all was tied to it, nobody would end us."""
    fd = int(os.environ[_LIFELINE])
    os.set_inheritable(fd, False)
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(fd, 65536)
        if not part:
            os._exit(128 + signal.SIGKILL)
        line += part
    watch = poll()
    watch.register(fd, 0)
    if any(event & POLLHUP for _, event in watch.poll(0)):
        os._exit(128 + signal.SIGKILL)
    task: dict[str, Any] = json.loads(line)
    return task


def add_hosts(addresses: Mapping[str, str]) -> None:
    """Let programs in the capsule know these names (name: address), by an /etc/hosts of its own."""
    machine, own = Path("/etc/hosts"), _SCRATCH / "hosts"
    if machine.exists():
        own.write_text(machine.read_text() + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
        _mount(str(own), str(machine), "", _MS_BIND)


def _mount_tmpfs(place: str) -> None:
    _mount("tmpfs", place, "tmpfs", _MS_NOSUID_NODEV, "mode=755")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        why = os.strerror(ctypes.get_errno())
        raise MachineLacks(f"this machine refuses a private {target} ({why})", "use sudo")


class _Stop:
    """Raises `Stopped` at the first signal.

    More of them within a second are the same Ctrl-C, which a terminal sends to all and the outer passes on too; later
    ones are counted, and the third ends the run without more words.
    """

    def __init__(self) -> None:
        self.number = 0
        self._presses = 0
        self._last_s = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._presses and now - self._last_s < _ONE_PRESS_S:
            return
        self._presses, self._last_s = self._presses + 1, now
        if self._presses == 1:
            self.number = number
            raise Stopped(number)
        if self._presses == _PRESSES:
            os._exit(128 + number)
        os.write(2, b"\nwriting down what was measured so far; once more to give that up\n")


_stop: Final = _Stop()


def take_signals(interactive: bool = False) -> None:
    """From now on a signal raises `Stopped`, here and now if one came since the start.

    `interactive`: Ctrl-C raises KeyboardInterrupt, each time, and the others SystemExit.
    """
    for number in _STOPPING:
        signal.signal(number, _leave if interactive else _stop)
    if interactive:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def stopped_by() -> int | None:
    """The exit status that the signal asks for which stopped this run, None if none did."""
    return 128 + _stop.number if _stop.number else None


def main() -> NoReturn:
    """`python -m topologies.capsule COMMAND...`: any command in a capsule, for tests and for looking around."""
    if not inside():
        sys.exit(enter([sys.executable, "-m", "topologies.capsule"], {"command": sys.argv[1:] or ["bash"]}))
    command: list[str] = prepare()["command"]
    signals = _Signals(drop=(signal.SIGINT,))
    with signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        process = subprocess.Popen(command)
        status = signals.wait(process, process.send_signal)
    sys.exit(status)


if __name__ == "__main__":
    main()
