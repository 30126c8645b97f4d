"""Who builds the same fabric here: Railyard, and stock Mininet with TCLink, in two forms."""

import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import psutil
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.node import OVSSwitch, RemoteController
from mininet.topo import Topo

from railyard.controller.processes.clients import ADDRESS, ControllerProcess
from railyard.core.host import Datapath
from railyard.core.installation import PROJECT
from railyard.topologies.build import shared_ovs
from railyard.topologies.build.network import FabricNet
from railyard.topologies.mininet_topos import FabricTopo, HbBridge
from railyard.topologies.plan import Plan

CONTROLLER_LOG: Final = Path("/run/controller.serve.log")
WAIT_S: Final = 60.0


class Builder(Protocol):
    """Something that builds a fabric: `prepare` before the clock starts, then `build`; `stop` ends all of it.

    `includes` says to a reader what its seconds hold.
    """

    name: str
    includes: str

    def prepare(self) -> None: ...

    def build(self) -> Any:
        """The Mininet network, when its controller is connected and all its flows are in."""

    def check(self, net: Any) -> None:
        """RuntimeError if it does not carry what it should."""

    def namespaces_of(self, net: Any) -> int: ...

    def stop(self, net: Any) -> None: ...


def check_ping(builder: str, net: Any, source: str, destination: str) -> None:
    """RuntimeError if an echo request or its answer is lost, either way round."""
    if net.ping([net.get(source), net.get(destination)], timeout="1") != 0:
        raise RuntimeError(f"{builder}: no ping between {source} and {destination}: it did not build what it should")


class Railyard:
    """FabricNet with its controller."""

    name = "Railyard"
    includes = (
        "a namespace a GPU, bridge and switch; all links, both directions shaped; addresses, neighbours, three route"
        " tables; an Open vSwitch a switch and the controller, both started within the time; all flows in"
    )

    def __init__(self, plan: Plan, datapath: Datapath) -> None:
        self._plan, self._datapath = plan, datapath

    def prepare(self) -> None:
        """Nothing: all that it needs, it starts within its time."""

    def build(self) -> Any:
        net = FabricNet(self._plan, self._datapath, ControllerProcess())
        net.start()
        return net

    def check(self, net: Any) -> None:
        check_ping(self.name, net, "d0g0", "d1g1")

    def namespaces_of(self, net: Any) -> int:
        return len(net.node_names)

    def stop(self, net: Any) -> None:
        net.stop()


class Stock:
    """Stock Mininet with TCLink, one Open vSwitch for all switches, and the same controller app as its remote one."""

    name = "Mininet, same fabric"
    includes = (
        "stock Mininet with TCLink on topologies/mininet_topos.py: a namespace a GPU; the same links, shaped; the same"
        " addresses, neighbours, route tables; one Open vSwitch and the controller, running already; all flows in"
    )

    def __init__(self, plan: Plan, datapath: Datapath) -> None:
        self._plan, self._datapath = plan, "kernel" if datapath == "system" else "user"
        self._daemons: list[psutil.Process] = []

    def prepare(self) -> None:
        """Start Open vSwitch, as a distribution's service does it, and the controller."""
        self._daemons += [psutil.Process(number) for number in shared_ovs.start()]
        with CONTROLLER_LOG.open("w") as log:
            serve = [sys.executable, "-m", "railyard.controller.processes.openflow_main"]
            self._daemons.append(psutil.Popen(serve, cwd=PROJECT, stdout=log, stderr=log))
        _await_lines("listening on", 1)

    def build(self) -> Any:
        Mininet.inited = True  # or Mininet would set global sysctls
        net = Mininet(
            self._topo(),
            switch=partial(OVSSwitch, datapath=self._datapath),
            link=TCLink,
            controller=partial(RemoteController, ip=ADDRESS[0], port=ADDRESS[1]),
            build=False,
        )
        net.start()
        # Mininet's own waitConnected looks twice a second, and does not ask for flows
        _await_lines(": connected", len(self._plan.switches))
        return net

    def check(self, net: Any) -> None:
        check_ping(self.name, net, "d0g0", "d1g1")

    def namespaces_of(self, net: Any) -> int:
        return len(net.hosts)

    def stop(self, net: Any) -> None:
        """The controller first, which would follow every link that goes away."""
        self._end(self._daemons.pop())
        net.stop()
        for controller in net.controllers:
            controller.terminate()  # Mininet leaves a remote controller's shell until it ends itself
        while self._daemons:
            self._end(self._daemons.pop())
        shutil.rmtree(shared_ovs.RUNDIR)

    def _topo(self) -> Any:
        return FabricTopo(plan=self._plan)

    @staticmethod
    def _end(process: psutil.Process) -> None:
        process.kill()
        process.wait()


class StockPlain(Stock):
    """The least that stock Mininet can be asked to build: its own hosts, with an address each."""

    name = "Mininet, addresses only"
    includes = (
        "the same without what Railyard's own classes add for Mininet: stock hosts with an address each, and no"
        " neighbours, no route tables, no MTU, so that only a domain's GPUs reach each other"
    )

    def check(self, net: Any) -> None:
        check_ping(self.name, net, "d0g0", "d0g1")

    def _topo(self) -> Any:
        topo = Topo()
        for gpu in self._plan.gpus:
            topo.addHost(gpu.name, ip=f"{gpu.ip}/15")
        for name in self._plan.hb_bridges:
            topo.addSwitch(name, cls=HbBridge)
        for switch in self._plan.switches:
            topo.addSwitch(switch.name, dpid=f"{switch.dpid:016x}", protocols="OpenFlow13")
        for link in self._plan.links:
            names = {"intfName1": link.a.interface, "intfName2": f"{link.a.node}-{link.kind}"}
            ports = {"port1": link.a.port, "port2": link.b.port}
            topo.addLink(link.a.node, link.b.node, bw=link.rate_bps / 1e6, **names, **ports)
        return topo


def _await_lines(text: str, count: int) -> None:
    """Return when the controller has said that on so many lines; RuntimeError, with its last words, after a minute."""
    deadline = time.monotonic() + WAIT_S
    while (log_text := CONTROLLER_LOG.read_text()).count(text) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the controller did not say {text!r} {count} times in {WAIT_S:.0f} s: {log_text[-200:]}"
            )
        time.sleep(0.005)
