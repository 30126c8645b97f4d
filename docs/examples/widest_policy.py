"""A health-routing policy: the path whose most loaded component is least loaded.

The papers' policies compare the product of the scores along a path. This one compares the lowest score, as widest-path
routing does. Of equally wide paths it takes those with the fewest HB domains, and spreads pairs over them.

    script/run run hot-both --plugin docs/examples/widest_policy.py -o routing.policies=[dr,widest,oracle]
"""

from railyard.controller.health.policy import Context, Scores, direct_path, health_policy, over_rail, single, spread
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares


@health_policy("widest", is_rate_aware=True)  # a pair that gets its fair share of a rail keeps its path
def widest(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """The path whose lowest score is highest; of equals the shortest, pairs spread over what is left."""
    if src.domain == dst.domain:
        return single(direct_path(src, dst))
    near, far = scores.domains[src.domain], scores.domains[dst.domain]
    domains = {"r": (), "dr": (near,), "rd": (far,), "drd": (near, far)}
    paths = [over_rail(rail, src, dst) for rail in range(len(scores.rails))]
    width = {path: min(scores.rails[path.rail], *domains[path.kind], 100) for path in paths}
    equal = [path for path in paths if width[path] == max(width.values())]
    shortest = min(len(domains[path.kind]) for path in equal)
    best = [path for path in equal if len(domains[path.kind]) == shortest]
    return (Share(best[spread(src, dst) % len(best)]),)
