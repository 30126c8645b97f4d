"""What the process of a node or of an aggregator is told first: who it is, and where it works."""

import os
import socket
from dataclasses import dataclass

from railyard.topologies.build import namespaces
from railyard.workloads.allreduce.recovery.liveness import Timeouts
from railyard.workloads.allreduce.transport.connections import SocketMaker, plain_socket
from railyard.workloads.allreduce.transport.layout import Layout


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Where a process works: a namespace, and its interface on each rail; both None for loopback."""

    namespace: str | None = None
    devices: tuple[str, ...] | None = None

    def enter(self) -> None:
        if self.namespace is not None:
            namespaces.enter(self.namespace)

    def socket_maker(self) -> SocketMaker:
        """Sockets that use a rail's NIC and no other, also where routes say otherwise."""
        devices = self.devices
        if devices is None:
            return plain_socket

        def bound_socket(rail: int) -> socket.socket:
            sock = plain_socket(rail)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, devices[rail].encode())
            except OSError:  # the NIC is gone: that is asked for many times a second
                sock.close()
                raise
            return sock

        return bound_socket


def pin_to_core(number: int) -> None:
    """Let a node keep to one of the processors, in turn, as each has its own in a cluster. Else it's chance, who shares
    one with whom: by that alone an operation of 1 ms took half as long again in one run as in the next.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


@dataclass(frozen=True, slots=True)
class NodeTask:
    rank: int
    layout: Layout
    policy: str
    timeouts: Timeouts
    placement: ProcessPlacement = ProcessPlacement()


@dataclass(frozen=True, slots=True)
class AggregatorTask:
    rail: int
    layout: Layout
    placement: ProcessPlacement = ProcessPlacement()
