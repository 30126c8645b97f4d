"""Fabric kind `single-switch`: every GPU on one switch, the ideal network to compare with."""

from railyard.topologies.addresses import SINGLE_DPID
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind, Switch


@FABRIC_KINDS.register("single-switch")
class SingleSwitch(FabricKind):
    """One switch carries all rails."""

    default_policy = "spine"
    # ports are 1 + d * 256 + g, and Open vSwitch reserves those from 0xff00 on
    max_domains = 254
    max_domains_reason = "a switch has no more ports"

    def rail_switch(self, rank: int, plane: int = 0) -> Switch:
        """Return the one switch."""
        return Switch("switch0", "single", 0, SINGLE_DPID)
