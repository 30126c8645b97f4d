"""Forwarding policy `dr`: HB domain first, then the destination's rail. Source: Rail-only IV-B."""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, path_of


@FORWARDING_POLICIES.register("dr")
class DomainFirst(ForwardingPolicy):
    """Forward through the source's HB domain to the GPU of the destination's rank. Fits fabrics without spines."""

    by_rank = True

    def fits(self, joins_rails: bool) -> bool:
        """Return whether rails are separate."""
        return not joins_rails

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        """Return dr."""
        return path_of("dr", dst.rank)
