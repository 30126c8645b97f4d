"""Paths as health-drd has them, with the NIC network's own among the near ones: for fabrics of two tiers."""

from railyard.controller.health.policy import Context, Scores, clos_path, health_policy, single
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares


@health_policy("health-clos", order=95, is_default=False)
def over_two_tiers(src: Gpu, dst: Gpu, scores: Scores, context: Context) -> Shares:
    """Paths as health-drd has them, with the NIC network's own among the near ones: for fabrics of two tiers."""
    return single(clos_path(src, dst, scores, context))
