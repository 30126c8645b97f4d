"""Fault kinds, one file each: parameters, targets, injection, repair and impact (definition.py).

| fault              | injection                                                          | repair                     |
|--------------------|--------------------------------------------------------------------|----------------------------|
| link-down          | the switch's end of the rail cable is set down: no carrier         | set up again               |
| link-silent        | nftables drops everything at both ends of the cable; carrier stays | rules removed              |
| link-gray          | the same for a share of the packets, at random                     | rules removed              |
| link-slow          | the shapers at both ends get a share of the rate                   | full rate again            |
| link-flapping      | the switch's end goes down and up periodically                     | thread ended, set up       |
| hb-port-down       | the bridge's end of the HB cable is set down                       | set up again               |
| rail-switch-crash, | SIGKILL to the switch's ovs-vswitchd; its cables keep carrier      | started on its database    |
| spine-crash        |                                                                    |                            |
| rail-switch-hang   | SIGSTOP to it: its connections and carriers stay                   | SIGCONT                    |
| rail-switch-reboot | SIGKILL, and started again by itself after a while                 | wait until it is back      |
| gpu-crash          | both interfaces down, SIGKILL to all processes in its namespace    | interfaces up, new routes  |
| gpu-hang           | both cables as link-silent, SIGSTOP to its processes               | rules removed, SIGCONT     |
| server-crash       | gpu-crash at every GPU of an HB domain, its bridge set down        | bridge up, then the GPUs   |
| controller-crash   | SIGKILL to the controller's process                                | a new process              |
| registry-crash     | the server of the scores' registry killed                          | started at its address     |
"""

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
