"""Inside a capsule: what the inner does before anything else, and how signals reach it. (The outside is capsule.py.)"""

import atexit
import ctypes
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

from railyard.core.errors import MachineLacks
from railyard.core.sandbox.launcher import (
    BEGUN,
    COVERED,
    ENDED,
    LIFELINE,
    MARKER,
    OUTSIDE,
    STOPPING,
    libc,
    namespaces_of_this,
    taken,
)

_SCRATCH: Final = Path("/run/railyard")
_ONE_PRESS_S: Final = 1.0
_PRESSES: Final = 3
_MS_NOSUID_NODEV: Final = 2 | 4
_MS_BIND: Final = 4096


class Stopped(KeyboardInterrupt):
    """Somebody wants the run to end. Raised once, in the main thread of the inner, wherever it is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


def inside() -> bool:
    """Whether this process is the inner of a capsule; a variable that somebody has set doesn't make it one."""
    outside = os.environ.get(OUTSIDE, "").split()
    here = namespaces_of_this().split()
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
    """From the socket, which must be open still: had the outer died before all was tied to it, nobody would end us."""
    fd = int(os.environ[LIFELINE])
    os.set_inheritable(fd, False)
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(fd, 65536)
        if not part:
            os._exit(128 + signal.SIGKILL)
        line += part
    os.write(fd, BEGUN)
    atexit.register(os.write, fd, ENDED)
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
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
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
    for number in taken():
        signal.signal(number, _leave if interactive else _stop)
    if interactive:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def stopped_by() -> int | None:
    """The exit status that the signal asks for which stopped this run, None if none did."""
    return 128 + _stop.number if _stop.number else None
