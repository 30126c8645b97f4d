"""Several nodes of a multi-rail group in one process, a thread each, on loopback, with NICs that can be cut.

A cut NIC neither sends nor receives, and no connection ends: what a pulled cable does. `close` ends connections. One
that is gone besides gives no socket and accepts no connection.
"""

import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from railyard.workloads.allreduce.balancing.costs import Cost, Rail
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import Layout, SocketMaker, Timeouts, loopback
from railyard.workloads.allreduce.transport.aggregator import Aggregator

QUICK = Timeouts(heartbeat_s=0.02, missed_heartbeats=10, stall_s=0.6, join_s=10, operation_s=20)
NODE_S = 60.0
_ports = itertools.count()


def free_port() -> int:
    """Below the ephemeral ports, and another one each time."""
    return 10_000 + (os.getpid() * 101 + next(_ports)) % 20_000


def rails_of(kinds: str) -> list[Rail]:
    """`tcp sharp` -> two rails of these kinds."""
    return [Rail(f"{kind}{i}", kind, 1e9, 1e-4) for i, kind in enumerate(kinds.split())]


def split_seconds(costs: Sequence[Cost], shares: Sequence[float], size: float) -> float:
    """Nezha Eq. 5: the slowest of the rails that have a share."""
    return max(cost.seconds(share * size) for cost, share in zip(costs, shares, strict=True) if share > 0)


@dataclass
class Net:
    """All sockets that nodes and aggregators have made, by NIC: (rail, rank)."""

    cut: set[tuple[int, int]] = field(default_factory=set)
    gone: set[tuple[int, int]] = field(default_factory=set)
    sockets: dict[tuple[int, int], list["Watched"]] = field(default_factory=dict)

    def maker(self, rank: int) -> SocketMaker:
        def make(rail: int) -> socket.socket:
            self.check_there((rail, rank))
            return self.watched((rail, rank), None)

        return make

    def check_there(self, nic: tuple[int, int]) -> None:
        if nic in self.gone:
            raise OSError(errno.ENODEV, "no such NIC")

    def watched(self, nic: tuple[int, int], fileno: int | None) -> "Watched":
        sock = Watched(socket.AF_INET, socket.SOCK_STREAM, fileno=fileno)
        sock.net, sock.nic = self, nic
        self.sockets.setdefault(nic, []).append(sock)
        return sock

    def close(self, nic: tuple[int, int], which: int | None = None) -> None:
        """End all connections of a NIC, or one."""
        socks = [sock for sock in self.sockets.get(nic, []) if sock.connected]
        chosen = socks if which is None or not socks else [socks[which % len(socks)]]
        for sock in chosen:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class Watched(socket.socket):
    """A socket behind a NIC that may be cut."""

    net: Net
    nic: tuple[int, int]
    connected = False

    def _check(self) -> None:
        if self.nic in self.net.cut:
            raise BlockingIOError(errno.EAGAIN, "the cable is out")

    def accept(self) -> tuple[socket.socket, Any]:
        self.net.check_there(self.nic)
        self._check()
        fd, address = self._accept()  # type: ignore[attr-defined]  # what socket.accept wraps in a plain socket
        sock = self.net.watched(self.nic, fd)
        sock.connected = True
        return sock, address

    def connect_ex(self, address: Any) -> int:
        if self.nic in self.net.cut:
            return errno.ENETUNREACH
        self.connected = True
        return super().connect_ex(address)

    def send(self, *args: Any) -> int:
        self._check()
        return super().send(*args)

    def sendmsg(self, *args: Any) -> int:
        self._check()
        return super().sendmsg(*args)

    def recv(self, *args: Any) -> bytes:
        self._check()
        return super().recv(*args)

    def recv_into(self, *args: Any) -> int:
        self._check()
        return super().recv_into(*args)


@contextmanager
def aggregators(layout: Layout, net: Net) -> Iterator[None]:
    """A thread for each sharp rail; its NIC is (rail, -1)."""
    stop = threading.Event()
    threads = []
    for rail, address in enumerate(layout.aggregators):
        if address is not None:
            tree = Aggregator(rail, layout, net.maker(-1))
            threads.append(threading.Thread(target=tree.run, args=(stop.is_set,), daemon=True))
            threads[-1].start()
    yield
    stop.set()
    for thread in threads:
        thread.join(5)


def on_all(
    kinds: str,
    nodes: int,
    body: Callable[[Group], Any],
    *,
    policy: str = "equal",
    timeouts: Timeouts = QUICK,
    net: Net | None = None,
    piece_bytes: int = 4096,
    absent: tuple[int, ...] = (),
) -> list[Any]:
    """Return what `body` returned on each rank, or the exception that came out of it; None for `absent` ranks."""
    layout = replace(loopback(rails_of(kinds), nodes, free_port()), piece_bytes=piece_bytes)
    net = net or Net()
    out: list[Any] = [None] * nodes

    def node(rank: int) -> None:
        try:
            with Group(rank, layout, policy, timeouts, net.maker(rank)) as group:
                out[rank] = body(group)
        except Exception as problem:
            out[rank] = problem

    with aggregators(layout, net):
        threads = [
            threading.Thread(target=node, args=(rank,), daemon=True) for rank in range(nodes) if rank not in absent
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + NODE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in threads), "a node hangs"
    return out
