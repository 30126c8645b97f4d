"""Detours: the fewest routes that differ from the policy's and keep all GPUs reachable while something is broken.

Detours for each single failure are computed beforehand, which saves a fifth of a recovery's time at 64 GPUs.
"""

import gc
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Final

from railyard.topologies.addresses import Gpu, role_of
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.forwarding import (
    FORWARDING_POLICIES,
    Path,
    PathKind,
    Share,
    Shares,
    hb_ports,
    path_of,
    rail_ends,
)
from railyard.topologies.nics import RailOfRank
from railyard.topologies.plan import Plan
from railyard.topologies.routing import FROM_HB, Hop, Route, host_prefix, next_hops, on_planes
from railyard.topologies.spec import FabricSpec


@dataclass(frozen=True, slots=True)
class Broken:
    """Broken parts of a fabric. A crashed GPU is in `links` and `hb`; a dead HB domain is all its ports.

    `links`: rail links by GPU (where GPUs have several, those that have none left), `planes`: each link as (GPU, plane)
    where GPUs have several, `rails`: rail switches by index (the rank; the single switch is 0), `disconnected_ranks`:
    pairs of ranks, both ways, whose rail switches no spine joins, `hb`: HB ports by GPU. Where GPUs share NICs, their
    rails take the place of ranks here.
    `islands`: the groups of GPUs that the switches of a graph still join; empty while they are those of the intact
    graph.
    """

    links: frozenset[Gpu] = frozenset()
    rails: frozenset[int] = frozenset()
    disconnected_ranks: frozenset[tuple[int, int]] = frozenset()
    hb: frozenset[Gpu] = frozenset()
    planes: frozenset[tuple[Gpu, int]] = frozenset()
    islands: frozenset[frozenset[Gpu]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.links or self.rails or self.disconnected_ranks or self.hb or self.planes or self.islands)


def gpus_without_link(dead_links: Set[tuple[Gpu, int]], planes: int) -> frozenset[Gpu]:
    """Return the GPUs whose rail links of all planes are dead. `dead_links`: each as (GPU, plane)."""
    dead_planes: Counter[Gpu] = Counter()
    for gpu, _ in dead_links:
        dead_planes[gpu] += 1
    return frozenset(gpu for gpu, number in dead_planes.items() if number == planes)


def find_disconnected_ranks(
    plan: Plan, down: Set[tuple[int, int]], disconnected: Set[int]
) -> frozenset[tuple[int, int]]:
    """Return the pairs of ranks whose rail switches no spine joins, given dead (datapath id, port) and switches."""
    if plan.spec.definition.is_graph:
        return frozenset()
    reach: dict[int, set[int]] = {spine.dpid: set() for spine in plan.switches_of("spine")}
    for link in plan.uplinks:
        rail_dpid = plan.dpids[link.a.node]
        spine_dpid = plan.dpids[link.b.node]
        ends = {(rail_dpid, link.a.port), (spine_dpid, link.b.port)}
        if not ends & down and spine_dpid not in disconnected:
            _, rank = role_of(rail_dpid)
            reach[spine_dpid].add(rank)
    if not reach:
        # the fabric has no spines
        return frozenset()
    disconnected_ranks = set(permutations(range(plan.spec.rail_count), 2))
    # several spines often reach the same ranks, whose pairs are as many as the square of the rails
    for ranks in set(map(frozenset, reach.values())):
        disconnected_ranks.difference_update(permutations(ranks, 2))
    return frozenset(disconnected_ranks)


def living_planes(a: Gpu, b: Gpu, broken: Broken, kind: FabricKind) -> tuple[int, ...]:
    """Return the planes that carry what is left of the traffic between two GPUs of one rank; () if none joins them."""
    living = []
    for plane in kind.all_planes:
        is_switch_dead = kind.rail_switch(a.rank, plane).index in broken.rails
        if not is_switch_dead and (a, plane) not in broken.planes and (b, plane) not in broken.planes:
            living.append(plane)
    if not living:
        return ()
    return kind.carrying(tuple(living))


def usable(path: Path, src: Gpu, dst: Gpu, broken: Broken, kind: str, nics: RailOfRank = ()) -> bool:
    """True if every rail link, rail switch and HB port on the path lives. `nics`: rails of ranks that share NICs."""
    if broken.hb and not broken.hb.isdisjoint(hb_ports(path, src, dst)):
        return False
    if path.kind == "d":
        return True
    ends = rail_ends(path, src, dst)
    if broken.links and not broken.links.isdisjoint(ends):
        return False
    if broken.islands and not any(island.issuperset(ends) for island in broken.islands):
        return False
    definition = FABRIC_KINDS[kind]
    if definition.planes > 1:
        return bool(living_planes(*ends, broken, definition))
    near_rail, far_rail = (nics[end.rank] if nics else end.rank for end in ends)
    if broken.rails:
        switches = (definition.rail_switch(near_rail).index, definition.rail_switch(far_rail).index)
        if not broken.rails.isdisjoint(switches):
            return False
    return not (path.kind == "spine" and (near_rail, far_rail) in broken.disconnected_ranks)


