"""The routes that differ from the policy's while something is broken: the fewest that keep everyone reachable."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import permutations, product

from railyard.controller.failover.paths import Broken, choose, living_planes, usable
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import FROM_HB, AnyRoute, Hop, host_prefix, next_hops, on_planes, route_to
from railyard.topologies.spec import FabricSpec

DETOUR_METRIC = 10  # wins over the policy's own route to the same prefix

Detours = dict[Gpu, dict[str, AnyRoute]]


def detours(plan: Plan, broken: Broken) -> Detours:
    """For each GPU, the routes (by key) to destinations that a usual path no longer reaches, or not over all planes."""
    found: defaultdict[Gpu, dict[str, AnyRoute]] = defaultdict(dict)
    spec = plan.spec
    for src, dst in _affected_pairs(plan, broken):
        if all(usable(share.path, src, dst, broken, spec.kind) for share in spec.paths(src, dst)):
            continue
        shares = choose(spec, src, dst, broken)
        if shares:
            planes = living_planes(src, Gpu(dst.domain, src.rank), broken, spec.definition)
            hops = on_planes(next_hops(shares, src, dst), planes or (0,))
            found[src][host_prefix(dst)] = route_to(host_prefix(dst), hops, DETOUR_METRIC)
    for src, route in _narrowed(plan, broken):
        found[src].setdefault(route.key, route)
    return dict(found)


def _narrowed(plan: Plan, broken: Broken) -> Iterator[tuple[Gpu, AnyRoute]]:
    """Yield the routes, own and transit, that use other planes than usual because some are dead."""
    spec, kind = plan.spec, plan.spec.definition
    usual = kind.carrying(kind.all_planes)
    if kind.planes == 1 or not (broken.planes or broken.rails):
        return
    for src in plan.gpus:
        for far in (Gpu(d, src.rank) for d in range(spec.domains) if d != src.domain):
            planes = living_planes(src, far, broken, kind)
            if not planes or planes == usual:
                continue
            for dst in (Gpu(far.domain, rank) for rank in range(spec.rails)):
                over_rail = (Hop("rail0", None if dst == far else far),)
                yield src, route_to(host_prefix(dst), on_planes(over_rail, planes), DETOUR_METRIC, FROM_HB)
                own = next_hops(spec.paths(src, dst), src, dst)
                if any(hop.device != "hb0" for hop in own):
                    yield src, route_to(host_prefix(dst), on_planes(own, planes), DETOUR_METRIC)


def _affected_pairs(plan: Plan, broken: Broken) -> Iterator[tuple[Gpu, Gpu]]:
    """Yield the pairs of two domains whose paths may cross something dead: all paths cross ports of the two domains
    alone, and of the rails those that the policy's rule gives for the two ranks.
    """
    domains = {gpu.domain for gpu in broken.links | broken.hb} | {gpu.domain for gpu, _ in broken.planes}
    dead_switches, kind = broken.rails, plan.spec.definition
    used = rails_used(plan.spec) if dead_switches else {}
    affected_ranks = {
        ranks
        for ranks, rails in used.items()
        if dead_switches.intersection(kind.rail_switch(g, p).index for g in rails for p in kind.all_planes)
    }
    all_affected = bool(broken.disconnected_ranks)
    for src in plan.gpus:
        is_affected = all_affected or src.domain in domains
        ranks = [rank for rank in range(plan.spec.rails) if (src.rank, rank) in affected_ranks]
        for domain in range(plan.spec.domains):
            if domain != src.domain:
                far = range(plan.spec.rails) if is_affected or domain in domains else ranks
                yield from ((src, Gpu(domain, rank)) for rank in far)


@lru_cache(maxsize=8)
def rails_used(spec: FabricSpec) -> Mapping[tuple[int, int], frozenset[int]]:
    """Return the rails that paths between two ranks cross, in any domains: for spine both, since it enters by one and
    leaves by the other.
    """
    ranks = range(spec.rails)
    pairs = list(permutations(range(spec.domains), 2))
    return {
        (a, b): frozenset(
            rail
            for near, far in pairs
            for share in spec.paths(Gpu(near, a), Gpu(far, b))
            for rail in (share.path.rail, *([b] if share.path.kind == "spine" else ()))
        )
        for a, b in product(ranks, ranks)
    }


def changes(old: Detours, new: Detours) -> dict[Gpu, tuple[list[AnyRoute], list[AnyRoute]]]:
    """(to remove, to put in) at each GPU where anything changes. A route to a prefix that both have is replaced."""
    result = {}
    for gpu in old.keys() | new.keys():
        before, after = old.get(gpu, {}), new.get(gpu, {})
        removed = [route for prefix, route in before.items() if prefix not in after]
        put = [route for prefix, route in after.items() if before.get(prefix) != route]
        if removed or put:
            result[gpu] = (removed, put)
    return result
