"""Carriers of cables between machines: `python -m railyard.topologies.build.carrier`, one process on each machine.

A tunnel's device has a carrier whatever the far end does, where that of a veth pair follows it. So each process watches
which ends on its machine are set up, and tells the one on the first machine, which passes it on: there the far end is
set `protodown` while the near end is down, and has no carrier. A link that is slow or loses packets keeps its carrier.
"""

import errno
import os
import select
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

from pydantic import InstanceOf

from railyard.core.errors import RailyardError
from railyard.core.host import raise_open_file_limit
from railyard.core.remote import RemoteWorker
from railyard.core.worker import Message, Parent, Ready
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import HEADER, IFF_UP, IFLA_GROUP, LINK, RTM_GETLINK, send_request
from railyard.topologies.placement import Placement

MODULE: Final = "railyard.topologies.build.carrier"
NICENESS: Final = -15
"""Where the process can't be real-time: a cable takes no time, and doesn't wait behind what it carries."""
RTM_NEWLINK: Final = 16
RTMGRP_LINK: Final = 1
IFLA_PROTO_DOWN: Final = 39
_PROTO_DOWN: Final = struct.Struct("=HHB3x")
_REQUEST: Final = 0x1
HELD_GROUP: Final = 14
"""The far end of an interface in this group gets no carrier: of one that is set up, and not ready yet."""


class Mirror(Message):
    """Begin to mirror: Ready.

    `peers`: the connections to the other machines' processes, for the first machine's.
    """

    placement: InstanceOf[Placement]
    machine: int
    peers: tuple[tuple[int, int], ...] = ()


class EndState(Message):
    """The near end of a cable between machines, by its number in `Placement.tunnels`, was set up or down."""

    number: int
    is_up: bool


class _End:
    """The end of a tunnel on this machine."""

    def __init__(self, number: int, node: str, interface: str) -> None:
        self.number = number
        self.node = node
        self.is_up = True
        with namespaces.inside(node):
            self.index = socket.if_nametoindex(interface)
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def set_carrier(self, has_carrier: bool) -> None:
        """Let it have a carrier or not, as soon as it is set up."""
        attribute = _PROTO_DOWN.pack(5, IFLA_PROTO_DOWN, not has_carrier)
        head = LINK.pack(socket.AF_UNSPEC, 0, self.index, 0, 0)
        send_request(self._netlink, RTM_NEWLINK, head + attribute)
        # the kernel may report a carrier up to a second late, and reports it at once when asked for the interface
        self._netlink.send(HEADER.pack(HEADER.size + len(head), RTM_GETLINK, _REQUEST, 0, 0) + head)
        self._netlink.recv(1 << 16)


class _Mirror:
    def __init__(self, parent: Parent, task: Mirror) -> None:
        self._parent = parent
        self._machine = task.machine
        self._placement = task.placement
        self._machines: list[tuple[int, int]] = []
        """The machines at the two ends of each tunnel."""
        for link in task.placement.tunnels:
            machine_a = task.placement.machine_of[link.a.node]
            machine_b = task.placement.machine_of[link.b.node]
            self._machines.append((machine_a, machine_b))
        self._ends: dict[int, _End] = {}
        self._watched: dict[int, tuple[socket.socket, dict[int, _End]]] = {}
        nodes: dict[str, dict[int, _End]] = {}
        for number, link in enumerate(task.placement.tunnels):
            for end in (link.a, link.b):
                if task.placement.machine_of[end.node] == task.machine:
                    self._ends[number] = near = _End(number, end.node, end.interface)
                    nodes.setdefault(end.node, {})[near.index] = near
        for node, ends in nodes.items():
            with namespaces.inside(node):
                watcher = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            watcher.bind((0, RTMGRP_LINK))
            watcher.setblocking(False)
            self._watched[watcher.fileno()] = watcher, ends
        self._remote_mirrors: dict[int, RemoteWorker] = {}
        for machine, fd in task.peers:
            name = f"the carriers of machine {machine + 1}"
            self._remote_mirrors[machine] = RemoteWorker(socket.socket(fileno=fd), name, EndState, Ready)
        self._machine_of_fd = {mirror.fileno(): machine for machine, mirror in self._remote_mirrors.items()}
        for machine, mirror in self._remote_mirrors.items():
            mirror.send(Mirror(placement=task.placement, machine=machine))
        for mirror in self._remote_mirrors.values():
            mirror.receive(Ready)

    def serve(self) -> None:
        """Mirror until the parent ends."""
        poller = select.epoll()
        for fd in (*self._watched, *self._machine_of_fd, self._parent.fileno()):
            poller.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd in self._watched:
                    self._look(*self._watched[fd])
                elif fd == self._parent.fileno():
                    self._on_state(self._parent.receive(), 0)
                else:
                    machine = self._machine_of_fd[fd]
                    try:
                        self._on_state(self._remote_mirrors[machine].receive(EndState), machine)
                    except RailyardError:
                        # that machine is gone, and the run will say so
                        poller.unregister(fd)

    def _look(self, watcher: socket.socket, ends: dict[int, _End]) -> None:
        """Tell of the ends of a namespace that were set up or down."""
        with suppress(BlockingIOError):
            while True:
                try:
                    data = watcher.recv(1 << 16)
                except OSError as error:
                    if error.errno == errno.ENOBUFS:
                        # some were lost, and the next ones say it all
                        continue
                    raise
                offset = 0
                while offset < len(data):
                    length, kind, *_ = HEADER.unpack_from(data, offset)
                    if kind == RTM_NEWLINK:
                        _, _, index, flags, _ = LINK.unpack_from(data, offset + HEADER.size)
                        attributes = dict(
                            namespaces.attributes(data[offset + HEADER.size + LINK.size : offset + length])
                        )
                        group = int.from_bytes(attributes.get(IFLA_GROUP, b""), sys.byteorder)
                        end = ends.get(index)
                        is_up = bool(flags & IFF_UP) and group != HELD_GROUP
                        if end and end.is_up != is_up:
                            end.is_up = is_up
                            self._tell(EndState(number=end.number, is_up=is_up))
                    offset += (length + 3) & ~3

    def _tell(self, state: EndState) -> None:
        """Send the state of an end here to the machine of the far end; from the others, by way of the first."""
        if self._machine:
            self._parent.send(state)
        else:
            self._on_state(state, 0)

    def _on_state(self, state: EndState, machine: int) -> None:
        """Take in the state of an end on `machine`, or pass it on."""
        if self._machine == 0:
            first, second = self._machines[state.number]
            far = second if first == machine else first
            if far:
                with suppress(RailyardError):
                    self._remote_mirrors[far].send(state)
                return
        with suppress(FileNotFoundError):  # the namespace is gone
            self._ends[state.number].set_carrier(state.is_up)


def main() -> None:
    """Mirror until the parent ends."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        # a container may lack the right to real-time priority
        with suppress(PermissionError):
            os.nice(NICENESS)
    sys.setswitchinterval(0.0005)
    parent = Parent(Mirror, EndState)
    raise_open_file_limit()
    mirror = _Mirror(parent, parent.receive())
    parent.send(Ready())
    mirror.serve()


if __name__ == "__main__":
    # messages are pickled by the names of this module
    from railyard.topologies.build import carrier

    carrier.main()
