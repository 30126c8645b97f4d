"""Running fabric: a Mininet whose nodes, links, addresses, shapers and switches are made in batches.

`EmulatedNet` builds the plan of any fabric; `FabricNet` is for fabrics of GPUs, topologies/multirail/net.py for nodes
with several rails. Everything here touches the kernel; plan.py, routing.py and shaping.py decide what to make. Needs a
sandbox (core/sandbox).
"""

import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

from railyard.core.host import Datapath
from railyard.topologies.addresses import plane_of_device
from railyard.topologies.build import ethtool, gpu_setup, namespaces, ovs, queues
from railyard.topologies.build.iperf import iperf
from railyard.topologies.build.mininet_import import without_setuptools
from railyard.topologies.build.nodes import NamespaceNode, PlannedIntf, PlannedLink, SwitchNode
from railyard.topologies.build.ovs import PrivateSwitch
from railyard.topologies.build.shaping import (
    DISCARD_INTERFACE,
    htb_commands,
    max_gso_segments,
    switch_buffer_rules,
)
from railyard.topologies.fabric_kinds import End, FabricPlan, Link, Switch
from railyard.topologies.plan import PLAN_FILE, Plan, write_active_plan

with without_setuptools():
    from mininet.log import error
    from mininet.net import Mininet
    from mininet.topo import Topo

    from railyard.topologies.mininet_topos import FabricTopo


SWITCH_SYSCTLS: Final[dict[str, int | str]] = {
    # no router solicitations among the measured packets
    "net/ipv6/conf/default/disable_ipv6": 1,
    "net/ipv6/conf/all/disable_ipv6": 1,
}
GPU_SYSCTLS: Final = SWITCH_SYSCTLS | {
    "net/ipv4/ip_forward": 1,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    # a backup route may hand a packet back to its source, who carries it then
    "net/ipv4/conf/all/accept_local": 1,
    "net/ipv4/conf/all/send_redirects": 0,
    "net/ipv4/conf/default/send_redirects": 0,
    "net/ipv4/conf/all/accept_redirects": 0,
    "net/ipv4/conf/default/accept_redirects": 0,
    "net/ipv4/conf/default/ignore_routes_with_linkdown": 1,
    # a transfer must not inherit the metrics of another
    "net/ipv4/tcp_no_metrics_save": 1,
}
# Over several next hops by ports too: a pair's transfers differ in nothing else, and would all take the same one.
# Kernels without multipath routes have no such setting, and need it for nothing but policies that spread.
HASH_BY_PORTS: Final = ("net/ipv4/fib_multipath_hash_policy", 1)
# Where both ends of a veth pair happen to have the same index (each in its namespace), the kernel takes them for no
# pair and reports a carrier's change up to a second late. Numbers that no far end reaches keep every report immediate.
FIRST_INDEX: Final = 1_000_000


class FabricController(Protocol):
    """Interface of a controller to the builder.

    `user_app`: the file of an app that decides forwarding, or "".
    """

    user_app: str

    def connect(self, plan: Plan) -> None:
        """Listen in each switch's namespace; all exist. It may still be loading when this returns."""

    def wait_ready(self) -> None:
        """Return when every switch has its flows."""

    def stop(self) -> None:
        """End it."""


