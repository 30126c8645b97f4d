"""Queue of runs on a machine that several users share: a few run at once, the others wait for their turn.

A run has a ticket, an abstract Unix socket: everybody can read the names in /proc/net/unix, and the kernel removes one
as soon as its process ends, whatever ends it. The name has the place in the queue and says whose run it is; the queue
is a courtesy, and `--no-queue` leaves it. Runs in other network namespaces (containers) have queues of their own.
"""

import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from railyard.core.errors import printable

PREFIX: Final = "railyard-queue"
_TICKETS: Final = Path("/proc/net/unix")
_MAX_NAME: Final = 107  # bytes of an abstract socket's name (unix(7): sun_path, without its first byte)
_POLL_S: Final = 0.5


class Ticket(NamedTuple):
    """A run that waits or runs: `name` sorts by the time at which it came; `text` says whose it is."""

    name: str
    text: str


@contextmanager
def turn(what: str, at_once: int, prefix: str = PREFIX) -> Iterator[None]:
    """Wait until fewer than `at_once` earlier runs are left, and hold a place; 0: don't wait. Others see `what`.

    Each change of the place is a line on stderr.
    """
    name = f"{time.time_ns():020}-{os.getpid()}"
    line = f"{prefix}/{name}/{_user()}: {' '.join(what.split())}".encode(errors="replace")[:_MAX_NAME]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ticket:
        ticket.bind(b"\0" + line)
        if at_once:
            _wait(name, at_once, prefix)
        yield


def _wait(name: str, at_once: int, prefix: str) -> None:
    shown = ""
    while len(ahead := [ticket for ticket in tickets(prefix) if ticket.name < name]) >= at_once:
        running, place = ", ".join(ticket.text for ticket in ahead[:at_once]), len(ahead) - at_once + 1
        line = f"place {place} in the queue, running now: {running} (--no-queue starts at once)"
        if line != shown:
            print(line, file=sys.stderr, flush=True)
            shown = line
        time.sleep(_POLL_S)


def tickets(prefix: str = PREFIX) -> list[Ticket]:
    """Return the tickets of runs that are alive, the earliest first."""
    pattern = re.compile(rf"@{re.escape(prefix)}/(\d{{20}}-\d{{1,10}})/(.*)$")
    found = map(pattern.search, _TICKETS.read_text(errors="replace").splitlines())
    return sorted(Ticket(ticket[1], printable(ticket[2])) for ticket in found if ticket)


def _user() -> str:
    with suppress(KeyError):
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())
