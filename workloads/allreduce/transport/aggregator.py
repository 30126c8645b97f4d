"""The switch of a `sharp` rail: adds up the nodes' streams on their way and sends the sum back to all of them.

Source: Nezha section 2.2.2 (SHARP: each node sends its data once). Here it is a process of its own on the rail. Pieces
are added in the order in which they come, so sums of floats may differ from run to run in the last bit, never from node
to node. When one node's connection is lost, all are closed: the rail is dead, and the next connections start anew.
"""

import socket
from collections.abc import Callable
from typing import Final

import numpy as np

from railyard.workloads.allreduce.engine.jobs import Layout, SocketMaker
from railyard.workloads.allreduce.tasks import DTYPES, Array, scratch
from railyard.workloads.allreduce.transport.links import DATA, Framed, Header, Links, Pacer
from railyard.workloads.allreduce.transport.rendezvous import ACK, Hello, HelloListener

_POLL_S: Final = 0.05


class Aggregator:
    """Server of a rail's nodes."""

    def __init__(self, rail: int, layout: Layout, make: SocketMaker) -> None:
        self._rail = rail
        self._nodes = layout.size
        self._group = layout.group
        self._setup_s = layout.rails[rail].setup_s
        address = layout.aggregators[rail]
        # an aggregator is made for a rail that has one
        assert address is not None
        self._listener = HelloListener(make, {rail: address})
        self._poller = Links(lambda link, _: self._lost(link), self._listener.sockets)
        self._links: dict[int, Framed] = {}
        self._incarnation = 0
        # all nodes are connected, and have the acknowledgement
        self._complete = False
        # by operation, task and piece: the first node's header, the sum so far, and of how many nodes it is
        self._sums: dict[tuple[int, int, int], tuple[Header, Array, int]] = {}

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop()` is true, then close."""
        while not stop():
            timeout_s = 0.001 if self._listener.unidentified else _POLL_S
            if self._poller.poll(timeout_s):
                self._listener.accept()
            self._listener.identify(self._add)
        self._lost(None)
        self._listener.close()
        self._poller.close()

    def _add(self, hello: Hello, sock: socket.socket) -> bool:
        """Serve a node's connection; return False if it is not of this group, or of an earlier incarnation."""
        if (hello.group, hello.rail, hello.purpose) != (self._group, self._rail, DATA) or hello.rank >= self._nodes:
            return False
        if hello.incarnation > self._incarnation:
            # the nodes have given up the connections of the incarnation before
            self._lost(None)
            self._incarnation = hello.incarnation
        if hello.incarnation < self._incarnation:
            return False
        rank = hello.rank
        if rank in self._links:
            # it connected again: its first connection got no answer
            self._lost(self._links[rank])
        link = Framed(sock, lambda header: scratch(header.length), self._on_received, Pacer(self._setup_s))
        self._links[rank] = link
        self._poller.add(link)
        if len(self._links) == self._nodes:
            self._complete = True
            # not before: what is passed on to all nodes must reach all
            for link in self._links.values():
                link.sock.send(ACK)
        return True

    def _on_received(self, header: Header, view: memoryview) -> None:
        """Add a node's piece, and send the sum when it has all nodes' pieces."""
        array = np.frombuffer(view, DTYPES[header.dtype])
        if header.parts != 1:
            key = (header.op, header.task, header.seq)
            first_header, total, count = self._sums.get(key, (header, array, 0))
            if header != first_header:
                # nodes called for unlike things: without this piece the sum is never sent, and rank 0 ends the group
                return
            if count:
                np.add(total, array, out=total)
            if count + 1 < self._nodes:
                self._sums[key] = header, total, count + 1
                return
            self._sums.pop(key, None)
            array = total
        data = array.view(np.uint8).data
        reply = header._replace(kind=DATA)
        for link in list(self._links.values()):
            self._poller.put(link, reply, data, starts_message=header.seq == 0)

    def _lost(self, lost: Framed | None) -> None:
        """Drop a node's connection, and all others if the rail was complete."""
        # nothing that a complete rail was sent can be summed any more: it is dead, and all nodes are to notice
        for rank, link in list(self._links.items()):
            if self._complete or lost in (None, link):
                del self._links[rank]
                self._poller.remove(link)
                link.sock.close()
        if not self._links:
            self._sums.clear()
            self._complete = False
