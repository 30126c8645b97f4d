"""Fabric kind `rail-optimized`: a switch for each rail, joined by spines at full bisection."""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind


@FABRIC_KINDS.register("rail-optimized")
class RailOptimized(FabricKind):
    """Two spines unless the specification says otherwise, so that there is something to balance over."""

    default_policy = "spine"
    default_spines = 2
    takes_optics = True
    takes_nics = True
