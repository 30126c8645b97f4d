"""The run's end of the controller process, of the agents' and of the hearts': start it, tell it of the fabric, hear
its events.
"""

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

from railyard.controller.agent.steering import Assigned, Steering
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.processes import messages
from railyard.controller.processes.messages import HeartbeatCost
from railyard.core.errors import RailyardError
from railyard.core.worker import ANSWER_S, Event, Message, OnEvent, Worker
from railyard.topologies.addresses import (
    Gpu,
    gpu_of_name,
    gpu_port,
    network_port,
)
from railyard.topologies.build import namespaces, shaping
from railyard.topologies.build.ovs import CONTROLLER_PORT, set_controller_port
from railyard.topologies.plan import Plan
from railyard.topologies.spec import Layer

HOST: Final = "127.0.0.1"
ADDRESS: Final = (HOST, CONTROLLER_PORT)
PORTS: Final = (CONTROLLER_PORT, CONTROLLER_PORT + 1)


def listeners(switches: Iterable[str], port: int = CONTROLLER_PORT) -> list[socket.socket]:
    """A listening socket in each switch's namespace. Whoever starts the controller makes them, and hands them over: a
    switch that connects while the controller still loads its libraries waits in the queue instead of trying again
    later.
    """
    found = []
    for name in switches:
        with namespaces.inside(name):
            found.append(socket.create_server((HOST, port)))
    return found


def moves_by_switch(plan: Plan, moves: Mapping[str, str], layers: Iterable[Layer]) -> dict[int, dict[int, int]]:
    """{"d0g4": "d0g1"}, d0g4's fibre to the place that is d0g1's by the plan, as {datapath id: {fibre: place}}.

    ValueError for a name that isn't one of the plan's GPUs, a layer without optical switches, two fibres to one place,
    and a fibre and a place that aren't at one optical switch: light can't get from the one to the other.
    """
    if len(set(moves.values())) < len(moves):
        raise ValueError(f"two fibres can't lead to one place: {dict(moves)}")
    pairs = [(gpu_of_name(gpu_side), gpu_of_name(network_side)) for gpu_side, network_side in moves.items()]
    if unknown := {gpu.name for pair in pairs for gpu in pair} - {gpu.name for gpu in plan.gpus}:
        raise ValueError(f"the fabric has no {', '.join(sorted(unknown))}")
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for layer, (gpu_side, network_side) in product(layers, pairs):
        near, far = plan.optical_switch(layer, gpu_side), plan.optical_switch(layer, network_side)
        if near is None or far is None:
            raise ValueError(f"layer {layer} has no optical switch")
        if near != far:
            raise ValueError(
                f"{gpu_side.name}'s fibre is at {near.name}, and {network_side.name}'s place at {far.name}"
            )
        found[near.dpid][gpu_port(gpu_side)] = network_port(network_side)
    return dict(found)


_AWAITED: Final = ("ready", "learned", "registry", "relearned", "controller-restarted")
GRACE_S: Final = 0.2
"""How long a controller that returns waits for switches it has called before it takes them for dead. Living ones
have all connected, and their tables been compared, within 30 ms at 4x4 and 90 at 8x8, on two cores; of the 500 ms in
which it has to repair what broke in its absence, this leaves more than half to a busy machine.
"""
_AGENT_AWAITED: Final = ("connected", "steering", "released", "failed")


def _ignore(ns: int, what: str, detail: dict[str, Any]) -> None:
    """Receive an event for which there is no callback."""


