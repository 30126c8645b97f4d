"""Ports that flows cross on a fabric, with rates, as the fluid simulation shares them.

A flow is what one connection of a replay carries: a source, a destination and a stripe. It takes the paths of the
fabric's policy. Where a rail has several planes, a switch several uplinks or the policy several paths, either a flow
has an even share of each (its expectation), or a seeded hash puts it on one of them, as on packets. While parts are
dead, flows take the paths that the controller and the switches choose then (outage.py). Rates in bytes of payload a
second.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.results.theory.fluid.outage import (
    ALL_ALIVE,
    DeadParts,
    living_uplinks,
    planes_around,
    ways_around,
)
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric
from railyard.topologies.graph import NextSwitches
from railyard.topologies.nics import nic_name
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import Way, rail_of_gpus, ways
from railyard.workloads.schedule import Rates

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]
Hop = tuple[Numbers, Amounts]
"""A port of each flow, by number, and the share of the flow's bytes that crosses it."""
Uplink = tuple[str, str]
"""A cable between two switches, in the direction of its traffic."""


class Port(NamedTuple):
    """One direction of a link.

    `node`: a GPU, a NIC that GPUs share, or a switch. `is_out`: away from a GPU, or up from a rail switch. `far`: the
    switch at the other end of a cable between switches; "" for all uplinks of a rail switch together. `plane`: of a
    rail link; 0 for all planes together.
    """

    node: str
    side: Literal["hb", "rail", "uplink"]
    is_out: bool
    far: str = ""
    plane: int = 0


@dataclass(frozen=True, eq=False)
class Routes:
    """Ports that flows cross. Row n of `crossed` and `shares` is of flow n.

    `rates`: of each port, and infinity for the number after the last, by which rows are filled up. `crossed`: numbers
    of ports. `shares`: the share of the flow's bytes that crosses the port; all 0 for a flow without a path.
    """

    ports: tuple[Port, ...]
    rates: Amounts
    crossed: Numbers
    shares: Amounts

    @cached_property
    def has_path(self) -> NDArray[np.bool_]:
        """The flows that cross any port, as a mask."""
        crossing: NDArray[np.bool_] = self.shares.sum(axis=1) > 0
        return crossing

    @cached_property
    def groups(self) -> Numbers:
        """The group of each flow: flows of a group share ports, with one another or through others of the group.

        What happens in a group doesn't change the rates of flows in other groups.
        """
        label = np.arange(len(self.crossed))
        while True:
            least = np.full(len(self.rates), len(label))
            np.minimum.at(least, self.crossed.ravel(), np.repeat(label, self.crossed.shape[1]))
            # fillers join nothing
            least[-1] = len(label)
            joined = np.minimum(label, least[self.crossed].min(axis=1))
            if np.array_equal(joined, label):
                return label
            label = joined

    def number(self, port: Port) -> int:
        """Return the number of a port. ValueError if no flow could cross it."""
        return self.ports.index(port)


