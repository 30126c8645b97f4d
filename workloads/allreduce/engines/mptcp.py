"""The kernel's MPTCP between the nodes: Railyard's ring over connections that the kernel spreads over all rails.

The engine sees one rail with the sum of all rates and the set-up latency of the first.
"""

import socket
from collections.abc import Sequence
from typing import Any

from railyard.core.errors import MissingRequirement
from railyard.topologies.multirail import commands
from railyard.workloads.allreduce.balancing.costs import Rail, allreduce_cost, combined_rail
from railyard.workloads.allreduce.engine import group
from railyard.workloads.allreduce.engine.jobs import Layout, RankConfig, Timeouts
from railyard.workloads.allreduce.engine.worker import Program
from railyard.workloads.allreduce.engine_kind import ALLREDUCE_ENGINES, PORT, AllreduceEngine, PeerRanks

# with one rail, heartbeats only find missing ranks
_HEARTBEAT_S = 0.1


class MptcpRanks(PeerRanks):
    """Ranks that use all rails."""

    program = __name__
    uses_all_rails = True
    port = PORT + 1

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """Return the requirement of MPTCP, None where the kernel has it enabled."""
        if commands.has_mptcp():
            return None
        return MissingRequirement("this machine lacks MPTCP", "sudo sysctl net.mptcp.enabled=1")


class AnyAddress(socket.socket):
    """Socket that listens on all addresses."""

    def bind(self, address: Any) -> None:
        """Bind to a port on all addresses; without a port, to the address."""
        host, port = address
        if port:
            # a subflow connects to another address than the first connection
            host = "0.0.0.0"
        super().bind((host, port))


def make_socket(_rail: int) -> socket.socket:
    """Return an MPTCP socket."""
    # its connection begins on the first rail, and the kernel adds a subflow on each of the others
    return AnyAddress(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)


def one_rail(layout: Layout) -> Layout:
    """Return a layout with one rail that combines all, at the addresses of the first."""
    return Layout((combined_rail(layout.rails),), layout.nodes[:1], (None,), layout.group)


def join_group(config: RankConfig) -> group.Group:
    """Join a rank's group."""
    group_timeouts = Timeouts(heartbeat_s=_HEARTBEAT_S, operation_s=config.timeouts.operation_s)
    return group.Group(config.rank, one_rail(config.layout), "single", group_timeouts, make_socket)


PROGRAM = Program(join_group, group.Group.close)


@ALLREDUCE_ENGINES.register("mptcp")
class MptcpEngine(AllreduceEngine):
    """MPTCP over all rails."""

    equation = "Eq. 1 and 2, all rails as one"
    colour = "green"
    ranks = MptcpRanks
    survives_faults = True

    def seconds(self, rails: Sequence[Rail], nodes: int, size: int, rail: int, policy: str = "") -> float:
        """Predict the seconds of one rail that combines all."""
        return allreduce_cost(combined_rail(rails), nodes).seconds(size)
