"""The run's interface to the controller process, the agents' process and the heartbeat process."""

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, product
from typing import Any, Final

from railyard.controller.agent.steering import Assigned, Steering
from railyard.controller.health.estimator import HealthSpec
from railyard.controller.processes import messages
from railyard.controller.processes.messages import HeartbeatCost
from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.worker import ANSWER_S, Event, Message, OnEvent, Worker
from railyard.topologies.addresses import Gpu, gpu_of_name, gpu_port, network_port
from railyard.topologies.build import namespaces, shaping
from railyard.topologies.build.ovs import CONTROLLER_PORT, set_controller_port
from railyard.topologies.fabric_kinds import Layer
from railyard.topologies.plan import Plan

ADDRESS: Final = ("127.0.0.1", CONTROLLER_PORT)
PORTS: Final = (CONTROLLER_PORT, CONTROLLER_PORT + 1)
STEERING_S: Final = 5.0  # until all agents have scores, which come several times a second, and their first routes;
STEERING_S_A_GPU: Final = 0.1  # and more for each agent, as all share this machine's cores
# after a restart, until switches count as dead: they connect in 90 ms at 8x8 on two cores
GRACE_S: Final = 0.2


def listeners(switches: Iterable[str], port: int = CONTROLLER_PORT) -> list[socket.socket]:
    """Return a listening socket on 127.0.0.1 in each switch's namespace, for the controller process to inherit."""
    # A switch that connects while the controller imports its libraries waits in the queue of the socket. Without a
    # listener it would be refused, and retry later.
    sockets = []
    for name in switches:
        with namespaces.inside(name):
            sockets.append(socket.create_server((ADDRESS[0], port)))
    return sockets


def moves_by_switch(plan: Plan, moves: Mapping[str, str], layers: Iterable[Layer]) -> dict[int, dict[int, int]]:
    """Return moves of fibres in port numbers: {"d0g4": "d0g1"} -> {datapath id: {GPU side: network side}}.

    ValueError for an unknown GPU, a layer without optical switches, two fibres to one network side, or two sides that
    aren't at one optical switch.
    """
    if len(set(moves.values())) < len(moves):
        raise ValueError(f"two fibres can't lead to one place: {dict(moves)}")
    pairs = [(gpu_of_name(gpu_side), gpu_of_name(network_side)) for gpu_side, network_side in moves.items()]
    unknown = set(chain.from_iterable(pairs)).difference(plan.gpus)
    if unknown:
        raise ValueError(f"the fabric has no {', '.join(sorted(gpu.name for gpu in unknown))}")
    by_switch: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for layer, (gpu_side, network_side) in product(layers, pairs):
        near = plan.optical_switch(layer, gpu_side)
        far = plan.optical_switch(layer, network_side)
        if near is None or far is None:
            raise ValueError(f"layer {layer} has no optical switch")
        if near != far:
            sides = f"{gpu_side.name}'s fibre is at {near.name}, and {network_side.name}'s place at {far.name}"
            raise ValueError(sides)
        by_switch[near.dpid][gpu_port(gpu_side)] = network_port(network_side)
    return dict(by_switch)