@dataclass(frozen=True)
class _Network:
    """A fabric, and its ports that flows cross, in the order in which they are added.

    `link_rates`: of a GPU's links. `rng`: of the hash of flows; None: even shares. `dead`: its dead parts. `numbers`,
    `rates`: of each port. `uplinks`: those that live between two rails. `walks`: cables of a graph that a hash has
    chosen, by flow and the switches at its ends.
    """

    fabric: FabricSpec
    link_rates: Rates
    rng: np.random.Generator | None
    dead: DeadParts | None
    numbers: dict[Port, int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    uplinks: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    walks: dict[tuple[int, str, str], Mapping[Uplink, float]] = field(default_factory=dict)

    def add(self, port: Port, rate: float) -> int:
        """Return the number of a port, which is added if it is new."""
        if port not in self.numbers:
            self.numbers[port] = len(self.numbers)
            self.rates.append(rate)
        return self.numbers[port]

    def living_uplinks(self, near_rail: int, far_rail: int) -> tuple[int, ...]:
        """Return the numbers of the uplinks over which the switch of a rail reaches another rail."""
        rails = (near_rail, far_rail)
        if rails not in self.uplinks:
            uplinks = tuple(range(self.fabric.spine_count))
            if self.dead is not None:
                uplinks = living_uplinks(near_rail, far_rail, self.fabric, self.dead)
            self.uplinks[rails] = uplinks
        return self.uplinks[rails]

    def cables(self, flow: int, near: str, far: str) -> Mapping[Uplink, float]:
        """Return the cables of a graph that a flow crosses between two switches, and its share of each."""
        graph = self.fabric.graph
        dead = self.dead or ALL_ALIVE
        if self.rng is None:
            return graph.shares(near, far, dead.nodes, dead.cables)
        ends = (flow, near, far)
        walk = self.walks.get(ends, {})
        # a flow keeps its cables while all of them live
        if not walk or any(dead.cuts(*uplink) for uplink in walk):
            following = graph.next_switches(dead.nodes, dead.cables)
            self.walks[ends] = _walk(following, near, far, self.rng)
        return self.walks[ends]


def routes_of(
    src: Numbers,
    dst: Numbers,
    rates: Rates,
    fabric: FabricSpec,
    hash_seed: int | None = None,
    dead: DeadParts | None = None,
) -> Routes:
    """Return the ports of flows between GPU numbers.

    `rates`: of a GPU's links. `hash_seed`: of the hash that puts each flow on one plane, path and uplink; None: even
    shares of all of them. An uplink that the policy assigns is used in both cases. `dead`: dead parts of the fabric.
    """
    network = _Network(fabric, rates, _generator(hash_seed), dead)
    return _routes(_hops(src, dst, network), network)


def routes_in_outage(
    src: Numbers, dst: Numbers, rates: Rates, fabric: FabricSpec, hash_seed: int | None, dead: DeadParts
) -> tuple[Routes, Routes]:
    """Return the ports of flows on the intact fabric, and while parts are dead, with the same numbers of ports.

    A flow whose uplink, plane or cables live keeps them.
    """
    network = _Network(fabric, rates, _generator(hash_seed), None)
    intact_hops = _hops(src, dst, network)
    # a hash of the same seed draws the same numbers
    network_left = replace(network, rng=_generator(hash_seed), dead=dead, uplinks={})
    hops_left = _hops(src, dst, network_left)
    return _routes(intact_hops, network), _routes(hops_left, network)


def _generator(hash_seed: int | None) -> np.random.Generator | None:
    return None if hash_seed is None else np.random.default_rng(hash_seed)


def _hops(src: Numbers, dst: Numbers, network: _Network) -> list[Hop]:
    """Return the ports of flows, way by way. In a way that it does not take, a flow has a share of 0."""
    fabric = network.fabric
    if network.dead is None:
        all_ways = ways(src, dst, fabric.rails, fabric)
    else:
        all_ways = ways_around(src, dst, fabric, network.dead.broken)
    hops: list[Hop] = []
    for way in _chosen_ways(all_ways, network.rng):
        hops += _gpu_hops(src, dst, way, network)
        if fabric.definition.is_graph:
            hops += _graph_hops(way, network)
        elif fabric.spine_count:
            hops += _uplink_hops(dst, way, network)
    return hops


def _routes(hops: list[Hop], network: _Network) -> Routes:
    """Return hops as routes, without the columns that no flow needs."""
    filler = len(network.numbers)
    shares = np.column_stack([share for _, share in hops])
    crossed = np.where(shares > 0, np.column_stack([port for port, _ in hops]), filler)
    # the ports of each flow first, so that columns of fillers alone can be left out
    order = np.argsort(crossed == filler, axis=1, kind="stable")
    width = int((crossed != filler).sum(axis=1).max(initial=1))
    crossed = np.take_along_axis(crossed, order, axis=1)[:, :width]
    shares = np.take_along_axis(shares, order, axis=1)[:, :width]
    # no flow waits for a filler
    port_rates = np.array([*network.rates, np.inf])
    return Routes(tuple(network.numbers), port_rates, crossed, shares)


def _chosen_ways(all_ways: list[Way], rng: np.random.Generator | None) -> list[Way]:
    """Return the ways with each flow on one of them, or as they are without a hash."""
    if rng is None or len(all_ways) == 1:
        return all_ways
    upper = np.cumsum([way.share for way in all_ways], axis=0)
    # sums of shares may be slightly less than 1, and are 0 without a path
    draw = rng.random(len(upper[0])) * upper[-1]
    lower = np.zeros(len(draw))
    chosen: list[Way] = []
    for way, end in zip(all_ways, upper, strict=True):
        is_taken = (lower <= draw) & (draw < end)
        chosen.append(way._replace(share=is_taken.astype(np.float64)))
        lower = end
    return chosen


def _gpu_hops(src: Numbers, dst: Numbers, way: Way, network: _Network) -> Iterator[Hop]:
    """Yield the HB and rail ports of GPUs that flows cross on one way."""
    fabric = network.fabric
    planes = len(fabric.definition.carrying(fabric.definition.all_planes))
    plane = np.zeros(len(src), dtype=np.int64)
    rail_rate = network.link_rates.rail
    # even shares of all planes are those of one link at the rate of all
    if network.rng is not None and planes > 1:
        plane = network.rng.integers(planes, size=len(src))
        rail_rate /= planes
    # even shares have no plane of their own
    is_on_plane = network.rng is not None or planes == 1
    if network.dead is not None and is_on_plane and fabric.definition.planes > 1:
        plane = planes_around(way, plane, fabric, network.dead.broken)
    for near, far in ((src, way.enter), (way.leave, dst)):
        share = way.share * (near != far)
        for gpus, is_out in ((near, True), (far, False)):
            names = [Gpu(*divmod(gpu, fabric.rails)).name for gpu in gpus.tolist()]
            numbers = [network.add(Port(name, "hb", is_out), network.link_rates.hb) for name in names]
            yield np.array(numbers, dtype=np.int64), share
    share = way.share * (way.enter != way.leave)
    for gpus, is_out in ((way.enter, True), (way.leave, False)):
        numbers = []
        for gpu, number in zip(gpus.tolist(), plane.tolist(), strict=True):
            port = Port(nic_of(gpu, fabric), "rail", is_out, plane=number)
            numbers.append(network.add(port, rail_rate))
        yield np.array(numbers, dtype=np.int64), share


def nic_of(number: int, fabric: FabricSpec) -> str:
    """Return the name of the end of a GPU's rail link: the GPU, or the NIC that it shares."""
    gpu = Gpu(*divmod(number, fabric.rails))
    if fabric.rail_of_rank:
        return nic_name(gpu.domain, fabric.rail_of(gpu.rank))
    return gpu.name


def _uplink_hops(dst: Numbers, way: Way, network: _Network) -> Iterator[Hop]:
    """Yield the uplinks, up and down, of flows that change rails between rail switches."""
    fabric = network.fabric
    near_rail = rail_of_gpus(way.enter, fabric.rails, fabric)
    far_rail = rail_of_gpus(way.leave, fabric.rails, fabric)
    share = way.share * (near_rail != far_rail)
    spines = fabric.definition.spines(fabric.spine_count)
    all_rate = fabric.domains * network.link_rates.rail / (fabric.oversubscription or 1)
    policy = FORWARDING_POLICIES[fabric.chosen_policy]
    shape = Fabric(fabric.kind, fabric.domains, fabric.rails, fabric.rail_of_rank)
    # one draw for each flow: the same uplink for all its transfers, as a hash of its addresses gives
    hashed = None if network.rng is None else network.rng.integers(len(spines), size=len(dst)).tolist()
    up: list[int] = []
    down: list[int] = []
    for flow, (enter, leave) in enumerate(zip(way.enter.tolist(), way.leave.tolist(), strict=True)):
        target = Gpu(*divmod(int(dst[flow]), fabric.rails))
        living = network.living_uplinks(int(near_rail[flow]), int(far_rail[flow]))
        assigned = policy.uplink(enter % fabric.rails, target, shape)
        uplink = _uplink(living, assigned, None if hashed is None else hashed[flow])
        spine = ""
        rate = all_rate
        if uplink is not None:
            spine = spines[uplink].name
            rate = all_rate / len(spines)
        # a spine has one cable to each rail switch, so the way down follows from the way up
        near_switch = fabric.rail_switch(enter % fabric.rails).name
        far_switch = fabric.rail_switch(leave % fabric.rails).name
        up.append(network.add(Port(near_switch, "uplink", True, spine), rate))
        down.append(network.add(Port(far_switch, "uplink", False, spine), rate))
    yield np.array(up, dtype=np.int64), share
    yield np.array(down, dtype=np.int64), share


def _uplink(living: Sequence[int], assigned: int | None, hashed: int | None) -> int | None:
    """Return the number of a flow's uplink; None for even shares of all. `living`: those that lead to its rail.

    `assigned`: by the policy, counted in a circle over those that live. `hashed`: of all uplinks.
    """
    # a flow that no uplink carries has a share of 0
    if not living:
        return None
    if assigned is not None:
        return living[assigned % len(living)]
    if hashed is None or hashed in living:
        return hashed
    return living[hashed % len(living)]


def _graph_hops(way: Way, network: _Network) -> list[Hop]:
    """Return the cables between switches of a graph that flows cross."""
    rails = network.fabric.rails
    graph = network.fabric.graph
    cables: list[dict[Uplink, float]] = []
    hops = zip(way.enter.tolist(), way.leave.tolist(), way.share.tolist(), strict=True)
    for flow, (enter, leave, share) in enumerate(hops):
        near = graph.switch_of[Gpu(*divmod(enter, rails))]
        far = graph.switch_of[Gpu(*divmod(leave, rails))]
        shares: Mapping[Uplink, float] = {}
        if near != far and enter != leave and share:
            shares = network.cables(flow, near, far)
        cables.append({cable: share * part for cable, part in shares.items()})
    width = max(map(len, cables), default=0)
    ports = np.zeros((len(cables), width), dtype=np.int64)
    parts = np.zeros((len(cables), width))
    for flow, shares in enumerate(cables):
        for place, (ends, part) in enumerate(shares.items()):
            port = Port(ends[0], "uplink", True, ends[1])
            ports[flow, place] = network.add(port, network.link_rates.rail * graph.uplinks[frozenset(ends)])
            parts[flow, place] = part
    return [(ports[:, place], parts[:, place]) for place in range(width)]


def _walk(following: NextSwitches, near: str, far: str, rng: np.random.Generator) -> dict[Uplink, float]:
    """Return the cables of a random shortest path: each switch hashes a flow to one of the next switches."""
    cables: dict[Uplink, float] = {}
    # hashes of two switches are taken to be independent of each other
    here = near
    while here != far:
        options = following[here][far]
        there = options[int(rng.integers(len(options)))]
        cables[here, there] = 1.0
        here = there
    return cables


def is_hashed(routes: Routes, fabric: FabricSpec) -> bool:
    """Return whether a hash chooses the path, plane or uplink of any flow. `routes`: of flows, with even shares."""
    # shares of several paths, or of several shortest paths through a graph
    if ((routes.shares > 0) & (routes.shares < 1)).any():
        return True
    planes = len(fabric.definition.carrying(fabric.definition.all_planes))
    for number in np.unique(routes.crossed[routes.shares > 0]).tolist():
        port = routes.ports[number]
        if port.side == "rail" and planes > 1:
            return True
        # all uplinks of a switch together, of which the policy assigns none
        if port.side == "uplink" and not port.far and fabric.spine_count > 1:
            return True
    return False
