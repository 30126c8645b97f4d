"""Queue of runs on a machine that several users share: a few run at once, the others wait for their turn.

A run has a ticket, an abstract Unix socket: everybody can read the names in /proc/net/unix, and the kernel removes one
as soon as its process ends, whatever ends it. The name has the place in the queue and says whose run it is. A run that
has its turn also holds one of as many places, which are sockets too: the kernel gives a place to one run, whichever of
two looks first and whatever the clock says. The queue is a courtesy, which `--no-queue` leaves. Runs in other network
namespaces (containers) have queues of their own.
"""

import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from railyard.core.errors import printable
from railyard.core.host_load import FOREIGN_LIMIT

PREFIX: Final = "railyard-queue"
_TICKETS: Final = Path("/proc/net/unix")
_MAX_NAME: Final = 107  # bytes of an abstract socket's name (unix(7): sun_path, without its first byte)
_POLL_S: Final = 0.5
_CORES_PER_RUN: Final = 2
_MEMORY_PER_RUN_BYTES: Final = 700_000_000  # an estimate for quickstart with its switches


class Ticket(NamedTuple):
    """A run that waits or runs: `name` sorts by the time at which it came; `text` says whose it is."""

    name: str
    text: str


class Stopped(Exception):
    """The wait for a turn was ended."""


def runs_at_once(cores: float, memory_bytes: float) -> int:
    """Return how many small runs a machine carries at once, so that each takes the others for little foreign load."""
    by_cores = 1 + int(FOREIGN_LIMIT * cores / _CORES_PER_RUN)
    return max(1, min(by_cores, int(memory_bytes // _MEMORY_PER_RUN_BYTES)))


def show(line: str) -> None:
    """Print a line on the place of a run to stderr."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def turn(
    what: str,
    at_once: int,
    prefix: str = PREFIX,
    stop: Event | None = None,
    tell: Callable[[str], object] = show,
) -> Iterator[list[int]]:
    """Wait until fewer than `at_once` earlier runs are left, and hold a place; 0: don't wait. Others see `what`.

    Yield the open files that hold it, for a child process that is to hold it too. `tell` is called with a line at each
    change of the place. Stopped when `stop` is set meanwhile.
    """
    name = f"{time.time_ns():020}-{os.getpid()}"
    line = f"{prefix}/{name}/{_user()}: {' '.join(what.split())}".encode(errors="replace")[:_MAX_NAME]
    with ExitStack() as held:
        ticket = _socket(line, held)
        place = _wait(name, at_once, prefix, stop or Event(), tell, held) if at_once else None
        yield [found.fileno() for found in (ticket, place) if found]


def _wait(
    name: str, at_once: int, prefix: str, stop: Event, tell: Callable[[str], object], held: ExitStack
) -> socket.socket:
    """Return the place, once there is one and no earlier run waits for it."""
    shown = ""
    while True:
        earlier = [ticket for ticket in tickets(prefix) if ticket.name < name]
        if len(earlier) < at_once:
            for number in range(at_once):
                with suppress(OSError):
                    return _socket(f"{prefix}-place/{number}".encode(), held)
        running, number = ", ".join(ticket.text for ticket in earlier[:at_once]), max(1, len(earlier) - at_once + 1)
        line = f"place {number} in the queue, running now: {running}"
        if line != shown and earlier:
            tell(line)
            shown = line
        if stop.wait(_POLL_S):
            raise Stopped


def _socket(name: bytes, held: ExitStack) -> socket.socket:
    """Return an abstract socket of this name. OSError if there is one."""
    with ExitStack() as undo:
        found = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        found.bind(b"\0" + name)
        held.enter_context(undo.pop_all())
        return found


def tickets(prefix: str = PREFIX) -> list[Ticket]:
    """Return the tickets of runs that are alive, the earliest first."""
    pattern = re.compile(rf"@{re.escape(prefix)}/(\d{{20}}-\d{{1,10}})/(.*)$")
    found = map(pattern.search, _TICKETS.read_text(errors="replace").splitlines())
    return sorted(Ticket(ticket[1], printable(ticket[2])) for ticket in found if ticket)


def _user() -> str:
    with suppress(KeyError):
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())
