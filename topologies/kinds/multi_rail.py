"""Fabric kind `multi-rail`: nodes with a NIC on each of several networks, and a switch for each of these rails.

There are no HB domains and no paths to choose: a buffer is split over the rails by the allreduce policy of a workload.
Source: Nezha, section 5.1; the emulation is described in docs/topologies.md.
"""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind, Switch
from railyard.topologies.multirail.spec import SWITCH_DPID, MultirailSpec, switch_name


@FABRIC_KINDS.register("multi-rail")
class MultiRail(FabricKind):
    """Rails of different technologies, without HB domains."""

    Spec = MultirailSpec
    default_policy = ""

    @property
    def policies(self) -> tuple[str, ...]:
        """None: a frame has one path on each rail."""
        return ()

    def rail_switch(self, rank: int, plane: int = 0) -> Switch:
        """Return the switch of a rail."""
        return Switch(switch_name(rank), "rail", rank, SWITCH_DPID + rank)
