"""The agent of a machine that takes part in others' runs: it joins a run, starts its part in a sandbox, and waits for
the next run. A part dies with its agent, and with the connection to its run.
"""

import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

import railyard
from railyard.core.errors import BadInput, MissingRequirement, print_error
from railyard.core.host import detect, require, usable_cores
from railyard.core.installation import PROJECT, module_command
from railyard.core.remote import NotAuthentic, authenticate, read_line, read_token, send_line, tuned
from railyard.core.sandbox import launcher, run_queue

RETRY_S: Final = 0.5
CONNECT_S: Final = 5.0
_STOPPED: Final = tuple(128 + number for number in launcher.STOP_SIGNALS)


class Interface(NamedTuple):
    """An interface of this machine and its first IPv4 address."""

    name: str
    address: str
    mtu: int


def interfaces() -> list[Interface]:
    """Return the interfaces with IPv4 addresses, one for each address."""
    stats = psutil.net_if_stats()
    with_address: list[Interface] = []
    for name, addresses in psutil.net_if_addrs().items():
        # an interface may have come or gone between the two calls
        if name not in stats:
            continue
        for address in addresses:
            if address.family == socket.AF_INET:
                with_address.append(Interface(name, address.address, stats[name].mtu))
    return with_address


def parse_join(text: str) -> tuple[str, int]:
    """Return host and port of `tcp://HOST:PORT`."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not (text.startswith("tcp://") and host and port.isdecimal() and 0 < int(port) < 65536):
        raise BadInput("--join", text, "must be tcp://HOST:PORT, as the run prints it")
    return host, int(port)


def check_host(join: str, host: str) -> None:
    """Raise BadInput for a host that doesn't exist. If no name server answers, one may do so later."""
    try:
        socket.getaddrinfo(host, None)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: it can't be a name, such as a..b
        if isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME:
            raise BadInput("--join", join, f"must have a known host, and {host} is none") from None


def about_machine(name: str, address: str) -> dict[str, Any]:
    """Return what a run needs to know of this machine, which it reaches at `address`."""
    own_interface = next((interface for interface in interfaces() if interface.address == address), None)
    if own_interface is None:
        raise MissingRequirement(f"no interface has the address {address}", "join by an address of this machine")
    return {
        "role": "join",
        "name": name,
        "version": railyard.__version__,
        "kernel": platform.release(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "cores": usable_cores(),
        "address": address,
        "interface": own_interface.name,
        "mtu": own_interface.mtu,
    }


def serve(join: str, name: str, once: bool, within_s: float = inf) -> int:
    """Take part in runs until a signal ends the agent, or in one; return the exit status.

    Once a run is there, it waits for a turn in the queue of this machine's runs. MissingRequirement if no run takes it
    within that time.
    """
    deadline = time.monotonic() + within_s
    host, port = parse_join(join)
    check_host(join, host)
    token = read_token()
    if os.geteuid() != 0:
        raise MissingRequirement("an agent needs root, for tunnels from this machine's network", "use sudo")
    machine = detect()
    require(machine)
    at_once = run_queue.runs_at_once(machine.cores, psutil.virtual_memory().total)
    print(f"waiting for a run at {join}", flush=True)
    while True:
        if probe := _connected((host, port)):
            probe.close()
            with _turn(f"a part of the run at {join}", at_once, deadline), ExitStack() as stack:
                status = None
                # the other end may have ended meanwhile
                if sock := _connected((host, port)):
                    status = _take_part(stack.enter_context(sock), (host, port), token, name)
            if status is not None and (once or status == 2 or status in _STOPPED):
                return status
        elif time.monotonic() > deadline:
            raise MissingRequirement(f"no run was there at {join}", "start it first, or give more time")
        time.sleep(RETRY_S)


def _connected(run: tuple[str, int]) -> socket.socket | None:
    """Return a connection to a run; None if none is there."""
    with suppress(OSError):
        return socket.create_connection(run, CONNECT_S)
    return None


@contextmanager
def _turn(question: str, at_once: int, deadline: float) -> Iterator[None]:
    """Have a turn in the queue of this machine's runs while entered. MissingRequirement if none comes in time."""
    too_late = threading.Event()
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), too_late.set) if deadline < inf else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        with run_queue.turn(question, at_once, stop=too_late):
            yield
    except run_queue.Stopped:
        raise MissingRequirement("other runs were on this machine all the time", "give more time") from None
    finally:
        if timer:
            timer.cancel()


def _take_part(sock: socket.socket, run: tuple[str, int], token: bytes, name: str) -> int | None:
    """Join a run and start its part; return its exit status, None if the run has ended before.

    If a signal came to stop us, the status is 128 plus its number, although the part may have ended by itself.
    """
    address = sock.getsockname()[0]
    try:
        authenticate(sock, token, caller=True)
        send_line(sock, about_machine(name, address))
        answer = read_line(tuned(sock))
    except NotAuthentic as error:
        return print_error(f"the run at {run[0]}:{run[1]}: {error}", 2)
    except OSError:  # the run has ended, or started only now
        return None
    if answer.get("refused"):
        return print_error(f"the run at {run[0]}:{run[1]} refuses this machine: {answer['refused']}", 2)
    print(f"takes part in {answer['experiment']} as machine {answer['machine']}", flush=True)
    machine_net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    task = {"control": sock.fileno(), "machine_net": machine_net, "address": address, "run": run, "token": token.hex()}
    try:
        argv = module_command("railyard.experiments.machines.part")
        title = f"{answer['experiment']} machine-{answer['machine']}"
        inherited = [sock.fileno(), machine_net]
        stops = list[int]()
        status = launcher.enter(argv, task, title, inherited=inherited, folder=PROJECT, on_stop=stops.append)
    finally:
        os.close(machine_net)
    print(f"the run has ended ({status})", file=sys.stderr, flush=True)
    if stops:
        return 128 + stops[0]
    # a check of `doctor` starts nothing
    return None if answer.get("is_check") else status
