"""Failover: derive the failure state from switch events and heartbeats, and compute route changes.

`FailureState` holds all that is known of failures, `FailoverManager` the phase and the routes in force.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from enum import Enum
from itertools import count, product
from typing import Any, NamedTuple

from railyard.controller.agent.route_agent import RouteAgent
from railyard.controller.failover.detours import (
    DETOUR_METRIC,
    Broken,
    Detours,
    PrecomputedDetours,
    changes,
    find_disconnected_ranks,
    gpus_without_link,
)
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.addresses import (
    NETWORK_PORT_OFFSET,
    Gpu,
    gpu_of_optical_port,
    link_of_name,
    plane_of,
    role_of,
)
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Route

EmitEvent = Callable[[str, dict[str, Any]], None]


class Phase(Enum):
    """Phase of the failover manager. Routes change in ACTIVE alone: failures of a fabric that was intact once."""

    STARTING = "until all switches are connected and all ports are up once"
    RESUMING = "after a restart, until all switches are connected or the time for that is over"
    ACTIVE = "since then"


class _Reconnect(NamedTuple):
    """A network side without a carrier for a moment, since a fibre moves: what was broken there before the move."""

    number: int
    before: Broken
    will_return: bool


class FailureState:
    """All failures of a fabric, by switch events and by heartbeats, without those that a move of fibres explains."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.roles = {switch.dpid: (switch.name, switch.role) for switch in plan.switches}
        self._hb_optics = frozenset(switch.dpid for switch in plan.optics.get("hb", ()))
        self._ports: defaultdict[int, set[int]] = defaultdict(set)
        for link in plan.links:
            for end in (link.a, link.b):
                if end.port is not None:
                    self._ports[plan.dpids[end.node]].add(end.port)
        self.connected: set[int] = set()
        # (datapath id, port) at connected switches
        self.down: set[tuple[int, int]] = set()
        self.silent = SilentComponents()
        self.reconnects: dict[Gpu, _Reconnect] = {}
        self._numbers = count()

    @property
    def disconnected(self) -> Set[int]:
        """The datapath ids of switches that are not connected."""
        return self.roles.keys() - self.connected

    def on_event(self, event: SwitchEvent) -> bool:
        """Take in a switch event. Return False for one that is not of this fabric."""
        if event.dpid not in self.roles:
            return False
        match event.what:
            case "port":
                if event.port not in self._ports[event.dpid]:
                    return False
                self._on_port(event)
            case "switch-up":
                self.connected.add(event.dpid)
                self.down |= {(event.dpid, port) for port in self._ports[event.dpid] - event.up_ports}
            case "switch-down":
                self.connected.discard(event.dpid)
                self.down = {(dpid, port) for dpid, port in self.down if dpid != event.dpid}
        return True

    def _on_port(self, event: SwitchEvent) -> None:
        port = (event.dpid, event.port)
        if not event.up:
            self.down.add(port)
            return
        self.down.discard(port)
        gpus = self._plan.gpus_at(event.dpid, event.port)
        gpu = gpus[0] if gpus else self._hb_gpu_at(event.dpid, event.port)
        if gpu is None or gpu not in self.reconnects:
            return
        # the move is over once both of the GPU's fibres have a carrier: the first alone would count the other as cut
        if self.reconnects[gpu].will_return and gpu not in self._gpus_with_down_link():
            del self.reconnects[gpu]

    def expect_reconnect(self, gpus: Mapping[Gpu, bool]) -> int:
        """Ignore the failures of these network sides while fibres move. True: the side gets its carrier back.

        They count again once a GPU's links into the rail and the HB domain are both back, or after `on_timeout` with
        the number that this returns.
        """
        # rerouting meanwhile would only take processor time from the GPU replacement
        broken = self.effective
        number = next(self._numbers)
        for gpu, will_return in gpus.items():
            before = Broken(links=broken.links & {gpu}, hb=broken.hb & {gpu})
            self.reconnects[gpu] = _Reconnect(number, before, will_return)
        return number

    @property
    def broken(self) -> Broken:
        """All that is broken by switch events, or silent."""
        silent = self.silent
        kind = self._plan.spec.definition
        dead_links = self._down_links() | silent.rail_links
        dead_links = dead_links.union(product(silent.gpus, kind.all_planes))
        # where GPUs have one link each, `links` says it all
        planes = dead_links if kind.planes > 1 else frozenset()
        return Broken(
            links=gpus_without_link(dead_links, kind.planes),
            rails=silent.rails | self._disconnected_rails(),
            planes=planes,
            disconnected_ranks=find_disconnected_ranks(self._plan, self.down, self.disconnected),
            hb=silent.hb_links | silent.gpus | self._silent_domain_gpus() | self._down_hb(),
            islands=self._islands(),
        )

    def _disconnected_rails(self) -> set[int]:
        """Return the rail switches that are not connected, by index."""
        rails: set[int] = set()
        for dpid in self.disconnected:
            role, index = role_of(dpid)
            if role in ("rail", "single"):
                rails.add(index)
        return rails

    def _silent_domain_gpus(self) -> set[Gpu]:
        """Return the GPUs of HB domains that are silent as a whole."""
        return {gpu for gpu in self._plan.gpus if gpu.domain in self.silent.hb_domains}

    def _islands(self) -> frozenset[frozenset[Gpu]]:
        """Return the groups of GPUs that a graph still joins, without its dead switches and cut cables."""
        if not self._plan.spec.definition.is_graph:
            return frozenset()
        dead = {self.roles[dpid][0] for dpid in self.disconnected}
        cut = set[frozenset[str]]()
        for link in self._plan.uplinks:
            # either end may be the first that reports a cut cable
            for end in (link.a, link.b):
                if (self._plan.dpids[end.node], end.port) in self.down:
                    cut.add(frozenset((link.a.node, link.b.node)))
        return self._plan.graph.islands(dead, cut)

    @property
    def effective(self) -> Broken:
        """All that is broken, with network sides that are being moved as they were before."""
        broken = self.broken
        moving = self.reconnects
        if not moving:
            return broken
        links = broken.links.difference(moving)
        hb = broken.hb.difference(moving)
        for reconnect in moving.values():
            links |= reconnect.before.links
            hb |= reconnect.before.hb
        return replace(broken, links=links, hb=hb)

    def _down_links(self) -> frozenset[tuple[Gpu, int]]:
        """Return the rail links without a carrier, each as (GPU, plane)."""
        links: set[tuple[Gpu, int]] = set()
        for dpid, port in self.down:
            for gpu in self._plan.gpus_at(dpid, port):
                links.add((gpu, plane_of(dpid)))
        return frozenset(links)

    def _down_hb(self) -> set[Gpu]:
        """Return the network sides at HB bridges without a carrier, whatever fibre leads there."""
        gpus: set[Gpu] = set()
        for dpid, port in self.down:
            gpu = self._hb_gpu_at(dpid, port)
            if gpu:
                gpus.add(gpu)
        return gpus

    def _gpus_with_down_link(self) -> set[Gpu]:
        """Return the network sides without a carrier at an HB bridge, or on a rail link of any plane."""
        gpus = self._down_hb()
        for gpu, _ in self._down_links():
            gpus.add(gpu)
        return gpus

    def _hb_gpu_at(self, dpid: int, port: int) -> Gpu | None:
        """Return the network side at an HB bridge behind an optical switch's port."""
        if dpid in self._hb_optics and port > NETWORK_PORT_OFFSET:
            return gpu_of_optical_port(port)
        return None


