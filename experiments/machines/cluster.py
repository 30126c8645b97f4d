"""The machines of a run: those that join it, the part of the fabric on each, their clocks, load and counters.

This is the side of the run, in the sandbox on the first machine; part.py is that of the others. Connections between
machines are made in the first machine's own network namespace, of which the sandbox has an open file.
"""

import os
import queue
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import numpy as np

import railyard
from railyard.controller.processes.clients import ADDRESS, ControllerProcess
from railyard.core.errors import BadInput, MissingRequirement, RailyardError
from railyard.core.host import Datapath, usable_cores
from railyard.core.host_load import LoadMeter, LoadSample, MachineLoad
from railyard.core.installation import PROGRAM
from railyard.core.remote import RemoteWorker, authenticate, read_line, read_token, relay, send_line, tuned
from railyard.core.units import format_time
from railyard.core.worker import OnEvent, Ready
from railyard.experiments.machines import messages
from railyard.experiments.machines.agent import about_machine, interfaces
from railyard.experiments.machines.spec import UnderlaySpec
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.machine_part import TUNNEL_HEADERS, PartNet, Underlay, guarded, interface_bytes
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.measure import rates
from railyard.topologies.measure.counters import Counters
from railyard.topologies.placement import Placement, place
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import REPLIES, Place, start_worker

JOIN_CHECK_S: Final = 0.2
WORKER_S: Final = 30.0
BUILD_S: Final = 300.0
EXCHANGES: Final = 200
PROBE_S: Final = 0.3
PROBES: Final = 3


