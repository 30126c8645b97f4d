"""The kernel's MPTCP between the nodes: Railyard's ring, whose connections the kernel spreads over all rails.

A connection begins over the first rail, and the kernel adds a subflow on each of the others (topologies/multirail/
mptcp.py). To the engine it's one rail, as fast as all of them together, and with what a message costs on the first.
"""

import socket
from typing import Any

from railyard.core.errors import MachineLacks
from railyard.topologies.multirail import mptcp
from railyard.workloads.allreduce.balancing.rails import as_one
from railyard.workloads.allreduce.engine.emulated import PORT, Planned
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.peers.play import play
from railyard.workloads.allreduce.peers.rank import Program
from railyard.workloads.allreduce.peers.rank_config import Seat
from railyard.workloads.allreduce.peers.ranks import PeerRanks
from railyard.workloads.allreduce.recovery.liveness import Patience
from railyard.workloads.allreduce.transport.layout import Layout

_PORT = PORT + 1
_BEAT_S = 0.1  # with one rail beats only tell who is missing


class MptcpRanks(PeerRanks):
    """Over all rails."""

    program = "mptcp"

    def __init__(self, net: Planned) -> None:
        super().__init__(net, range(len(net.plan.rails)))

    @classmethod
    def lack(cls) -> MachineLacks | None:
        if mptcp.is_there():
            return None
        return MachineLacks("this machine lacks MPTCP", "sudo sysctl net.mptcp.enabled=1")


class AnyAddress(socket.socket):
    """Listens on all addresses, since a subflow comes to another one than the call did."""

    def bind(self, address: Any) -> None:
        host, port = address
        super().bind(("0.0.0.0" if port else host, port))


def make_socket(_rail: int) -> socket.socket:
    return AnyAddress(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)


def one_rail(layout: Layout) -> Layout:
    """All rails as one, called by the addresses of the first."""
    addresses = tuple((host, _PORT) for host, _ in layout.nodes[0])
    return Layout((as_one(layout.rails),), (addresses,), (None,), layout.group)


def joined(seat: Seat) -> Group:
    """A rank's group."""
    waits = Patience(beat_s=_BEAT_S, operation_s=seat.timeout_s)
    return Group(seat.rank, one_rail(seat.layout), "single", waits, make_socket)


PROGRAM = Program(lambda: None, joined, play, Group.close)
