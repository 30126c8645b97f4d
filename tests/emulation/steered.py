"""Helpers for tests of steering: given scores, agents whose events are kept, and a busy connection."""

import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Self

import psutil

from railyard.controller.agent.steering import Damping, Steering, ask
from railyard.controller.health.estimator import RegistryKind
from railyard.controller.health.policy import Context, Scores
from railyard.controller.health.registry.client import connect
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.controller.processes.clients import AgentsProcess
from railyard.experiments.commands.trace import TracedPath, assemble_path, follows_policy
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.forwarding import Path
from railyard.topologies.measure.capture import Capture
from tests.emulation.fabrics import Fabric, eventually
from tests.emulation.programs import command_line
from tests.unit.path_choices import own_path

AT_ONCE = Damping(margin=None, dwell_ns=0)
FIRST_STAYS = Damping(margin=None, dwell_ns=3_600_000_000_000)
"""What is chosen first is kept for an hour."""
SLOW_RATES: dict[str, Any] = {"rail_rate": "20Mbit", "hb_rate": "60Mbit"}
CHUNK = bytes(range(251)) * 16


class Scoreboard:
    """A registry in which the test itself puts the scores."""

    def __init__(self, kind: RegistryKind) -> None:
        server = EtcdServer(File("/run/etcd")) if kind == "etcd" else SocketServer(File("/run/scores.sock"))
        server.start()
        self.address = server.address
        self._registry = connect(server.address)
        self._version = 0

    def put(self, rails: Iterable[int], domains: Iterable[int], spine: int = 100) -> Scores:
        self._version += 1
        scores = Scores(tuple(rails), tuple(domains), spine, self._version)
        self._registry.put(scores)
        eventually(lambda: self._registry.get().scores == scores)  # an agent that starts now finds these
        return scores


@dataclass
class Agents:
    """The agents of a fabric and their events: (ns, what, detail)."""

    fabric: Fabric
    reported: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = AgentsProcess(self.fabric.net.plan, lambda *event: self.reported.append(event))

    def steer(
        self,
        policy: str,
        address: str,
        damping: Damping = AT_ONCE,
        watched: Iterable[tuple[Gpu, Gpu]] = (),
        stale_s: float = 1.0,
        **known: Any,
    ) -> None:
        context = Context(self.fabric.net.plan.spec.definition.joins_rails, **known)
        self.process.steer(Steering(policy, context, damping), address, stale_s, watched)

    def gpus_that_told(self, what: str, since: int = 0) -> set[str]:
        """Return the names of GPUs whose agents reported this, without the first `since` events."""
        return {detail["gpu"] for _, reported, detail in self.reported[since:] if reported == what}


def pid_of_agents() -> int:
    """The agents' process: a child of this one's."""
    (found,) = (
        child.pid
        for child in psutil.Process().children()
        if "railyard.controller.processes.agents_main" in command_line(child)
    )
    return found


def steered_routes(fabric: Fabric) -> int:
    """Return how many host routes of the agents' metric the kernels have in all."""
    return sum(
        len(fabric.in_node(gpu.name, "ip", "-o", "route", "show", "metric", "15").splitlines()) for gpu in fabric.gpus
    )


def far_pairs(fabric: Fabric) -> list[tuple[Gpu, Gpu]]:
    """All ordered pairs of GPUs of two domains."""
    return [(src, dst) for src in fabric.gpus for dst in fabric.gpus if src.domain != dst.domain]


def chosen(fabric: Fabric) -> dict[tuple[Gpu, Gpu], list[Path] | None]:
    """Return what the agents say, for every pair of two domains."""
    return {pair: ask(*pair) for pair in far_pairs(fabric)}


def traced(capture: Capture, src: Gpu, dst: Gpu, probes: int = 1) -> list[TracedPath]:
    return [assemble_path(src, dst, probe.observations) for probe in capture.probe(src, dst, probes)]


def arrived(capture: Capture, src: Gpu, dst: Gpu, probes: int = 1) -> list[TracedPath]:
    """Trace until all probes have arrived: on a busy machine one may take longer than it is waited for."""

    def look() -> list[TracedPath]:
        ways = traced(capture, src, dst, probes)
        return ways if all(way.delivered for way in ways) else []

    return eventually(look)


def assert_taken_as_chosen(fabric: Fabric, probes: int = 3) -> set[str]:
    """Trace every ordered pair, and compare with what its agent says; the kinds of path that packets took."""
    kinds, policy = set(), fabric.net.plan.spec.chosen_policy
    with Capture(fabric.net.plan) as capture:
        for src in fabric.gpus:
            for dst in (gpu for gpu in fabric.gpus if gpu != src):
                message = ask(src, dst) if src.domain != dst.domain else [own_path(policy, src, dst)]
                assert message, f"{src.name} -> {dst.name}: its agent chose nothing"
                ways = arrived(capture, src, dst, probes if len(message) > 1 else 1)
                assert follows_policy(ways, message), (
                    f"{src.name} -> {dst.name}: {list(map(str, ways))}, chosen was {message}"
                )
                kinds |= {way.kind for way in ways}
    return kinds


class Stream:
    """A TCP connection that is busy in both directions while entered; `check` compares every byte."""

    def __init__(self, src: Gpu, dst: Gpu) -> None:
        with namespaces.inside(dst.name):
            listener = socket.create_server((dst.ip, 0))
        with listener, namespaces.inside(src.name):
            near = socket.create_connection(listener.getsockname(), timeout=20)
            far, _ = listener.accept()
        self._ends = (near, far)
        self._sent, self._received = [0, 0], [bytearray(), bytearray()]
        self._over = threading.Event()
        jobs = [threading.Thread(target=job, args=(n,)) for job in (self._send, self._receive) for n in (0, 1)]
        self._threads = jobs
        for end in self._ends:
            end.settimeout(30)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def assert_flows(self, within_s: float = 10.0) -> None:
        """Bytes arrive at both ends, from now on."""
        before = [len(data) for data in self._received]
        eventually(lambda: all(len(self._received[n]) > before[n] for n in (0, 1)), within_s)

    def check(self) -> int:
        """After the end: all that was sent is there, in order. How many bytes that is."""
        for n, data in enumerate(self._received):
            assert len(data) == self._sent[1 - n]
            assert data == CHUNK * (len(data) // len(CHUNK))
        return sum(self._sent)

    def _send(self, n: int) -> None:
        while not self._over.is_set():
            self._ends[n].sendall(CHUNK)
            self._sent[n] += len(CHUNK)
            time.sleep(0.002)  # some 2 MB/s: busy, without a core for itself
        self._ends[n].shutdown(socket.SHUT_WR)

    def _receive(self, n: int) -> None:
        while part := self._ends[n].recv(1 << 16):
            self._received[n] += part
