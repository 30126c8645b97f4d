"""Fabrics to test on: built with a controller, its events kept, and packets that tell which way they went."""

import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any, TypeVar

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import Datapath, datapath_choice, detect
from railyard.failure.active import ActiveFault
from railyard.failure.faults import Fault
from railyard.topologies.addresses import UPLINK_PORT, Gpu, gpu_of_ip
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import EmulatedNet, FabricNet
from railyard.topologies.build.ovs import OVS_DIR
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.emulation.deadlines import scaled

RAIL_BPS = 100_000_000
TRACE_PORT = 33434
WAIT_S = 5.0  # for a packet that is to arrive: longer than whatever else may keep the machine busy
IP_RECVERR = 11  # <linux/in.h>; the socket module doesn't name it
TIME_EXCEEDED = 11
_T = TypeVar("_T")


@cache
def datapath() -> Datapath:
    """Return what this machine's Open vSwitch runs on."""
    return datapath_choice(detect())[0]


def eventually(look: Callable[[], _T], within_s: float = 20.0) -> _T:
    """What `look` gives once that is true; AssertionError with the last value if it doesn't become so in time.

    It gets a tenth of a core at most, its programs included: to search all processes takes milliseconds.
    """
    deadline = time.monotonic() + scaled(within_s)
    begun_s = _cpu_s()
    while not (seen := look()):
        assert time.monotonic() < deadline, f"still {seen!r} after {within_s} s"
        time.sleep(max(0.005, 9 * (_cpu_s() - begun_s)))
        begun_s = _cpu_s()
    return seen


def _cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended, s."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def at_best(measure: Callable[[], _T], good: Callable[[_T], bool], tries: int = 5) -> _T:
    """The first measurement that is good; AssertionError with all of them if none is.

    What comes from outside, and keeps a process waiting for a moment, spoils one of them. What is wrong spoils all.
    """
    seen: list[_T] = []
    while not seen or not good(seen[-1]):
        assert len(seen) < tries, seen
        seen.append(measure())
    return seen[-1]


