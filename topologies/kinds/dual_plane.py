"""Fabric kind `dual-plane`: rail-only with two switches for each rail, and a link from each GPU to both.

     d0g0        d1g0
     |  \\      /  |        rail0: plane 0 of rail 0, reached by each GPU's interface rail0
     |    \\  /    |        rail0p1: plane 1 of rail 0, reached by rail1
   rail0   rail0p1         half of the rail's rate each

Flows are hashed over the planes. While a plane's link or switch is dead, its flows use the other plane.
Source: the dual-plane NICs of current training clusters (Alibaba HPN, SIGCOMM 2024, section 5: two ToR switches each).
"""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind


@FABRIC_KINDS.register("dual-plane")
class DualPlane(FabricKind):
    """Two planes per rail; HB domains forward what is for another rail."""

    default_policy = "dr"
    planes = 2
