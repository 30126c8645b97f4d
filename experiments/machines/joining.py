"""Machines that join a run: requirements of each, the wait for them, and the check of the network between them."""

import os
import queue
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

import railyard
from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import detect, require
from railyard.core.installation import PROGRAM
from railyard.core.remote import read_token, send_line
from railyard.core.units import format_time
from railyard.experiments.machines import messages
from railyard.experiments.machines.agent import about_machine, interfaces
from railyard.experiments.machines.cluster import Cluster, Machine
from railyard.experiments.machines.joined_machines import JoinedMachines
from railyard.experiments.machines.server import Server
from railyard.experiments.run import machines as run_machines
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.hosts import UnderlaySpec
from railyard.topologies.build import namespaces
from railyard.topologies.build.machine_part import TUNNEL_HEADERS, Underlay, guarded

JOIN_CHECK_S: Final = 0.2
PROBE_S: Final = 0.3
PROBES: Final = 3


@contextmanager
def taking_part(task: Mapping[str, Any], spec: ExperimentSpec, folder: object) -> Iterator[None]:
    """Wait until the other machines have joined, and let the run use them while entered. `task`: as of `prepare`.

    MissingRequirement if they don't come in time, or can't take part.
    """
    machine_net = task["machine_net"]
    underlay = spec.underlay
    os.set_inheritable(machine_net, False)
    own_machine = task["own"]
    server = Server((own_machine["address"], underlay.port), machine_net, bytes.fromhex(task["token"]))
    with ExitStack() as stack:
        stack.callback(server.close)
        names = spec.hosts if isinstance(spec.hosts, tuple) else ()
        if names:
            own_machine = own_machine | {"name": names[0]}
        machines = _wait_for_machines(
            server, spec.machine_count, underlay, own_machine, task["quiet"], partial(_problem, spec)
        )
        for sock, _ in machines:
            stack.callback(sock.close)
        if names:
            machines.sort(key=lambda machine: names.index(machine[1]["name"]))
        mtu = max(fabric.mtu for fabric in spec.gpu_fabrics)
        request = {"experiment": spec.name}
        cluster = stack.enter_context(_together(server, machine_net, own_machine, machines, underlay, mtu, request))
        with run_machines.used(JoinedMachines(cluster)):
            yield


Joined = tuple[socket.socket, dict[str, Any]]
"""The connection to an agent, and what it says of its machine."""


@contextmanager
def _together(
    server: Server,
    machine_net: int,
    own_machine: Mapping[str, Any],
    machines: Sequence[Joined],
    underlay: UnderlaySpec,
    mtu: int,
    request: Mapping[str, Any],
) -> Iterator[Cluster]:
    """Start the parts of the machines, and check what is between them; they end at the end.

    `request`: for their agents.

    MissingRequirement if a kernel lacks something, or packets of fabrics with this MTU don't get through.
    """
    # random, so that no other run's tunnels have these numbers
    first = random.SystemRandom().randrange(1 << 8) << 16
    all_machines = [own_machine, *(about for _, about in machines)]
    addresses = tuple(about["address"] for about in all_machines)
    underlays = [
        Underlay(number, addresses, about["interface"], underlay.tunnel_port, first)
        for number, about in enumerate(all_machines)
    ]
    with ExitStack() as stack:
        # before any tunnel is there: packets from elsewhere must not reach a fabric
        stack.enter_context(guarded(underlays[0], machine_net))
        cluster = Cluster(server, machine_net, underlays[0], own_machine)
        stack.callback(cluster.end)
        for n, (sock, about) in enumerate(machines, 1):
            send_line(sock, {"machine": n + 1, **request})
            cluster.others.append(Machine(sock, n + 1, about))
        for machine, part in zip(cluster.others, underlays[1:], strict=True):
            port = machine.ask(messages.Prepare(underlay=part), messages.Port).number
            _check_path(machine, port, mtu, own_machine["address"], machine_net)
        cluster.measure_clocks()
        yield cluster


def _wait_for_machines(
    server: Server,
    hosts: int,
    underlay: UnderlaySpec,
    own_machine: Mapping[str, Any],
    quiet: bool,
    problem: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str],
) -> list[Joined]:
    """Return the other machines when all have joined. `problem`: why one can't take part, beside those before it."""
    needed = hosts - 1
    deadline = time.monotonic() + underlay.wait
    join = f"{PROGRAM} agent --join tcp://{own_machine['address']}:{underlay.port}"
    if not quiet:
        print(f"waiting for {needed} other machine{'s' if needed > 1 else ''}: {join}", file=sys.stderr, flush=True)
    machines = list[Joined]()
    while len(machines) < needed:
        with suppress(queue.Empty):
            sock, about = server.joining.get(timeout=JOIN_CHECK_S)
            if why := problem(about, [own_machine, *(other for _, other in machines)]):
                send_line(sock, {"refused": why})
                raise MissingRequirement(f"hosts: {about['name']} ({about['address']}) {why}", "then run it again")
            machines.append((sock, about))
        if time.monotonic() > deadline and len(machines) < needed:
            have = f"{1 + len(machines)} of {hosts} machines are there after {format_time(underlay.wait)}"
            stranger = f" ({server.strangers} callers had another token)" if server.strangers else ""
            raise MissingRequirement(f"hosts: {have}{stranger}", f"on each other machine: {join}")
    return machines


