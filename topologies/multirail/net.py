"""Running multi-rail fabric: `MultirailNet`, a Mininet built in batches. Needs a sandbox (core/sandbox).

plan.py and commands.py decide what to build. Switches have static flows and no controller: a frame goes to the port of
the NIC with its destination MAC, any other frame is dropped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from railyard.core.host import Datapath
from railyard.core.wait import poll
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import SWITCH_SYSCTLS, EmulatedNet
from railyard.topologies.build.nodes import PlannedIntf
from railyard.topologies.build.ovs import START_S, PrivateSwitch, is_listening
from railyard.topologies.fabric_kinds import End, Link, Switch
from railyard.topologies.multirail import commands
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import PREFIX_BITS, Nic

_POLL_S: Final = 0.005


def static_flows(nics: Iterable[Nic]) -> str:
    """Input for `ovs-ofctl add-flows`: a line for each NIC."""
    return "".join(f"priority=1,dl_dst={nic.mac},actions=output:{nic.port}\n" for nic in nics)


@dataclass
class RailSwitch(PrivateSwitch):
    """`flows`: as `static_flows` gives them. All methods as those of PrivateSwitch, in the switch's namespace."""

    flows: str = ""

    def setup_command(self) -> list[str]:
        """Return the same without a controller."""
        return [*super().setup_command(), "--", "del-controller", self.name]

    def start_vswitchd(self) -> None:
        """Start it (again), and return when it has its flows. RailyardError if it doesn't take them."""
        super().start_vswitchd()
        socket_path = self.folder / f"{self.name}.mgmt"
        vswitchd = self.watched["ovs-vswitchd"]
        poll(lambda: is_listening(socket_path) or vswitchd.is_over(), START_S, _POLL_S)
        if not is_listening(socket_path):
            raise self.start_failure("ovs-vswitchd")
        target = f"unix:{socket_path}"
        namespaces.run(["ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", target, "-"], self.flows)


class MultirailNet(EmulatedNet):
    """Network of a multi-rail fabric: `hosts` are the nodes, aggregators are among `switches`.

    `has_mptcp`: the kernel has it, and stock MPTCP sockets use all rails.
    """

    plan: MultirailPlan

    def __init__(self, plan: MultirailPlan, datapath: Datapath) -> None:
        self._nics = {(nic.namespace, nic.interface): nic for nic in plan.nics}
        self.has_mptcp = commands.has_mptcp()
        super().__init__(plan, datapath)

    def _make_switch(self, switch: Switch) -> RailSwitch:
        flows = static_flows(self.plan.nics_on(switch.index))
        return RailSwitch(switch.name, switch.dpid, self._ports(switch.name), self.datapath, flows=flows)

    def _sysctls(self, node: str) -> Mapping[str, int | str]:
        return SWITCH_SYSCTLS if node in self.ovs else commands.node_sysctls(self.plan)

    def _link_command(self, link: Link) -> str:
        return commands.link_command(self.plan, self._nics[link.a.node, link.a.interface], link)

    def shaper_commands(self, interface: str, rate_bps: int) -> str:
        """Return lines that shape data, and control messages in a class of their own."""
        return commands.shaper_commands(interface, rate_bps, self.plan.spec.mtu)

    def _configure_node(self, node: str) -> None:
        namespaces.run(["ip", "-batch", "-"], commands.node_commands(self.plan, node))
        if self.has_mptcp and node in self.plan.hosts:
            namespaces.run(["ip", "-batch", "-"], commands.mptcp_commands(self.plan.nics_of(node)))

    def _make_interface(self, end: End) -> PlannedIntf:
        node = self.nameToNode[end.node]
        nic = self._nics.get((end.node, end.interface))
        if nic is None:
            return PlannedIntf(end.interface, node, end.port)
        return PlannedIntf(nic.interface, node, None, nic.mac, nic.ip, PREFIX_BITS)
