"""Carriers of the cables between two machines, whose namespaces are all in one sandbox here:

machine 0: d0g0 d0g1 rail0 ── veth ── machine 1: d1g0 d1g1 rail1
"""

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from railyard.core.host import datapath_choice, detect
from railyard.core.installation import PROJECT, module_command
from railyard.core.wait import wait_until
from railyard.core.worker import Ready, Worker
from railyard.failure.faults.support.links import link_state, set_link
from railyard.topologies.build import carrier, namespaces
from railyard.topologies.build.carrier import RTM_NEWLINK, RTMGRP_LINK
from railyard.topologies.build.machine_part import PartNet, Underlay
from railyard.topologies.build.namespaces import HEADER, LINK
from railyard.topologies.fabric_kinds import End
from railyard.topologies.measure.counters import IFF_LOWER_UP
from railyard.topologies.placement import Placement, place
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec

ADDRESSES = ("10.99.8.1", "10.99.8.2")
RAIL_BPS = 5_000_000  # of auto rails, which these are not
CUTS = 10
WITHIN_S = 2.0
LATE_S = 0.003  # for a carrier to follow
pytestmark = pytest.mark.sandbox


@contextmanager
def mirrored() -> Iterator[Placement]:
    """Make the namespaces and cables of both machines, and mirror their carriers."""
    fabric = FabricSpec.model_validate({"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "5Mbit"})
    placement, datapath = place(make_plan(fabric, RAIL_BPS), 2), datapath_choice(detect())[0]
    namespaces.create(["m0", "m1"])
    namespaces.run(
        ["ip", "link", "add", "under", "netns", "m0", "type", "veth", "peer", "name", "under", "netns", "m1"]
    )
    for number, address in enumerate(ADDRESSES):
        with namespaces.inside(f"m{number}"):
            namespaces.run(["ip", "addr", "add", f"{address}/24", "dev", "under"])
            namespaces.run(["ip", "link", "set", "under", "mtu", "9100", "up"])
    for number in range(2):
        machine_net = os.open(namespaces.path(f"m{number}"), os.O_RDONLY)
        net = PartNet(placement, Underlay(number, ADDRESSES, "under", 47_911, 0), machine_net, datapath, None, False)
        namespaces.create(net.node_names)
        net._make_links()
    for end in tunnel_ends(placement):
        set_link(end, "up")
    ours, theirs = socket.socketpair()
    with (
        Worker(carrier.MODULE, "first", Ready, pass_fds=[ours.fileno()]) as first,
        Relayed(theirs),
    ):
        first.open(carrier.Mirror(placement=placement, machine=0, peers=((1, ours.fileno()),)))
        yield placement
    ours.close()


class Relayed:
    """The second machine's process, which has the other end of a connection for its parent."""

    def __init__(self, sock: socket.socket) -> None:
        argv = module_command(carrier.MODULE, str(sock.fileno()))
        self.process = subprocess.Popen(argv, cwd=PROJECT, pass_fds=[sock.fileno()])
        sock.close()

    def __enter__(self) -> "Relayed":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def tunnel_ends(placement: Placement) -> list[End]:
    return [end for link in placement.tunnels for end in (link.a, link.b)]


def carrier_of(end: End) -> bool:
    return bool(link_state(end)["flags"] & IFF_LOWER_UP)


def seconds_until(near: End, far: End, state: str) -> float:
    """Set the far end up or down; return when the kernel has reported the near end's carrier."""
    with namespaces.inside(near.node):
        watcher = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        index = socket.if_nametoindex(near.interface)
    watcher.bind((0, RTMGRP_LINK))
    watcher.settimeout(WITHIN_S)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # so that it sees the change as soon as it is there
    began = time.monotonic()
    set_link(far, state)
    with watcher:
        while True:
            data = watcher.recv(1 << 16)
            _, kind, *_ = HEADER.unpack_from(data)
            _, _, number, flags, _ = LINK.unpack_from(data, HEADER.size)
            if kind == RTM_NEWLINK and number == index and bool(flags & IFF_LOWER_UP) == (state == "up"):
                return time.monotonic() - began


@pytest.mark.quiet
def test_each_end_has_a_carrier_while_the_other_is_up() -> None:
    """Ends that are both down come back in any order."""
    with mirrored() as placement:
        took = []
        assert all(map(carrier_of, tunnel_ends(placement)))
        for link in placement.tunnels[:2]:
            for near, far in ((link.a, link.b), (link.b, link.a)):
                others = [end for end in tunnel_ends(placement) if end not in (near, far)]
                for _ in range(CUTS // 2):
                    for state in ("down", "up"):
                        took.append(seconds_until(near, far, state))
                        assert all(map(carrier_of, others))
                assert carrier_of(far)
        late = [seconds for seconds in took if seconds > LATE_S]
        assert statistics.median(took) < LATE_S, took
        assert len(late) <= len(took) / 10
        link = placement.tunnels[0]
        for first, second in ((link.a, link.b), (link.b, link.a)):
            set_link(first, "down")
            set_link(second, "down")
            set_link(first, "up")
            wait_until(lambda end=first: not carrier_of(end), "no carrier", WITHIN_S)  # type: ignore[misc]
            set_link(second, "up")
            for end in (first, second):
                wait_until(lambda end=end: carrier_of(end), "a carrier", WITHIN_S)  # type: ignore[misc]
