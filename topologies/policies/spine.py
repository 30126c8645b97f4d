"""Forwarding policy `spine`: the NIC network alone carries traffic between rails. No GPU forwards."""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, path_of


@FORWARDING_POLICIES.register("spine")
class Spine(ForwardingPolicy):
    """Send straight to the destination's NIC. Fits fabrics whose switches join the rails."""

    by_rank = True

    def fits(self, joins_rails: bool) -> bool:
        """Return whether rails are joined."""
        return joins_rails

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        """Return the path through the NIC network."""
        return path_of("spine", src.rank)
