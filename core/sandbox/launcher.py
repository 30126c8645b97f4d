"""Start a sandbox: mount, network, PID, UTS and IPC namespaces of a run's own, which the kernel removes with the run.

    caller (shell, sudo) ── launcher: this process ── unshare ── sandbox init: Python again, process 1 of the sandbox

The launcher forwards signals and waits. Each of the three dies with the one to its left (PR_SET_PDEATHSIG). When the
sandbox init dies, the kernel ends every process in its PID namespace, so nothing needs to be cleaned up, and `kill -9`
of any of the three leaves nothing. SIGINT, SIGTERM and SIGHUP are blocked from before `unshare` until the sandbox init
has its handlers: the kernel drops a signal for a process 1 without a handler, but keeps one that is blocked.

A socket joins the launcher and the sandbox init. It carries the task. When it closes, the sandbox init knows that the
launcher is gone; the bytes on it tell the launcher whether the sandbox init started and ended in order, and between
them is the report of a crash.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from typing import Any, Final

import psutil

from railyard.core import crash, watch
from railyard.core.errors import MissingRequirement
from railyard.core.host import SEARCH_PATH, UNSHARE_OPTIONS, USER_NAMESPACE_OPTIONS
from railyard.core.installation import PROGRAM
from railyard.core.sandbox import front, hidden
from railyard.core.sandbox.run_socket import RunSocket

SANDBOX_VARIABLE: Final = "RAILYARD_SANDBOX"
HOST_NAMESPACES_VARIABLE: Final = "RAILYARD_HOST_NAMESPACES"
SOCKET_FD_VARIABLE: Final = "RAILYARD_SANDBOX_SOCKET"
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_CHECK_S: Final = 0.5
STARTED: Final = b"+"
FINISHED: Final = b"."
libc: Final = ctypes.CDLL(None, use_errno=True)


def enter(
    argv: Sequence[str],
    task: Mapping[str, Any],
    run: str = "",
    interactive: bool = False,
    visible: Iterable[Path] = (),
    inherited: Sequence[int] = (),
    folder: Path | None = None,
    on_stop: Callable[[int], None] = lambda _: None,
) -> int:
    """Run one of our programs, which must call `init.prepare` first, in a sandbox; return its exit status.

    `task`: what `prepare` returns there, plain data.
    `run`: experiment and folder, by which others find it.
    `interactive`: the terminal sends Ctrl-C to the sandbox itself.
    `visible`: folders that the program needs.
    `inherited`: open files.
    `folder`: the program's working folder, if not ours. `on_stop` is called with each signal that stops the program:
    the status doesn't say so if one comes as the program ends by itself.
    """
    _die_with_sudo()
    parent_socket, child_socket = socket.socketpair()
    environment = {**os.environ, "PATH": SEARCH_PATH, SANDBOX_VARIABLE: "1"}
    environment |= {HOST_NAMESPACES_VARIABLE: current_namespaces(), SOCKET_FD_VARIABLE: str(child_socket.fileno())}
    signals = Signals(drop=(signal.SIGINT,) if interactive else (), on_stop=on_stop)
    with parent_socket, signals, RunSocket(run) as found_by:
        state = front.open_own_state()
        process = start(argv, folder, environment, [child_socket.fileno(), state, *inherited], interactive)
        child_socket.close()
        os.close(state)
        with suppress(BrokenPipeError):
            message: dict[str, Any] = {"task": dict(task), "launcher_state": state}
            message |= {"put_back": hidden.needed(visible), "sockets": hidden.sockets()}
            parent_socket.sendall(json.dumps(message).encode() + b"\n")

        forward = partial(_forward, process)
        status = signals.wait(process, forward, found_by, Continued(process.pid), is_repeated=interactive)
        received = b""
        with suppress(OSError):
            while part := parent_socket.recv(1 << 16, socket.MSG_DONTWAIT):
                received += part
    if status == crash.STATUS:
        report = received.removeprefix(STARTED).removesuffix(FINISHED).decode(errors="replace")
        summary, _, text = report.partition("\n")
        return crash.print_report(summary, text)
    # 1 is `unshare`'s own status, also for a sandbox init that was killed
    if status != 1 or FINISHED in received:
        return status
    if received.startswith(STARTED):
        print("the run's own process died (signal 9)", file=sys.stderr)
        return 128 + signal.SIGKILL
    raise MissingRequirement("the sandbox did not start", f"see the line above, and {PROGRAM} doctor")


def _forward(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Forward a signal to the sandbox init, below `unshare`, which itself ignores signals."""
    # the sandbox init may not exist yet
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            for inner in psutil.Process(process.pid).children():
                inner.send_signal(number)
                return
        time.sleep(0.002)


