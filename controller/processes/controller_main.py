"""The controller as a process of its own: `python -m railyard.controller.processes.controller_main`, a line of JSON in
for a command, one out for an event.

In: {"do": "connect", "plan": {...}, "reroute": true, "sockets": [3, ...]}, {"do": "learn"}, {"do": "stats"};
{"do": "connect", ..., "resume": true} after a crash, on a fabric that stands, and {"do": "grace", "seconds": s} once
its switches are called; {"do": "relearn", "gpu": name} when another GPU is in its place;
{"do": "silence", "silence": {...}} with all that is silent by heartbeats;
{"do": "cross", "moves": {fibre: place}, "layers": [...]}, by names of GPUs;
{"do": "start-health", "spec": {...}}, and stop-health, crash-registry, restart-registry.
Out: {"ns": monotonic, "what": ..., "detail": {...}}. It ends when its input does.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.failover.detours import DETOUR_METRIC
from railyard.controller.failover.heartbeat_detector import Silence
from railyard.controller.failover.manager import Brain
from railyard.controller.health.monitor_loop import HealthLoop
from railyard.controller.health.settings import HealthSpec
from railyard.controller.openflow.app import Concerned, Heard
from railyard.controller.openflow.cross_connect_moves import moves_by_switch, places_in
from railyard.controller.openflow.optical_switch import SETTLE_S
from railyard.controller.openflow.server import OpenFlowServer
from railyard.core.errors import RailyardError
from railyard.core.events import Tell
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.build import ovs
from railyard.topologies.optical import Layer
from railyard.topologies.plan import Plan

KNOCK_S: Final = 0.02
PROMPT_S: Final = 0.0005
"""A thread that computes lets others in after so long, not after 5 ms: a command, or news, may wait."""
WAITED_OUT_S: Final = 0.1
"""Light that is off no longer than this is waited for. To send everybody another way and back takes about as long, and
the processors that the optical switch needs just then.
"""


class _Process:
    """Commands in, events out."""

    def __init__(self) -> None:
        self.tell = Tell()
        self._brain: Brain | None = None
        self._thinking = threading.Lock()  # switches are heard in other threads than hearts
        self._agent: RouteAgent | None = None
        self._looks_ahead = False
        self._plan: Plan | None = None
        self._health: HealthLoop | None = None
        self._counters_wanted: set[str] = set()  # switches whose counters somebody outside waits for
        self._server = OpenFlowServer(self._hear)
        self._names: dict[int, str] = {}
        self._registrar = ThreadPoolExecutor(1, "registry")  # an etcd takes a second to start: others needn't wait

    def obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "connect":
                self._connect(command)
            case "learn" if self._agent:
                self._agent.learn_interfaces()
                self.tell("learned", {})
            case "stats":
                self._counters_wanted = set(self._names.values())
                self._server.app.ask_stats()
            case "grace" if self._brain:
                args = (self._brain, command["seconds"])
                threading.Thread(target=self._await_switches, args=args, name="grace", daemon=True).start()
            case "relearn" if self._agent and self._brain:
                self._relearn(self._agent, self._brain, gpu_of_name(command["gpu"]))
            case "silence" if self._brain:
                with self._thinking:
                    self._brain.hear_hearts(Silence.from_dict(command["silence"]))
            case "cross" if self._plan and self._brain:
                self._cross(self._plan, self._brain, command["moves"], command["layers"])
            case "start-health" if self._plan:
                self._registrar.submit(self._start_health, self._plan, HealthSpec.model_validate(command["spec"]))
            case "stop-health":
                self._registrar.submit(self._stop_health)
            case "crash-registry":
                self._registrar.submit(self._with_health, HealthLoop.crash_registry, "registry-crashed")
            case "restart-registry":
                self._registrar.submit(self._with_health, HealthLoop.restart_registry, "registry-restarted")

    def _connect(self, command: dict[str, Any]) -> None:
        self._plan = plan = Plan.from_dict(command["plan"])
        self._names = {switch.dpid: switch.name for switch in plan.switches}
        self._agent = RouteAgent(plan)
        self._brain = Brain(plan, self._agent, command["reroute"], self.tell)
        if command["resume"]:
            self._agent.learn_interfaces()
            self._brain.resume(self._agent.routes(DETOUR_METRIC))
        self._server.serve(socket.socket(fileno=fd) for fd in command["sockets"])
        if command["resume"]:
            self.tell("controller-restarted", {})

    def _await_switches(self, brain: Brain, grace_s: float) -> None:
        """Those that haven't connected by then are taken for dead."""
        deadline = time.monotonic() + grace_s
        while (missing := brain.awaited) and time.monotonic() < deadline:
            for switch in missing:
                ovs.wake(switch)
            time.sleep(KNOCK_S)
        with self._thinking:
            brain.begin()

    def _relearn(self, agent: RouteAgent, brain: Brain, gpu: Gpu) -> None:
        with self._thinking:
            try:
                agent.learn(gpu)
            except OSError as error:
                self.tell("relearned", {"gpu": gpu.name, "why": str(error)})
                return
            brain.forget(gpu)
        self.tell("relearned", {"gpu": gpu.name, "why": ""})

    def _cross(self, plan: Plan, brain: Brain, moves: dict[str, str], layers: list[Layer]) -> None:
        dark_s = plan.spec.optical.light_off if plan.spec.optical else 0.0
        detail = {"moves": moves, "layers": layers}
        waits = list[int]()

        def begins(concerned: Concerned) -> None:
            if dark_s <= WAITED_OUT_S:
                with self._thinking:
                    waits.append(brain.await_light(places_in(concerned)))

        def lit() -> None:
            self.tell("light-on", detail)
            for number in waits:
                timer = threading.Timer(SETTLE_S, self._look_again, (brain, number))
                timer.daemon = True
                timer.start()

        try:
            self._server.app.cross(moves_by_switch(plan, moves, layers), dark_s, lit, begins)
        except ValueError as error:
            self.tell("not-crossed", {**detail, "why": str(error)})
        else:
            self.tell("light-off", detail)

    def _look_again(self, brain: Brain, number: int) -> None:
        with self._thinking:
            brain.look_again(number)

    def _start_health(self, plan: Plan, spec: HealthSpec) -> None:
        try:
            health = HealthLoop(plan, spec, self._server.app.ask_stats, self.tell)
        except (RailyardError, OSError) as error:
            self.tell("registry-failed", {"why": str(error)})
            self.tell("registry", {"address": "", "why": str(error)})
            return
        health.start()
        self._health = health
        self.tell("registry", {"address": health.address, "why": ""})

    def _stop_health(self) -> None:
        health, self._health = self._health, None
        if health:
            health.stop()

    def _with_health(self, does: Callable[[HealthLoop], None], done: str) -> None:
        if self._health:
            try:
                does(self._health)
            except (RailyardError, OSError) as error:
                self.tell("registry-failed", {"why": str(error)})
            else:
                self.tell(done, {})

    def _hear(self, heard: Heard) -> None:
        if health := self._health:
            health.hear(heard)
        if heard.what == "stats":
            name = self._names[heard.dpid]
            if name in self._counters_wanted:
                self._counters_wanted.discard(name)
                self.tell("stats", {"switch": name, "ports": heard.counters})
        elif self._brain:
            with self._thinking:
                self._brain.hear(heard)
            if self._brain.is_whole and not self._looks_ahead:
                self._looks_ahead = True
                threading.Thread(target=self._brain.look_ahead, name="look ahead", daemon=True).start()


def main() -> None:
    with suppress(PermissionError):  # an ordinary user may not
        os.nice(-15)  # a real control plane has processors of its own, and doesn't queue behind the traffic
    sys.setswitchinterval(PROMPT_S)
    process = _Process()
    for line in sys.stdin:
        process.obey(json.loads(line))


if __name__ == "__main__":
    main()
