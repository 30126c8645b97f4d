"""Forwarding policy `isolated`: no path between rails, since no GPU forwards for another one.

Source: clusters with rails that no switch joins, where NCCL sends straight from NIC to NIC (NCCL_CROSS_NIC=0 without
PXN): communicators that cross rails wait for ever (NVIDIA/nccl 836 and 2345).
"""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Shares


@FORWARDING_POLICIES.register("isolated")
class Isolated(ForwardingPolicy):
    """Leave GPUs of different domains and ranks without a path. Fits fabrics without spines."""

    by_rank = True
    forwards_in_domains = False

    def fits(self, joins_rails: bool) -> bool:
        """Return whether rails are separate."""
        return not joins_rails

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Shares:
        """Return no path."""
        return ()
