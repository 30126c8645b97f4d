"""What may break on a multi-rail fabric: a NIC's cable, cut or silent, and a rail's switch, dead or hung.

`node` is a namespace's name (`n2`, `agg1`), `rail` a number. What breaks something returns when it did, ns of
CLOCK_MONOTONIC; all of it can be mended, and to mend what is whole changes nothing.
"""

import os
import signal
import socket
import time
from typing import Final, Literal

from pyroute2 import IPRoute

from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import DISCARD_INTERFACE
from railyard.topologies.multirail.addresses import Nic
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.plan import End

_TABLE: Final = "silent_{}"


def cut(net: MultirailNet, node: str, rail: int) -> int:
    """Pull a NIC's cable, at the switch's end: the NIC has no carrier, and the node keeps its addresses."""
    return _set(net.plan.link(_nic(net, node, rail)).b, "down")


def repair(net: MultirailNet, node: str, rail: int) -> None:
    """Plug it in again."""
    _set(net.plan.link(_nic(net, node, rail)).b, "up")


def has_carrier(node: str, rail: int) -> bool:
    """What the node's kernel sees of its cable."""
    with namespaces.inside(node), IPRoute() as netlink:
        link = netlink.get_links(index=socket.if_nametoindex(f"rail{rail}"))[0]
    return bool(link.get("operstate") == "UP")


def blackhole(net: MultirailNet, node: str, rail: int) -> int:
    """From now on nothing arrives, either way, over a NIC that keeps its carrier.

    What leaves is handed to an interface that is down: a packet that nftables drops is one that TCP knows never left.
    RuntimeError where the kernel gives nftables no egress hook.
    """
    nic = _nic(net, node, rail)
    table = _TABLE.format(nic.interface)
    rules = (
        f"table netdev {table} {{\n"
        f' chain in {{ type filter hook ingress device "{nic.interface}" priority 0; drop; }}\n'
        f' chain out {{ type filter hook egress device "{nic.interface}" priority 0; fwd to "{DISCARD_INTERFACE}"; }}\n'
        "}\n"
    )
    with namespaces.inside(node):
        namespaces.run(["nft", "-f", "-"], f"table netdev {table}\ndelete table netdev {table}\n{rules}")
    return time.monotonic_ns()


def clear_blackhole(net: MultirailNet, node: str, rail: int) -> None:
    """It carries packets again."""
    table = _TABLE.format(_nic(net, node, rail).interface)
    with namespaces.inside(node):
        namespaces.run(["nft", "-f", "-"], f"table netdev {table}\ndelete table netdev {table}\n")


def kill_switch(net: MultirailNet, rail: int) -> int:
    """SIGKILL to the rail's switch. Cables keep their carrier."""
    switch = net.ovs[rail]
    with namespaces.inside(switch.name):
        at_ns = time.monotonic_ns()
        switch.kill()
    return at_ns


def restart_switch(net: MultirailNet, rail: int) -> None:
    """Start it again if it was killed; it has its flows when this returns."""
    switch = net.ovs[rail]
    if switch.processes["ovs-vswitchd"].poll() is not None:
        with namespaces.inside(switch.name):
            switch.start_vswitchd()


def pause_switch(net: MultirailNet, rail: int) -> int:
    """SIGSTOP to the rail's switch: it forwards nothing, and nobody is told."""
    at_ns = time.monotonic_ns()
    os.kill(net.ovs[rail].vswitchd_pid, signal.SIGSTOP)
    return at_ns


def resume_switch(net: MultirailNet, rail: int) -> None:
    """It goes on."""
    os.kill(net.ovs[rail].vswitchd_pid, signal.SIGCONT)


def _nic(net: MultirailNet, node: str, rail: int) -> Nic:
    """ValueError if there is none."""
    found = next((nic for nic in net.plan.nics_of(node) if nic.rail == rail), None)
    if found is None:
        raise ValueError(f"{node} has no NIC on rail {rail}")
    return found


def _set(end: End, state: Literal["up", "down"]) -> int:
    with namespaces.inside(end.node), IPRoute() as netlink:
        index = socket.if_nametoindex(end.interface)
        at_ns = time.monotonic_ns()
        netlink.link("set", index=index, state=state)
    return at_ns
