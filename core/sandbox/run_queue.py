"""Queue of runs on a machine that several users share: a few run at once, the others wait for their turn.

A run that waits or runs has a ticket, an abstract Unix socket, which the kernel removes as soon as its process ends,
whatever ends it. The name has the place in the queue and says whose run it is; while the run has its turn, a second
socket says so. Any user can make a socket of any name, so only those count that are of the user whom they name, as the
kernel reports it. The queue is a courtesy, which `--no-queue` leaves. Runs in other network namespaces (containers)
have queues of their own.
"""

import os
import pwd
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from threading import Event
from typing import Final, NamedTuple

from railyard.core.errors import printable
from railyard.core.host_load import FOREIGN_LIMIT
from railyard.core.sandbox.front import how_to_continue, is_stopped
from railyard.core.sandbox.socket_owners import abstract_sockets

PREFIX: Final = "railyard-queue"
# bytes of an abstract socket's name: sun_path of unix(7), without its first byte
_MAX_NAME: Final = 107
_POLL_S: Final = 0.5  # at most
_CORES_PER_RUN: Final = 2
# an estimate for quickstart with its switches
_MEMORY_PER_RUN_BYTES: Final = 700_000_000


class Ticket(NamedTuple):
    """A run that waits or runs: `name` sorts by the time at which it came; `text` says whose it is."""

    name: str
    user: int
    text: str
    has_turn: bool


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
    description: str,
    at_once: int,
    prefix: str = PREFIX,
    stop: Event | None = None,
    tell: Callable[[str], object] = show,
) -> Iterator[list[int]]:
    """Wait until fewer than `at_once` earlier runs are left, and hold a place; 0: don't wait. Others see `description`.

    Yield the open files that hold it, for a child process that is to hold it too. `tell` is called with a line at each
    change of the place. Stopped when `stop` is set meanwhile.
    """
    user = os.geteuid()
    name = f"{time.time_ns():020}-{os.getpid()}/{user}"
    line = f"{prefix}/{name}/{_user_name(user)}: {' '.join(description.split())}".encode(errors="replace")[:_MAX_NAME]
    with ExitStack() as held:
        ticket = _socket(line, held)
        members = [ticket]
        if at_once:
            try:
                members.append(_wait(name, at_once, prefix, stop or Event(), tell, held))
            except OSError as error:
                # without unix_diag, any user that makes a socket could keep runs waiting
                tell(f"no queue: the kernel does not report whose sockets these are (unix_diag): {error.strerror}")
        yield [member.fileno() for member in members]


def _wait(
    name: str, at_once: int, prefix: str, stop: Event, tell: Callable[[str], object], held: ExitStack
) -> socket.socket:
    """Return the socket that says that a run has its turn, once fewer than `at_once` runs are ahead of it."""
    shown = ""
    while True:
        ahead = _ahead(name, prefix)
        if len(ahead) < at_once:
            with ExitStack() as undo:
                turn_socket = _socket(f"{prefix}-turn/{name}".encode(), undo)
                # another run may have begun meanwhile: the run that sees its socket takes the turn back
                if len(_ahead(name, prefix)) < at_once:
                    held.enter_context(undo.pop_all())
                    return turn_socket
        running = ", ".join(map(_with_state, ahead[:at_once]))
        line = f"place {max(1, len(ahead) - at_once + 1)} in the queue, running now: {running}"
        if line != shown and ahead:
            tell(line)
            shown = line
        # at random, so that two runs that took their turns back don't meet again
        if stop.wait(_POLL_S * random.uniform(0.5, 1.0)):
            raise Stopped


def _with_state(ticket: Ticket) -> str:
    """Return a ticket's text, and what to type if its process is stopped: it would keep the others waiting."""
    pid = int(ticket.name.partition("-")[2])
    return f"{ticket.text} (it is stopped; {how_to_continue(pid)})" if is_stopped(pid) else ticket.text


def _ahead(name: str, prefix: str) -> list[Ticket]:
    """Return the other runs that have a turn, whatever the clock says, then those that came earlier."""
    other_runs = [ticket for ticket in tickets(prefix) if f"{ticket.name}/{ticket.user}" != name]
    running = [ticket for ticket in other_runs if ticket.has_turn]
    return running + [ticket for ticket in other_runs if not ticket.has_turn and f"{ticket.name}/{ticket.user}" < name]


def _socket(name: bytes, held: ExitStack) -> socket.socket:
    """Return an abstract socket of this name. OSError if there is one."""
    with ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        sock.bind(b"\0" + name)
        held.enter_context(undo.pop_all())
        return sock


def tickets(prefix: str = PREFIX) -> list[Ticket]:
    """Return the tickets of runs that are alive, the earliest first. None counts that names another user than its own.

    OSError if the kernel doesn't report the users.
    """
    pattern = re.compile(rf"{re.escape(prefix)}(-turn)?/(\d{{20}}-\d{{1,10}})/(\d{{1,10}})(?:/(.*))?$", re.DOTALL)
    texts = {}
    turns = set()
    for socket_name, user in abstract_sockets(prefix.encode()):
        match = pattern.match(socket_name.decode(errors="replace"))
        if not match or int(match[3]) != user:
            continue
        if match[1]:
            turns.add((match[2], user))
        else:
            texts[match[2], user] = _shown(match[4] or "", user)
    return sorted(Ticket(*key, text, key in turns) for key, text in texts.items())


def _shown(text: str, user: int) -> str:
    """Return whose run it is, and its name. Root alone may name another user: the one who called sudo."""
    claimed, _, description = text.partition(": ")
    return printable(f"{claimed if user == 0 else _user_name(user)}: {description}")


@cache
def _user_name(user: int) -> str:
    if user == 0 and (caller := os.environ.get("SUDO_USER")):
        return caller
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)
