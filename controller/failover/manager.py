"""Turns what switches and heartbeats say into what is broken, and that into routes. No sockets: it is handed its
router.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import count, permutations
from typing import Any, Protocol

from railyard.controller.failover.detours import DETOUR_METRIC, Broken, Detours, PrecomputedDetours, changes
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.addresses import (
    NETWORK_PORT_OFFSET,
    Gpu,
    gpu_at,
    gpu_of_optical_port,
    link_name,
    link_of_name,
    plane_of,
    rail_name,
    role_of,
)
from railyard.topologies.plan import Plan
from railyard.topologies.routing import AnyRoute

EmitEvent = Callable[[str, dict[str, Any]], None]


class Router(Protocol):
    """What changes routes: agent.RouteAgent, or a test's stand-in."""

    def change(self, gpu: Gpu, remove: list[AnyRoute], put: list[AnyRoute]) -> int: ...

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, AnyRoute]: ...


@dataclass(frozen=True, slots=True)
class _PendingReconnect:
    """For a place whose light is off for a moment: which wait it is, what was dead there before, and whether it is lit
    again.
    """

    number: int
    before: Broken
    will_return: bool


class FailoverManager:
    """Follows the state of a fabric. `tell(what, detail)` gets every step that somebody may want to time.

    Nothing is rerouted before the fabric was whole once (all switches connected, all the plan's ports up: `ready`), or
    a fabric that is still being cabled would look like one that falls apart. One that resumes finds a fabric that was.
    """

    def __init__(self, plan: Plan, router: Router, reroute: bool, emit: EmitEvent) -> None:
        self._plan, self._router, self._reroute, self._emit = plan, router, reroute, emit
        self._roles = {switch.dpid: (switch.name, switch.role) for switch in plan.switches}
        self._hb_optics = frozenset(switch.dpid for switch in plan.optics.get("hb", ()))
        self._ports = _ports_of(plan)
        self._connected: set[int] = set()
        self._down: set[tuple[int, int]] = set()  # at switches that are connected
        self._silent = SilentComponents()
        self._was_ready = self._is_resuming = False
        self._routes: Detours = {}  # in force
        self._pending: dict[Gpu, _PendingReconnect] = {}
        self._numbers = count()
        self._precomputed = PrecomputedDetours(plan)

    @property
    def is_ready(self) -> bool:
        """Whether the fabric was whole once: from then on it is rerouted."""
        return self._was_ready

    def precompute(self) -> None:
        """Work out beforehand what to do about whatever may break, for a second or so. From any thread."""
        if self._reroute:
            self._precomputed.precompute()

    def resume(self, routes: Detours) -> None:
        """Before anything is heard: take over from a brain that is gone, with the detours that it left.

        Nothing changes until all switches have connected, or `finish_resume` says that who isn't there is dead.
        """
        self._routes, self._is_resuming = routes, True

    @property
    def pending(self) -> frozenset[str]:
        """While one that resumes waits: the switches that it waits for."""
        missing = self._roles.keys() - self._connected if self._is_resuming else ()
        return frozenset(self._roles[dpid][0] for dpid in missing)

    def finish_resume(self) -> None:
        """End the wait of one that resumes, if it waits still: tell what is dead, and change what differs."""
        if not self._is_resuming:
            return
        self._is_resuming, self._was_ready = False, True
        self._emit("resumed", {"switches": len(self._connected)})
        for dpid in sorted(self._roles.keys() - self._connected):
            self._emit("switch-down", {"switch": self._roles[dpid][0]})
        for dpid, port in sorted(self._down):
            self._emit_port("port-down", dpid, port)
        self._apply(frozenset())

    def expect_reconnect(self, gpus: Mapping[Gpu, bool]) -> int:
        """Light is about to be off at these places because fibres move; true: it comes back. Nothing is rerouted for
        what is heard of them until light is back, over the rail and at the HB domain alike; or until `on_timeout` with
        this wait's number says that the time is over. Of those that stay dark not before that: nobody is there any
        more, and to go round them takes processors that whoever takes over has a use for.
        """
        broken, number = self._effective_failures, next(self._numbers)
        for gpu, will_return in gpus.items():
            before = Broken(links=broken.links & {gpu}, hb=broken.hb & {gpu})
            self._pending[gpu] = _PendingReconnect(number, before, will_return)
        return number

    def on_timeout(self, number: int) -> None:
        """Of what is awaited since then, and not anew since, what is dead now is dead."""
        self._pending = {gpu: wait for gpu, wait in self._pending.items() if wait.number != number}
        if self._was_ready:
            self._apply(frozenset())

    def on_gpu_replaced(self, gpu: Gpu) -> None:
        """A GPU has none of its detours any more: another one is in its place. It gets them again."""
        if self._was_ready:
            self._apply({gpu})

    @property
    def broken(self) -> Broken:
        """What is dead now: by what switches say, or silent."""
        silent = self._silent
        disconnected = self._roles.keys() - self._connected
        rails = (role_of(dpid)[1] for dpid in disconnected if self._roles[dpid][1] in ("rail", "single"))
        cut_off = (gpu for gpu in self._plan.gpus if gpu.domain in silent.hb_domains)
        count = self._plan.spec.definition.planes
        dead = self._down_planes() | silent.planes | {(gpu, 0) for gpu in silent.links}
        dead |= {(gpu, plane) for gpu in silent.gpus for plane in range(count)}
        return Broken(
            links=frozenset(gpu for gpu, _ in dead if all((gpu, plane) in dead for plane in range(count))),
            rails=frozenset(rails) | silent.rails,
            planes=dead if count > 1 else frozenset(),
            disconnected_ranks=find_disconnected_ranks(self._plan, self._down, disconnected),
            hb=silent.hb_links.union(silent.gpus, cut_off, self._disabled_hb_ports()),
        )

    @property
    def _effective_failures(self) -> Broken:
        """What counts as dead: what is, but for those whose light is awaited."""
        broken, pending = self.broken, self._pending
        if not pending:
            return broken
        links = broken.links.difference(pending).union(*(wait.before.links for wait in pending.values()))
        hb = broken.hb.difference(pending).union(*(wait.before.hb for wait in pending.values()))
        return replace(broken, links=links, hb=hb)

    def _down_links(self) -> frozenset[Gpu]:
        gpus = (gpu_at(dpid, port) for dpid, port in self._down)
        return frozenset(gpu for gpu in gpus if gpu)

    def _down_planes(self) -> frozenset[tuple[Gpu, int]]:
        links = ((gpu_at(dpid, port), plane_of(dpid)) for dpid, port in self._down)
        return frozenset((gpu, plane) for gpu, plane in links if gpu)

    def _disabled_hb_ports(self) -> frozenset[Gpu]:
        """The places at HB bridges where an optical switch gives no light; whose fibre leads there doesn't matter."""
        gpus = (self._hb_gpu_at(dpid, port) for dpid, port in self._down)
        return frozenset(place for place in gpus if place)

    def on_event(self, event: SwitchEvent) -> None:
        """Take in one thing that a switch said, and reroute if it changes what works."""
        if event.dpid not in self._roles or (event.what == "port" and event.port not in self._ports[event.dpid]):
            return
        match event.what:
            case "port":
                (self._down.discard if event.up else self._down.add)((event.dpid, event.port))
            case "switch-up":
                self._connected.add(event.dpid)
                self._down |= {(event.dpid, port) for port in self._ports[event.dpid] - event.up_ports}
            case "switch-down":
                self._connected.discard(event.dpid)
                self._down = {(dpid, port) for dpid, port in self._down if dpid != event.dpid}
        if self._was_ready:
            self._report(event)
            returned = gpu_at(event.dpid, event.port) if event.what == "port" and event.up else None
            restored = returned or (
                self._hb_gpu_at(event.dpid, event.port) if event.what == "port" and event.up else None
            )
            if restored:
                self._end_pending(restored)
            self._apply({returned} if returned else frozenset())
        elif len(self._connected) == len(self._roles):
            if self._is_resuming:
                self.finish_resume()
            elif not self._down:
                self._was_ready = True
                self._emit("ready", {})

    def _hb_gpu_at(self, dpid: int, port: int) -> Gpu | None:
        """The place at an HB bridge behind an optical switch's port."""
        return gpu_of_optical_port(port) if dpid in self._hb_optics and port > NETWORK_PORT_OFFSET else None

    def _end_pending(self, restored: Gpu) -> None:
        """Somewhere light is back at this place. If it is everywhere, nobody waits for it."""
        wait = self._pending.get(restored)
        if wait and wait.will_return and restored not in self._down_links() | self._disabled_hb_ports():
            del self._pending[restored]

    def on_heartbeats(self, silent: SilentComponents) -> None:
        """Take in all that is silent now, and reroute if it changes what works."""
        before, self._silent = self._silent, silent
        old, new = silent_names(before), silent_names(silent)
        for kind, name in sorted(new - old):
            self._emit("silent", {kind: name})
        for kind, name in sorted(old - new):
            if not (kind == "link" and self._is_rail_silent(name)):
                self._emit("heard", {kind: name})
        if self._was_ready:
            self._apply((before.links | before.gpus) - silent.links - silent.gpus)

    def _is_rail_silent(self, link: str) -> bool:
        """Return whether a rail link isn't reported because its whole rail is silent."""
        gpu, plane = link_of_name(link)
        return self._plan.spec.definition.rail_switch(gpu.rank, plane).index in self._silent.rails

    def _report(self, event: SwitchEvent) -> None:
        if event.what == "port":
            self._emit_port("port-up" if event.up else "port-down", event.dpid, event.port)
        else:
            self._emit(event.what, {"switch": self._roles[event.dpid][0]})

    def _emit_port(self, what: str, dpid: int, port: int) -> None:
        name, role = self._roles[dpid]
        if role == "optical" and port > NETWORK_PORT_OFFSET:
            return  # the other side of what a switch of the network tells
        gpu = gpu_of_optical_port(port) if role == "optical" else gpu_at(dpid, port)
        self._emit(what, {"switch": name, "port": gpu.name if gpu else f"port {port}"})

    def _apply(self, returned: Set[Gpu]) -> None:
        """Change what has to change. `returned`: the GPUs that came back, which may have lost all that they were told.

        What a GPU refuses is asked of it again with the next change, since it isn't in force.
        """
        if not self._reroute:
            return
        broken = self._effective_failures
        target = self._precomputed(broken)
        todo = changes(self._routes, target)
        for gpu in returned & target.keys():
            todo[gpu] = (todo.get(gpu, ([], []))[0], list(target[gpu].values()))
        if todo:
            self._emit("decided", {"gpus": len(todo)})
            # those whose own link is dead go on by a backup of their kernel's: they can wait for the others
            order = sorted(todo, key=lambda gpu: (gpu in broken.links, gpu))
            done = {gpu: self._change(gpu, *todo[gpu]) for gpu in order}
            self._routes = target | {gpu: self._remaining_detours(gpu) for gpu, count in done.items() if count is None}
            detours = sum(map(len, self._routes.values()))
            self._emit("rerouted", {"routes": sum(count or 0 for count in done.values()), "detours": detours})

    def _change(self, gpu: Gpu, remove: list[AnyRoute], put: list[AnyRoute]) -> int | None:
        """How many changes are done; None if any was refused."""
        try:
            return self._router.change(gpu, remove, put)
        except OSError as error:  # a crashed GPU has no interfaces: the others' routes matter all the more
            self._emit("refused", {"gpu": gpu.name, "why": str(error)})
            return None

    def _remaining_detours(self, gpu: Gpu) -> dict[str, AnyRoute]:
        """The detours of a GPU that refused some change, which its kernel knows: a crashed one has none left."""
        try:
            return self._router.routes_at(gpu, DETOUR_METRIC)
        except OSError:  # nobody knows, so as they were
            return self._routes.get(gpu, {})