def is_intact(path: Path, src: Gpu, dst: Gpu, broken: Broken, kind: str, nics: RailOfRank = ()) -> bool:
    """Return whether a path is usable over all planes, so that no flow on it is interrupted."""
    if not usable(path, src, dst, broken, kind, nics):
        return False
    definition = FABRIC_KINDS[kind]
    if definition.planes == 1 or path.kind == "d":
        return True
    living = living_planes(Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail), broken, definition)
    return living == definition.carrying(definition.all_planes)


def alternatives(src: Gpu, dst: Gpu, rails: int, kind: str, nics: RailOfRank = ()) -> Iterator[Path]:
    """Yield paths, best first: two hops, then the spine, then three hops, in an order of rails of the pair's own."""
    rail_of = nics or range(rails)
    if rail_of[src.rank] != rail_of[dst.rank]:
        yield path_of("rd", src.rank)
        yield path_of("dr", dst.rank)
        if FABRIC_KINDS[kind].joins_rails:
            yield path_of("spine", src.rank)
    further_rails = [rail for rail in range(rails) if rail not in (src.rank, dst.rank)]
    # Each further rail is drawn anew from the numbers of the pair, so that pairs which a second fault affects spread
    # over rails too. A fixed order would move all of them to the same next rail.
    for draw in range(len(further_rails)):
        number = (1 + 2 * draw) * src.domain + (1 + draw) * dst.domain + src.rank
        rank = further_rails.pop(number % len(further_rails))
        # the rail of the source or of the destination needs no third hop
        path_kind: PathKind = "drd"
        if rail_of[rank] == rail_of[src.rank]:
            path_kind = "rd"
        elif rail_of[rank] == rail_of[dst.rank]:
            path_kind = "dr"
        yield path_of(path_kind, rank)


def choose(fabric: FabricSpec, src: Gpu, dst: Gpu, broken: Broken) -> Shares:
    """Return the policy's own paths that live, else the first alternative that does; () if there is none."""
    shares: list[Share] = []
    for share in fabric.paths(src, dst):
        if usable(share.path, src, dst, broken, fabric.kind, fabric.rail_of_rank):
            shares.append(share)
    if shares:
        return tuple(shares)
    # Within a domain no alternative to a dead HB port is usable: GPUs don't hand packets of their own domain to the
    # rails (topologies/routing.py).
    for path in alternatives(src, dst, fabric.rails, fabric.kind, fabric.rail_of_rank):
        if path.kind != "spine" and not fabric.forwards_in_domains:
            continue
        if usable(path, src, dst, broken, fabric.kind, fabric.rail_of_rank):
            return (Share(path),)
    return ()


# the kernel prefers the lowest metric: a detour wins over the policy's own route to the same prefix
DETOUR_METRIC: Final = 10
Detours = dict[Gpu, dict[str, Route]]


def detours(plan: Plan, broken: Broken) -> Detours:
    """Return each GPU's routes (by key) to destinations that its usual path doesn't reach, or not over all planes."""
    routes: defaultdict[Gpu, dict[str, Route]] = defaultdict(dict)
    spec = plan.spec
    nics = spec.rail_of_rank
    for src, dst in _affected_pairs(plan, broken):
        if all(usable(share.path, src, dst, broken, spec.kind, nics) for share in spec.paths(src, dst)):
            continue
        shares = choose(spec, src, dst, broken)
        if shares:
            planes = living_planes(src, Gpu(dst.domain, src.rank), broken, spec.definition)
            hops = on_planes(next_hops(shares, src, dst), planes or (0,))
            routes[src][host_prefix(dst)] = Route(host_prefix(dst), hops, metric=DETOUR_METRIC)
    for src, route in _narrowed(plan, broken):
        routes[src].setdefault(route.key, route)
    return dict(routes)


def _narrowed(plan: Plan, broken: Broken) -> Iterator[tuple[Gpu, Route]]:
    """Yield the routes, own and transit, that use other planes than usual because some are dead."""
    spec = plan.spec
    kind = plan.spec.definition
    usual = kind.carrying(kind.all_planes)
    if kind.planes == 1 or not (broken.planes or broken.rails):
        return
    for src in plan.gpus:
        for domain in range(spec.domains):
            far = Gpu(domain, src.rank)
            if domain == src.domain:
                continue
            planes = living_planes(src, far, broken, kind)
            if not planes or planes == usual:
                continue
            for rank in range(spec.rails):
                dst = Gpu(domain, rank)
                over_rail = (Hop("rail0", None if dst == far else far),)
                if spec.forwards_in_domains:
                    yield src, Route(host_prefix(dst), on_planes(over_rail, planes), FROM_HB, metric=DETOUR_METRIC)
                policy_hops = next_hops(spec.paths(src, dst), src, dst)
                if any(hop.device != "hb0" for hop in policy_hops):
                    yield src, Route(host_prefix(dst), on_planes(policy_hops, planes), metric=DETOUR_METRIC)


