"""Fault kind hb-port-slow."""

from typing import ClassVar

from railyard.failure.faults.definition import fault
from railyard.failure.faults.link_slow import LinkSlow
from railyard.topologies.fabric_kinds import Layer


@fault("hb-port-slow")
class HbPortSlow(LinkSlow):
    """The cable of a GPU to its HB domain drops to a share of its rate both ways."""

    order = 7
    weight = 0.0
    layer: ClassVar[Layer] = "hb"
