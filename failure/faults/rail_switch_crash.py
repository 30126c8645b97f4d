"""Fault kind rail-switch-crash."""

from railyard.failure.faults.definition import FirstPacketTarget, fault
from railyard.failure.faults.support.processes import SwitchCrash


@fault("rail-switch-crash")
class RailSwitchCrash(SwitchCrash):
    """The process of a rail switch is killed."""

    order = 7
    weight = 1.0
    first_packet_targets = (
        FirstPacketTarget(
            "switch killed",
            "its OpenFlow connections end, a decision, and route changes at every source that used it",
            100,
            150,
        ),
    )
