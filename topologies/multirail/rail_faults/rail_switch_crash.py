"""Fault `rail-switch-crash` of a rail: SIGKILL to its switch, whose links keep their carrier."""

import time
from typing import TYPE_CHECKING

from railyard.topologies.build import namespaces
from railyard.topologies.multirail.rail_fault import RAIL_FAULTS, RailFault

if TYPE_CHECKING:
    from railyard.topologies.multirail.net import MultirailNet


class RailSwitchCrash(RailFault):
    """A dead switch. The repair starts it, and returns when it has its flows."""

    def inject(self, net: "MultirailNet", node: str, rail: int) -> int:
        switch = net.ovs[rail]
        with namespaces.inside(switch.name):
            at_ns = time.monotonic_ns()
            switch.kill()
        return at_ns

    def repair(self, net: "MultirailNet", node: str, rail: int) -> None:
        switch = net.ovs[rail]
        if switch.processes["ovs-vswitchd"].poll() is not None:
            with namespaces.inside(switch.name):
                switch.start_vswitchd()


RAIL_FAULTS.add("rail-switch-crash", RailSwitchCrash())