@dataclass
class Fabric:
    """A running fabric. Nothing needs to be stopped: the test's sandbox ends with it."""

    net: FabricNet
    controller: ControllerProcess
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.net.plan.gpus

    def whats(self) -> list[str]:
        return [what for what, _ in self.events]

    def await_event(self, what: str, times: int = 1) -> None:
        eventually(lambda: self.whats().count(what) >= times)

    @contextmanager
    def awaited(self, event: str) -> Iterator[None]:
        """Wait on leaving until an event has come since entering, however many have come before."""
        times = self.whats().count(event)
        yield
        self.await_event(event, times + 1)

    def await_no_detours(self) -> None:
        """Wait until the controller has reported that it withdrew its last detour."""

        def last_detours() -> list[int]:
            return [detail["detours"] for event, detail in self.events if event == "rerouted"][-1:]

        eventually(lambda: last_detours() == [0])

    def in_node(self, node: str, *argv: str) -> str:
        """Run a command in a node's namespace."""
        with namespaces.inside(node):
            return namespaces.run(argv)

    def set_link(self, gpu: Gpu, state: str) -> None:
        """Cut (`down`) or mend (`up`) a GPU's rail link, at the switch's end, so that the GPU keeps its routes."""
        end = self.net.plan.rail_link(gpu).b
        self.in_node(end.node, "ip", "link", "set", end.interface, state)

    def flows(self, switch: str) -> list[str]:
        """The switch's flow table, without its counters."""
        message = self.openflow(switch, "dump-flows", "--no-stats").splitlines()
        return sorted(line.strip() for line in message if "actions" in line)

    def flow_ages(self, switch: str, match: str = "duration=") -> list[float]:
        """Seconds since the switch got each of its flows that match a text."""
        lines = self.openflow(switch, "dump-flows").splitlines()
        return [float(line.split("duration=")[1].split("s,")[0]) for line in lines if match in line]

    def openflow(self, switch: str, verb: str, *words: str) -> str:
        target = f"unix:{OVS_DIR / switch / switch}.mgmt"
        options = [word for word in words if word.startswith("--")]
        return namespaces.run(["ovs-ofctl", "-O", "OpenFlow13", *options, verb, target, *set(words) - set(options)])

    def routes(self) -> dict[str, str]:
        """Return every GPU's routes, as the kernel has them."""
        return {gpu.name: self.in_node(gpu.name, "ip", "route", "show", "table", "all") for gpu in self.gpus}

    def await_routes(self, routes: Mapping[str, str], events: Callable[[], object] = list) -> None:
        """Wait for these routes. AssertionError with the lines that differ, and with the events that led there."""

        def differing() -> dict[str, list[str]]:
            now = self.routes()
            return {
                gpu: sorted({*routes[gpu].splitlines()} ^ {*now[gpu].splitlines()}) or ["another order"]
                for gpu in now
                if now[gpu] != routes[gpu]
            }

        try:
            eventually(lambda: not differing())
        except AssertionError:
            raise AssertionError(f"still other routes: {differing()}, after {events()}") from None

    def packets_to_spines(self, rail: int = 0, dead: int = 0) -> dict[int, int]:
        """Return by spine: packets that a rail switch has sent up to it. `dead`: how many switches can't answer."""
        counters = self.controller.port_counters(len(self.net.plan.switches) - dead)[f"rail{rail}"]
        spines = self.net.plan.spec.spine_count
        return {spine: counters[UPLINK_PORT + spine]["tx_packets"] for spine in range(spines)}

    def trace(self, src: Gpu, dst: Gpu, wait_s: float = WAIT_S) -> list[Gpu] | None:
        """The GPUs that a packet visits on its way, `dst` last; None if it is lost. ICMP tells, as for traceroute."""
        with namespaces.inside(src.name), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            visited: list[Gpu] = []
            for ttl in range(1, 6):
                probe.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
                try:
                    probe.sendto(b"?", (dst.ip, TRACE_PORT))
                except OSError:
                    return None  # no route
                answer = _icmp_answer(probe, wait_s)
                if answer is None:
                    return None
                kind, gpu = answer
                visited.append(gpu)
                if kind != TIME_EXCEEDED:
                    return visited if gpu == dst else None
        return None

    def arrives(self, src: Gpu, dst: Gpu, wait_s: float = WAIT_S) -> bool:
        """Return whether a packet gets from src to dst, whatever the way back."""
        with namespaces.inside(dst.name):
            sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sink, namespaces.inside(src.name), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sink.bind((dst.ip, 0))
            try:
                sender.sendto(b"?", sink.getsockname())
            except OSError:
                return False  # no route
            return bool(select.select([sink], [], [], wait_s)[0])

    def all_arrive(self, wait_s: float = WAIT_S, without: Collection[Gpu] = ()) -> bool:
        """Return whether a packet gets from each GPU to each other, but for the GPUs to leave out."""
        pairs = permutations([gpu for gpu in self.gpus if gpu not in without], 2)
        return all(self.arrives(src, dst, wait_s) for src, dst in pairs)

    def restart(self, switch: str) -> None:
        """Start a switch that was killed."""
        with namespaces.inside(switch):
            self.net.ovs[switch].start_vswitchd()

    def connect(self, src: Gpu, dst: Gpu, count: int) -> list[socket.socket]:
        """That many TCP connections, at the end of `src`."""
        with namespaces.inside(dst.name):
            listener = socket.create_server((dst.ip, 0), backlog=count)
        found = []
        with listener, namespaces.inside(src.name):
            for _ in range(count):
                found.append(socket.create_connection(listener.getsockname(), timeout=WAIT_S))
                listener.accept()[0].detach()  # stays open: its end would send packets too
        return found


def _icmp_answer(probe: socket.socket, wait_s: float) -> tuple[int, Gpu] | None:
    """(ICMP type, who sent it) of the next error that comes back to this socket."""
    errors = select.poll()
    errors.register(probe, 0)  # POLLERR is always asked for
    if not errors.poll(1000 * wait_s):
        return None
    _, ancillary, _, _ = probe.recvmsg(64, 256, socket.MSG_ERRQUEUE)
    data = next(data for level, kind, data in ancillary if (level, kind) == (socket.IPPROTO_IP, IP_RECVERR))
    _, _, icmp_type, _, _, _, _ = struct.unpack_from("=IBBBBII", data)
    return icmp_type, gpu_of_ip(socket.inet_ntoa(data[20:24]))  # struct sockaddr_in of the offender follows


def build(kind: str, domains: int, rails: int, reroute: bool = True, backups: bool = True, **more: Any) -> Fabric:
    """A fabric with its controller, ready for traffic. `more`: other keys of a fabric's spec."""
    spec = parse_fabric({"kind": kind, "domains": domains, "rails": rails, **more})
    events: list[tuple[str, dict[str, Any]]] = []
    controller = ControllerProcess(reroute, lambda ns, what, detail: events.append((what, detail)))
    net = FabricNet(make_plan(spec, RAIL_BPS), datapath(), controller, backups)
    net.start()
    for gpu in net.plan.gpus:
        with namespaces.inside(gpu.name):
            namespaces.set_sysctl("net/ipv4/icmp_ratelimit", 0)  # or the kernel would answer one trace a second
    return Fabric(net, controller, events)


def inject(net: EmulatedNet, fault: Fault) -> int:
    """Inject a fault and return when (monotonic ns); `repair` repairs it."""
    return ActiveFault(net, fault).begin()


def repair(net: EmulatedNet, fault: Fault) -> None:
    """Repair a fault that `inject` injected."""
    ActiveFault(net, fault).repair()