class ControllerProcess:
    """A `railyard.topologies.build.network.FabricController`. `on_event(ns, what, detail)` is called from a thread for
    each event."""

    def __init__(self, reroute: bool = True, on_event: OnEvent | None = None) -> None:
        self._reroute = reroute
        self._on_event = on_event
        self._process: Worker | None = None
        self._plan: Plan | None = None
        self._send_lock = threading.Lock()  # hearts are relayed from a thread of theirs
        self._silence: dict[str, Any] | None = None
        self._health: HealthSpec | None = None
        self._port = PORTS[0]
        self.is_down = False
        self.registry_address = ""

    def connect(self, plan: Plan) -> None:
        """The switches' namespaces are there: start the process; it loads its libraries while the rest is built."""
        self._plan = plan
        self._process = self._start(plan, self._port, resume=False)

    def crash(self) -> None:
        """SIGKILL to the process. "controller-crashed" is told. ValueError if it isn't running.

        Switches keep their flows and GPUs their routes. What dies with it: what it heard and hasn't acted on, the
        scores' past, the embedded registry (etcd goes on alone, and its agents see no fresh word).
        """
        at_ns = time.monotonic_ns()
        with self._send_lock:
            if self._process is None:
                raise ValueError("the controller can't crash: it is not running")
            process, self._process, self.is_down = self._process, None, True
        process.end()
        if self._on_event:
            self._on_event(at_ns, "controller-crashed", {})

    def restart(self) -> None:
        """Start it anew after a crash; return when it listens and has called all switches.

        It is told hearts' last word; "controller-restarted" is told when it listens, "resumed" when it goes by what it
        has found. Scores begin anew if they were made. ValueError if it hasn't crashed, RailyardError if it
        can't, or if its registry can't: then the controller itself is back.
        """
        if not self.is_down or self._plan is None:
            raise ValueError("the controller can't restart: it has not crashed")
        port = PORTS[1 - PORTS.index(self._port)]
        process = self._start(self._plan, port, resume=True)
        try:
            process.await_events({"controller-restarted"})
            with self._send_lock:
                self._process, self.is_down = process, False
                if self._silence:
                    process.send(messages.SetSilence(silence=self._silence))
            namespaces.in_threads(lambda switch: set_controller_port(switch.name, port), self._plan.switches)
            self._send(messages.AwaitSwitches(seconds=GRACE_S))
        except BaseException:
            process.end()
            self._process, self.is_down = None, True
            raise
        self._port = port
        if self._health:
            self.start_health(self._health)

    def _start(self, plan: Plan, port: int, resume: bool) -> Worker:
        sockets = listeners((switch.name for switch in plan.switches), port)
        numbers = [s.fileno() for s in sockets]
        process = Worker(
            "railyard.controller.processes.controller_main",
            "the controller",
            messages.Counters,
            on_event=self._on_event or _ignore,
            awaited=_AWAITED,
            pass_fds=numbers,
        )
        process.send(
            messages.ConnectController(plan=plan, reroute=self._reroute, sockets=tuple(numbers), resume=resume)
        )
        for sock in sockets:
            sock.close()
        return process

    def wait_ready(self) -> None:
        """Return when every switch has its flows. RailyardError, with its last words, if that doesn't come."""
        self._send(messages.LearnInterfaces())
        self._running.await_events({"ready", "learned"})

    def port_counters(self, switches: int) -> dict[str, dict[int, dict[str, int]]]:
        """Counters by switch and port, as OpenFlow gives them now (`rx` is what came in from the cable)."""
        self._send(messages.ReadCounters())
        found: dict[str, dict[int, dict[str, int]]] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(found) < switches:
            reply = self._running.receive_any(max(0.0, deadline - time.monotonic()))
            if isinstance(reply, messages.Counters):
                found[reply.switch] = reply.ports
        return found

    def start_health(self, spec: HealthSpec) -> str:
        """Make scores and keep them in a registry from now on; the registry's address. "health" is told each period.

        RailyardError if the registry doesn't start; "registry-failed" is told.
        """
        self._send(messages.StartHealth(spec=spec))
        self._health = spec
        message = self._running.await_events({"registry"})["registry"]
        if message["why"]:
            raise RailyardError(f"no registry: {message['why']}")
        self.registry_address = str(message["address"])
        return self.registry_address

    def stop_health(self) -> None:
        """End both; while the controller is away, for good."""
        self._health, self.registry_address = None, ""
        if not self.is_down:
            self._send(messages.StopHealth())

    def crash_registry(self) -> None:
        """Kill the registry's server (etcd: SIGKILL to its process). "registry-crashed" is told."""
        self._send(messages.CrashRegistry())

    def restart_registry(self) -> None:
        """Start it again at its address. "registry-restarted" is told, or "registry-failed" with the reason."""
        self._send(messages.RestartRegistry())

    def on_heartbeats(self, silence: dict[str, Any]) -> None:
        """Take in what hearts tell as "silence", from any thread. "silent" and "heard" are told of what is new in it.

        All of it counts, and what was told before is over. A controller that is away is told the last when it returns.
        """
        with self._send_lock:
            self._silence = silence
            if not self.is_down:
                self._running.send(messages.SetSilence(silence=silence))

    def replace_gpu(self, gpu_name: str) -> None:
        """Another GPU, in a namespace of its own, is in the place of that name: return when its routes can change, and
        it has the detours that are in force. RailyardError if there is no such namespace; then all is as before.
        """
        self._send(messages.ReplaceGpu(gpu=gpu_name))
        message = self._running.await_events({"relearned"})["relearned"]
        if message["why"]:
            raise RailyardError(f"no GPU in the place of {gpu_name}: {message['why']}")

    def cross_connect(self, moves: Mapping[str, str], layers: Iterable[Layer] | None = None) -> None:
        """Move fibres of the optical switches: with {"d0g4": "d0g1"}, d0g4's lead to the places that the plan has for
        d0g1. Whose place is taken is left dark, and so is a place that is left; `layers`: all that the fabric has.

        Returns at once. The ports concerned go dark, and "light-off" is told; after the fabric's `switching_time`,
        "light-on". ValueError for what the fabric doesn't have, and for a fibre and a place that aren't at one optical
        switch: with layer `rail` alone each domain has its own.
        """
        available = tuple(self._plan.optics) if self._plan else ()
        requested = available if layers is None else tuple(layers)
        if self._plan is None or not requested or not set(requested) <= set(available):
            raise ValueError(
                f"can't cross {dict(moves)} in layers {requested}: the fabric's optical layers are {available}"
            )
        ports = moves_by_switch(self._plan, moves, requested)
        self._send(messages.CrossConnect(moves=dict(moves), layers=requested, ports=ports))

    def stop(self) -> None:
        """End the process."""
        self.is_down = False
        if self._process:
            self._process.end()
            self._process = None

    def _send(self, command: Message) -> None:
        with self._send_lock:
            self._running.send(command)

    @property
    def _running(self) -> Worker:
        if self._process is None:
            raise RailyardError("the controller is away: it has crashed" if self.is_down else "no controller runs")
        return self._process