class ControllerProcess:
    """A `railyard.topologies.build.network.FabricController`. A thread calls `on_event(ns, what, detail)`.

    `elsewhere`: the namespaces on other machines. Their switches connect to ADDRESS in the sandbox's own namespace.
    `user_app`: the file of an app of os-ken or Ryu that decides how switches forward.
    """

    def __init__(
        self,
        reroute: bool = True,
        on_event: OnEvent | None = None,
        elsewhere: frozenset[str] = frozenset(),
        user_app: str = "",
    ) -> None:
        self._elsewhere = elsewhere
        self.user_app = user_app
        self._reroute = reroute
        self._on_event = on_event or (lambda *_: None)
        self._process: Worker | None = None
        self._plan: Plan | None = None
        # heartbeat events come from a thread of their own
        self._send_lock = threading.Lock()
        self._silence: messages.SetSilence | None = None
        self._health: HealthSpec | None = None
        self._port = PORTS[0]
        self.is_down = False
        self.registry_address = ""

    def connect(self, plan: Plan) -> None:
        """Start the process once the switches' namespaces exist; it imports its libraries while the rest is built."""
        self._plan = plan
        self._process = self._start(plan, self._port, resume=False)

    def crash(self) -> None:
        """Kill the process: event "controller-crashed". ValueError if it isn't running.

        Switches keep their flows and GPUs their routes; scores and an embedded registry are lost.
        """
        at_ns = time.monotonic_ns()
        with self._send_lock:
            if self._process is None:
                raise ValueError("the controller can't crash: it is not running")
            process = self._process
            self._process = None
            self.is_down = True
        process.end()
        self._on_event(at_ns, "controller-crashed", {})

    def restart(self) -> None:
        """Start the process again after a crash; return when it listens and all switches were asked to connect.

        Events: "controller-restarted" when it listens, "controller-resumed" when it acts. Scores start anew if there
        were any. ValueError if it hasn't crashed; RailyardError if it, or its registry, can't restart.
        """
        if not self.is_down or self._plan is None:
            raise ValueError("the controller can't restart: it has not crashed")
        port = PORTS[1 - PORTS.index(self._port)]
        process = self._start(self._plan, port, resume=True)
        try:
            process.await_events({"controller-restarted"})
            with self._send_lock:
                self._process = process
                self.is_down = False
                if self._silence:
                    process.send(self._silence)
            namespaces.in_threads(lambda switch: set_controller_port(switch.name, port), self._plan.switches)
            self._send(messages.AwaitSwitches(seconds=GRACE_S))
        except BaseException:
            process.end()
            self._process = None
            self.is_down = True
            raise
        self._port = port
        if self._health:
            self.start_health(self._health)

    def _start(self, plan: Plan, port: int, resume: bool) -> Worker:
        local_switches = [switch.name for switch in plan.switches if switch.name not in self._elsewhere]
        sockets = listeners(local_switches, port)
        if self._elsewhere:
            sockets.append(socket.create_server((ADDRESS[0], port)))
        agents = self.remote_agents()
        numbers = [sock.fileno() for sock in sockets]
        agent_numbers = [sock.fileno() for sock in agents]
        process = Worker(
            "railyard.controller.processes.controller_main",
            "the controller",
            messages.Counters,
            on_event=self._on_event,
            awaited=("ready", "learned", "registry", "relearned", "controller-restarted"),
            pass_fds=[*numbers, *agent_numbers],
        )
        message = messages.ConnectController(
            plan=plan, reroute=self._reroute, sockets=tuple(numbers), resume=resume, elsewhere=self._elsewhere,
            agents=tuple(agent_numbers), gpus_elsewhere=tuple(agents.values()),
            user_app=self.user_app,
        )  # fmt: skip
        process.send(message)
        for sock in (*sockets, *agents):
            sock.close()
        return process

    def remote_agents(self) -> Mapping[socket.socket, frozenset[Gpu]]:
        """Return a connection to the route agent of each other machine, with the GPUs there."""
        return {}

    def wait_ready(self) -> None:
        """Return when every switch has its flows. RailyardError, with the last output, if that takes too long."""
        self._send(messages.LearnInterfaces())
        self._running.await_events({"ready", "learned"})

    def port_counters(self, switches: int) -> dict[str, dict[int, dict[str, int]]]:
        """Return the current OpenFlow counters by switch and port (`rx`: received from the cable)."""
        self._send(messages.ReadCounters())
        counters: dict[str, dict[int, dict[str, int]]] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(counters) < switches:
            reply = self._running.receive_any(max(0.0, deadline - time.monotonic()))
            if isinstance(reply, messages.Counters):
                counters[reply.switch] = reply.ports
        return counters

    def start_health(self, spec: HealthSpec) -> str:
        """Compute scores and publish them in a registry; return its address. RailyardError if it doesn't start."""
        self._send(messages.StartHealth(spec=spec))
        self._health = spec
        message = self._running.await_events({"registry"})["registry"]
        if message["why"]:
            raise RailyardError(f"no registry: {message['why']}")
        self.registry_address = str(message["address"])
        return self.registry_address

    def stop_health(self) -> None:
        """End scores and registry, also those of a crashed controller."""
        self._health = None
        self.registry_address = ""
        if not self.is_down:
            self._send(messages.StopHealth())

    def set_registry(self, up: bool) -> None:
        """Kill the registry's server (etcd: SIGKILL to its process), or start it again at its address.

        Events: "registry-crashed", "registry-restarted", or "registry-failed" with the reason.
        """
        self._send(messages.SetRegistry(up=up))

    def on_heartbeats(self, silence: dict[str, Any]) -> None:
        """Take in the detail of "silence", from any thread, in place of the last one; also for a later restart."""
        with self._send_lock:
            self._silence = messages.SetSilence(silence=silence)
            if not self.is_down:
                self._running.send(self._silence)

    def replace_gpu(self, gpu_name: str) -> None:
        """Return when the GPU that has replaced the one of this name, in a new namespace, has its detours.

        RailyardError if there is no such namespace; then nothing changes.
        """
        self._send(messages.ReplaceGpu(gpu=gpu_name))
        message = self._running.await_events({"relearned"})["relearned"]
        if message["why"]:
            raise RailyardError(f"no GPU in the place of {gpu_name}: {message['why']}")

    def cross_connect(self, moves: Mapping[str, str], layers: Iterable[Layer] | None = None) -> None:
        """Begin to move fibres: {"d0g4": "d0g1"} connects d0g4's fibres to the network sides of d0g1, in some layers.

        A fibre whose network side is taken, and a network side that is left, are disabled. ValueError as
        `moves_by_switch`. Events: "optical-links-down", and "optical-links-up" after the fabric's `switching_time`.
        """
        available = tuple(self._plan.optics) if self._plan else ()
        requested = available if layers is None else tuple(layers)
        if self._plan is None or not requested or not set(requested) <= set(available):
            where = f"layers {requested}: the fabric's optical layers are {available}"
            raise ValueError(f"can't cross {dict(moves)} in {where}")
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
            problem = "the controller is away: it has crashed" if self.is_down else "no controller runs"
            raise RailyardError(problem)
        return self._process


