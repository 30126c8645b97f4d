"""The routes that differ from the policy's while something is broken: the fewest that keep everyone reachable."""

from collections import defaultdict
from collections.abc import Iterator

from railyard.controller.failover.paths import Broken, choose, default_path, next_hop, usable
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import Plan
from railyard.topologies.routing import MAIN, Route, host_prefix

DETOUR_METRIC = 10  # wins over the policy's own route to the same prefix

Detours = dict[Gpu, dict[str, Route]]


def detours(plan: Plan, broken: Broken) -> Detours:
    """For each source, the host routes (by prefix) to destinations whose usual path is dead, where another lives."""
    found: defaultdict[Gpu, dict[str, Route]] = defaultdict(dict)
    kind, rails, policy = plan.spec.kind, plan.spec.rails, plan.policy
    for src, dst in _affected_pairs(plan, broken):
        if usable(default_path(policy, src, dst), src, dst, broken, kind):
            continue
        path = choose(policy, src, dst, broken, rails, kind)
        if path is not None:
            device, via = next_hop(path, src, dst)
            found[src][host_prefix(dst)] = Route(host_prefix(dst), device, via, MAIN, DETOUR_METRIC)
    return dict(found)


def _affected_pairs(plan: Plan, broken: Broken) -> Iterator[tuple[Gpu, Gpu]]:
    """The pairs of two domains that could be hit at all: with an end in the domain of a dead link or HB port, or in the
    rank of a dead rail.
    """
    domains, ranks = {gpu.domain for gpu in broken.links | broken.hb}, sorted(broken.rails)
    all_affected = bool(broken.disconnected_ranks) or (plan.spec.kind == "single-switch" and bool(broken.rails))
    for src in plan.gpus:
        is_affected = all_affected or src.domain in domains or src.rank in broken.rails
        for domain in range(plan.spec.domains):
            if domain != src.domain:
                far = range(plan.spec.rails) if is_affected or domain in domains else ranks
                yield from ((src, Gpu(domain, rank)) for rank in far)


def changes(old: Detours, new: Detours) -> dict[Gpu, tuple[list[Route], list[Route]]]:
    """(to remove, to put in) at each GPU where anything changes. A route to a prefix that both have is replaced."""
    result = {}
    for gpu in old.keys() | new.keys():
        before, after = old.get(gpu, {}), new.get(gpu, {})
        removed = [route for prefix, route in before.items() if prefix not in after]
        put = [route for prefix, route in after.items() if before.get(prefix) != route]
        if removed or put:
            result[gpu] = (removed, put)
    return result
