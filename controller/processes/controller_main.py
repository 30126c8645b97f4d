"""The controller as a process of its own: `python -m railyard.controller.processes.controller_main`, by messages.py."""

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.failover.detours import DETOUR_METRIC
from railyard.controller.failover.manager import FailoverManager, Phase
from railyard.controller.health.monitor import HealthLoop
from railyard.controller.openflow.app import SwitchEvent
from railyard.controller.openflow.optical import SETTLE_S, AffectedPorts, network_sides_in
from railyard.controller.openflow.server import OpenFlowServer
from railyard.controller.processes import messages
from railyard.controller.processes.machines import RouteAgents
from railyard.core.errors import RailyardError
from railyard.core.remote import RemoteWorker
from railyard.core.wait import poll
from railyard.core.worker import Parent, Ready
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.build import ovs

RECONNECT_POLL_S: Final = 0.02
# a thread that computes lets other threads run after this time, instead of Python's 5 ms: an event may wait
SWITCH_INTERVAL_S: Final = 0.0005
# optical switches that are quicker cause no rerouting, which takes as long, and processor time
MAX_HELD_OUTAGE_S: Final = 0.1


class Controller:
    """The controller of a fabric: it executes commands, and passes events of switches on."""

    def __init__(self, parent: Parent, command: messages.ConnectController) -> None:
        self._parent = parent
        self.emit = parent.emit
        self._plan = plan = command.plan
        self._names = {switch.dpid: switch.name for switch in plan.switches}
        self._agent = _route_agent(command)
        self._manager = FailoverManager(plan, self._agent, command.reroute, self.emit)
        # events of switches and of heartbeats arrive in different threads
        self._manager_lock = threading.Lock()
        self._may_precompute = command.reroute
        self._health: HealthLoop | None = None
        # switches whose counters the parent waits for
        self._stats_requested: set[str] = set()
        # since an etcd takes a second to start
        self._registry_executor = ThreadPoolExecutor(1, "registry")
        self._server = OpenFlowServer(self._on_event, command.user_app, self.emit)
        self._server.app.nics = plan.spec.rail_of_rank
        if plan.spec.definition.is_graph:
            self._server.app.graph = plan.graph
        elif plan.uplinks and not plan.nics:
            rails = plan.switches_of("rail")
            self._server.app.assigned_uplinks = {rail.dpid: plan.spec.uplinks(rail.index) for rail in rails}
        if command.resume:
            self._agent.learn_interfaces()
            self._manager.resume(self._agent.routes(DETOUR_METRIC))
        self._server.serve(socket.socket(fileno=fd) for fd in command.sockets)
        if command.resume:
            self.emit("controller-restarted", {})

    def execute(self, command: messages.ToController) -> None:
        """Execute a command, or begin to."""
        match command:
            case messages.LearnInterfaces():
                self._agent.learn_interfaces()
                self.emit("learned", {})
            case messages.ReadCounters():
                self._stats_requested = set(self._names.values())
                self._server.app.ask_stats()
            case messages.AwaitSwitches():
                threading.Thread(target=self._await_switches, args=(command.seconds,), daemon=True).start()
            case messages.ReplaceGpu():
                why = ""
                gpu = gpu_of_name(command.gpu)
                with self._manager_lock:
                    try:
                        self._agent.rebind_gpu(gpu)
                        self._manager.on_gpu_replaced(gpu)
                    except OSError as error:
                        why = str(error)
                self.emit("relearned", {"gpu": command.gpu, "why": why})
            case messages.SetSilence():
                with self._manager_lock:
                    self._manager.on_heartbeats(command.silence)
            case messages.CrossConnect():
                self._cross_connect(command)
            case messages.StartHealth() | messages.StopHealth() | messages.SetRegistry():
                self._registry_executor.submit(self._control_health, command)

    def _await_switches(self, grace_s: float) -> None:
        """Wake the switches until they connect, and declare those dead that don't in time."""

        def are_connected() -> bool:
            for switch in self._manager.pending:
                ovs.wake_vswitchd(switch)
            return not self._manager.pending

        poll(are_connected, grace_s, RECONNECT_POLL_S)
        with self._manager_lock:
            self._manager.finish_resume()

    def _cross_connect(self, command: messages.CrossConnect) -> None:
        optical = self._plan.spec.optical
        outage_s = optical.switching_time if optical else 0.0
        detail = {"moves": command.moves, "layers": list(command.layers)}
        pending_numbers = list[int]()

        def on_start(affected_ports: AffectedPorts) -> None:
            if outage_s <= MAX_HELD_OUTAGE_S:
                with self._manager_lock:
                    number = self._manager.state.expect_reconnect(network_sides_in(affected_ports))
                    pending_numbers.append(number)

        def on_timeout(number: int) -> None:
            with self._manager_lock:
                self._manager.on_timeout(number)

        def on_done() -> None:
            self.emit("optical-links-up", detail)
            for number in pending_numbers:
                timer = threading.Timer(SETTLE_S, on_timeout, (number,))
                timer.daemon = True
                timer.start()

        try:
            self._server.app.optics.cross_connect(command.ports, outage_s, on_done, on_start)
        except ValueError as error:
            self.emit("not-crossed", {**detail, "why": str(error)})
        else:
            self.emit("optical-links-down", detail)

    def _control_health(self, command: messages.ToController) -> None:
        health = self._health
        try:
            match command:
                case messages.StartHealth():
                    self._health = health = HealthLoop(self._plan, command.spec, self._server.app.ask_stats, self.emit)
                    self.emit("registry", {"address": health.server.address, "why": ""})
                case messages.StopHealth() if health:
                    self._health = None
                    health.stop()
                case messages.SetRegistry(up=up) if health:
                    if up:
                        health.server.start()
                        self.emit("registry-restarted", {})
                    else:
                        health.server.stop()
                        self.emit("registry-crashed", {})
        except (RailyardError, OSError) as error:
            self.emit("registry-failed", {"why": str(error)})
            if isinstance(command, messages.StartHealth):
                self.emit("registry", {"address": "", "why": str(error)})

    def _on_event(self, event: SwitchEvent) -> None:
        # read once: another thread may set it to None meanwhile
        health = self._health
        if health:
            health.on_event(event)
        if event.what == "stats":
            name = self._names[event.dpid]
            if name in self._stats_requested:
                self._stats_requested.discard(name)
                self._parent.send(messages.Counters(switch=name, ports=event.counters))
        else:
            with self._manager_lock:
                self._manager.on_event(event)
            if self._may_precompute and self._manager.phase is Phase.ACTIVE:
                # takes a second or so, once
                self._may_precompute = False
                threading.Thread(target=self._manager.detours.precompute, daemon=True).start()


def _route_agent(command: messages.ConnectController) -> RouteAgent:
    """Return the route agent. On several machines, it passes changes on to the other machines' agents."""
    if not command.agents:
        return RouteAgent(command.plan, command.elsewhere)
    replies = (Ready, messages.RoutesChanged, messages.Routes)
    remote_agents: list[tuple[RemoteWorker, frozenset[Gpu]]] = []
    for fd, gpus in zip(command.agents, command.gpus_elsewhere, strict=True):
        agent = RemoteWorker(socket.socket(fileno=fd), "a route agent on another machine", *replies)
        remote_agents.append((agent, gpus))
    return RouteAgents(command.plan, command.elsewhere, remote_agents)


def main() -> None:
    """Execute the parent's commands until it ends."""
    # an ordinary user may not
    with suppress(PermissionError):
        # a real control plane has processors of its own, and doesn't queue behind the traffic
        os.nice(-15)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    parent = Parent(*messages.ToController.__subclasses__())
    parent.forward_interruptions()
    controller = Controller(parent, parent.receive())
    for command in parent:
        controller.execute(command)


if __name__ == "__main__":
    main()
