"""The machines of a run: the part of the fabric on each, its workers, clock and counters.

This is the side of the run, in the sandbox on the first machine; part.py is that of the others. joining.py makes a
Cluster of the machines that have joined.
"""

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath, usable_cores
from railyard.core.remote import RemoteWorker
from railyard.core.worker import Message, R, Ready
from railyard.experiments.machines import messages
from railyard.experiments.machines.server import Server
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.machine_part import TUNNEL_HEADERS, PartNet, Underlay, interface_bytes
from railyard.topologies.build.network import FabricController
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.measure import rates
from railyard.topologies.measure.counters import Counters
from railyard.topologies.placement import Placement, place
from railyard.topologies.plan import Plan
from railyard.workloads.replay.run import REPLIES, Place, start_worker

EXCHANGES: Final = 200
# on a busy machine each exchange takes long, and the run would wait for all of them
EXCHANGES_S: Final = 1.0
MIN_EXCHANGES: Final = 10
REPLAY: Final = "railyard.workloads.replay.worker"


@dataclass(frozen=True)
class Clock:
    """A machine's monotonic clock less that of the first, ns, by the quickest exchange; it is off by `uncertainty_ns`
    at most.
    """

    offset_ns: int
    uncertainty_ns: int


class Machine:
    """Another machine of the run. `sock`: the connection to its part; `about`: what its agent said of it."""

    def __init__(self, sock: socket.socket, number: int, about: Mapping[str, Any]) -> None:
        self.name = f"machine {number} ({about['name']}, {about['address']})"
        self.about = about
        self.clock = Clock(0, 0)
        self._lock = threading.Lock()
        # number of replies that are still to come
        self._owed = 0
        replies = (Ready, *messages.REPLIES)
        self.worker = RemoteWorker(sock, self.name, *replies, on_event=self._on_event, is_vital=True)

    def _on_event(self, _: int, event_name: str, detail: dict[str, Any]) -> None:
        """Take in which processes are missing there, by this machine's clock."""
        named = detail | {"name": f"{detail['name']} on {self.name}"}
        for time_ns in named.keys() & {"start_ns", "end_ns", "stopped_ns"}:
            named[time_ns] = named[time_ns] and named[time_ns] - self.clock.offset_ns
        if event_name == messages.INTERRUPTION:
            watch.note(watch.Interruption(**named))
        else:
            watch.set_elsewhere(self.name, named.pop("pid"), watch.Presence(**named))

    def ask(self, message: messages.ToPart, reply: type[R], within_s: float = 30.0) -> R:
        """Send a message to its part and return the reply, from any thread."""
        with self._lock:
            self.send(message)
            return self.receive(reply, within_s)

    def send(self, message: messages.ToPart) -> None:
        """Send a message to its part."""
        self._owed += 1
        self.worker.send(message)

    def receive(self, reply: type[R], within_s: float = 30.0) -> R:
        """Return the reply to the last message; one to an earlier message, whose wait was ended, is dropped."""
        while self._owed:
            answer = self.worker.receive_any(within_s)
            self._owed -= 1
        if not isinstance(answer, reply):
            raise RailyardError(f"{self.name} sent {answer!r:.200}, and not {reply.__name__}")
        return answer

    def measure_clock(self) -> Clock:
        """Measure and keep the offset of its clock: half way between sending and receiving of the quickest exchange."""
        samples: list[tuple[int, int]] = []
        deadline = time.monotonic() + EXCHANGES_S
        while len(samples) < MIN_EXCHANGES or (len(samples) < EXCHANGES and time.monotonic() < deadline):
            sent = time.monotonic_ns()
            there = self.ask(messages.ReadClock(), messages.Clock).ns
            received = time.monotonic_ns()
            samples.append((received - sent, there - (sent + received) // 2))
        trip_ns, offset_ns = min(samples)
        self.clock = Clock(offset_ns, trip_ns // 2)
        return self.clock


class Cluster:
    """All machines of a run; this one is number 0."""

    def __init__(self, server: Server, machine_net: int, underlay: Underlay, own_part: Mapping[str, Any]) -> None:
        self._server = server
        self._machine_net = machine_net
        self._underlay = underlay
        self.own = own_part
        self.others: list[Machine] = []
        self._worker_numbers = iter(range(1 << 30))
        self.placement: Placement | None = None

    @property
    def count(self) -> int:
        """Number of machines."""
        return 1 + len(self.others)

    def place(self, plan: Plan) -> Placement:
        """Place the next fabric on the machines."""
        earlier = self.placement.earlier_tunnels + len(self.placement.tunnels) if self.placement else 0
        self.placement = replace(place(plan, self.count), earlier_tunnels=earlier)
        return self.placement

    def network(self, datapath: Datapath, controller: FabricController, backups: bool) -> PartNet:
        """Return this machine's part of the fabric that was placed last."""
        assert self.placement
        return PartNet(self.placement, self._underlay, self._machine_net, datapath, controller, backups)

    def start(
        self, machine: Machine, module: messages.Module, name: str, *replies: type[Message], **options: Any
    ) -> RemoteWorker:
        """Start a process on another machine, as `Worker` starts one on this."""
        sock, pid = self._start(machine, module, name)
        watched = watch.WatchedElsewhere(machine.name, pid)
        return RemoteWorker(sock, f"{name} on {machine.name}", *replies, watched=watched, **options)

    def dial(self, machine: Machine, module: messages.Module, name: str) -> socket.socket:
        """Start a process on another machine; return the connection to it."""
        return self._start(machine, module, name)[0]

    def _start(self, machine: Machine, module: messages.Module, name: str) -> tuple[socket.socket, int]:
        number = next(self._worker_numbers)
        pid = machine.ask(messages.StartWorker(number=number, module=module, name=name), messages.Started).pid
        return self._server.worker(number), pid

    def ask_all(self, message: messages.ToPart, reply: Any = Ready, within_s: float = 30.0) -> list[Any]:
        """Send a message to all other machines; return their replies when all are there."""
        for machine in self.others:
            machine.send(message)
        return [machine.receive(reply, within_s) for machine in self.others]

    def counters(self) -> tuple[Counters, int]:
        """Return the counters of the other machines, and the bytes that the underlay's interfaces sent on all."""
        counted_parts: list[messages.Counted] = self.ask_all(messages.ReadCounters(), messages.Counted)
        sent = interface_bytes(self._machine_net, self._underlay.interface)
        total = sum((part.counters for part in counted_parts), Counters(0, 0, 0))
        return total, sent + sum(part.underlay_bytes for part in counted_parts)

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
            drift = 0
            # the first measurement has no earlier one to differ from
            if before.uncertainty_ns:
                drift = abs(after.offset_ns - before.offset_ns)
            worst = max(worst, after.uncertainty_ns + drift)
        return worst / 1e9

    def places(self) -> list[Place]:
        """Return the machines as the replay needs them."""
        assert self.placement
        places = [Place(self.placement.domains(0), max(1, round(usable_cores())), start_worker)]
        for n, machine in enumerate(self.others, 1):
            workers = max(1, round(machine.about["cores"]))
            start = partial(self.start, machine, REPLAY, "a replay worker", *REPLIES)
            places.append(Place(self.placement.domains(n), workers, start, machine.clock.offset_ns))
        return places

    def underlay_bytes(self, rail_out: Sequence[int], rail_in: Sequence[int], mtu: int) -> float:
        """Return what the underlay should carry for TCP payload between GPUs and rail switches on two machines.

        `rail_out`, `rail_in`: payload by GPU number. Acknowledgements and control come on top.
        """
        assert self.placement
        payload = 0
        at = self.placement.machine_of
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
        far = Gpu(net.plan.spec.domains - 1, 0)
        last = self.others[-1]
        hb = hb._replace(latency_s=rates.latency_s(hb.src, hb.dst))
        port = last.ask(messages.ServeEcho(gpu=far.name, ip=far.ip), messages.Port).number
        rail = rail._replace(src=Gpu(0, 0), dst=far, latency_s=rates.echo_latency_s(Gpu(0, 0), far, port))
        last.ask(messages.ServeIperf(gpu=far.name, ip=far.ip), Ready)
        flows = [
            rates.start_flow(hb.src.name, hb.dst.name, hb.dst.ip, rates.calibration_s(hb.expected_bps)),
            rates.start_client(rail.src.name, far.name, far.ip, rates.calibration_s(rail.expected_bps)),
        ]
        measured: list[rates.Sample] = []
        for sample, flow in zip((hb, rail), flows, strict=True):
            measured.append(sample._replace(measured_bps=rates.measured_bps(flow)))
        return measured

    def provenance(self) -> list[dict[str, Any]]:
        """Return what a run records of its machines."""
        rows = [_machine_record(self.own, Clock(0, 0))]
        for machine in self.others:
            rows.append(_machine_record(machine.about, machine.clock))
        return rows

    def end(self) -> None:
        """End the parts."""
        for machine in self.others:
            machine.worker.end()


def _machine_record(about: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Return what a run records of a machine."""
    row = {key: about[key] for key in ("name", "address", "interface", "mtu", "kernel", "cores")}
    row["clock_offset_us"] = clock.offset_ns / 1e3
    row["clock_uncertainty_us"] = clock.uncertainty_ns / 1e3
    return row
