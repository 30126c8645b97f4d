"""The rails within delta of m, evenly, where health-drd takes one (health routing, part 2)."""

from railyard.controller.health.policy import Context, Scores, health_policy, spray_paths
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Share, Shares


@health_policy("health-spray", order=6)
def spray(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """The rails within delta of m, evenly, where health-drd takes one (health routing, part 2)."""
    return tuple(map(Share, spray_paths(src, dst, scores, context.delta)))
