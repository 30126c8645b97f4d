"""Forwarding policy `rd`: own rail first, then the destination's HB domain."""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, path_of


@FORWARDING_POLICIES.register("rd")
class RailFirst(ForwardingPolicy):
    """Cross the source's own rail to the destination's domain, whose HB domain delivers."""

    by_rank = True

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        """Return rd."""
        return path_of("rd", src.rank)
