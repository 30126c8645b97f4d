"""Machines of `--on ssh:h1,h2`: a Dask scheduler on the first host and a worker on each, started by ssh.

A key is made for each sweep, and kept in memory: it goes to each host over its ssh connection. What a host prints is
its own word: one line is read of it, of bounded size and within a limit of time.
"""

import asyncio
import json
import re
import shlex
import socket
import sys
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import asyncssh
import dask

import railyard
from railyard.core.errors import BadInput, MissingRequirement, printable
from railyard.experiments.sweep import keys
from railyard.experiments.sweep.keys import Keys
from railyard.experiments.sweep.remote import END_S, MARK, ORDER, Order

START_S: Final = 60.0  # for a host to take the login, load Python and Dask, and print its line
MOST_OUTPUT: Final = 64 * 1024  # bytes that are read of a host
_ADDRESS: Final = re.compile(r"tls://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_MODULE: Final = "railyard.experiments.sweep.remote"
_THREAD: Final = "sweep-ssh"
_Answer = TypeVar("_Answer")


class _HostError(Exception):
    """Why a host has started nothing."""


@dataclass
class _Hosts:
    """Connections to hosts, and what was started on each. Everything is called in one event loop."""

    keys: Keys
    connections: list[asyncssh.SSHClientConnection] = field(default_factory=list)
    processes: list[Any] = field(default_factory=list)

    async def start_all(self, hosts: list[str]) -> str:
        """Start the scheduler, then the workers; return the scheduler's address."""
        scheduler = await self._start(hosts[0], "scheduler", own_address(hosts[0]), "")
        starts = [asyncio.ensure_future(self._start(host, "worker", "", scheduler)) for host in hosts]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
        return scheduler

    async def _start(self, host: str, part: str, address: str, scheduler: str) -> str:
        """Start one part on a host and return its address. MissingRequirement if it says none in time."""
        order = ORDER.validate_python(
            {
                "part": part,
                "host": address,
                "scheduler": scheduler,
                "private_key": self.keys.private_key,
                "certificate": self.keys.certificate,
                "config": dask.config.global_config,
            }
        )
        try:
            return await asyncio.wait_for(self._ordered(host, order), START_S)
        except TimeoutError as error:
            raise _not_started(host, f"nothing was started there within {START_S:g} s") from error
        except (OSError, asyncssh.Error, _HostError, ValueError) as error:
            raise _not_started(host, str(error) or type(error).__name__) from error

    async def _ordered(self, host: str, order: Order) -> str:
        connection = await asyncssh.connect(host)
        self.connections.append(connection)
        process: Any = await connection.create_process(f"{shlex.quote(sys.executable)} -m {_MODULE}", encoding=None)
        # ssh may have ended; its own message follows below
        with suppress(BrokenPipeError):
            process.stdin.write(ORDER.dump_json(order) + b"\n")
        output = await _read_until(process.stdout, re.compile(rb"^" + MARK.encode() + rb".*\n", re.MULTILINE))
        if output is None:
            raise _HostError(await _reason(process))
        address = _address_in(output)
        await process.redirect(stdout=asyncssh.DEVNULL, stderr=asyncssh.DEVNULL)
        self.processes.append(process)
        return address

    async def end(self) -> None:
        """End what was started: its input ends, at the latest with the connection."""
        for process in self.processes:
            with suppress(OSError, asyncssh.Error):
                process.stdin.write_eof()
        waits = [process.wait_closed() for process in self.processes]
        with suppress(TimeoutError, OSError, asyncssh.Error):
            await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), END_S)
        for connection in self.connections:
            connection.abort()


@contextmanager
def started(where: str) -> Iterator[tuple[str, Keys]]:
    """Yield the address of a scheduler that has a worker on each host, and the keys of all of them."""
    hosts = [host for host in where.removeprefix("ssh:").split(",") if host]
    if not hosts:
        raise BadInput("--on", where, "must name hosts, such as ssh:h1,h2")
    own_keys = keys.make()
    connected = _Hosts(own_keys)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name=_THREAD)
    thread.start()
    try:
        yield _result(connected.start_all(hosts), loop), own_keys
    finally:
        _result(connected.end(), loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S)
        if not thread.is_alive():
            loop.close()


def _result(answer: Awaitable[_Answer], loop: asyncio.AbstractEventLoop) -> _Answer:
    """Wait for a coroutine of another thread's loop. It is cancelled if this thread gets a signal meanwhile."""
    future: ThreadFuture[_Answer] = asyncio.run_coroutine_threadsafe(_awaited(answer), loop)
    try:
        return future.result()
    finally:
        future.cancel()


async def _awaited(answer: Awaitable[_Answer]) -> _Answer:
    return await answer


def own_address(host: str) -> str:
    """Return the address by which a scheduler on a host is reached; "" leaves the choice to Dask.

    Without it, a host that has no route to the Internet gives out 127.0.0.1.
    """
    # the name may be an alias of ~/.ssh/config
    with suppress(OSError):
        address = socket.gethostbyname(host)
        if not address.startswith("127."):
            return address
    return ""


async def _read_until(stream: Any, pattern: re.Pattern[bytes]) -> str | None:
    """Return the first line of a stream that fits; None if there is none in the bytes that are read of it."""
    output = b""
    while len(output) < MOST_OUTPUT:
        part = await stream.read(4096)
        if not part:
            return None
        output += part
        if line := pattern.search(output):
            return line[0].decode(errors="replace")
    raise _HostError(f"the host has printed {MOST_OUTPUT:,} bytes and no address")


async def _reason(process: Any) -> str:
    """Return why a program has ended without an address, in a line."""
    lines = (await process.stderr.read(MOST_OUTPUT)).decode(errors="replace").strip().splitlines()
    last = printable(lines[-1][:120]) if lines else "it ended without a word"
    if "No module named" in last:
        return f"another version of Railyard, or none, is there, and this is {railyard.__version__}: {last}"
    return last


def _address_in(line: str) -> str:
    """Return the address in a host's line. _HostError for anything but the address of a port with TLS."""
    try:
        answer = json.loads(line.removeprefix(MARK))
    except (ValueError, RecursionError) as error:
        raise _HostError(f"the host's line is no JSON: {printable(line[:60])}") from error
    address = answer.get("address") if isinstance(answer, dict) else None
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise _HostError(f"the host's line has no address of a port with TLS: {printable(line[:60])}")
    return address


def _not_started(host: str, why: str) -> MissingRequirement:
    line = " ".join(why.split())[:160]
    return MissingRequirement(f"--on: Dask can't be started on {host}: {line}", f"try: ssh {host} true")
