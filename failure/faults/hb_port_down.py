"""Fault kind hb-port-down."""

from typing import ClassVar

from railyard.failure.faults.definition import fault
from railyard.failure.faults.support.links import CutLink
from railyard.topologies.fabric_kinds import Layer


@fault("hb-port-down")
class HbPortDown(CutLink):
    """The cable of a GPU to its HB domain loses its carrier."""

    order = 6
    weight = 1.0
    layer: ClassVar[Layer] = "hb"