class Server:
    """Takes connections of the other machines: of agents, which wait in `joining`, of workers, and of switches."""

    def __init__(self, address: tuple[str, int], machine_net: int, token: bytes) -> None:
        self._token = token
        self.joining: queue.Queue[tuple[socket.socket, dict[str, Any]]] = queue.Queue()
        self._workers: dict[int, queue.Queue[socket.socket]] = {}
        self.strangers = 0  # callers without the token
        with namespaces.inside_machine(machine_net):
            try:
                self._listener = socket.create_server(address)
            except OSError as error:
                raise BadInput(
                    "underlay.port", address[1], f"can't be used at {address[0]}: {error.strerror}"
                ) from None
        threading.Thread(target=self._accept, name="accepts machines", daemon=True).start()

    def worker(self, number: int) -> socket.socket:
        """Return the connection of the worker of that number."""
        try:
            return self._workers.setdefault(number, queue.Queue()).get(timeout=WORKER_S)
        except queue.Empty:
            raise RailyardError(f"a replay worker on another machine did not connect in {WORKER_S:g} s") from None

    def close(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            authenticate(sock, self._token, caller=False)
            greeting = read_line(sock)
            tuned(sock)
            match greeting.get("role"):
                case "join":
                    self.joining.put((sock, greeting))
                case "worker":
                    self._workers.setdefault(int(greeting["number"]), queue.Queue()).put(sock)
                case "openflow":
                    relay(sock, tuned(socket.create_connection(ADDRESS)))
                case _:
                    sock.close()
        except (OSError, RailyardError):
            self.strangers += 1
            sock.close()


@dataclass(frozen=True)
class Clock:
    """A machine's monotonic clock less that of the first, ns, by the quickest exchange; it is off by `uncertainty_ns`
    at most.
    """

    offset_ns: int
    uncertainty_ns: int


@dataclass
class Machine:
    """Another machine of the run. `about`: what its agent said of it."""

    worker: RemoteWorker
    about: Mapping[str, Any]
    clock: Clock = Clock(0, 0)

    @property
    def name(self) -> str:
        """Its name and address, for messages."""
        return self.worker.name

    def measure_clock(self) -> Clock:
        """Measure and keep the offset of its clock: half way between sending and receiving of the quickest exchange."""
        found = []
        for _ in range(EXCHANGES):
            sent = time.monotonic_ns()
            there = self.worker.ask(messages.ReadClock(), messages.Clock).ns
            received = time.monotonic_ns()
            found.append((received - sent, there - (sent + received) // 2))
        trip_ns, offset_ns = min(found)
        self.clock = Clock(offset_ns, trip_ns // 2)
        return self.clock


class Cluster:
    """All machines of a run; this one is number 0."""

    def __init__(self, server: Server, machine_net: int, underlay: Underlay, own: Mapping[str, Any]) -> None:
        self._server, self._machine_net, self._underlay, self.own = server, machine_net, underlay, own
        self.others: list[Machine] = []
        self._worker_numbers = iter(range(1 << 30))
        self.placement: Placement | None = None

    @property
    def count(self) -> int:
        """Number of machines."""
        return 1 + len(self.others)

    def controller(self, plan: Plan, on_event: OnEvent) -> "ClusterController":
        """Return a controller for the fabric, which builds the parts on other machines."""
        self.placement = place(plan, self.count)
        return ClusterController(self, self.placement, on_event)

    def network(self, datapath: Datapath, controller: "ClusterController") -> PartNet:
        """Return this machine's part of the network."""
        return PartNet(controller.placement, self._underlay, self._machine_net, datapath, controller)

    def ask_all(self, message: messages.ToPart, reply: Any = Ready, within_s: float = 30.0) -> list[Any]:
        """Send a message to all other machines; return their replies when all are there."""
        for machine in self.others:
            machine.worker.send(message)
        return [machine.worker.receive(reply, within_s) for machine in self.others]

    def counters(self) -> tuple[Counters, int]:
        """Return the counters of the other machines, and the bytes that the underlay's interfaces sent on all."""
        found: list[messages.Counted] = self.ask_all(messages.ReadCounters(), messages.Counted)
        sent = interface_bytes(self._machine_net, self._underlay.interface)
        total = sum((one.counters for one in found), Counters(0, 0, 0))
        return total, sent + sum(one.underlay_bytes for one in found)

    @contextmanager
    def relaxed_tcp_timers(self, net: PartNet, longest_queue_s: float) -> Iterator[None]:
        """Relax TCP loss detection at all GPUs while entered."""
        with namespaces.relaxed_tcp_timers([host.name for host in net.hosts], longest_queue_s):
            self.ask_all(messages.RelaxTimers(on=True, longest_queue_s=longest_queue_s))
            yield
            self.ask_all(messages.RelaxTimers(on=False))

    def measure_clocks(self) -> float:
        """Measure all clocks anew; return the largest uncertainty, s, with what an offset changed by since the last."""
        worst = 0
        for machine in self.others:
            before = machine.clock
            after = machine.measure_clock()
            drift = abs(after.offset_ns - before.offset_ns) if before.uncertainty_ns else 0
            worst = max(worst, after.uncertainty_ns + drift)
        return worst / 1e9

    def places(self) -> list[Place]:
        """Return the machines as the replay needs them."""
        assert self.placement
        found = [Place(self.placement.domains(0), max(1, round(usable_cores())), start_worker)]
        for n, machine in enumerate(self.others, 1):
            workers, start = max(1, round(machine.about["cores"])), partial(self._start_worker, machine)
            found.append(Place(self.placement.domains(n), workers, start, machine.clock.offset_ns))
        return found

    def _start_worker(self, machine: Machine) -> RemoteWorker:
        number = next(self._worker_numbers)
        machine.worker.ask(messages.StartWorker(number=number), Ready)
        return RemoteWorker(self._server.worker(number), f"a replay worker on {machine.name}", *REPLIES)

    def underlay_bytes(self, rail_out: Sequence[int], rail_in: Sequence[int], mtu: int) -> float:
        """Return what the underlay should carry for TCP payload between GPUs and rail switches on two machines.

        `rail_out`, `rail_in`: payload by GPU number. Acknowledgements and control come on top.
        """
        assert self.placement
        payload, at = 0, self.placement.machine_of
        for number, gpu in enumerate(self.placement.plan.gpus):
            if at[gpu.name] != at[self.placement.plan.network_end(gpu, "rail").node]:
                payload += int(rail_out[number]) + int(rail_in[number])
        frames = payload / payload_fraction(mtu) / (mtu + 14)
        return frames * (mtu + 14 + TUNNEL_HEADERS)

    def calibrate(self, net: PartNet) -> list[rates.Sample]:
        """Measure a link of an HB domain on this machine, and the longest way over a rail: to the last machine.

        The latency of the way is half of the time there and back, since the ends have a clock each.
        """
        hb, rail, *_ = rates.samples(net)
        far, last = Gpu(net.plan.spec.domains - 1, 0), self.others[-1].worker
        hb = hb._replace(latency_s=rates.latency_s(hb.src, hb.dst))
        port = last.ask(messages.ServeEcho(gpu=far.name, ip=far.ip), messages.Port).number
        rail = rail._replace(src=Gpu(0, 0), dst=far, latency_s=rates.echo_latency_s(Gpu(0, 0), far, port))
        last.ask(messages.ServeIperf(gpu=far.name, ip=far.ip), Ready)
        seconds = [rates.calibration_s(sample.expected_bps) for sample in (hb, rail)]
        flows = [
            rates.start_flow(hb.src.name, hb.dst.name, hb.dst.ip, seconds[0]),
            rates.start_client(rail.src.name, far.name, far.ip, seconds[1]),
        ]
        return [s._replace(measured_bps=rates.measured_bps(flow)) for s, flow in zip((hb, rail), flows, strict=True)]

    def meter(self) -> "ClusterMeter":
        """Return a meter of the load of all machines."""
        return ClusterMeter(self)

    def provenance(self) -> list[dict[str, Any]]:
        """Return what a run records of its machines."""
        kept = ("name", "address", "interface", "mtu", "kernel", "cores")
        rows = [{key: about[key] for key in kept} for about in (self.own, *(m.about for m in self.others))]
        for row, clock in zip(rows, [Clock(0, 0), *(m.clock for m in self.others)], strict=True):
            row |= {"clock_offset_us": clock.offset_ns / 1e3, "clock_uncertainty_us": clock.uncertainty_ns / 1e3}
        return rows

    def end(self) -> None:
        """End the parts."""
        for machine in self.others:
            machine.worker.end()


class ClusterController(ControllerProcess):
    """The controller of a fabric on several machines. Its switches there connect to it through the parts."""

    def __init__(self, cluster: Cluster, placement: Placement, on_event: OnEvent) -> None:
        elsewhere = frozenset(node for node, machine in placement.machine_of.items() if machine)
        super().__init__(False, on_event, elsewhere)
        self.placement, self._cluster = placement, cluster

    def connect(self, plan: Plan) -> None:
        """Start the controller, and let all machines build their parts."""
        super().connect(plan)
        for machine in self._cluster.others:
            machine.worker.send(messages.Build(placement=self.placement))

    def wait_ready(self) -> None:
        """Return when all parts are there and all switches have their flows."""
        for machine in self._cluster.others:
            machine.worker.receive(messages.Built, BUILD_S)
        super().wait_ready()

    def stop(self) -> None:
        """End it, then take the parts down, whose switches it would else report as dead.

        A machine that is gone has nothing to take down.
        """
        super().stop()
        with suppress(RailyardError):
            self._cluster.ask_all(messages.TakeDown(), within_s=60.0)


class ClusterMeter:
    """The load of all machines, as a LoadMeter has that of one: of each figure, that of the machine where it is worst.

    Machines that share a kernel see one another's processes as foreign; the meter takes them for what they are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._own = cluster, LoadMeter()
        self._loads: list[MachineLoad] = []
        self._shared: list[messages.Metered] = []  # of parts on this kernel

    def __enter__(self) -> "ClusterMeter":
        self._cluster.ask_all(messages.Meter(on=True))
        self._own.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._own.__exit__()
        if kind is not None:
            return  # a machine may be gone
        found = self._cluster.ask_all(messages.Meter(on=False), messages.Metered)
        for machine, metered in zip(self._cluster.others, found, strict=True):
            if machine.about["boot_id"] == self._cluster.own["boot_id"]:
                self._shared.append(metered)
            else:
                self._loads.append(metered.load)

    @property
    def load(self) -> MachineLoad:
        """The load so far."""
        own = self._own.load
        values = {field.name: getattr(own, field.name) for field in fields(MachineLoad)}
        if self._shared:
            cores = len(os.sched_getaffinity(0))
            elapsed = self._own.elapsed_s * cores
            values["foreign"] = max(0.0, own.foreign - sum(one.own_s for one in self._shared) / elapsed)
            values["foreign_100ms"] = max(map(self._foreign, self._own.steps, self._own.steps[2:]), default=0.0)
            lags = [one.load for one in self._shared]
            for name in ("lag_p99_ms", "paused", "pause_ms"):
                values[name] = max(values[name], *(getattr(load, name) for load in lags))
        for load in self._loads:
            values = {name: max(value, getattr(load, name)) for name, value in values.items()}
        return MachineLoad(**values)

    def take_samples(self) -> list[LoadSample]:
        """Return this machine's samples since the last call."""
        found = self._own.take_samples()
        if not self._shared:
            return found
        cores = len(os.sched_getaffinity(0))

        def corrected(sample: LoadSample) -> LoadSample:
            end = sample.monotonic_ns / 1e9
            parts = self._used_by_parts(end - 0.1, end) / (0.1 * cores)
            return sample._replace(foreign=max(0.0, sample.foreign - parts))

        return [corrected(sample) for sample in found]

    def _foreign(self, before: Any, after: Any) -> float:
        cores = len(os.sched_getaffinity(0))
        spent = [b - a for a, b in zip(before, after, strict=True)]
        elapsed, busy, stolen, kernel, ours = spent
        others = busy - stolen - kernel - ours - self._used_by_parts(before.at, after.at)
        return float(min(1.0, max(0.0, others / (elapsed * cores))))

    def _used_by_parts(self, start: float, end: float) -> float:
        """Return the CPU seconds of the parts on this kernel between two times of the monotonic clock."""
        used = 0.0
        for one in self._shared:
            if one.own:
                at, own = np.array(one.own).T
                used += float(np.interp(end, at, own) - np.interp(start, at, own))
        return used


_cluster: Cluster | None = None


def current() -> Cluster | None:
    """Return the machines of this run; None for a run on one."""
    return _cluster


@contextmanager
def joined(task: Mapping[str, Any] | None, spec: ExperimentSpec) -> Iterator[None]:
    """Wait until the other machines have joined, and use them while entered; without a task do nothing.

    MissingRequirement if they don't come in time, or can't take part.
    """
    global _cluster
    if task is None:
        yield
        return
    machine_net, underlay = task["machine_net"], spec.underlay
    os.set_inheritable(machine_net, False)
    own = task["own"]
    server = Server((own["address"], underlay.port), machine_net, bytes.fromhex(task["token"]))
    with ExitStack() as stack:
        stack.callback(server.close)
        found = _wait_for_machines(server, spec.hosts, underlay, own, task["quiet"], partial(_problem, spec))
        for sock, _ in found:
            stack.callback(sock.close)
        first = random.SystemRandom().randrange(1 << 8) << 16  # so that no other run's tunnels have these numbers
        addresses = (own["address"], *(about["address"] for _, about in found))
        underlays = [
            Underlay(n, addresses, about["interface"], underlay.tunnel_port, first)
            for n, about in enumerate([own, *(about for _, about in found)])
        ]
        stack.enter_context(guarded(underlays[0], machine_net))
        cluster = Cluster(server, machine_net, underlays[0], own)
        stack.callback(cluster.end)
        for n, (sock, about) in enumerate(found, 1):
            send_line(sock, {"machine": n + 1, "experiment": spec.name})
            name = f"machine {n + 1} ({about['name']}, {about['address']})"
            replies = (Ready, *(vars(messages)[kind] for kind in ("Port", "Built", "Counted", "Metered", "Clock")))
            worker = RemoteWorker(sock, name, *replies, on_event=lambda *_: None, is_vital=True)
            cluster.others.append(Machine(worker, about))
        for machine, part in zip(cluster.others, underlays[1:], strict=True):
            port = machine.worker.ask(messages.Prepare(underlay=part), messages.Port).number
            _check_path(machine, port, max(fabric.mtu for fabric in spec.gpu_fabrics), own["address"], machine_net)
        cluster.measure_clocks()
        _cluster = cluster
        try:
            yield
        finally:
            _cluster = None


Joined = tuple[socket.socket, dict[str, Any]]
"""The connection to an agent, and what it says of its machine."""


def _wait_for_machines(
    server: Server,
    hosts: int,
    underlay: UnderlaySpec,
    own: Mapping[str, Any],
    quiet: bool,
    problem: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str],
) -> list[Joined]:
    """Return the other machines when all have joined. `problem`: why one can't take part, beside those before it."""
    needed, deadline = hosts - 1, time.monotonic() + underlay.wait
    join = f"{PROGRAM} agent --join tcp://{own['address']}:{underlay.port}"
    if not quiet:
        print(f"waiting for {needed} other machine{'s' if needed > 1 else ''}: {join}", file=sys.stderr, flush=True)
    found = list[Joined]()
    while len(found) < needed:
        with suppress(queue.Empty):
            sock, about = server.joining.get(timeout=JOIN_CHECK_S)
            if why := problem(about, [own, *(other for _, other in found)]):
                send_line(sock, {"refused": why})
                raise MissingRequirement(f"hosts: {about['name']} ({about['address']}) {why}", "then run it again")
            found.append((sock, about))
        if time.monotonic() > deadline and len(found) < needed:
            have = f"{1 + len(found)} of {hosts} machines are there after {format_time(underlay.wait)}"
            stranger = f" ({server.strangers} callers had another token)" if server.strangers else ""
            raise MissingRequirement(f"hosts: {have}{stranger}", f"on each other machine: {join}")
    return found


def _problem(spec: ExperimentSpec, about: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Return why a machine can't take part; empty if it can. `others`: those that do, this machine first."""
    return _identity_problem(about, others) or mtu_problem(about["interface"], about["mtu"], spec)


def _identity_problem(about: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    if about["version"] != railyard.__version__:
        return f"has Railyard {about['version']}, this machine {railyard.__version__}: install the same on both"
    if about["address"] in {other["address"] for other in others}:
        return "has joined already: an agent on another machine is needed"
    return ""


def look(hosts: int, underlay: UnderlaySpec) -> list[dict[str, Any]]:
    """Return what each machine says of itself once all have joined, this one first; they go on waiting for a run."""
    own = _own_machine(underlay.interface, "--underlay")
    machine_net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    server = Server((own["address"], underlay.port), machine_net, read_token())
    try:
        found = _wait_for_machines(server, hosts, underlay, own, False, _identity_problem)
        for sock, _ in found:
            send_line(sock, {"seen": True})
            sock.close()
    finally:
        server.close()
        os.close(machine_net)
    return [own, *(about for _, about in found)]


def mtu_problem(interface: str, mtu: int, spec: ExperimentSpec) -> str:
    """Return why tunnels of the fabrics' packets don't fit through an interface; empty if they do."""
    need = max(fabric.mtu for fabric in spec.gpu_fabrics) + TUNNEL_HEADERS
    if mtu >= need:
        return ""
    return f"has MTU {mtu} at {interface}, tunnels need {need}: raise it, or set mtu to {mtu - TUNNEL_HEADERS} or less"


def _check_path(machine: Machine, port: int, mtu: int, address: str, machine_net: int) -> None:
    """Send datagrams as long as a tunnel's, there and back. MissingRequirement if none comes through whole."""
    size = mtu + TUNNEL_HEADERS - 28  # IPv4 and UDP headers come on top
    with namespaces.inside_machine(machine_net), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: nothing is fragmented
        sock.bind((address, 0))
        sock.settimeout(PROBE_S)
        for _ in range(PROBES):
            with suppress(OSError):
                sock.sendto(b"\0" * size, (machine.about["address"], port))
                if len(sock.recv(65536)) == size:
                    return
    what = f"hosts: packets of {size + 28} bytes don't reach {machine.name} and come back"
    raise MissingRequirement(what, f"raise the MTU of the network between, or set the fabric's mtu below {mtu}")


def prepare(spec: ExperimentSpec) -> Mapping[str, Any] | None:
    """Check this machine's underlay before a sandbox is made; return what `joined` needs there, None for one machine.

    The file `machine_net` is to be inherited by the sandbox.
    """
    if spec.hosts == 1:
        return None
    own = _own_machine(spec.underlay.interface, "underlay.interface")
    if problem := mtu_problem(own["interface"], own["mtu"], spec):
        raise BadInput("underlay.interface", spec.underlay.interface, problem)
    if os.geteuid() != 0:
        raise MissingRequirement("hosts: tunnels from this machine's network need root", "use sudo")
    token = read_token()
    machine_net = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return {"machine_net": machine_net, "token": token.hex(), "own": own}


def _own_machine(interface: str, field: str) -> dict[str, Any]:
    """Return what the others need to know of this machine. BadInput names the field that gave the interface."""
    known = interfaces()
    found = next((one for one in known if one.name == interface), None)
    if found is None:
        names = ", ".join(dict.fromkeys(one.name for one in known)) or "none"
        raise BadInput(field, interface, f"has no IPv4 address here; those with one: {names}")
    return about_machine(socket.gethostname(), found.address)


def refuse_several(spec: ExperimentSpec, what: str) -> None:
    """Raise BadInput for an experiment on several machines, for a command that has none but this one."""
    if spec.hosts > 1:
        raise BadInput("hosts", spec.hosts, f"is for run: {what} needs the whole fabric on this machine")
