"""Forwarding policy `pxn`: `dr` on a fabric that has spines, which stay unused. Named after NCCL's PXN."""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, path_of


class Pxn(ForwardingPolicy):
    """Forward through the source's HB domain to the GPU of the destination's rank, although a spine could be used."""

    by_rank = True

    def fits(self, joins_rails: bool) -> bool:
        """Return whether rails are joined."""
        return joins_rails

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        """Return dr."""
        return path_of("dr", dst.rank)


FORWARDING_POLICIES.add("pxn", Pxn())
