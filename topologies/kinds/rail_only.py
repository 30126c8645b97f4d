"""Fabric kind `rail-only`: a switch for each rail and no spine. Source: Rail-only, section III."""

from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind


@FABRIC_KINDS.register("rail-only")
class RailOnly(FabricKind):
    """HB domains forward what is for another rail."""

    default_policy = "dr"
    baseline = "rail-optimized"
    takes_optics = True
    takes_nics = True