def _affected_pairs(plan: Plan, broken: Broken) -> Iterator[tuple[Gpu, Gpu]]:
    """Yield the pairs of two domains whose paths may be affected: by the two domains' ports, or by a rail of theirs."""
    spec = plan.spec
    affected_domains = {gpu.domain for gpu in broken.links | broken.hb}
    for gpu, _ in broken.planes:
        affected_domains.add(gpu.domain)
    affected_ranks = _ranks_over_broken_rails(spec, broken)
    all_ranks = list(range(spec.rails))
    are_all_affected = bool(broken.disconnected_ranks or broken.islands)
    for src in plan.gpus:
        ranks_over_rails = [rank for rank in all_ranks if (src.rank, rank) in affected_ranks]
        for domain in range(spec.domains):
            if domain == src.domain:
                continue
            is_affected = are_all_affected or not affected_domains.isdisjoint((src.domain, domain))
            ranks = all_ranks if is_affected else ranks_over_rails
            for rank in ranks:
                yield src, Gpu(domain, rank)


def _ranks_over_broken_rails(spec: FabricSpec, broken: Broken) -> set[tuple[int, int]]:
    """Return the pairs of ranks whose paths cross a dead rail switch in any plane."""
    if not broken.rails:
        return set()
    kind = spec.definition
    pairs = set()
    for ranks, rails in rails_used(spec).items():
        for rail, plane in product(rails, kind.all_planes):
            if spec.rail_switch(rail, plane).index in broken.rails:
                pairs.add(ranks)
    return pairs


@lru_cache(maxsize=8)
def rails_used(spec: FabricSpec) -> Mapping[tuple[int, int], frozenset[int]]:
    """Return the rails that paths between two ranks cross, whatever the domains. A spine path uses both ends' rails."""
    # a policy that chooses by rank has the same paths between any two domains
    domains = min(2, spec.domains) if FORWARDING_POLICIES[spec.chosen_policy].by_rank else spec.domains
    used: dict[tuple[int, int], frozenset[int]] = {}
    for src_rank, dst_rank in product(range(spec.rails), repeat=2):
        rails: set[int] = set()
        for src_domain, dst_domain in permutations(range(domains), 2):
            for share in spec.paths(Gpu(src_domain, src_rank), Gpu(dst_domain, dst_rank)):
                rails.add(share.path.rail)
                if share.path.kind == "spine":
                    rails.add(dst_rank)
        used[src_rank, dst_rank] = frozenset(rails)
    return used


def changes(old: Detours, new: Detours) -> dict[Gpu, tuple[list[Route], list[Route]]]:
    """Return (to remove, to put in) of each GPU with a change. A route to a prefix that both have is replaced."""
    result = {}
    for gpu in old.keys() | new.keys():
        before = old.get(gpu, {})
        after = new.get(gpu, {})
        if before != after:
            removed = [route for prefix, route in before.items() if prefix not in after]
            added = [route for prefix, route in after.items() if before.get(prefix) != route]
            result[gpu] = removed, added
    return result


# the work grows with the cube of the GPUs: 0.9 s for 72, which is 8x8 with its spares
MAX_GPUS: Final = 80
# between two failures, so that the threads that handle switch events get time meanwhile
PAUSE_S: Final = 0.002


class PrecomputedDetours:
    """Detours of a plan, by calling it with what is broken; at once for failures that `precompute` has covered."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._by_failure: dict[Broken, Detours] = {Broken(): {}}

    def __call__(self, broken: Broken) -> Detours:
        precomputed = self._by_failure.get(broken)
        if precomputed is None:
            return detours(self._plan, broken)
        return precomputed

    def precompute(self) -> None:
        """Compute the detours for each GPU's rail link, HB port, the GPU itself, and each rail. From any thread."""
        # larger fabrics need this table too: it is cached, and the first decision would compute it otherwise
        rails_used(self._plan.spec)
        if len(self._plan.gpus) > MAX_GPUS:
            return
        for broken in self._single_failures():
            self._by_failure[broken] = detours(self._plan, broken)
            time.sleep(PAUSE_S)
        gc.collect()
        # a later collection that went through these objects would take longer than a decision
        gc.freeze()

    def _single_failures(self) -> Iterator[Broken]:
        """Yield the failures of each switch that GPUs are connected to, each NIC, each link of a plane, each GPU's
        ports."""
        kind = self._plan.spec.definition
        gpus = self._plan.gpus
        if kind.is_graph:
            graph = self._plan.graph
            for name in graph.switches:
                yield Broken(islands=graph.islands(frozenset({name})))
        else:
            for switch in kind.rail_switches(self._plan.spec.rail_count):
                yield Broken(rails=frozenset({switch.index}))
        for nic_gpus in self._plan.gpus_of_nic.values():
            yield Broken(links=frozenset(nic_gpus))
        if kind.planes > 1:
            for link in product(gpus, kind.all_planes):
                yield Broken(planes=frozenset({link}))
        for gpu in gpus:
            dead = frozenset({gpu})
            yield Broken(links=dead)
            yield Broken(hb=dead)
            yield Broken(links=dead, hb=dead)
