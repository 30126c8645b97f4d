"""The fabrics as Mininet topologies: also for `mn --custom topologies/topos.py --topo rail-only,4,4 --controller remote`.

      hb0 ──┬── d0g0 ── rail0        Each GPU d<domain>g<rank> has hb0 into its HB domain's bridge and rail0 into the
            └── d0g1 ── rail1        switch of its rail. Rail-only ends there; rail-optimized joins the rail switches
      hb1 ──┬── d1g0 ── rail0        by spines; single-switch puts every GPU on one switch.
            └── d1g1 ── rail1

Under plain `mn` the rail switches are Mininet's own, links are not shaped unless `--link tc` is given, and a controller has
to be running (docs/controller.md). Railyard's own builder takes the same classes and builds them in batches.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `mn --custom` gives the file, not the project

from mininet.node import Host, Switch
from mininet.topo import Topo

from topologies.plan import Link, Plan, make_plan
from topologies.routes import gpu_commands
from topologies.spec import FabricSpec, Kind, Policy

PLAIN_RAIL_BPS = 100_000_000


class PlainGpu(Host):
    """A GPU under plain `mn`: what the builder does in one batch is done here through the node's shell."""

    def config(self, plan: Plan | None = None, **_: Any) -> dict[str, Any]:
        """Give it its address, neighbours and three route tables."""
        if plan is None:
            raise ValueError("a GPU needs the plan of its fabric")
        from topologies.addresses import gpu_of_name

        gpu = gpu_of_name(self.name)
        self.plan_gpu = gpu
        for key in ("ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0", "conf.all.send_redirects=0"):
            self.cmd(f"sysctl -qw net.ipv4.{key}")
        for device in ("hb0", "rail0"):
            self.cmd(f"sysctl -qw net.ipv4.conf.{device}.rp_filter=0 net.ipv4.conf.{device}.send_redirects=0")
            self.cmd(f"ip link set {device} mtu {plan.spec.mtu}")
        commands = gpu_commands(plan, gpu, plan.policy, backups=False)
        self.cmd(f"ip -batch - <<'END'\n{commands}END")
        return {}

    def IP(self, intf: object = None) -> str:  # noqa: N802 (Mininet's name)
        """Its one address."""
        ip: str = self.plan_gpu.ip
        return ip


class HbBridge(Switch):
    """An HB domain: a Linux bridge, which needs no controller."""

    def start(self, controllers: object) -> None:
        self.cmd(f"ip link add {self.name} type bridge mcast_snooping 0")
        for interface in self.intfList():
            if interface.name != "lo":
                self.cmd(f"ip link set {interface} master {self.name} up")
        self.cmd(f"ip link set {self.name} up")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        self.cmd(f"ip link del {self.name}")
        super().stop(deleteIntfs)


class FabricTopo(Topo):
    """Base of the three: draws whatever the plan says."""

    kind: Kind

    def build(self, domains: int = 4, rails: int = 4, policy: Policy | None = None, plan: Plan | None = None) -> None:
        spec = FabricSpec(kind=self.kind, domains=int(domains), rails=int(rails), policy=policy)
        self.plan = plan or make_plan(spec, PLAIN_RAIL_BPS)
        for gpu in self.plan.gpus:
            self.addHost(gpu.name, cls=PlainGpu, plan=self.plan)
        for name in self.plan.hb_bridges:
            self.addSwitch(name, cls=HbBridge)
        for switch in self.plan.switches:
            self.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13")
        macs = {gpu.name: gpu for gpu in self.plan.gpus}
        for link in self.plan.links:
            self._cable(
                link, macs[link.a.node].mac("hb" if link.kind == "hb" else "rail") if link.kind != "uplink" else None
            )

    def _cable(self, link: Link, mac: str | None) -> None:
        near = f"{link.a.node}-{link.a.interface}" if link.kind == "uplink" else link.a.interface
        self.addLink(
            link.a.node, link.b.node, port1=link.a.port, port2=link.b.port,
            intfName1=near, intfName2=f"{link.b.node}-{link.b.interface}", addr1=mac, bw=link.rate_bps / 1e6,
        )  # fmt: skip


class RailOnly(FabricTopo):
    """Rail-only: no spine; what is for another rail goes through an HB domain."""

    kind: Kind = "rail-only"


class RailOptimized(FabricTopo):
    """Rail-optimized: spines join the rail switches at full bisection."""

    kind: Kind = "rail-optimized"


class SingleSwitch(FabricTopo):
    """All GPUs on one switch: the ideal to compare with."""

    kind: Kind = "single-switch"


topos = {"rail-only": RailOnly, "rail-optimized": RailOptimized, "single-switch": SingleSwitch}


def topo_of(plan: Plan) -> FabricTopo:
    """The Mininet topology of a plan."""
    return topos[plan.spec.kind](plan=plan)