class EmulatedNet(Mininet):
    """Mininet network of a plan: the base of the networks of all fabrics.

    `hosts` are where traffic begins and ends, `switches` what is in the network; `ovs` has each switch's processes by
    name. `build_s`, `stop_s`: seconds that it took. A subclass says what its plan means for a namespace and a link.
    """

    iperf = iperf

    def __init__(self, plan: FabricPlan, datapath: Datapath, topo: Topo | None = None) -> None:
        # or Mininet would set global sysctls
        Mininet.inited = True
        super().__init__(topo=topo, controller=None, build=False)
        self.plan = plan
        self.datapath = datapath
        self._ends: defaultdict[str, dict[str, tuple[int | None, int]]] = defaultdict(dict)
        for link in plan.links:
            # a GPU's connection to a NIC that it shares has no shaper: the NIC's link has
            if link.kind != "nic":
                for end in (link.a, link.b):
                    self._ends[end.node][end.interface] = (end.port, link.rate_bps)
        # by node: its interfaces with links to switches
        self._nic_names = defaultdict[str, list[str]](list)
        for link in plan.links:
            if link.b.node in plan.dpids and link.a.node not in plan.dpids:
                self._nic_names[link.a.node].append(link.a.interface)
        self._here = frozenset(self.node_names)
        self.ovs = {switch.name: self._make_switch(switch) for switch in plan.switches if self.has(switch.name)}
        self.switch_buffers = False
        # of namespaces (gpu_replacement.py)
        self.extra_names: set[str] = set()
        self.build_s = self.stop_s = 0.0

    @property
    def node_names(self) -> list[str]:
        """All namespaces; those of this machine, where several share a fabric."""
        return list(self.plan.namespaces)

    def has(self, node: str) -> bool:
        """Return whether a namespace is on this machine."""
        return node in self._here

    def start(self) -> None:
        """Build everything; return when traffic can flow. RailyardError names the program that failed."""
        started = time.monotonic()
        namespaces.create(self.node_names)
        namespaces.in_threads(self._prepare, self.node_names)
        self._connect_controller()
        self._make_links()
        self.switch_buffers = self.datapath != "system" and self._buffers_work()
        # switches last: a running ovs-vswitchd would examine all of its ports at every change of one's carrier
        hosts = set(self.plan.hosts)
        namespaces.in_threads(self._configure, sorted(self.node_names, key=hosts.__contains__))
        ovs.prepare()
        namespaces.in_threads(self._start_switch, list(self.ovs.values()))
        self._register()
        self._wait_for_controller()
        self.built = True
        self.build_s = time.monotonic() - started

    def stop(self) -> None:
        """Take it all down; namespaces go when the last process in them has."""
        started = time.monotonic()
        for switch in self.ovs.values():
            switch.end()
        for node in self.nameToNode.values():
            node.terminate()
        hosts_and_switches = self.ovs.keys() | set(self.plan.hosts)
        # and aggregators
        bridges = [node for node in self.node_names if node not in hosts_and_switches]
        # Closing a port costs ovs-vswitchd an RCU grace period (15 ms), unless the kernel is removing interfaces
        # meanwhile. While it removes bridges (17 ms each), ovs-vswitchd can't end.
        with namespaces.kept(bridges):
            namespaces.remove([*self.node_names, *self.extra_names])
            for switch in self.ovs.values():
                switch.stop()
        self.stop_s = time.monotonic() - started

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:  # noqa: N802
        """Set the links between two nodes `up` or `down`, at the switch's end.

        Mininet sets both ends, but a GPU whose own end goes down loses its routes. A cut cable doesn't do that.
        """
        missing = [name for name in (src, dst) if name not in self.nameToNode]
        if missing:
            error(f"{missing[0]} is no node of this fabric\n")
            return
        ends = self.nameToNode[src].connectionsTo(self.nameToNode[dst])
        if not ends:
            error(f"{src} and {dst} have no link\n")
        for first, second in ends:
            interface = second if first.node in self.hosts else first
            with namespaces.inside(interface.node.name):
                namespaces.run(["ip", "link", "set", interface.name, status])

    def _make_switch(self, switch: Switch) -> PrivateSwitch:
        return PrivateSwitch(switch.name, switch.dpid, self._ports(switch.name), self.datapath)

    def _sysctls(self, node: str) -> Mapping[str, int | str]:
        raise NotImplementedError

    @property
    def nics_finish_checksums(self) -> bool:
        """Return whether packets leave a NIC with finished checksums, as a switch forgets which are unfinished.

        A veth counts as a NIC that finishes checksums, but only marks the packet. The receiver drops it if the mark is
        lost, as in Open vSwitch in userspace without TSO.
        """
        return self.datapath == "netdev"

    def _connect_controller(self) -> None:
        """Start the controller, if there is one: all namespaces are there."""

    def _wait_for_controller(self) -> None:
        """Return when every switch has its flows."""

    def _make_links(self) -> None:
        namespaces.run(["ip", "-batch", "-"], "".join(self._link_command(link) for link in self.plan.links))

    def _link_command(self, link: Link) -> str:
        raise NotImplementedError

    def _configure_node(self, node: str) -> None:
        raise NotImplementedError

    def shaper_commands(self, interface: str, rate_bps: int) -> str:
        """Return lines for `tc -batch` that shape what leaves an interface."""
        raise NotImplementedError

    def _make_interface(self, end: End) -> PlannedIntf:
        raise NotImplementedError

    def _ports(self, switch: str) -> dict[str, int]:
        return {name: port for name, (port, _) in self._ends[switch].items() if port is not None}

    def _prepare(self, node: str) -> None:
        with namespaces.inside(node):
            for key, value in self._sysctls(node).items():
                namespaces.set_sysctl(key, value)
            if node in self.ovs:
                # its controller listens there
                namespaces.run(["ip", "link", "set", "lo", "up"])

    def _buffers_work(self) -> bool:
        """Return whether this kernel lets nftables copy frames on their way out; else switches drop them."""
        switch = next(iter(self.ovs), None)
        if switch is None:
            return False
        with namespaces.inside(switch):
            rules = switch_buffer_rules(self._ends[switch]).replace(DISCARD_INTERFACE, "lo")
            return subprocess.run(["nft", "-c", "-f", "-"], input=rules, text=True, capture_output=True).returncode == 0

    def _start_switch(self, switch: PrivateSwitch) -> None:
        with namespaces.inside(switch.name):
            switch.start_database()
            switch.start()

    def _configure(self, node: str) -> None:
        """Shape a node's interfaces, then set it up; a switch gets its buffers."""
        # Shapers come first: a qdisc for an interface that is up costs an RCU grace period. Ports go up before their
        # switch starts: ovs-vswitchd reads each one's flags and writes them back with PROMISC, and would take back an
        # UP that came between.
        with namespaces.inside(node):
            shapers = "".join(self.shaper_commands(name, rate) for name, (_, rate) in self._ends[node].items())
            messages = gpu_setup.shaper_messages(shapers)
            if messages is None:
                namespaces.run(["tc", "-batch", "-"], shapers)
            else:
                gpu_setup.send(messages, node)
            if node not in self.ovs:
                self._configure_node(node)
                if self.nics_finish_checksums:
                    for interface in self._nic_names[node]:
                        ethtool.set_feature(interface, ethtool.TX_CHECKSUM, False)
                return
            discard = ["ip", "link", "add", DISCARD_INTERFACE, "type", "veth", "peer", "name"]
            namespaces.run([*discard, f"{DISCARD_INTERFACE}-end"])
            if self.switch_buffers:
                namespaces.run(["nft", "-f", "-"], switch_buffer_rules(self._ends[node]))
            gpu_setup.send((gpu_setup.link_up(socket.if_nametoindex(port)) for port in self._ends[node]), node)

    def _register(self) -> None:
        hosts = set(self.plan.hosts)
        self.hosts = [NamespaceNode(name) for name in self.node_names if name in hosts]
        self.switches = [SwitchNode(name, self.ovs.get(name)) for name in self.node_names if name not in hosts]
        self.nameToNode = {node.name: node for node in (*self.hosts, *self.switches)}
        for link in self.plan.links:
            # else the other end is on another machine
            if {link.a.node, link.b.node} <= self.nameToNode.keys():
                self.links.append(PlannedLink(self._make_interface(link.a), self._make_interface(link.b)))


