"""What the process of a node or of an aggregator is told first: who it is, and where it works."""

import socket
from dataclasses import dataclass

from topologies import namespaces
from workloads.multirail.joiner import SocketMaker, plain_socket
from workloads.multirail.layout import Layout
from workloads.multirail.watch import Patience


@dataclass(frozen=True, slots=True)
class Place:
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

        def bound(rail: int) -> socket.socket:
            sock = plain_socket(rail)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, devices[rail].encode())
            return sock

        return bound


@dataclass(frozen=True, slots=True)
class NodeTask:
    rank: int
    layout: Layout
    policy: str
    patience: Patience
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class AggregatorTask:
    rail: int
    layout: Layout
    place: Place = Place()
