"""Inside a capsule: what the inner does before anything else, and how signals reach it. (The outside is capsule.py.)"""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from select import POLLHUP, poll
from types import FrameType
from typing import Any, Final, NoReturn

from railyard.core.sandbox import hidden
from railyard.core.sandbox.launcher import (
    FINISHED,
    HOST_NAMESPACES_VARIABLE,
    SANDBOX_VARIABLE,
    SOCKET_FD_VARIABLE,
    STARTED,
    STOP_SIGNALS,
    current_namespaces,
    stop_signals,
)

_SCRATCH: Final = Path("/run/railyard")
_DEBOUNCE_S: Final = 1.0
_SIGNALS_TO_FORCE_EXIT: Final = 3


class StoppedBySignal(KeyboardInterrupt):
    """Somebody wants the run to end. Raised once, in the main thread of the inner, wherever it is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def inside() -> bool:
    """Whether this process is the inner of a capsule; a variable that somebody has set doesn't make it one."""
    host_namespaces = os.environ.get(HOST_NAMESPACES_VARIABLE, "").split()
    own_namespaces = current_namespaces().split()
    return (
        os.environ.get(SANDBOX_VARIABLE) == "1"
        and os.getpid() == 1
        and len(host_namespaces) == 2
        and not set(host_namespaces) & set(own_namespaces)
    )


def prepare() -> dict[str, Any]:
    """The first step: private folders (/run, /tmp), scratch folders and lo. Returns the task given to `enter`."""
    if not inside():
        raise ValueError("prepare is for the first process of a capsule")
    task = _read_task()
    hidden.hide(task["put_back"], task["sockets"])
    for variable, folder in (("TMPDIR", "tmp"), ("MPLCONFIGDIR", "matplotlib"), ("XDG_CACHE_HOME", "cache")):
        (_SCRATCH / folder).mkdir(parents=True)
        os.environ[variable] = str(_SCRATCH / folder)
    tempfile.tempdir = None
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    given: dict[str, Any] = task["task"]
    return given


def _read_task() -> dict[str, Any]:
    """From the socket, which must be open still: had the outer died before all was tied to it, nobody would end us."""
    fd = int(os.environ[SOCKET_FD_VARIABLE])
    os.set_inheritable(fd, False)
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 65536)
        if not chunk:
            os._exit(128 + signal.SIGKILL)
        line += chunk
    os.write(fd, STARTED)
    atexit.register(os.write, fd, FINISHED)
    poller = poll()
    poller.register(fd, 0)
    if any(event & POLLHUP for _, event in poller.poll(0)):
        os._exit(128 + signal.SIGKILL)
    task: dict[str, Any] = json.loads(line)
    return task


def add_hosts(addresses: Mapping[str, str]) -> None:
    """Let programs in the capsule know these names (name: address), by an /etc/hosts of its own."""
    hosts_file, private_file = Path("/etc/hosts"), _SCRATCH / "hosts"
    if hosts_file.exists():
        private_file.write_text(hosts_file.read_text() + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
        hidden.bind(private_file, hosts_file)


class _StopHandler:
    """Raises `StoppedBySignal` at the first signal.

    More of them within a second are the same Ctrl-C, which a terminal sends to all and the outer passes on too; later
    ones are counted, and the third ends the run without more words.
    """

    def __init__(self) -> None:
        self.number = 0
        self._signal_count = 0
        self._last_s = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signal_count and now - self._last_s < _DEBOUNCE_S:
            return
        self._signal_count, self._last_s = self._signal_count + 1, now
        if self._signal_count == 1:
            self.number = number
            raise StoppedBySignal(number)
        if self._signal_count == _SIGNALS_TO_FORCE_EXIT:
            os._exit(128 + number)
        os.write(2, b"\nwriting down what was measured so far; once more to give that up\n")


_stop_handler: Final = _StopHandler()


def install_signal_handlers(interactive: bool = False) -> None:
    """From now on a signal raises `StoppedBySignal`, here and now if one came since the start.

    `interactive`: Ctrl-C raises KeyboardInterrupt, each time, and the others SystemExit.
    """
    for number in stop_signals():
        signal.signal(number, _exit_on_signal if interactive else _stop_handler)
    if interactive:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def signal_exit_status() -> int | None:
    """The exit status that the signal asks for which stopped this run, None if none did."""
    return 128 + _stop_handler.number if _stop_handler.number else None
