"""Turns what switches say into what is broken, and that into routes. No sockets here: it is handed what it acts through."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from controller.app import Heard
from controller.detours import Detours, changes, detours
from controller.flows import gpu_at, role_of
from controller.paths import Broken
from topologies.addresses import Gpu
from topologies.plan import Plan
from topologies.routes import Route

Tell = Callable[[str, dict[str, Any]], None]


class Router(Protocol):
    """What changes routes: agent.RouteAgent, or a test's stand-in."""

    def change(self, gpu: Gpu, remove: list[Route], put: list[Route]) -> int: ...


class Brain:
    """Follows the state of a fabric. `tell(what, detail)` gets every step that somebody may want to time."""

    def __init__(self, plan: Plan, router: Router, reroute: bool, tell: Tell) -> None:
        self._plan, self._router, self._reroute, self._tell = plan, router, reroute, tell
        self._names = {switch.dpid: switch.name for switch in plan.switches}
        self._up: set[int] = set()
        self._was_ready = False
        self._routes: Detours = {}
        self.broken = Broken()

    def hear(self, heard: Heard) -> None:
        """Take in one thing that a switch said, and reroute if it changes what works."""
        if heard.what == "stats" or heard.dpid not in self._names:
            return
        name = self._names[heard.dpid]
        if heard.what == "port":
            gpu = gpu_at(heard.dpid, heard.port)
            where = gpu.name if gpu else f"port {heard.port}"
            self._tell("port-up" if heard.up else "port-down", {"switch": name, "port": where})
            if gpu:
                links = self.broken.links - {gpu} if heard.up else self.broken.links | {gpu}
                self.broken = replace(self.broken, links=links)
        else:
            self._tell(heard.what, {"switch": name})
            (self._up.add if heard.what == "switch-up" else self._up.discard)(heard.dpid)
            self._judge_switches()
        if not self._was_ready and len(self._up) == len(self._names):
            self._was_ready = True
            self._tell("ready", {})
        if self._was_ready:
            self._apply()

    def _judge_switches(self) -> None:
        roles = {dpid: role_of(dpid) for dpid in self._names}
        dead = {dpid for dpid in self._names if dpid not in self._up}
        spines = [dpid for dpid, (role, _) in roles.items() if role == "spine"]
        rails = frozenset(roles[dpid][1] for dpid in dead if roles[dpid][0] != "spine")
        no_spine = bool(spines) and all(dpid in dead for dpid in spines)
        self.broken = replace(self.broken, rails=rails, spines=no_spine)

    def _apply(self) -> None:
        if not self._reroute:
            return
        wanted = detours(self._plan, self.broken)
        todo = changes(self._routes, wanted)
        if not todo:
            return
        self._tell("decided", {"gpus": len(todo)})
        done = sum(self._router.change(gpu, gone, put) for gpu, (gone, put) in sorted(todo.items()))
        self._routes = wanted
        self._tell("rerouted", {"routes": done})
