"""Interfaces, asked and told by netlink: to start a program would take longer than some recoveries."""

import socket
from collections.abc import Iterable
from typing import Final

from pyroute2 import IPRoute

from topologies import namespaces
from topologies.plan import End

IFF_UP: Final = 1
_SHAPER: Final = 0x10001  # class 1:1


def set_links(node: str, states: dict[str, str]) -> None:
    """Set interfaces of a node up or down, in this order."""
    with namespaces.inside(node), IPRoute() as netlink:
        for interface, state in states.items():
            netlink.link("set", index=socket.if_nametoindex(interface), state=state)


def set_groups(ends: Iterable[End], group: int) -> None:
    """Put these interfaces into a group, which nftables can match."""
    for end in ends:
        with namespaces.inside(end.node), IPRoute() as netlink:
            netlink.link("set", index=socket.if_nametoindex(end.interface), group=group)


def is_up(node: str, interface: str) -> bool:
    """Whether it is set up and has a carrier."""
    with namespaces.inside(node), IPRoute() as netlink:
        return bool(netlink.get_links(index=socket.if_nametoindex(interface))[0].get("operstate") == "UP")


def is_set_up(end: End) -> bool:
    """Whether it is set up, with a carrier or without."""
    with namespaces.inside(end.node), IPRoute() as netlink:
        flags: int = netlink.get_links(index=socket.if_nametoindex(end.interface))[0]["flags"]
    return bool(flags & IFF_UP)


def shaped_bps(end: End) -> int:
    """The rate of an interface's shaper, as the kernel has it: whole bytes/s, in bit/s. Heartbeats' lane isn't it."""
    with namespaces.inside(end.node), IPRoute() as netlink:
        classes = netlink.get_classes(index=socket.if_nametoindex(end.interface))
    shaper = next(each for each in classes if each["handle"] == _SHAPER)
    return int(shaper.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"]) * 8