def _problem(spec: ExperimentSpec, about: Mapping[str, Any], other_machines: Sequence[Mapping[str, Any]]) -> str:
    """Return why a machine can't take part; empty if it can. `other_machines`: those that do, this machine first."""
    if isinstance(spec.hosts, tuple):
        if about["name"] not in spec.hosts[1:]:
            return f"is none of the machines of this run: {', '.join(spec.hosts)} (an agent has a name by --name)"
        if about["name"] in {other["name"] for other in other_machines}:
            return "has the name of a machine that has joined already"
    return _identity_problem(about, other_machines) or mtu_problem(about["interface"], about["mtu"], spec)


def _identity_problem(about: Mapping[str, Any], other_machines: Sequence[Mapping[str, Any]]) -> str:
    if about["version"] != railyard.__version__:
        return f"has Railyard {about['version']}, this machine {railyard.__version__}: install the same on both"
    if about["address"] in {other["address"] for other in other_machines}:
        return "has joined already: an agent on another machine is needed"
    return ""


def look(hosts: int, underlay: UnderlaySpec) -> list[dict[str, Any]]:
    """Return what is known of each machine once all have joined, this one first; they go on waiting for a run.

    They are checked as for a run with the largest packets that their interfaces take: MissingRequirement as there.
    """
    own_machine = _own_machine(underlay.interface, "--underlay")
    _require_root()
    require(detect())
    machine_net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    with ExitStack() as stack:
        stack.callback(os.close, machine_net)
        server = Server((own_machine["address"], underlay.port), machine_net, read_token())
        stack.callback(server.close)
        machines = _wait_for_machines(server, hosts, underlay, own_machine, False, _identity_problem)
        for sock, _ in machines:
            stack.callback(sock.close)
        least_mtu = min([own_machine["mtu"], *(about["mtu"] for _, about in machines)])
        mtu = least_mtu - TUNNEL_HEADERS
        request = {"experiment": "doctor", "is_check": True}
        cluster = stack.enter_context(_together(server, machine_net, own_machine, machines, underlay, mtu, request))
        return cluster.provenance()


def mtu_problem(interface: str, mtu: int, spec: ExperimentSpec) -> str:
    """Return why tunnels of the fabrics' packets don't fit through an interface; empty if they do."""
    need = max(fabric.mtu for fabric in spec.gpu_fabrics) + TUNNEL_HEADERS
    if mtu >= need:
        return ""
    return f"has MTU {mtu} at {interface}, tunnels need {need}: raise it, or set mtu to {mtu - TUNNEL_HEADERS} or less"


def _check_path(machine: Machine, port: int, mtu: int, address: str, machine_net: int) -> None:
    """Send datagrams as long as a tunnel's, there and back. MissingRequirement if none comes through whole."""
    # IPv4 and UDP headers come on top
    size = mtu + TUNNEL_HEADERS - 28
    with namespaces.inside_machine(machine_net), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # IP_MTU_DISCOVER, IP_PMTUDISC_DO: nothing is fragmented
        sock.setsockopt(socket.IPPROTO_IP, 10, 2)
        sock.bind((address, 0))
        sock.settimeout(PROBE_S)
        for _ in range(PROBES):
            with suppress(OSError):
                sock.sendto(b"\0" * size, (machine.about["address"], port))
                if len(sock.recv(65536)) == size:
                    return
    problem = f"hosts: packets of {size + 28} bytes don't reach {machine.name} and come back"
    raise MissingRequirement(problem, f"raise the MTU of the network between, or set the fabric's mtu below {mtu}")


def prepare(spec: ExperimentSpec) -> Mapping[str, Any] | None:
    """Check this machine's underlay before a sandbox is made; return the task of `taking_part`, None for one machine.

    The file `machine_net` is to be inherited by the sandbox.
    """
    if spec.machine_count == 1:
        return None
    own_machine = _own_machine(spec.underlay.interface, "underlay.interface")
    if problem := mtu_problem(own_machine["interface"], own_machine["mtu"], spec):
        raise BadInput("underlay.interface", spec.underlay.interface, problem)
    _require_root()
    token = read_token()
    machine_net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return {"machine_net": machine_net, "token": token.hex(), "own": own_machine}


def _require_root() -> None:
    if os.geteuid() != 0:
        raise MissingRequirement("hosts: tunnels from this machine's network need root", "use sudo")


def address_and_token(task: Mapping[str, Any], spec: ExperimentSpec) -> tuple[str, str]:
    """Return where the other machines join, and the token, of what `prepare` returned."""
    return f"tcp://{task['own']['address']}:{spec.underlay.port}", bytes.fromhex(task["token"]).decode()


def _own_machine(interface: str, field: str) -> dict[str, Any]:
    """Return what the others need to know of this machine. BadInput names the field that gave the interface."""
    local_interfaces = interfaces()
    own_interface = next((candidate for candidate in local_interfaces if candidate.name == interface), None)
    if own_interface is None:
        names = ", ".join(dict.fromkeys(candidate.name for candidate in local_interfaces)) or "none"
        raise BadInput(field, interface, f"has no IPv4 address here; those with one: {names}")
    return about_machine(socket.gethostname(), own_interface.address)


def refuse_several(spec: ExperimentSpec, command: str) -> None:
    """Raise BadInput for an experiment on several machines, for a command that has none but this one."""
    if spec.machine_count > 1:
        raise BadInput("hosts", spec.machine_count, f"is for run: {command} needs the whole fabric on this machine")
