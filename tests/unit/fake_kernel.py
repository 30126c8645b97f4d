"""The kernel's routing of a fabric, without a kernel: rules, tables, longest prefix, metric, and dead carriers.

What `ip route get` would say at each GPU, followed hop by hop: a packet that came in from hb0 looks into table 101, one
from rail0 into 102, then both into main; a route out of a rail0 without carrier is as good as absent
(`ignore_routes_with_linkdown`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network

from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import (
    FROM_HB,
    FROM_RAIL,
    MAIN,
    Device,
    Route,
    backup_routes,
    neighbours,
    source_routes,
    transit_routes,
)

Crossing = Callable[[Gpu, Gpu], bool]
MOST_HOPS = 8


@dataclass(frozen=True)
class Hop:
    """A packet leaves `gpu` by `device`."""

    gpu: Gpu
    device: Device


@dataclass
class FakeKernel:
    """All GPUs of a plan. `crosses(a, b)`: the NIC network carries a frame from a to b; `dark`: no carrier on rail0."""

    plan: Plan
    crosses: Crossing
    dark: frozenset[Gpu] = frozenset()
    backups: bool = False
    choice: int = 0  # which next hop a flow's hash selects, of a route with several
    extra: Mapping[Gpu, Iterable[Route]] = field(default_factory=dict)
    _tables: dict[Gpu, dict[int, list[tuple[int, int, Route]]]] = field(default_factory=dict)
    _known: dict[Gpu, set[tuple[Gpu, Device]]] = field(default_factory=dict)

    def look_up(self, gpu: Gpu, came_from: Device | None, target: Gpu) -> Route | None:
        """The route that a packet for `target` takes at `gpu`, with the next hop that the flow's hash selects."""
        address = int(IPv4Address(target.ip))
        tables = {"hb0": (FROM_HB, MAIN), None: (MAIN,)}.get(came_from, (FROM_RAIL, MAIN))
        for table in tables:
            for network, mask, entry in self._of(gpu).get(table, ()):
                hop = entry.hops[self.choice % len(entry.hops)]
                if address & mask == network and not (hop.device == "rail0" and gpu in self.dark):
                    return replace(entry, hops=(hop,))
        return None

    def walk(self, source: Gpu, target: Gpu) -> list[Hop] | None:
        """The hops from source to target; None if the packet is lost on the way."""
        here, came_from, hops = source, None, list[Hop]()
        while here != target and len(hops) < MOST_HOPS:
            route = self.look_up(here, came_from, target)
            if route is None:
                return None
            hops.append(Hop(here, route.hops[0].device))
            step = self._step(here, route, target)
            if step is None:
                return None
            here, came_from = step, route.hops[0].device
        return hops if here == target else None

    def _step(self, here: Gpu, route: Route, target: Gpu) -> Gpu | None:
        device, via, _ = route.hops[0]
        there = via or target
        if (there, device) not in self._neighbours(here):
            return None  # an ARP request would get no answer
        if device == "hb0":
            return there if there.domain == here.domain else None
        return there if self.crosses(here, there) else None

    def _neighbours(self, gpu: Gpu) -> set[tuple[Gpu, Device]]:
        if gpu not in self._known:
            self._known[gpu] = set(neighbours(self.plan, gpu))
        return self._known[gpu]

    def _of(self, gpu: Gpu) -> dict[int, list[tuple[int, int, Route]]]:
        """Its tables, each in the order in which the kernel tries routes."""
        if gpu not in self._tables:
            routes = [*source_routes(self.plan, gpu), *transit_routes(self.plan, gpu)]
            routes += backup_routes(self.plan, gpu) if self.backups else []
            routes += self.extra.get(gpu, ())
            keys = [(route.table, route.prefix, route.metric) for route in routes]
            assert len(set(keys)) == len(keys), "the kernel would refuse the second: File exists"
            tables: dict[int, list[tuple[int, int, Route]]] = {}
            networks = [(IPv4Network(route.prefix), route) for route in routes]
            for network, route in sorted(networks, key=lambda item: (-item[0].prefixlen, item[1].metric)):
                entry = (int(network.network_address), int(network.netmask), route)
                tables.setdefault(route.table, []).append(entry)
            self._tables[gpu] = tables
        return self._tables[gpu]


def shape_of(hops: list[Hop]) -> tuple[str, int]:
    """(path kind, rail it starts on) of the hops between two domains, as paths.Path names them."""
    devices = [hop.device for hop in hops]
    rail = next(hop.gpu.rank for hop in hops if hop.device == "rail0")
    kinds = {("rail0",): "direct", ("hb0", "rail0"): "dr", ("rail0", "hb0"): "rd", ("hb0", "rail0", "hb0"): "drd"}
    return kinds.get(tuple(devices), "-".join(devices)), rail
