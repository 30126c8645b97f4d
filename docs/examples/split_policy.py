"""A forwarding policy: to even domains HB domain first (dr), to odd domains own rail first (rd).

Half of the traffic between rails is forwarded in the source's HB domain and half in the destination's. Route tables,
failover, expected traffic and predictions follow from `path` alone.

    script/run run recovery --plugin docs/examples/split_policy.py -o fabrics.0.policy=split
"""

from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, ForwardingPolicy, Path, path_of


@FORWARDING_POLICIES.register("split")
class Split(ForwardingPolicy):
    """dr to even domains, rd to odd ones. Fits every kind of fabric."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        return path_of("rd", src.rank) if dst.domain % 2 else path_of("dr", dst.rank)
