"""A rail's switch: an Open vSwitch of its own with static flows, and no controller.

A frame goes to the port of the NIC whose MAC it bears; what is for nobody is dropped. Flows are in the memory of
ovs-vswitchd, so they are sent anew each time it starts, over OpenFlow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from railyard.core.errors import RailyardError
from railyard.core.wait import poll
from railyard.topologies.build import namespaces
from railyard.topologies.build.ovs import START_S, PrivateSwitch, is_listening, setup_command
from railyard.topologies.multirail.addresses import Nic

_POLL_S: Final = 0.005


def static_flows(nics: Iterable[Nic]) -> str:
    """Input for `ovs-ofctl add-flows`: a line for each NIC."""
    return "".join(f"priority=1,dl_dst={nic.mac},actions=output:{nic.port}\n" for nic in nics)


@dataclass
class RailSwitch(PrivateSwitch):
    """`flows`: as `static_flows` gives them. All methods as those of PrivateSwitch, in the switch's namespace."""

    flows: str = ""

    def start(self) -> None:
        """Write the configuration, start the switch, and return when it has its flows."""
        arguments = setup_command(self.name, self.dpid, self.ports, self.datapath)
        self.vsctl("--no-wait", "init", "--", *arguments, "--", "del-controller", self.name)
        self.start_vswitchd()

    def start_vswitchd(self) -> None:
        """Start it (again), and return when it has its flows. RailyardError if it doesn't take them."""
        super().start_vswitchd()
        socket_path = self.folder / f"{self.name}.mgmt"
        vswitchd = self.processes["ovs-vswitchd"]
        poll(lambda: is_listening(socket_path) or vswitchd.poll() is not None, START_S, _POLL_S)
        if not is_listening(socket_path):
            raise RailyardError(f"switch {self.name}: ovs-vswitchd did not start")
        target = f"unix:{socket_path}"
        namespaces.run(["ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", target, "-"], self.flows)
