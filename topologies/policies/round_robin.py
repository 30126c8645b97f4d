"""Forwarding policy `round-robin`: as `spine`, but each rail switch assigns destinations to its uplinks in turn.

ECMP's hash lets flows collide on one uplink while another is idle. Here destinations take the uplinks in turn, so
that uniform traffic, and each round of an all-to-all, loads them evenly. Source: the static D-mod-k routing of fat
trees (Zahavi et al., Concurrency and Computation 2010), with an offset for each pair of rails.
"""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric
from railyard.topologies.policies.spine import Spine


@FORWARDING_POLICIES.register("round-robin")
class RoundRobin(Spine):
    """Send straight to the destination's NIC, over uplinks in turn in place of hashed ones."""

    def uplink(self, rank: int, dst: Gpu, fabric: Fabric) -> int:
        """Return the destination's number among those on other rails, from the next rail on."""
        return (dst.rank - rank - 1) % fabric.rails * fabric.domains + dst.domain
