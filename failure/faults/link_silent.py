"""Fault kind link-silent."""

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.links import LossyLink


@fault("link-silent")
class LinkSilent(LossyLink):
    """The rail link of a GPU (d0g1; that of plane 1: d0g1:rail1) loses all packets both ways and keeps its carrier."""

    order = 2
    weight = 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "silent link", "three heartbeats of 20 ms missing, the next check of them, and route changes", 100, 150
        ),
    )
