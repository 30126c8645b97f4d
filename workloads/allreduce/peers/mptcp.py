"""The kernel's MPTCP between the nodes: Railyard's ring, whose connections the kernel spreads over all rails.

A connection begins over the first rail, and the kernel adds a subflow on each of the others (topologies/multirail/
mptcp.py). To the engine it's one rail, as fast as all of them together, and with what a message costs on the first.
"""

import socket
from typing import Any

from railyard.core.errors import MissingRequirement
from railyard.topologies.multirail import mptcp
from railyard.workloads.allreduce.balancing.rails import combined_rail
from railyard.workloads.allreduce.engine.emulated import PORT, PlannedFabric
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.peers.play import play
from railyard.workloads.allreduce.peers.rank import Program
from railyard.workloads.allreduce.peers.rank_config import RankConfig
from railyard.workloads.allreduce.peers.ranks import PeerRanks
from railyard.workloads.allreduce.recovery.liveness import Timeouts
from railyard.workloads.allreduce.transport.layout import Layout

_PORT = PORT + 1
_HEARTBEAT_S = 0.1  # with one rail beats only tell who is missing


class MptcpRanks(PeerRanks):
    """Over all rails."""

    program = "mptcp"

    def __init__(self, net: PlannedFabric) -> None:
        super().__init__(net, range(len(net.plan.rails)))

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        if mptcp.is_available():
            return None
        return MissingRequirement("this machine lacks MPTCP", "sudo sysctl net.mptcp.enabled=1")


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
    return Layout((combined_rail(layout.rails),), (addresses,), (None,), layout.group)


def join_group(config: RankConfig) -> Group:
    """A rank's group."""
    group_timeouts = Timeouts(heartbeat_s=_HEARTBEAT_S, operation_s=config.timeout_s)
    return Group(config.rank, one_rail(config.layout), "single", group_timeouts, make_socket)


PROGRAM = Program(lambda: None, join_group, play, Group.close)