def start(
    argv: Sequence[str],
    folder: Path | None,
    environment: Mapping[str, str],
    inherited: Collection[int],
    interactive: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program as process 1 of new namespaces, below `unshare`, which is returned.

    `interactive`: it is in the process group of its caller.
    """
    user_options = () if os.geteuid() == 0 else USER_NAMESPACE_OPTIONS
    # With a process group of its own, Ctrl-C at a terminal goes to the caller alone, which forwards it. Otherwise it
    # would go to switches and workers too, whose death would be reported.
    process_group = None if interactive else 0
    return subprocess.Popen(
        ["unshare", *user_options, *UNSHARE_OPTIONS, "--", *argv],
        cwd=folder,
        env=environment,
        pass_fds=inherited,
        preexec_fn=partial(prepare_child, os.getpid()),
        process_group=process_group,
    )


def current_namespaces() -> str:
    """Return the mount and network namespaces of this process, as /proc names them."""
    return " ".join(str(Path("/proc/self/ns", kind).readlink()) for kind in ("mnt", "net"))


def _die_with_sudo() -> None:
    """Die with sudo, if sudo started this process."""
    # a user may kill sudo, and has no right to kill a process of root's
    parent = os.getppid()
    with suppress(psutil.Error):
        if psutil.Process(parent).name() == "sudo":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)


def prepare_child(parent: int) -> None:
    """Die with the parent, and block signals until the sandbox init can handle them. Runs between fork and exec."""
    # SIGTTOU stays blocked: a terminal set to `tostop` would stop a process group in the background that writes to it
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGTTOU))
    die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """Die with the thread that forked this process. Runs between fork and exec."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run: without SIGHUP under nohup, which ignores it for us."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


class Continued:
    """Check of a sandbox's first two processes: one that is stopped for `watch.STOPPED_S` is named and continued.

    Only the sandbox init can end a run in order, and it notes how long it was stopped when it is continued.
    """

    def __init__(self, unshare_pid: int) -> None:
        self._unshare = psutil.Process(unshare_pid)
        # empty until `unshare` has started it
        self._sandbox_init: list[psutil.Process] = []
        self._stopped_since: dict[int, float] = {}  # monotonic, s

    def __call__(self) -> None:
        with suppress(psutil.NoSuchProcess):
            # to find a child, all processes of the machine are read, for milliseconds
            self._sandbox_init = self._sandbox_init or self._unshare.children()
            for process in (self._unshare, *self._sandbox_init):
                if process.status() != psutil.STATUS_STOPPED:
                    self._stopped_since.pop(process.pid, None)
                elif time.monotonic() - self._stopped_since.setdefault(process.pid, time.monotonic()) > watch.STOPPED_S:
                    print("the run's own process was stopped: it is continued now", file=sys.stderr, flush=True)
                    del self._stopped_since[process.pid]
                    process.send_signal(signal.SIGCONT)


class Signals:
    """Context in which signals that would stop us become bytes in a pipe, to wait for them and for a child's end."""

    def __init__(self, drop: Sequence[int] = (), on_stop: Callable[[int], None] = lambda _: None) -> None:
        self._drop = drop
        self._on_stop = on_stop

    def __enter__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # a handler must exist for Python to write to the pipe
        self._old_handlers = {n: signal.signal(n, lambda *_: None) for n in (*stop_signals(), signal.SIGCHLD)}
        # Ctrl-Z would stop `unshare`, but not a process 1, and no process would wait for it any more
        self._old_handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._read()
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(
        self,
        process: "subprocess.Popen[bytes]",
        forward: Callable[[int], None],
        found_by: RunSocket | None = None,
        check: Callable[[], None] | None = None,
        is_repeated: bool = False,
    ) -> int:
        """Wait for the child; return its exit status as a shell has it (128 + n for a signal).

        `check` is called every `_CHECK_S`. `is_repeated`: forward the last signal again every `_CHECK_S` until the
        child ends. Python runs a handler between two steps of the program, so a signal that comes directly before a
        read from a terminal or pipe has no effect until the user types.
        """
        watched: list[int | socket.socket] = [self._read_fd, *(found_by.waiting if found_by else [])]
        last_signal: int | None = None
        while process.poll() is None:
            before_s = time.monotonic()
            ready = select(watched, [], [], _CHECK_S if check or is_repeated else None)[0]
            stopped_s = time.monotonic() - before_s
            if check and stopped_s > _CHECK_S + watch.STOPPED_S:
                print(f"the front process was stopped for {stopped_s:.1f} s", file=sys.stderr, flush=True)
            if check:
                check()
            if found_by and len(ready) > (self._read_fd in ready):
                found_by.answer()
            if is_repeated and last_signal is not None and not ready:
                forward(last_signal)
            for number in self._read():
                forward(number)
                last_signal = number
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _read(self) -> list[int]:
        """Return the signals that have come since the last call, after calling `on_stop` with each."""
        numbers = b""
        with suppress(BlockingIOError):
            numbers = os.read(self._read_fd, 64)
        stops = [number for number in numbers if number in STOP_SIGNALS and number not in self._drop]
        for number in stops:
            self._on_stop(number)
        return stops
