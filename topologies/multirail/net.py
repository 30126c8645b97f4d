"""Running multi-rail fabric: `MultirailNet`, a Mininet built in batches. Needs a sandbox (core/sandbox).

plan.py and commands.py decide what to build. Switches have static flows and no controller: a frame goes to the port of
the NIC with its destination MAC, any other frame is dropped.
"""

import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mininet.net import Mininet

from railyard.core.errors import RailyardError
from railyard.core.host import Datapath
from railyard.core.wait import poll
from railyard.topologies.build import namespaces, ovs
from railyard.topologies.build.nodes import NamespaceNode, PlannedIntf, PlannedLink, SwitchNode, tcp_throughput
from railyard.topologies.build.ovs import START_S, Port, PrivateSwitch, is_listening, setup_command
from railyard.topologies.build.shaping import DISCARD_INTERFACE, switch_buffer_rules
from railyard.topologies.multirail import commands
from railyard.topologies.multirail.commands import SYSCTLS, link_command, node_commands, node_sysctls, shaper_commands
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


class RailIntf(PlannedIntf):
    """A NIC, with the address that the plan gives it."""

    def __init__(self, nic: Nic, node: NamespaceNode) -> None:
        super().__init__(nic.interface, node, None, nic.mac)
        self.ip, self.prefixLen = nic.ip, str(PREFIX_BITS)

    def updateIP(self) -> str:  # noqa: N802 (Mininet's name)
        return str(self.ip)


class MultirailNet(Mininet):
    """A Mininet network of a plan. `start` builds it and returns when traffic can flow; `stop` takes it down.

    `hosts` are the nodes, `switches` what is in the network, aggregators too; `ovs` the switches' processes, by rail.
    `has_mptcp`: the kernel has it, and stock MPTCP sockets use all rails. `build_s`, `stop_s`: seconds that it took.
    """

    def __init__(self, plan: MultirailPlan, datapath: Datapath) -> None:
        Mininet.inited = True  # or Mininet would set global sysctls
        super().__init__(controller=None, build=False)
        self.plan, self.datapath = plan, datapath
        self.ovs = tuple(
            RailSwitch(switch.name, switch.dpid, _ports(nics), datapath, flows=static_flows(nics))
            for switch in plan.switches
            for nics in [plan.nics_on(switch.index)]
        )
        self._switch_names = {switch.name for switch in plan.switches}
        self._ends = {name: self._ends_of(name) for name in plan.namespaces}
        self.switch_buffers = False
        self.has_mptcp = commands.has_mptcp()
        self.build_s = self.stop_s = 0.0

    def start(self) -> None:
        """Build everything. RuntimeError, with what the kernel's tools said, if it can't be built."""
        started = time.monotonic()
        namespaces.create(self.plan.namespaces)
        namespaces.in_threads(self._prepare, self.plan.namespaces)
        nics = (nic for rail in range(len(self.plan.rails)) for nic in self.plan.nics_on(rail))
        lines = (link_command(self.plan, nic, self.plan.link(nic)) for nic in nics)
        namespaces.run(["ip", "-batch", "-"], "".join(lines))
        self.switch_buffers = self.datapath != "system" and self._buffers_work()
        ovs.prepare()
        namespaces.in_threads(self._start_switch, self.ovs)
        namespaces.in_threads(self._configure, self.plan.namespaces)
        self._register()
        self.built = True
        self.build_s = time.monotonic() - started

    def stop(self) -> None:
        """Take it all down; namespaces go when the last process in them has."""
        started = time.monotonic()
        for switch in self.ovs:
            switch.end()
        for node in self.nameToNode.values():
            node.terminate()
        namespaces.remove(self.plan.namespaces)
        for switch in self.ovs:
            switch.stop()
        self.stop_s = time.monotonic() - started

    def iperf(self, hosts: Sequence[NamespaceNode] | None = None, seconds: int = 5, **_: object) -> list[str]:
        """TCP throughput from the first host to the second, over the first rail."""
        client, server = hosts or (self.hosts[0], self.hosts[-1])
        return tcp_throughput(client, server, seconds)

    def _ends_of(self, name: str) -> dict[str, int]:
        """A namespace's interfaces and the rates of their shapers, bit/s."""
        ends = ((end, link.rate_bps) for link in self.plan.links for end in (link.a, link.b))
        return {end.interface: rate for end, rate in ends if end.node == name}

    def _prepare(self, name: str) -> None:
        settings = SYSCTLS if name in self._switch_names else node_sysctls(self.plan)
        with namespaces.inside(name):
            for key, value in settings.items():
                Path("/proc/sys", key).write_text(value)

    def _buffers_work(self) -> bool:
        """Whether this kernel lets nftables copy frames on their way out; without, switches drop where flows meet."""
        switch = self.ovs[0].name
        with namespaces.inside(switch):
            rules = switch_buffer_rules(self._ends[switch]).replace(DISCARD_INTERFACE, "lo")
            return subprocess.run(["nft", "-c", "-f", "-"], input=rules, text=True, capture_output=True).returncode == 0

    def _start_switch(self, switch: RailSwitch) -> None:
        """Its ports go up first (topologies/build/network.py says why)."""
        with namespaces.inside(switch.name):
            ports = "".join(f"link set {port} up\n" for port in self._ends[switch.name])
            namespaces.run(["ip", "-batch", "-"], ports)
            switch.start_database()
            switch.start()

    def _configure(self, name: str) -> None:
        """Addresses, routes and shapers of one namespace."""
        with namespaces.inside(name):
            namespaces.run(
                ["ip", "link", "add", DISCARD_INTERFACE, "type", "veth", "peer", "name", f"{DISCARD_INTERFACE}-end"]
            )
            if name not in self._switch_names:
                namespaces.run(["ip", "-batch", "-"], node_commands(self.plan, name))
            elif self.switch_buffers:
                namespaces.run(["nft", "-f", "-"], switch_buffer_rules(self._ends[name]))
            shapers = (shaper_commands(port, rate, self.plan.spec.mtu) for port, rate in self._ends[name].items())
            namespaces.run(["tc", "-batch", "-"], "".join(shapers))
            if self.has_mptcp and name in self.plan.nodes:
                commands.configure_mptcp(self.plan.nics_of(name))

    def _register(self) -> None:
        """Tell Mininet of the nodes and links, so that `get`, `pingAll`, `iperf` and the CLI know them."""
        self.hosts = [NamespaceNode(name) for name in self.plan.nodes]
        self.switches = [SwitchNode(name) for name in self.plan.namespaces if name not in self.plan.nodes]
        self.nameToNode = {node.name: node for node in (*self.hosts, *self.switches)}
        for rail, switch in enumerate(self.ovs):
            for nic in self.plan.nics_on(rail):
                port = PlannedIntf(nic.namespace, self.nameToNode[switch.name], nic.port, None)
                self.links.append(PlannedLink(RailIntf(nic, self.nameToNode[nic.namespace]), port))


def _ports(nics: Iterable[Nic]) -> tuple[Port, ...]:
    return tuple(Port(nic.namespace, nic.port) for nic in nics)
