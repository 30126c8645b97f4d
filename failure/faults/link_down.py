"""Fault kind link-down."""

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.links import CutLink


@fault("link-down")
class LinkDown(CutLink):
    """The rail link of a GPU (d0g1; that of plane 1: d0g1:rail1) loses its carrier."""

    order = 1
    weight = 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "link down, source side", "no carrier, and the kernel's own backup route: no controller", 5, 20, "source"
        ),
        FirstPacketTarget(
            "link down, far side", "PORT_STATUS, a decision, and route changes at every source", 15, 40, "far"
        ),
    )