class FailoverManager:
    """Reroutes a fabric. `emit(what, detail)` gets an event for every step of a recovery."""

    def __init__(self, plan: Plan, router: RouteAgent, reroute: bool, emit: EmitEvent) -> None:
        self._plan = plan
        self._router = router
        self._reroute = reroute
        self._emit = emit
        self.state = FailureState(plan)
        self.phase = Phase.STARTING
        self._routes: Detours = {}  # in force
        self.detours = PrecomputedDetours(plan)

    @property
    def pending(self) -> frozenset[str]:
        """The switches that have not connected yet, while resuming."""
        missing = self.state.disconnected if self.phase is Phase.RESUMING else ()
        return frozenset(self.state.roles[dpid][0] for dpid in missing)

    def resume(self, routes: Detours) -> None:
        """Begin, before any event, with the detours that a crashed manager has left."""
        self._routes = routes
        self.phase = Phase.RESUMING

    def finish_resume(self) -> None:
        """Report all that is down, and change the routes that differ, if still resuming."""
        if self.phase is not Phase.RESUMING:
            return
        state = self.state
        self.phase = Phase.ACTIVE
        self._emit("controller-resumed", {"switches": len(state.connected)})
        for dpid in sorted(state.disconnected):
            self._emit("switch-down", {"switch": state.roles[dpid][0]})
        for dpid, port in sorted(state.down):
            self._emit_port("port-down", dpid, port)
        self._apply()

    def on_timeout(self, number: int) -> None:
        """End the wait of that number for network sides to reconnect, unless a later move concerns them too."""
        reconnects = self.state.reconnects.items()
        self.state.reconnects = {gpu: reconnect for gpu, reconnect in reconnects if reconnect.number != number}
        self._apply()

    def on_gpu_replaced(self, gpu: Gpu) -> None:
        """Give the detours of a GPU to the one that has replaced it, which has none."""
        self._apply({gpu})

    def on_event(self, event: SwitchEvent) -> None:
        """Take in a switch event, and reroute if it changes what is broken."""
        state = self.state
        if not state.on_event(event):
            return
        if self.phase is Phase.ACTIVE:
            returned: set[Gpu] = set()
            if event.what == "port":
                self._emit_port("port-up" if event.up else "port-down", event.dpid, event.port)
                if event.up:
                    returned.update(self._plan.gpus_at(event.dpid, event.port))
            else:
                self._emit(event.what, {"switch": state.roles[event.dpid][0]})
            self._apply(returned)
        elif not state.disconnected:
            if self.phase is Phase.RESUMING:
                self.finish_resume()
            elif not state.down:
                self.phase = Phase.ACTIVE
                self._emit("ready", {})

    def on_heartbeats(self, silent: SilentComponents) -> None:
        """Take in all that is silent now, and reroute if that changes what is broken."""
        before = self.state.silent
        self.state.silent = silent
        old = before.names
        new = silent.names
        for kind, name in sorted(new - old):
            self._emit("silent", {kind: name})
        for kind, name in sorted(old - new):
            if kind == "link" and self._rail_of_link(name) in silent.rails:
                # the link is silent still, and isn't listed because its whole rail is silent
                continue
            self._emit("resumed", {kind: name})
        returned = set(before.gpus - silent.gpus)
        for gpu, _ in before.rail_links - silent.rail_links:
            returned.add(gpu)
        self._apply(returned)

    def _rail_of_link(self, name: str) -> int:
        """Return the index of the switch that a rail link leads to."""
        gpu, plane = link_of_name(name)
        return self._plan.rail_switch(gpu, plane).index

    def _emit_port(self, event_kind: str, dpid: int, port: int) -> None:
        name, role = self.state.roles[dpid]
        if role == "optical" and port > NETWORK_PORT_OFFSET:
            # a switch of the network reports the other end
            return
        if role == "optical":
            port_name = gpu_of_optical_port(port).name
        else:
            port_name = self._plan.port_name(dpid, port)
        self._emit(event_kind, {"switch": name, "port": port_name})

    def _apply(self, returned: Set[Gpu] = frozenset()) -> None:
        """Change the routes that differ. `returned`: GPUs that came back, and may have lost their detours."""
        if not self._reroute or self.phase is not Phase.ACTIVE:
            return
        broken = self.state.effective
        target = self.detours(broken)
        todo = changes(self._routes, target)
        for gpu in returned & target.keys():
            removed, _ = todo.get(gpu, ([], []))
            todo[gpu] = removed, list(target[gpu].values())
        if not todo:
            return
        self._emit("decided", {"gpus": len(todo)})
        routes_before = self._routes
        # GPUs whose own link is dead use a backup route of their kernel's: they can wait for the others
        order = sorted(todo, key=lambda gpu: (gpu in broken.links, gpu))
        outcome = self._router.change_all({gpu: todo[gpu] for gpu in order})
        self._routes = dict(target)
        # a crashed GPU has no interfaces: it refuses its routes, and those of the others are changed
        for gpu, error in outcome.refused.items():
            self._emit("refused", {"gpu": gpu.name, "why": error.strerror or str(error)})
            self._routes[gpu] = self._routes_in_force(gpu, routes_before.get(gpu, {}))
        detour_count = sum(map(len, self._routes.values()))
        self._emit("rerouted", {"routes": outcome.done, "detours": detour_count})

    def _routes_in_force(self, gpu: Gpu, before: dict[str, Route]) -> dict[str, Route]:
        """Return the detours of a GPU that refused changes; as they were before if its kernel doesn't answer."""
        # the next call compares with these, and so asks again for the changes that were refused
        try:
            return self._router.routes_at(gpu, DETOUR_METRIC)
        except OSError:
            return before
