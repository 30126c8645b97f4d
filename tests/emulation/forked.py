"""Run a function in a sandbox of its own, forked from here: no program is started anew, so it costs a few milliseconds.

    this process ── keeper: new mount, network and PID namespaces ── child: process 1 in there, runs the function

Both die with the one to their left, and with the child the kernel ends whatever it started. The child has a private
/run and /dev/shm. (What a user's runs do to the same end, and more, is core/sandbox/launcher.py; it starts programs.)
"""

import ctypes
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from railyard.core.host import CLONE_NEWNET
from railyard.topologies.build import namespaces

PRIVATE: Final = ("/run", "/dev/shm")
NAMESPACES: Final = 0x20000 | 0x20000000 | CLONE_NEWNET  # mount, PID, network
_REC_PRIVATE: Final = 0x4000 | 0x40000
PR_SET_PDEATHSIG: Final = 1
libc: Final = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """The function raised, or its process ended otherwise; the message is for a person to read."""


class Skipped(Exception):
    """The function wants to be skipped; the message is the reason."""


def run(function: Callable[[], None], describe: Callable[[BaseException], str], within_s: float) -> None:
    """Call `function` in a sandbox. `describe` words an exception of the function's, in there, for `Failed`."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.fork()
    if keeper == 0:
        os.close(reading)
        _keep(function, describe, writing)
    os.close(writing)
    finished = False
    try:
        what, text, finished = _hear(reading, within_s)
    finally:
        os.close(reading)
        if not finished:
            os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)  # it has waited for the child, which the kernel lets end only after all it started
    if what == "skipped":
        raise Skipped(text)
    if what != "passed":
        raise Failed(text)


def _hear(reading: int, within_s: float) -> tuple[str, str, bool]:
    """Return what the child reports (a pickle, whose end is the end of the pipe), and whether it is done."""
    report = b""
    while select.select([reading], [], [], within_s)[0]:
        part = os.read(reading, 65536)
        if not part:
            what, text = pickle.loads(report) if report else ("failed", "its process ended before it could report")
            return what, text, True
        report += part
    return "failed", f"not done within {within_s:.0f} s", False


def _keep(function: Callable[[], None], describe: Callable[[BaseException], str], writing: int) -> NoReturn:
    try:
        call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
        call(libc.unshare(NAMESPACES), "unshare")
        child = os.fork()
        if child == 0:
            _be_the_child(function, describe, writing)
        os.close(writing)
        os.waitpid(child, 0)
    finally:
        os._exit(0)


def _be_the_child(function: Callable[[], None], describe: Callable[[BaseException], str], writing: int) -> NoReturn:
    report = ("failed", "no report")
    try:
        call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
        furnish()
        function()
        report = ("passed", "")
    except Skipped as reason:
        report = ("skipped", str(reason))
    except BaseException as error:
        report = ("failed", describe(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(report, pipe)
        os._exit(0)


def furnish() -> None:
    """Mount a private /proc and empty private folders, and set lo up, in namespaces that were just made."""
    mount_proc()
    for place in PRIVATE:
        if Path(place).is_dir() and not Path(place).is_symlink():
            call(libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, b"mode=755"), f"mount {place}")
    namespaces.run(["ip", "link", "set", "lo", "up"])


def mount_proc() -> None:
    """Mount a /proc of the PID namespace that was just made; no mount from now on is seen outside."""
    call(libc.mount(b"none", b"/", None, _REC_PRIVATE, None), "mount /")
    call(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")


def call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
