"""Turns what switches and heartbeats say into what is broken, and that into routes. No sockets: it is handed its
router.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import count, permutations
from typing import Any, Protocol

from railyard.controller.failover.detours import DETOUR_METRIC, Detours, changes
from railyard.controller.failover.heartbeat_detector import Silence
from railyard.controller.failover.paths import Broken
from railyard.controller.failover.precomputed import Foresight
from railyard.controller.openflow.app import Heard
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.ports import NETWORK_SIDE, gpu_at, optical_gpu, role_of
from railyard.topologies.routing import Route

Tell = Callable[[str, dict[str, Any]], None]


class Router(Protocol):
    """What changes routes: agent.RouteAgent, or a test's stand-in."""

    def change(self, gpu: Gpu, remove: list[Route], put: list[Route]) -> int: ...

    def routes_at(self, gpu: Gpu, metric: int) -> dict[str, Route]: ...


@dataclass(frozen=True, slots=True)
class _Wait:
    """For a place whose light is off for a moment: which wait it is, what was dead there before, and whether it is lit
    again.
    """

    number: int
    before: Broken
    comes_back: bool


class Brain:
    """Follows the state of a fabric. `tell(what, detail)` gets every step that somebody may want to time.

    Nothing is rerouted before the fabric was whole once (all switches connected, all the plan's ports up: `ready`), or
    a fabric that is still being cabled would look like one that falls apart. One that resumes finds a fabric that was.
    """

    def __init__(self, plan: Plan, router: Router, reroute: bool, tell: Tell) -> None:
        self._plan, self._router, self._reroute, self._tell = plan, router, reroute, tell
        self._roles = {switch.dpid: (switch.name, switch.role) for switch in plan.switches}
        self._hb_optics = frozenset(switch.dpid for switch in plan.optics.get("hb", ()))
        self._ports = _ports_of(plan)
        self._connected: set[int] = set()
        self._down: set[tuple[int, int]] = set()  # at switches that are connected
        self._silence = Silence()
        self._was_whole = self._resumes = False
        self._routes: Detours = {}  # in force
        self._awaited: dict[Gpu, _Wait] = {}
        self._numbers = count()
        self._foreseen = Foresight(plan)

    @property
    def is_whole(self) -> bool:
        """Whether the fabric was whole once: from then on it is rerouted."""
        return self._was_whole

    def look_ahead(self) -> None:
        """Work out beforehand what to do about whatever may break, for a second or so. From any thread."""
        if self._reroute:
            self._foreseen.look_ahead()

    def resume(self, routes: Detours) -> None:
        """Before anything is heard: take over from a brain that is gone, with the detours that it left.

        Nothing changes until all switches have connected, or `begin` says that who isn't there is dead.
        """
        self._routes, self._resumes = routes, True

    @property
    def awaited(self) -> frozenset[str]:
        """While one that resumes waits: the switches that it waits for."""
        missing = self._roles.keys() - self._connected if self._resumes else ()
        return frozenset(self._roles[dpid][0] for dpid in missing)

    def begin(self) -> None:
        """End the wait of one that resumes, if it waits still: tell what is dead, and change what differs."""
        if not self._resumes:
            return
        self._resumes, self._was_whole = False, True
        self._tell("resumed", {"switches": len(self._connected)})
        for dpid in sorted(self._roles.keys() - self._connected):
            self._tell("switch-down", {"switch": self._roles[dpid][0]})
        for dpid, port in sorted(self._down):
            self._tell_port("port-down", dpid, port)
        self._apply(frozenset())

    def await_light(self, places: Mapping[Gpu, bool]) -> int:
        """Light is about to be off at these places because fibres move; true: it comes back. Nothing is rerouted for
        what is heard of them until light is back, over the rail and at the HB domain alike; or until `look_again` with
        this wait's number says that the time is over. Of those that stay dark not before that: nobody is there any
        more, and to go round them takes processors that whoever takes over has a use for.
        """
        broken, number = self._decided_on, next(self._numbers)
        for gpu, comes_back in places.items():
            before = Broken(links=broken.links & {gpu}, hb=broken.hb & {gpu})
            self._awaited[gpu] = _Wait(number, before, comes_back)
        return number

    def look_again(self, number: int) -> None:
        """Of what is awaited since then, and not anew since, what is dead now is dead."""
        self._awaited = {gpu: wait for gpu, wait in self._awaited.items() if wait.number != number}
        if self._was_whole:
            self._apply(frozenset())

    def forget(self, gpu: Gpu) -> None:
        """A GPU has none of its detours any more: another one is in its place. It gets them again."""
        if self._was_whole:
            self._apply({gpu})

    @property
    def broken(self) -> Broken:
        """What is dead now: by what switches say, or silent."""
        silence = self._silence
        away = self._roles.keys() - self._connected
        rails = (role_of(dpid)[1] for dpid in away if self._roles[dpid][1] in ("rail", "single"))
        cut_off = (gpu for gpu in self._plan.gpus if gpu.domain in silence.hb_domains)
        return Broken(
            links=self._down_links() | silence.links | silence.gpus,
            rails=frozenset(rails) | silence.rails,
            apart=ranks_apart(self._plan, self._down, away),
            hb=silence.hb_links.union(silence.gpus, cut_off, self._dark_hb_places()),
        )

    @property
    def _decided_on(self) -> Broken:
        """What counts as dead: what is, but for those whose light is awaited."""
        broken, awaited = self.broken, self._awaited
        if not awaited:
            return broken
        links = broken.links.difference(awaited).union(*(wait.before.links for wait in awaited.values()))
        hb = broken.hb.difference(awaited).union(*(wait.before.hb for wait in awaited.values()))
        return replace(broken, links=links, hb=hb)

    def _down_links(self) -> frozenset[Gpu]:
        gpus = (gpu_at(dpid, port) for dpid, port in self._down)
        return frozenset(gpu for gpu in gpus if gpu)

    def _dark_hb_places(self) -> frozenset[Gpu]:
        """The places at HB bridges where an optical switch gives no light; whose fibre leads there doesn't matter."""
        places = (self._hb_place(dpid, port) for dpid, port in self._down)
        return frozenset(place for place in places if place)

    def hear(self, heard: Heard) -> None:
        """Take in one thing that a switch said, and reroute if it changes what works."""
        if heard.dpid not in self._roles or (heard.what == "port" and heard.port not in self._ports[heard.dpid]):
            return
        match heard.what:
            case "port":
                (self._down.discard if heard.up else self._down.add)((heard.dpid, heard.port))
            case "switch-up":
                self._connected.add(heard.dpid)
                self._down |= {(heard.dpid, port) for port in self._ports[heard.dpid] - heard.up_ports}
            case "switch-down":
                self._connected.discard(heard.dpid)
                self._down = {(dpid, port) for dpid, port in self._down if dpid != heard.dpid}
        if self._was_whole:
            self._report(heard)
            back = gpu_at(heard.dpid, heard.port) if heard.what == "port" and heard.up else None
            lit = back or (self._hb_place(heard.dpid, heard.port) if heard.what == "port" and heard.up else None)
            if lit:
                self._end_wait(lit)
            self._apply({back} if back else frozenset())
        elif len(self._connected) == len(self._roles):
            if self._resumes:
                self.begin()
            elif not self._down:
                self._was_whole = True
                self._tell("ready", {})

    def _hb_place(self, dpid: int, port: int) -> Gpu | None:
        """The place at an HB bridge behind an optical switch's port."""
        return optical_gpu(port) if dpid in self._hb_optics and port > NETWORK_SIDE else None

    def _end_wait(self, lit: Gpu) -> None:
        """Somewhere light is back at this place. If it is everywhere, nobody waits for it."""
        wait = self._awaited.get(lit)
        if wait and wait.comes_back and lit not in self._down_links() | self._dark_hb_places():
            del self._awaited[lit]

    def hear_hearts(self, silence: Silence) -> None:
        """Take in all that is silent now, and reroute if it changes what works."""
        before, self._silence = self._silence, silence
        old, new = names_of(before), names_of(silence)
        for kind, name in sorted(new - old):
            self._tell("silent", {kind: name})
        covered = {("link", gpu.name) for gpu in before.links - silence.links if self._is_covered(gpu)}
        for kind, name in sorted(old - new - covered):
            self._tell("heard", {kind: name})
        if self._was_whole:
            self._apply((before.links | before.gpus) - silence.links - silence.gpus)

    def _is_covered(self, gpu: Gpu) -> bool:
        """Whether its rail link isn't told because the whole rail is silent."""
        return (0 if self._plan.spec.kind == "single-switch" else gpu.rank) in self._silence.rails

    def _report(self, heard: Heard) -> None:
        if heard.what == "port":
            self._tell_port("port-up" if heard.up else "port-down", heard.dpid, heard.port)
        else:
            self._tell(heard.what, {"switch": self._roles[heard.dpid][0]})

    def _tell_port(self, what: str, dpid: int, port: int) -> None:
        name, role = self._roles[dpid]
        if role == "optical" and port > NETWORK_SIDE:
            return  # the other side of what a switch of the network tells
        gpu = optical_gpu(port) if role == "optical" else gpu_at(dpid, port)
        self._tell(what, {"switch": name, "port": gpu.name if gpu else f"port {port}"})

    def _apply(self, back: Set[Gpu]) -> None:
        """Change what has to change. `back`: the GPUs that came back, which may have lost all that they were told.

        What a GPU refuses is asked of it again with the next change, since it isn't in force.
        """
        if not self._reroute:
            return
        broken = self._decided_on
        wanted = self._foreseen(broken)
        todo = changes(self._routes, wanted)
        for gpu in back & wanted.keys():
            todo[gpu] = (todo.get(gpu, ([], []))[0], list(wanted[gpu].values()))
        if todo:
            self._tell("decided", {"gpus": len(todo)})
            # those whose own link is dead go on by a backup of their kernel's: they can wait for the others
            order = sorted(todo, key=lambda gpu: (gpu in broken.links, gpu))
            done = {gpu: self._change(gpu, *todo[gpu]) for gpu in order}
            self._routes = wanted | {gpu: self._left_at(gpu) for gpu, count in done.items() if count is None}
            detours = sum(map(len, self._routes.values()))
            self._tell("rerouted", {"routes": sum(count or 0 for count in done.values()), "detours": detours})

    def _change(self, gpu: Gpu, gone: list[Route], put: list[Route]) -> int | None:
        """How many changes are done; None if any was refused."""
        try:
            return self._router.change(gpu, gone, put)
        except OSError as error:  # a crashed GPU has no interfaces: the others' routes matter all the more
            self._tell("refused", {"gpu": gpu.name, "why": str(error)})
            return None

    def _left_at(self, gpu: Gpu) -> dict[str, Route]:
        """The detours of a GPU that refused some change, which its kernel knows: a crashed one has none left."""
        try:
            return self._router.routes_at(gpu, DETOUR_METRIC)
        except OSError:  # nobody knows, so as they were
            return self._routes.get(gpu, {})