class AgentsProcess:
    """One agent per GPU of a running fabric. A thread calls `on_event(ns, what, detail)`."""

    def __init__(self, plan: Plan, on_event: OnEvent | None = None) -> None:
        self._worker = Worker(
            "railyard.controller.processes.agents_main",
            "the agents",
            on_event=on_event or (lambda *_: None),
            awaited=("connected", "steering", "released", "failed"),
        )
        self._steering_s = STEERING_S + STEERING_S_A_GPU * len(plan.gpus)
        self._worker.send(messages.ConnectAgents(plan=plan))
        self._worker.await_events({"connected"})

    def steer(
        self, steering: Steering, address: str, stale_s: float = 1.0, watched: Iterable[tuple[Gpu, Gpu]] = ()
    ) -> None:
        """Steer by a policy and the registry at `address`; return when every GPU has its first routes.

        RailyardError if the policy fails on them, or the registry doesn't answer.
        """
        pairs = frozenset(watched)
        self._worker.send(messages.Steer(steering=steering, address=address, stale_s=stale_s, watched=pairs))
        self._await("steering", self._steering_s, "the agents got no scores: the registry doesn't answer")

    def assign(self, assigned: Assigned) -> None:
        """Give the policy oracle other paths, while it steers."""
        self._worker.send(messages.Assign(assigned=dict(assigned)))

    def release(self) -> None:
        """End steering; return when GPUs have only their base routes. RailyardError if the policy has failed."""
        self._worker.send(messages.Release())
        self._await("released", ANSWER_S, "the agents didn't remove their routes")

    def _await(self, requested: str, within_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + within_s
        event_kind = ""
        while event_kind != requested:
            try:
                event = self._worker.receive(Event, max(0.0, deadline - time.monotonic()))
            except RailyardError as error:
                if isinstance(error, watch.ProcessMissing) or time.monotonic() < deadline:
                    raise
                raise RailyardError(f"{otherwise} (waited {within_s:g} s)") from error
            event_kind = event.what
            if event_kind == "failed":
                raise RailyardError(f"policy {event.detail['policy']} failed: {event.detail['why']}")

    def stop(self) -> None:
        """End the process. Its routes remain: call `release` first to use the fabric further."""
        self._worker.end()


class HeartbeatProcess:
    """Heartbeats between the GPUs of a running fabric, in a reserved share of its links. Stop it before the fabric.

    A thread calls `on_event(ns, what, detail)` with "silence" whenever that changes: ControllerProcess.on_heartbeats
    takes the detail. ValueError for a period of 0 or less, or a multiplier below 2.
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
            on_event=on_event or (lambda *_: None),
            awaited=("started",),
        )
        try:
            self._worker.send(messages.StartHeartbeats(plan=plan, period_s=period_s, multiplier=multiplier))
            self._worker.await_events({"started"})
        except BaseException:
            self.stop()
            raise

    def cost(self) -> HeartbeatCost:
        """Return the cost so far."""
        return self._worker.ask(messages.ReadCost(), HeartbeatCost)

    def stop(self) -> None:
        """End the process, and release the reserved share."""
        self._worker.end()
        shaping.disable_lanes(self._plan)
