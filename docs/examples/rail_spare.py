"""A fabric kind: rail-only with one spare switch that every GPU has a second, idle link to.

     d0g0   d0g1        d1g0   d1g1
      |  \\   |  \\       |  \\   |  \\
      |    spare0 -------|---- spare0      rail1 of each GPU leads to spare0, and carries nothing
    rail0   rail1      rail0   rail1       while its rail switch and its own link live

A GPU pair whose rail is dead uses the spare switch instead of a detour through its HB domains.

    script/run run recovery --plugin docs/examples/rail_spare.py -o fabrics.0.kind=rail-spare
"""

from railyard.topologies.addresses import MAX_RAILS, SINGLE_DPID
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind, Switch


@FABRIC_KINDS.register("rail-spare")
class RailSpare(FabricKind):
    """Plane 0 is rail-only; plane 1 is one switch for all rails."""

    default_policy = "dr"
    planes = 2
    max_domains = 254
    max_domains_reason = "the spare switch has no more ports"

    def rail_switch(self, rank: int, plane: int = 0) -> Switch:
        if plane == 0:
            return super().rail_switch(rank)
        return Switch("spare0", "single", MAX_RAILS, SINGLE_DPID + MAX_RAILS)

    def carrying(self, living: tuple[int, ...]) -> tuple[int, ...]:
        return living[:1]