def names_of(silence: Silence) -> set[tuple[str, str]]:
    """(kind, name) of all that is silent."""
    gpus = {"link": silence.links, "gpu": silence.gpus, "hb-link": silence.hb_links}
    found = {(kind, gpu.name) for kind, those in gpus.items() for gpu in those}
    found |= {("rail", f"rail{rank}") for rank in silence.rails}
    return found | {("hb-domain", f"hb{domain}") for domain in silence.hb_domains}


def _ports_of(plan: Plan) -> dict[int, set[int]]:
    """The ports that each switch of the plan has, by datapath id."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    found: dict[int, set[int]] = {dpid: set() for dpid in dpids.values()}
    for end in (end for link in plan.links for end in (link.a, link.b)):
        if end.port is not None:
            found[dpids[end.node]].add(end.port)
    return found


def ranks_apart(plan: Plan, down: Set[tuple[int, int]], away: Set[int]) -> frozenset[tuple[int, int]]:
    """The pairs of ranks whose rail switches no spine joins, given dead ports (datapath id, port) and lost switches."""
    dpids = {switch.name: switch.dpid for switch in plan.switches}
    reach: dict[int, set[int]] = {dpid: set() for dpid in dpids.values() if role_of(dpid)[0] == "spine"}
    for link in plan.uplinks:  # from rail to spine
        ends = {(dpids[end.node], end.port) for end in (link.a, link.b)}
        if not ends & down and dpids[link.b.node] not in away:
            reach[dpids[link.b.node]].add(role_of(dpids[link.a.node])[1])
    pairs = permutations(range(plan.spec.rails), 2) if reach else ()
    whole = {frozenset(ranks) for ranks in reach.values()}
    return frozenset((a, b) for a, b in pairs if not any(a in ranks and b in ranks for ranks in whole))
