"""The fabrics as Mininet topologies: `mn --custom topologies/mininet_topos.py --topo rail-only,4,4 --controller
remote`.

Each GPU d<domain>g<rank> has hb0 into its HB domain's bridge and rail0 into the switch of its rail; rail-optimized
joins the rail switches by spines, and an optical switch ocs<d> is between domain d's GPUs and their rails. Under plain
`mn` the switches are Mininet's own, links are not shaped unless `--link tc` is given, and a controller has to be
running (docs/controller.md). Railyard's own builder takes the same classes and builds them in batches.
"""

from functools import partial
from subprocess import PIPE
from typing import Any

from mininet.node import Host, Switch
from mininet.topo import Topo

from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.routing import gpu_commands
from railyard.topologies.spec import gpu_fabric_kinds, parse_fabric

PLAIN_RAIL_BPS = 100_000_000
PLAIN_SYSCTLS = ("ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0", "conf.all.send_redirects=0")


class PlainGpu(Host):
    """A GPU under plain `mn`, which asks each host to configure itself."""

    def config(self, plan: Plan | None = None, **_: Any) -> dict[str, Any]:
        """Set its address, neighbours and three route tables."""
        if plan is None:
            raise ValueError("a GPU needs the plan of its fabric")
        gpu = gpu_of_name(self.name)
        settings = list(PLAIN_SYSCTLS)
        for device in plan.devices:
            settings += [f"conf.{device}.rp_filter=0", f"conf.{device}.send_redirects=0"]
        self.cmd("sysctl -qw", *(f"net.ipv4.{setting}" for setting in settings))
        for device in plan.devices:
            # a userspace switch would pass unfinished checksums on
            self.cmd(f"ethtool -K {device} tx off")
        commands = gpu_commands(plan, gpu, backups=False)
        # lo has it already, but Mininet's CLI looks for it here
        commands += f"addr add {gpu.ip}/32 dev hb0\n"
        _, errors = self.popen(["ip", "-batch", "-"], stdin=PIPE).communicate(commands.encode())
        if errors:
            raise RuntimeError(f"{self.name}: {errors.decode().strip()}")
        return {}

    def IP(self, intf: object = None) -> str:  # noqa: N802 (Mininet's name)
        """Return its one address, the same on every interface."""
        return gpu_of_name(self.name).ip


class HbBridge(Switch):
    """An HB domain: a Linux bridge, which needs no controller."""

    def start(self, controllers: object) -> None:
        """Make the bridge and add its interfaces."""
        self.cmd(f"ip link add {self.name} type bridge mcast_snooping 0")
        for interface in self.intfList():
            if interface.name != "lo":
                self.cmd(f"ip link set {interface} master {self.name} up")
        self.cmd(f"ip link set {self.name} up")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        """Remove the bridge."""
        self.cmd(f"ip link del {self.name}")
        super().stop(deleteIntfs)


class FabricTopo(Topo):
    """The topology of any fabric kind: what the plan says.

    `optical`: layers that have optical switches, such as rail+hb.
    `options`: other keys of a fabric's spec, such as policy=rd.
    """

    def build(
        self,
        domains: int = 4,
        rails: int = 4,
        plan: Plan | None = None,
        kind: str = "rail-only",
        optical: str = "",
        **options: Any,
    ) -> None:
        """Add the nodes and links of a plan, by default that of the options."""
        if plan is None:
            if optical:
                options["optical"] = {"layers": optical.split("+")}
            spec = parse_fabric({"kind": kind, "domains": domains, "rails": rails, **options})
            if spec.rail_of_rank:
                raise ValueError("GPUs can't share NICs under plain mn: its controller knows no NICs")
            plan = make_plan(spec, PLAIN_RAIL_BPS)
        self.plan = plan
        for gpu in self.plan.gpus:
            self.addHost(gpu.name, cls=PlainGpu, plan=self.plan)
        for name in self.plan.hb_bridges:
            self.addSwitch(name, cls=HbBridge)
        for name in self.plan.nics:
            self.addSwitch(name, cls=HbBridge)
        for switch in self.plan.switches:
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13")
        for link in self.plan.links:
            # under `mn` all switches share a namespace, so far ends need names that differ (15 characters)
            a = link.a
            b = link.b
            mac = dict[str, str]()
            if link.kind == "uplink":
                near = f"{a.node}-{b.node}"
                far = f"{b.node}-{a.node}"
            elif a.node in self.plan.gpus_of_nic:
                near = f"{a.node}-{a.interface}"
                far = f"{b.node}-{a.node}"
            elif link in self.plan.trunks:
                near = f"{b.interface}-{link.kind}-o"
                far = f"{b.interface}-{link.kind}-n"
            else:
                near = a.interface
                far = f"{a.node}-{a.interface.removesuffix('0')}"
                mac = {"addr1": gpu_of_name(a.node).mac_of(a.interface)}
            self.addLink(
                a.node, b.node, port1=a.port, port2=b.port, intfName1=near, intfName2=far, **mac,
                bw=link.rate_bps / 1e6, ifconfig=f"mtu {self.plan.spec.mtu}",
            )  # fmt: skip


topos = {name: partial(FabricTopo, kind=name) for name in gpu_fabric_kinds()}
"""Every kind of fabric of GPUs, for `mn --custom`."""
