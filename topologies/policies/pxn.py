"""Forwarding policy `pxn`: `dr` on a fabric that has spines, which stay unused. Named after NCCL's PXN."""

from railyard.topologies.forwarding import FORWARDING_POLICIES
from railyard.topologies.policies.dr import DomainFirst


@FORWARDING_POLICIES.register("pxn")
class Pxn(DomainFirst):
    """Forward through the source's HB domain to the GPU of the destination's rank, although a spine could be used."""

    def fits(self, joins_rails: bool) -> bool:
        """Return whether rails are joined."""
        return joins_rails
