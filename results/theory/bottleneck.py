"""Lower bound on the time of stages of transfers, from the bytes that each link has to carry.

Rates are of payload, in bytes a second.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from statistics import fmean
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from railyard.results.theory.ecmp import Spread, uplink_imbalance
from railyard.topologies.graph import FabricGraph
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Sizes, Transport
from railyard.workloads.matrix.traffic_matrix import Way, rail_of_gpus, ways, without_path
from railyard.workloads.schedule import Rates

HASH_DRAWS: Final = 256
"""How often flows are hashed over planes or paths for an expectation: a standard error of 2% or less."""


RoutedStage: TypeAlias = tuple[Sizes, Sequence[Way]]
"""Pairs and bytes of a stage, with the ways that they take."""
PortKind: TypeAlias = tuple[str, str]
"""A kind of link, and "out" or "in": hb and rail of GPUs, and all uplinks of each rail switch."""


class _RoutedPairs(NamedTuple):
    """Pairs on one of their ways: over the source's HB domain, then over rails, then over the destination's HB domain.

    `enter`, `leave`: the GPUs from which and to which they cross rails. `plane`: which each pair takes there.
    """

    src: NDArray[np.integer[Any]]
    dst: NDArray[np.integer[Any]]
    enter: NDArray[np.integer[Any]]
    leave: NDArray[np.integer[Any]]
    plane: NDArray[np.integer[Any]]


class _Crossing(NamedTuple):
    """Ports of a kind that pairs cross. `port`: of each pair, by number. `is_crossed`: whether the pair crosses it."""

    kind: PortKind
    port: NDArray[np.integer[Any]]
    is_crossed: NDArray[np.bool_]


@dataclass(frozen=True)
class _Ports:
    """Ports of GPUs. `rail_of`, `nic_of`: rail and NIC of each GPU. `counts`: of ports, by kind of link."""

    rail_of: NDArray[np.integer[Any]]
    nic_of: NDArray[np.integer[Any]]
    planes: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, x: int, y: int, planes: int, fabric: FabricSpec) -> "_Ports":
        """Return the ports of y domains of x GPUs."""
        gpus = np.arange(x * y)
        rail_of = rail_of_gpus(gpus, x, fabric)
        rails = int(rail_of.max(initial=0)) + 1
        # a NIC by its domain and rail: where GPUs share it, they have one port
        nic_of = gpus // x * rails + rail_of
        return cls(rail_of, nic_of, planes, {"hb": x * y, "rail": rails * y * planes, "uplinks": rails})

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return len(self.nic_of)

    def crossed(self, pairs: _RoutedPairs) -> tuple[_Crossing, ...]:
        """Return all ports that pairs cross, those of GPUs that forward them included."""
        is_near = pairs.src != pairs.enter
        is_rail = pairs.enter != pairs.leave
        is_far = pairs.leave != pairs.dst
        rail_from = self.rail_of[pairs.enter]
        rail_to = self.rail_of[pairs.leave]
        is_spine = is_rail & (rail_from != rail_to)
        return (
            _Crossing(("hb", "out"), pairs.src, is_near),
            _Crossing(("hb", "in"), pairs.enter, is_near),
            _Crossing(("rail", "out"), self._rail_port(pairs.enter, pairs), is_rail),
            _Crossing(("rail", "in"), self._rail_port(pairs.leave, pairs), is_rail),
            _Crossing(("uplinks", "out"), rail_from, is_spine),
            _Crossing(("uplinks", "in"), rail_to, is_spine),
            _Crossing(("hb", "out"), pairs.leave, is_far),
            _Crossing(("hb", "in"), pairs.dst, is_far),
        )

    def crossed_by_own(self, pairs: _RoutedPairs) -> tuple[_Crossing, ...]:
        """Return the ports by which pairs leave their source and reach their destination."""
        is_near = pairs.src != pairs.enter
        is_rail = pairs.enter != pairs.leave
        is_far = pairs.leave != pairs.dst
        # a pair of one domain crosses no rail, and leaves and arrives by HB links
        return (
            _Crossing(("hb", "out"), pairs.src, is_near | ~is_rail),
            _Crossing(("rail", "out"), self._rail_port(pairs.enter, pairs), ~is_near & is_rail),
            _Crossing(("hb", "in"), pairs.dst, is_far | ~is_rail),
            _Crossing(("rail", "in"), self._rail_port(pairs.leave, pairs), ~is_far & is_rail),
        )

    def _rail_port(self, gpus: NDArray[np.integer[Any]], pairs: _RoutedPairs) -> NDArray[np.integer[Any]]:
        """Return the port on the rail of each of these GPUs, for the plane of each pair."""
        port: NDArray[np.integer[Any]] = self.nic_of[gpus] * self.planes + pairs.plane
        return port


def merged_sizes(stage: Sequence[Transport]) -> Sizes:
    """Return the pairs and bytes of all transports of a stage, which run at the same time."""
    columns = zip(*(transport.sizes() for transport in stage), strict=True)
    return Sizes(*map(np.concatenate, columns))


def bottleneck_s(
    stages: Iterable[Sizes],
    x: int,
    y: int,
    rates: Rates,
    fabric: FabricSpec,
    spread: Spread = "even",
) -> float:
    """Return our own lower bound, in s, for stages that each GPU runs one after the other, on y domains of x GPUs.

    These take time for certain, and the longest of them is the bound:

    - a port carries its bytes of all stages, forwarded ones included, at its rate; so do all uplinks of a rail switch
      together, if their shares are even; else the busiest of them, which `spread` says (ecmp.py);
    - so does each cable between the switches of a graph, with even shares of all shortest paths; with the spread
      "expected" each pair is one flow on one of them, and the result is the mean over random hashes;
    - a GPU sends and receives its own bytes stage by stage, each stage at the rate of its busiest port.

    Where GPUs share a NIC they have one port on the rail. Groups of x GPUs then fill the domains.

    With uniform stages it equals Rail-only Eq. 1, 2 and 3 (tests/unit/results/theory/test_bottleneck.py).
    Every pair takes the path of the fabric's forwarding policy from its first byte to its last.
    Where a rail has several planes, or the policy
    several paths for a pair, each pair is one flow on one of them (planes at the plane's rate): the result is then the
    mean over random hashes, from a fixed seed. A pair without a path never ends: the result is infinite.
    """
    if fabric.rail_of_rank and x < fabric.rails:
        # other groups of the domains send by the same NICs: all of them are taken to do the same at the same time
        stages = [_side_by_side(sizes, x, fabric.rails) for sizes in stages]
        x = fabric.rails
    routed = [(sizes, ways(sizes.src, sizes.dst, x, fabric)) for sizes in stages]
    for _, routes in routed:
        if without_path(routes).any():
            return inf
    return _routed_bound_s(routed, x, y, rates, fabric, spread)


def _routed_bound_s(
    routed: Sequence[RoutedStage], x: int, y: int, rates: Rates, fabric: FabricSpec, spread: Spread
) -> float:
    """Return the bound of `bottleneck_s` for stages of which every pair has a path."""
    planes = len(fabric.definition.carrying(fabric.definition.all_planes))
    rate = {"hb": rates.hb, "rail": rates.rail / planes, "uplinks": y * rates.rail / (fabric.oversubscription or 1)}
    if fabric.definition.is_graph:
        # it has no rail switches: `_uplinks_s` counts its cables
        rate["uplinks"] = inf
    if spread != "even":
        rate["uplinks"] /= uplink_imbalance(routed, x, y, fabric, spread) or 1.0
    has_paths = any(is_multipath(routes) for _, routes in routed)
    ports = _Ports.of(x, y, planes, fabric)
    if planes == 1 and not has_paths:
        ports_s = _bound_s(routed, ports, rate, np.zeros((x * y, x * y), dtype=np.int8))
        if not fabric.definition.is_graph:
            return ports_s
        flows = _flows_between_leaves(routed, x, y, fabric)
        if spread == "expected":
            return fmean(max(ports_s, seconds) for seconds in _hashed_uplinks_s(flows, rates, fabric.graph))
        return max(ports_s, _even_uplinks_s(flows, rates, fabric.graph))
    bounds = []
    for plane, hashed in _draws(routed, x * y, planes, has_paths):
        ports_s = _bound_s(hashed, ports, rate, plane)
        if fabric.definition.is_graph:
            ports_s = max(ports_s, _even_uplinks_s(_flows_between_leaves(hashed, x, y, fabric), rates, fabric.graph))
        bounds.append(ports_s)
    return fmean(bounds)


def _draws(
    stages: Sequence[RoutedStage], gpus: int, planes: int, has_paths: bool
) -> Iterator[tuple[NDArray[np.int64], Sequence[RoutedStage]]]:
    """Yield random hashes, from a fixed seed: the plane of each pair of GPUs, and the stages with a path for each pair.

    `has_paths`: whether any pair has several paths.
    """
    rng = np.random.default_rng(0)
    # fewer draws for more GPUs bound the time
    for _ in range(max(8, min(HASH_DRAWS, 2**22 // gpus**2))):
        plane = rng.integers(planes, size=(gpus, gpus))
        if has_paths:
            # a flow has the same path in every stage
            draw = rng.random((gpus, gpus))
            hashed_stages: list[RoutedStage] = []
            for sizes, routes in stages:
                hashed_stages.append((sizes, _hashed(routes, draw[sizes.src, sizes.dst])))
            yield plane, hashed_stages
        else:
            yield plane, stages


def is_multipath(routes: Sequence[Way]) -> bool:
    """Return whether any pair has several paths, of which a hash chooses one for each flow."""
    for way in routes:
        is_part = (way.share > 0) & (way.share < 1)
        if is_part.any():
            return True
    return False


def _hashed(routes: Sequence[Way], draw: NDArray[np.float64]) -> list[Way]:
    """Return the ways with each pair on one of its paths. `draw`: of each pair, uniform from 0 to 1."""
    upper = np.cumsum([way.share for way in routes], axis=0)
    # shares may add up to slightly less
    upper[-1] = np.maximum(upper[-1], 1.0)
    chosen = (draw >= upper).sum(axis=0)
    ways_taken: list[Way] = []
    for number, way in enumerate(routes):
        ways_taken.append(way._replace(share=(chosen == number).astype(np.float64)))
    return ways_taken


def _bound_s(
    stages: Iterable[RoutedStage], ports: _Ports, rate: Mapping[str, float], plane: NDArray[np.integer[Any]]
) -> float:
    """Return the bound for pairs on these planes, by (source, destination); `rate` in bytes/s by kind of link."""
    port_bytes = _no_bytes(ports.counts)
    gpu_s = np.zeros(ports.gpus)
    for sizes, routes in stages:
        own_bytes = _no_bytes({link: ports.counts[link] for link in ("hb", "rail")})
        for way in routes:
            pairs = _RoutedPairs(sizes.src, sizes.dst, way.enter, way.leave, plane[sizes.src, sizes.dst])
            part = way.share * sizes.bytes
            _add(part, ports.crossed(pairs), port_bytes)
            _add(part, ports.crossed_by_own(pairs), own_bytes)
        gpu_s += _stage_s(own_bytes, ports, rate)
    bound_s = float(gpu_s.max(initial=0))
    for (link, _), sent in port_bytes.items():
        bound_s = max(bound_s, float((sent / rate[link]).max(initial=0)))
    return bound_s


def _add(part: NDArray[np.float64], crossings: Iterable[_Crossing], sums: dict[PortKind, NDArray[np.float64]]) -> None:
    """Add the bytes of pairs to those of the ports that they cross. `part`: of each pair."""
    for crossing in crossings:
        total = sums[crossing.kind]
        chosen = crossing.is_crossed
        total += np.bincount(crossing.port[chosen], part[chosen], len(total))


def _stage_s(
    own_bytes: Mapping[PortKind, NDArray[np.float64]], ports: _Ports, rate: Mapping[str, float]
) -> NDArray[np.float64]:
    """Return how long each GPU takes for a stage, s: as long as the slowest of its own ports."""
    stage_s = np.zeros(ports.gpus)
    for (link, _), sent in own_bytes.items():
        seconds = sent / rate[link]
        if link == "rail":
            # planes of a rail are ports of their own, and GPUs that share a NIC are taken to run a stage at the
            # same time
            seconds = seconds.reshape(-1, ports.planes).max(1)[ports.nic_of]
        stage_s = np.maximum(stage_s, seconds)
    return stage_s


def _side_by_side(sizes: Sizes, x: int, rails: int) -> Sizes:
    """Return the pairs and bytes of groups of x GPUs a domain that fill domains of `rails` GPUs."""
    firsts = np.arange(0, rails - x + 1, x)
    src = sizes.src // x * rails + sizes.src % x
    dst = sizes.dst // x * rails + sizes.dst % x
    return Sizes(
        np.add.outer(firsts, src).ravel(), np.add.outer(firsts, dst).ravel(), np.tile(sizes.bytes, len(firsts))
    )


def _no_bytes(counts: Mapping[str, int]) -> dict[PortKind, NDArray[np.float64]]:
    """Return zeros for each kind of link, out and in: one for each of its ports, of which there are `counts`."""
    return {(link, way): np.zeros(counts[link]) for link, way in product(counts, ("out", "in"))}


class LeafFlows(NamedTuple):
    """Flows between GPUs of different leaves of a graph: the numbers of both leaves, and bytes, one element each."""

    near: NDArray[np.int64]
    far: NDArray[np.int64]
    bytes: NDArray[np.float64]


def _flows_between_leaves(stages: Iterable[RoutedStage], x: int, y: int, fabric: FabricSpec) -> LeafFlows:
    """Return a flow for each pair of GPUs whose bytes cross switches, with the bytes of all stages."""
    graph = fabric.graph
    # groups of x GPUs in y domains are taken to fill the fabric, each with the same traffic at the same time: the
    # cables between switches are shared by all of them
    gpus = fabric.domains * fabric.rails
    number = dict(zip(graph.leaves, range(len(graph.leaves)), strict=True))
    leaf_of = np.array([number[graph.switch_of[gpu]] for gpu in fabric.size.gpus])
    offsets = product(range(0, fabric.domains - y + 1, y), range(0, fabric.rails - x + 1, x))
    first_gpus = [domain * fabric.rails + rank for domain, rank in offsets]
    pairs = [np.empty(0, np.int64)]
    sizes = [np.empty(0)]
    for (_, _, size), routes in stages:
        for share, enter, leave in routes:
            used = (enter != leave) & (share > 0)
            source = enter[used] // x * fabric.rails + enter[used] % x
            destination = leave[used] // x * fabric.rails + leave[used] % x
            for first in first_gpus:
                pairs.append((source + first) * gpus + destination + first)
                sizes.append((share * size)[used])
    flows, place = np.unique(np.concatenate(pairs), return_inverse=True)
    near = leaf_of[flows // gpus]
    far = leaf_of[flows % gpus]
    crosses = near != far
    return LeafFlows(near[crosses], far[crosses], np.bincount(place, np.concatenate(sizes), len(flows))[crosses])


def _even_uplinks_s(flows: LeafFlows, rates: Rates, graph: FabricGraph) -> float:
    """Return the seconds of the busiest cable between switches of a graph, with even shares of all shortest paths."""
    sent = np.zeros((len(graph.leaves), len(graph.leaves)))
    np.add.at(sent, (flows.near, flows.far), flows.bytes)
    loads: defaultdict[tuple[str, str], float] = defaultdict(float)
    for near, far in np.argwhere(sent).tolist():
        for link, share in graph.shares(graph.leaves[near], graph.leaves[far]).items():
            loads[link] += share * float(sent[near, far])
    busiest_s = 0.0
    for link, load in loads.items():
        busiest_s = max(busiest_s, load / (graph.uplinks[frozenset(link)] * rates.rail))
    return busiest_s


def _hashed_uplinks_s(flows: LeafFlows, rates: Rates, graph: FabricGraph) -> Iterator[float]:
    """Yield the seconds of the busiest cable for random hashes: each switch sends a flow to one of the next switches.

    Hashes of two switches are taken to be independent of each other.
    """
    number = dict(zip(graph.switches, range(len(graph.switches)), strict=True))
    leaves = np.array([number[leaf] for leaf in graph.leaves])
    counts, following = _next_switches(graph, number)
    link_rate = np.full((len(number), len(number)), inf)
    for ends, rate in graph.uplinks.items():
        a, b = (number[name] for name in ends)
        link_rate[a, b] = link_rate[b, a] = rate * rates.rail
    is_joined = counts[leaves[flows.near], flows.far] > 0
    rng = np.random.default_rng(0)
    for _ in range(max(8, min(HASH_DRAWS, 2**22 // max(1, len(flows.bytes))))):
        loads = np.zeros(link_rate.size)
        here = leaves[flows.near][is_joined]
        target = flows.far[is_joined]
        size = flows.bytes[is_joined]
        while len(here):
            choice = (rng.random(len(here)) * counts[here, target]).astype(np.int64)
            there = following[here, target, choice]
            loads += np.bincount(here * len(number) + there, size, len(loads))
            goes_on = there != leaves[target]
            here = there[goes_on]
            target = target[goes_on]
            size = size[goes_on]
        yield float((loads / link_rate.ravel()).max())


def _next_switches(graph: FabricGraph, number: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many next switches lead from a switch to a leaf, and their numbers, by the numbers of both."""
    by_switch = graph.next_switches()
    most = 0
    for by_leaf in by_switch.values():
        most = max(most, *map(len, by_leaf.values()))
    counts = np.zeros((len(number), len(graph.leaves)), np.int64)
    following = np.zeros((*counts.shape, most), np.int64)
    for name, by_leaf in by_switch.items():
        for place, leaf in enumerate(graph.leaves):
            options = [number[option] for option in by_leaf.get(leaf, ())]
            counts[number[name], place] = len(options)
            following[number[name], place, : len(options)] = options
    return counts, following
