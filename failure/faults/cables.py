"""Cables that lose their light, for good or in turns, or most of their rate.

A cable is cut at the switch's end, since a host keeps its routes when light is lost, and Linux takes them away from an
interface that is itself set down: which is what a crashed GPU's reboot has to make good.
"""

import socket
import threading
import time
from typing import Final

from pyroute2 import IPRoute

from railyard.failure.faults.definition import FaultDefinition
from railyard.failure.faults.links import is_up, set_links, shaped_bps
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import htb_commands
from railyard.topologies.plan import End, Link

_POLL_S: Final = 0.002


def rail_link(net: FabricNet, fault: Fault) -> Link:
    return net.plan.rail_link(gpu_of_name(fault.target))


def hb_link(net: FabricNet, fault: Fault) -> Link:
    return net.plan.hb_link(gpu_of_name(fault.target))


def _cut(end: End) -> None:
    set_links(end.node, {end.interface: "down"})


def _reconnect(end: End) -> None:
    set_links(end.node, {end.interface: "up"})


DOWN: Final = FaultDefinition(
    apply=lambda net, fault: _cut(rail_link(net, fault).b),
    repair=lambda net, fault: _reconnect(rail_link(net, fault).b),
    symptoms=lambda net, fault: (not is_up(fault.target, "rail0"),),
)
HB_PORT_DOWN: Final = FaultDefinition(
    apply=lambda net, fault: _cut(hb_link(net, fault).b),
    repair=lambda net, fault: _reconnect(hb_link(net, fault).b),
    symptoms=lambda net, fault: (not is_up(fault.target, "hb0"),),
)


class _Flapper(threading.Thread):
    """Sets an interface that is down up, and down again, every half period, until it is told to end or the fabric is
    gone. Its last word is always up.
    """

    def __init__(self, end: End, period_s: float) -> None:
        super().__init__(name=f"flapping {end.interface}", daemon=True)
        self._end, self._half_s = end, period_s / 2
        self._end_requested = threading.Event()

    def run(self) -> None:
        namespaces.enter(self._end.node)
        state = "up"
        with IPRoute() as netlink:
            index = socket.if_nametoindex(self._end.interface)
            while not self._end_requested.wait(self._half_s) and namespaces.path(self._end.node).exists():
                netlink.link("set", index=index, state=state)
                state = "down" if state == "up" else "up"
            netlink.link("set", index=index, state="up")

    def end(self) -> None:
        self._end_requested.set()
        self.join()


_flapping: Final[dict[Fault, _Flapper]] = {}


def _flap(net: FabricNet, fault: Fault) -> None:
    end = rail_link(net, fault).b
    _cut(end)
    _flapping[fault] = _Flapper(end, fault.period)
    _flapping[fault].start()


def _stop_flapping(net: FabricNet, fault: Fault) -> None:
    _flapping.pop(fault).end()


def _flaps(net: FabricNet, fault: Fault) -> tuple[bool, bool]:
    """Whether the GPU's carrier changes within a period; and that, or else that it has none."""
    with namespaces.inside(fault.target), IPRoute() as netlink:
        index = socket.if_nametoindex("rail0")
        first = link = netlink.get_links(index=index)[0]
        deadline = time.monotonic() + fault.period
        while link.get("carrier_changes") == first.get("carrier_changes") and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            link = netlink.get_links(index=index)[0]
    changed = link.get("carrier_changes") != first.get("carrier_changes")
    return changed, changed or link.get("operstate") != "UP"


FLAPPING: Final = FaultDefinition(apply=_flap, repair=_stop_flapping, symptoms=_flaps)


def _reshape(net: FabricNet, link: Link, rate_bps: int) -> None:
    """Give both ends' shapers a rate, and the idle credit that goes with it."""
    for end in (link.a, link.b):
        _, shaper = htb_commands(end.interface, rate_bps, net.plan.spec.mtu).splitlines()
        with namespaces.inside(end.node):
            namespaces.run(["tc", "-batch", "-"], shaper.replace("class add", "class change") + "\n")


def _slow(net: FabricNet, fault: Fault) -> None:
    link = rail_link(net, fault)
    _reshape(net, link, max(1, round(link.rate_bps * fault.rate)))


def _restore_rate(net: FabricNet, fault: Fault) -> None:
    link = rail_link(net, fault)
    _reshape(net, link, link.rate_bps)


def _is_slow(net: FabricNet, fault: Fault) -> tuple[bool, bool]:
    """The kernel keeps rates in whole bytes/s, so halfway to the slow rate tells them apart."""
    link = rail_link(net, fault)
    limit = link.rate_bps * (1 + fault.rate) / 2
    return shaped_bps(link.a) < limit, shaped_bps(link.b) < limit


SLOW: Final = FaultDefinition(apply=_slow, repair=_restore_rate, symptoms=_is_slow)
