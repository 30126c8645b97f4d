"""Turns what switches say into what is broken, and that into routes. No sockets here: it is handed what it acts through."""

from collections.abc import Callable
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
    """Follows the state of a fabric. `tell(what, detail)` gets every step that somebody may want to time.

    Nothing is rerouted before the fabric was whole once (all switches connected, all ports up: `ready`), or a fabric
    that is still being cabled would look like one that falls apart.
    """

    def __init__(self, plan: Plan, router: Router, reroute: bool, tell: Tell) -> None:
        self._plan, self._router, self._reroute, self._tell = plan, router, reroute, tell
        self._roles = {switch.dpid: (switch.name, switch.role) for switch in plan.switches}
        self._connected: set[int] = set()
        self._down: set[tuple[int, int]] = set()
        self._was_whole = False
        self._routes: Detours = {}

    @property
    def broken(self) -> Broken:
        """What is dead now."""
        gpus = (gpu_at(dpid, port) for dpid, port in self._down)
        away = {dpid: role for dpid, (_, role) in self._roles.items() if dpid not in self._connected}
        spines = [dpid for dpid, (_, role) in self._roles.items() if role == "spine"]
        return Broken(
            links=frozenset(gpu for gpu in gpus if gpu),
            rails=frozenset(role_of(dpid)[1] for dpid, role in away.items() if role != "spine"),
            spines=bool(spines) and all(dpid in away for dpid in spines),
        )

    def hear(self, heard: Heard) -> None:
        """Take in one thing that a switch said, and reroute if it changes what works."""
        if heard.dpid not in self._roles:
            return
        match heard.what:
            case "port":
                (self._down.discard if heard.up else self._down.add)((heard.dpid, heard.port))
            case "switch-up":
                self._connected.add(heard.dpid)
            case "switch-down":
                self._connected.discard(heard.dpid)
                self._down = {(dpid, port) for dpid, port in self._down if dpid != heard.dpid}
        if self._was_whole:
            self._report(heard)
            self._apply()
        elif not self._down and len(self._connected) == len(self._roles):
            self._was_whole = True
            self._tell("ready", {})

    def _report(self, heard: Heard) -> None:
        name, _ = self._roles[heard.dpid]
        if heard.what == "port":
            gpu = gpu_at(heard.dpid, heard.port)
            where = gpu.name if gpu else f"port {heard.port}"
            self._tell("port-up" if heard.up else "port-down", {"switch": name, "port": where})
        else:
            self._tell(heard.what, {"switch": name})

    def _apply(self) -> None:
        if not self._reroute:
            return
        wanted = detours(self._plan, self.broken)
        todo = changes(self._routes, wanted)
        if todo:
            self._tell("decided", {"gpus": len(todo)})
            done = sum(self._router.change(gpu, gone, put) for gpu, (gone, put) in sorted(todo.items()))
            self._routes = wanted
            self._tell("rerouted", {"routes": done})