def silent_names(silent: SilentComponents) -> set[tuple[str, str]]:
    """(kind, name) of all that is silent."""
    gpus = {"link": silent.links, "gpu": silent.gpus, "hb-link": silent.hb_links}
    found = {(kind, gpu.name) for kind, members in gpus.items() for gpu in members}
    found |= {("link", link_name(*link)) for link in silent.planes}
    found |= {("rail", rail_name(index)) for index in silent.rails}
    return found | {("hb-domain", f"hb{domain}") for domain in silent.hb_domains}


def _ports_of(plan: Plan) -> dict[int, set[int]]:
    """The ports that each switch of the plan has, by datapath id."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    found: dict[int, set[int]] = {dpid: set() for dpid in dpids.values()}
    for end in (end for link in plan.links for end in (link.a, link.b)):
        if end.port is not None:
            found[dpids[end.node]].add(end.port)
    return found


def find_disconnected_ranks(
    plan: Plan, down: Set[tuple[int, int]], disconnected: Set[int]
) -> frozenset[tuple[int, int]]:
    """The pairs of ranks whose rail switches no spine joins, given dead ports (datapath id, port) and lost switches."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    reach: dict[int, set[int]] = {dpid: set() for dpid in dpids.values() if role_of(dpid)[0] == "spine"}
    for link in plan.uplinks:  # from rail to spine
        ends = {(dpids[end.node], end.port) for end in (link.a, link.b)}
        if not ends & down and dpids[link.b.node] not in disconnected:
            reach[dpids[link.b.node]].add(role_of(dpids[link.a.node])[1])
    pairs = permutations(range(plan.spec.rails), 2) if reach else ()
    fully_connected = {frozenset(ranks) for ranks in reach.values()}
    return frozenset((a, b) for a, b in pairs if not any(a in ranks and b in ranks for ranks in fully_connected))
