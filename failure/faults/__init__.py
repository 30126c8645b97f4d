"""Fault kinds, one file each: parameters, targets, injection, repair and impact. Table: docs/failure.md."""

from railyard.failure.faults.definition import (
    FAULTS,
    Fault,
    FaultKind,
    FirstPacketTarget,
    definition_of,
    fault,
    fault_kinds,
)
from railyard.failure.faults.support.impact import Cable, FaultScope, Impact, cable
from railyard.topologies.build.network import EmulatedNet
from railyard.topologies.fabric_kinds import FabricPlan

__all__ = [
    "FAULTS",
    "Cable",
    "EmulatedNet",
    "FabricPlan",
    "Fault",
    "FaultKind",
    "FaultScope",
    "FirstPacketTarget",
    "Impact",
    "cable",
    "definition_of",
    "fault",
    "fault_kinds",
]
