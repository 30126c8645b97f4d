"""Watch of the launcher from inside its sandbox: a launcher that is stopped passes on no signal and ends no run.

The sandbox does not see the machine's processes, so it inherits the launcher's /proc/PID/stat as an open file, which
has its state at each reading.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LOOK_S: Final = 0.5
STOPPED: Final = ("T", "t")  # proc(5): by a signal, or by a tracer


def open_own_state() -> int:
    """Open the state of this process, for its sandbox to inherit."""
    return os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped now."""
    with suppress(OSError):
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(fd)[1] in STOPPED
        finally:
            os.close(fd)
    return False


def how_to_continue(pid: int) -> str:
    """Return what to type for a process that is stopped."""
    return f"type: kill -CONT {pid}"


class LauncherWatch:
    """Thread that tells when the launcher is stopped; the launcher itself says how long.

    `state_fd`: its state.

    `tell` is called with one line each time, from the thread.
    """

    def __init__(self, state_fd: int, tell: Callable[[str], object]) -> None:
        self._fd = state_fd
        self._tell = tell
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watches the launcher", daemon=True)
        self._thread.start()

    def close(self) -> str:
        """End the thread. Return a line if the launcher is stopped now, so that nothing would tell of the run's end."""
        self._has_ended.set()
        self._thread.join()
        pid, state = _read(self._fd)
        if state not in STOPPED:
            return ""
        return f"the run has ended, but the front process (pid {pid}) is stopped; {how_to_continue(pid)}"

    def _follow(self) -> None:
        was_stopped = False
        while not self._has_ended.wait(LOOK_S):
            pid, state = _read(self._fd)
            is_stopped = state in STOPPED
            if is_stopped and not was_stopped:
                self._tell(f"the front process (pid {pid}) is stopped, and the run goes on; {how_to_continue(pid)}")
            was_stopped = is_stopped


def _read(fd: int) -> tuple[int, str]:
    """Return the number and state of a process, no state if it has ended."""
    try:
        text = os.pread(fd, 4096, 0).decode(errors="replace")
    except ProcessLookupError:
        return 0, ""
    fields = text.rpartition(")")[2].split()
    return int(text.split()[0]), fields[0]