class AgentsProcess:
    """One agent a GPU of a fabric that stands. `on_event(ns, what, detail)` is called from a thread for each event."""

    def __init__(self, plan: Plan, on_event: OnEvent | None = None) -> None:
        self._worker = Worker(
            "railyard.controller.processes.agents_main",
            "the agents",
            on_event=on_event or _ignore,
            awaited=_AGENT_AWAITED,
        )
        self._worker.send(messages.ConnectAgents(plan=plan))
        self._worker.await_events({"connected"})

    def steer(
        self, steering: Steering, address: str, stale_s: float = 1.0, watched: Iterable[tuple[Gpu, Gpu]] = ()
    ) -> None:
        """Steer by a policy and the registry at `address`; return when every GPU has its first routes.

        RailyardError if the policy fails on them.
        """
        pairs = frozenset(watched)
        self._worker.send(messages.Steer(steering=steering, address=address, stale_s=stale_s, watched=pairs))
        self._await("steering")

    def assign(self, assigned: Assigned) -> None:
        """Give the policy oracle other paths, while it steers."""
        self._worker.send(messages.Assign(assigned=dict(assigned)))

    def release(self) -> None:
        """Steer no more: return when all GPUs have their base routes alone. RailyardError if the policy has failed."""
        self._worker.send(messages.Release())
        self._await("released")

    def _await(self, requested: str) -> None:
        deadline, what = time.monotonic() + ANSWER_S, ""
        while what != requested:
            event = self._worker.receive(Event, max(0.0, deadline - time.monotonic()))
            what = event.what
            if what == "failed":
                raise RailyardError(f"policy {event.detail['policy']} failed: {event.detail['why']}")

    def stop(self) -> None:
        """End the process. Its routes stay until the fabric is stopped: call `release` first to use it further."""
        self._worker.end()


class HeartbeatProcess:
    """Heartbeats between the GPUs of a fabric that stands, on links on which they have a lane of their own.

    `on_event(ns, what, detail)` is called from a thread with "silence", all that is silent, whenever that changes:
    `ControllerProcess.on_heartbeats` takes the detail. To be stopped before the fabric is. ValueError for a period that
    isn't above 0 or a multiplier below 2.
    """

    def __init__(
        self, plan: Plan, period_s: float = 0.02, multiplier: int = 3, on_event: OnEvent | None = None
    ) -> None:
        if period_s <= 0 or multiplier < 2:
            raise ValueError(f"period {period_s} s must be above 0, multiplier {multiplier} 2 at least")
        self._plan = plan
        shaping.enable_lanes(plan)
        self._worker = Worker(
            "railyard.controller.processes.heartbeat_main",
            "the heartbeat sender",
            HeartbeatCost,
            on_event=on_event or _ignore,
            awaited=("started",),
        )
        try:
            self._worker.send(messages.StartHeartbeats(plan=plan, period_s=period_s, multiplier=multiplier))
            self._worker.await_events({"started"})
        except BaseException:
            self.stop()
            raise

    def hang(self, gpu: Gpu) -> None:
        """Let a GPU's agent neither send nor hear from now on, as one whose system hangs."""
        self._worker.send(messages.Hang(gpu=gpu.name))

    def wake(self, gpu: Gpu) -> None:
        """Undo it."""
        self._worker.send(messages.Wake(gpu=gpu.name))

    def cost(self) -> HeartbeatCost:
        """What they cost so far."""
        return self._worker.ask(messages.ReadCost(), HeartbeatCost)

    def stop(self) -> None:
        """End the process, and close the lanes."""
        self._worker.end()
        shaping.disable_lanes(self._plan)
