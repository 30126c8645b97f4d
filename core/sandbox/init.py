"""Sandbox init: the first steps of process 1 of a sandbox, and its signals. (launcher.py is the outside.)"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from select import POLLHUP, poll
from types import FrameType
from typing import Any, Final

from railyard.core import crash
from railyard.core.sandbox import hidden, launcher
from railyard.core.sandbox.launcher import STOP_SIGNALS, current_namespaces, stop_signals

_SCRATCH: Final = Path("/run/railyard")
_DEBOUNCE_S: Final = 1.0
_SIGNALS_TO_FORCE_EXIT: Final = 3


launcher_state = -1
"""Open file of the launcher's state (front.py), after `prepare`."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal asks the run to end. Raised once, in the main thread of the sandbox init."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def inside() -> bool:
    """Return whether this process is a sandbox init. Environment variables alone don't make it one."""
    host_namespaces = os.environ.get(launcher.HOST_NAMESPACES_VARIABLE, "").split()
    own_namespaces = current_namespaces().split()
    return (
        os.environ.get(launcher.SANDBOX_VARIABLE) == "1"
        and os.getpid() == 1
        and len(host_namespaces) == 2
        and not set(host_namespaces) & set(own_namespaces)
    )


def prepare() -> dict[str, Any]:
    """Mount private folders (/run, /tmp, /dev), make scratch folders, set lo up; return the task given to `enter`."""
    if not inside():
        raise ValueError("prepare is for the first process of a sandbox")
    # read the task; the socket must still be open: if the launcher died early, nothing would end this process
    fd = int(os.environ[launcher.SOCKET_FD_VARIABLE])
    os.set_inheritable(fd, False)
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 65536)
        if not chunk:
            os._exit(128 + signal.SIGKILL)
        line += chunk
    os.write(fd, launcher.STARTED)
    atexit.register(os.write, fd, launcher.FINISHED)
    # /tmp here goes with the sandbox
    crash.sink = lambda text: os.write(fd, text.encode(errors="backslashreplace"))
    poller = poll()
    poller.register(fd, 0)
    if any(event & POLLHUP for _, event in poller.poll(0)):
        os._exit(128 + signal.SIGKILL)
    task: dict[str, Any] = json.loads(line)
    hidden.hide(task["put_back"], task["sockets"])
    hidden.protect_settings()
    hidden.drop_capabilities()
    fonts = list(_font_lists())
    for variable, folder in (("TMPDIR", "tmp"), ("MPLCONFIGDIR", "matplotlib"), ("XDG_CACHE_HOME", "cache")):
        (_SCRATCH / folder).mkdir(parents=True)
        os.environ[variable] = str(_SCRATCH / folder)
    for path in fonts:
        with suppress(OSError):
            shutil.copyfile(path, _SCRATCH / "matplotlib" / path.name)
    tempfile.tempdir = None
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    global launcher_state
    launcher_state = task["launcher_state"]
    os.set_inheritable(launcher_state, False)
    own_task: dict[str, Any] = task["task"]
    return own_task


def _font_lists() -> Iterator[Path]:
    """Yield the lists of fonts that Matplotlib made for this user: a run that makes its own needs 0.3 s more."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", ""), ".cache")
    folder = Path(os.environ.get("MPLCONFIGDIR") or Path(cache, "matplotlib"))
    with suppress(OSError):
        yield from (path for path in folder.glob("fontlist-*.json") if path.stat().st_uid == os.geteuid())


def add_hosts(addresses: Mapping[str, str]) -> None:
    """Add names (name: address) to an /etc/hosts of the sandbox's own."""
    hosts_file = Path("/etc/hosts")
    private_file = _SCRATCH / "hosts"
    if hosts_file.exists():
        private_file.write_text(hosts_file.read_text() + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
        hidden.bind(private_file, hosts_file)


class _StopHandler:
    """Signal handler that raises `StoppedBySignal` at the first signal, and ends the run at the third.

    Signals within a second count as one: a terminal sends Ctrl-C to all, and the launcher passes it on too.
    """

    number = _signal_count = 0
    _last_s = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signal_count and now - self._last_s < _DEBOUNCE_S:
            return
        self._signal_count = self._signal_count + 1
        self._last_s = now
        if self._signal_count == 1:
            self.number = number
            raise StoppedBySignal(number)
        if self._signal_count == _SIGNALS_TO_FORCE_EXIT:
            os._exit(128 + number)
        os.write(2, b"\nwriting down what was measured so far; once more to give that up\n")


class _InteractiveStopHandler:
    """Signal handler that raises SystemExit once: the launcher repeats the signal while the program cleans up."""

    _has_raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._has_raised:
            self._has_raised = True
            sys.exit(128 + number)


_stop_handler: Final = _StopHandler()


def install_signal_handlers(interactive: bool = False) -> None:
    """Make signals raise `StoppedBySignal` from now on; at once if one came since the start.

    `interactive`: Ctrl-C raises KeyboardInterrupt, each time, and the first of the others SystemExit.
    """
    handler = _InteractiveStopHandler() if interactive else _stop_handler
    for number in stop_signals():
        signal.signal(number, handler)
    if interactive:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def signal_exit_status() -> int | None:
    """Return the exit status for the signal that stopped this run, None if none did."""
    return 128 + _stop_handler.number if _stop_handler.number else None