def _index_of(link: Link) -> int:
    """Return the index of the interface at a link's first end; a device has the same at every GPU."""
    is_rail = link.kind in ("rail", "nic")
    index = FIRST_INDEX + (link.a.port or 0) + is_rail
    is_rail_of_gpu = is_rail and link.a.port is None
    if is_rail_of_gpu:
        index += plane_of_device(link.a.interface)
    return index


class FabricNet(EmulatedNet):
    """Network of a fabric of GPUs, with a controller.

    `backups`: GPUs have kernel routes around a dead rail link.
    """

    plan: Plan

    def __init__(
        self, plan: Plan, datapath: Datapath, controller: FabricController | None = None, backups: bool = True
    ) -> None:
        super().__init__(plan, datapath, FabricTopo(plan=plan))
        self.backups = backups
        self.fabric_controller = controller
        self._gpus = {gpu.name: gpu for gpu in plan.gpus}
        index = {link.a.interface: _index_of(link) for link in plan.links if link.a.node in self._gpus}
        self._setup = gpu_setup.GpuSetup(plan, backups, index)

    def stop(self) -> None:
        """Take it all down, the controller first."""
        PLAN_FILE.unlink(missing_ok=True)
        if self.fabric_controller:
            self.fabric_controller.stop()
        super().stop()

    @property
    def nics_finish_checksums(self) -> bool:
        """Return True also with TSO in userspace if a user's app forwards: its frames lose the mark."""
        if super().nics_finish_checksums:
            return True
        has_user_app = self.fabric_controller is not None and bool(self.fabric_controller.user_app)
        return has_user_app and self.datapath == "netdev-tso"

    def _sysctls(self, node: str) -> Mapping[str, int | str]:
        return GPU_SYSCTLS if node in self._gpus else SWITCH_SYSCTLS

    def _prepare(self, node: str) -> None:
        super()._prepare(node)
        with namespaces.inside(node), suppress(FileNotFoundError):
            namespaces.set_sysctl(*HASH_BY_PORTS)

    def _connect_controller(self) -> None:
        if self.fabric_controller:
            self.fabric_controller.connect(self.plan)

    def _wait_for_controller(self) -> None:
        if self.fabric_controller:
            self.fabric_controller.wait_ready()
        write_active_plan(self.plan)

    def _make_links(self) -> None:
        super()._make_links()
        namespaces.in_threads(self._attach_gpus, [nic for nic in self.plan.nics if self.has(nic)])

    def _attach_gpus(self, nic: str) -> None:
        """Give each GPU of a NIC an interface of its own on it, as an adapter with several functions does."""
        # A macvlan has no shaper and no queue, so what GPUs send waits in the NIC's one shaper, and their kernels know
        # that it does. It has the NIC's carrier: where that is cut, every GPU's backup route works at once.
        lines: list[str] = []
        for link in self.plan.cables_behind(nic):
            words = f"link add link {link.b.interface} name {link.a.interface} {self._interface_options(link)}"
            lines.append(f"{words} type macvlan mode private\n")
        with namespaces.inside(nic):
            namespaces.run(["ip", "-batch", "-"], "".join(lines), name=f"GPUs of NIC {nic}")

    def _interface_options(self, link: Link) -> str:
        """Return the words of `ip link add` for the interface of a GPU, or of a NIC that GPUs share."""
        mtu = self.plan.spec.mtu
        options = f"index {_index_of(link)} netns {link.a.node} mtu {mtu}"
        options += f" gso_max_segs {max_gso_segments(link.rate_bps, mtu)}"
        gpu = self._gpus.get(link.a.node)
        if gpu:
            options += f" address {gpu.mac_of(link.a.interface)}"
        return options

    def _link_command(self, link: Link) -> str:
        if link.kind == "nic":
            # made by `_attach_gpus`
            return ""
        mtu = self.plan.spec.mtu
        options = f"index {_index_of(link)} netns {link.a.node} mtu {mtu}"
        if link.a.node in self._gpus or link.a.node in self.plan.gpus_of_nic:
            options = self._interface_options(link)
        return (
            f"link add {link.a.interface} {options} type veth"
            f" peer name {link.b.interface} netns {link.b.node} mtu {mtu}\n"
        )

    def shaper_commands(self, interface: str, rate_bps: int) -> str:
        """Return lines with one class for all traffic."""
        return htb_commands(interface, rate_bps, self.plan.spec.mtu)

    def _configure_node(self, node: str) -> None:
        if node in self.plan.gpus_of_nic:
            gpu_setup.send((gpu_setup.link_up(socket.if_nametoindex(port)) for port in self._ends[node]), node)
            return
        gpu = self._gpus.get(node)
        mtu = self.plan.spec.mtu
        for interface, (_, rate_bps) in self._ends[node].items():
            is_hb = gpu is None or interface == "hb0"
            if is_hb and max_gso_segments(rate_bps, mtu) == 1:
                queues.give_own_queue(interface, mtu)
        if gpu:
            gpu_setup.send(self._setup.messages(gpu), node)
            return
        gpu_setup.send([gpu_setup.bridge_message(node, mtu)], node)
        macs = {socket.if_nametoindex(port): self._gpus[port].mac("hb") for port in self._ends[node]}
        gpu_setup.send(gpu_setup.bridge_port_messages(socket.if_nametoindex(node), macs), node)

    def _make_interface(self, end: End) -> PlannedIntf:
        gpu = self._gpus.get(end.node)
        node = self.nameToNode[end.node]
        if gpu is None:
            return PlannedIntf(end.interface, node, end.port)
        return PlannedIntf(end.interface, node, end.port, gpu.mac_of(end.interface), gpu.ip)
