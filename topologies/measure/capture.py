"""Probes, and who saw them pass: a packet socket in every namespace, and what its kernel stamped on each frame.

A probe is the SYN of a TCP connection that its source opens, to a port without a listener. So the kernel routes it as
it routes a transfer, and switches hash it like one; a packet made up in a raw socket would be routed without its ports.
A packet socket sees a frame as it comes in from the cable, before anything else does, and as it goes out, after its
shaper: all that a frame waits for lies between two sightings. A filter in the kernel keeps other traffic away.
"""

import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Self

from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.plan import Plan

# above the ports that Linux hands out, so no transfer has it
PROBE_PORT: Final = 65_434
# the kernel sends a SYN again after 1 s; by then the probe is given up, so nothing is seen twice
WAIT_S: Final = 0.9
# the kernel starts stamping frames a moment after the first socket asks for it
_TIMESTAMPING_DELAY_S: Final = 0.02
# <asm-generic/socket.h>; the socket module does not name it
_SO_TIMESTAMPNS: Final = 35
_ETH_P_ALL: Final = 3
_SNAP_BYTES: Final = 128
_TIMESPEC: Final = struct.Struct("qq")
_PROBE_FILTER: Final = (
    (0x28, 0, 0, 12), (0x15, 0, 6, 0x0800),  # half word at 12, the EtherType: IPv4
    (0x30, 0, 0, 23), (0x15, 0, 4, 6),  # byte at 23, the protocol: TCP
    (0xB1, 0, 0, 14),  # X = length of the IP header
    (0x48, 0, 0, 16), (0x15, 0, 1, PROBE_PORT),  # half word at X + 16, the destination's port
    (0x06, 0, 0, _SNAP_BYTES), (0x06, 0, 0, 0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Observation:
    """A probe at an interface of a node, `outgoing` or coming in, at `ns` on the monotonic clock."""

    node: str
    interface: str
    outgoing: bool
    ns: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One that its source began to send at `sent_ns` (monotonic), and where it was seen, in no certain order."""

    sent_ns: int
    observations: tuple[Observation, ...]


class Capture:
    """While entered: sees the probes at every interface of a fabric's plan. Needs the fabric's sandbox, around it."""

    def __init__(self, plan: Plan) -> None:
        self._cables: set[tuple[str, str]] = set()
        for link in plan.links:
            for end in (link.a, link.b):
                self._cables.add((end.node, end.interface))
        self._nodes: dict[int, tuple[str, socket.socket]] = {}
        self._poll = select.epoll()
        self._open = ExitStack()
        # wall clock less monotonic clock, the most of some, since what comes between the two looks makes it less; read
        # once: two that differ would put sightings out of order
        self._wall_offset_ns = max(time.time_ns() - time.monotonic_ns() for _ in range(5))

    def __enter__(self) -> Self:
        nodes = sorted({node for node, _ in self._cables})
        for node, sock in zip(nodes, namespaces.in_threads(_packet_socket, nodes), strict=True):
            self._nodes[sock.fileno()] = (node, self._open.enter_context(sock))
            self._poll.register(sock.fileno(), select.EPOLLIN)
        time.sleep(_TIMESTAMPING_DELAY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._poll.close()

    def probe(self, src: Gpu, dst: Gpu, count: int) -> list[Probe]:
        """Send that many at once, each from a port of its own, and wait until all are there, WAIT_S at most."""
        sent: list[tuple[int, int]] = []
        observations: defaultdict[int, list[Observation]] = defaultdict(list)
        with ExitStack() as connections:
            with namespaces.inside(src.name):
                for _ in range(count):
                    started_ns = time.monotonic_ns()
                    sent.append((started_ns, _open_connection(dst, connections)))
            pending = {port for _, port in sent if port}
            deadline = time.monotonic() + WAIT_S
            while pending and (remaining_s := deadline - time.monotonic()) > 0:
                self._receive(remaining_s, observations)
                for port in list(pending):
                    if any(each.node == dst.name and not each.outgoing for each in observations.get(port, ())):
                        pending.discard(port)
            # what led to the last arrival was observed before it
            self._receive(0, observations)
        return [Probe(started_ns, tuple(observations.get(port, ()))) for started_ns, port in sent]

    def _receive(self, timeout_s: float, observations: Mapping[int, list[Observation]]) -> None:
        """Add what is observed within `timeout_s` to the observations of each probe, by its port."""
        for fd, _ in self._poll.poll(timeout_s):
            node, sock = self._nodes[fd]
            with suppress(BlockingIOError):
                while True:
                    frame, ancillary, _, address = sock.recvmsg(_SNAP_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
                    segment = Ether(frame).getlayer(TCP)
                    # frames of others may have come before the filter was in place
                    is_probe = segment and segment.dport == PROBE_PORT and segment.flags == "S"
                    if is_probe and (node, address[0]) in self._cables:
                        stamps = {(level, kind): stamp for level, kind, stamp in ancillary}
                        seconds, ns = _TIMESPEC.unpack_from(stamps[socket.SOL_SOCKET, _SO_TIMESTAMPNS])
                        at_ns = seconds * 1_000_000_000 + ns - self._wall_offset_ns
                        outgoing = address[2] == socket.PACKET_OUTGOING
                        observations[segment.sport].append(Observation(node, address[0], outgoing, at_ns))


def _packet_socket(node: str) -> socket.socket:
    """A socket that gets every probe at every interface of a node, with the time."""
    sock = namespaces.open_socket(node, socket.SOCK_RAW, socket.AF_PACKET, socket.htons(_ETH_P_ALL))
    namespaces.attach_filter(sock, _PROBE_FILTER)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sock.setblocking(False)
    return sock


def _open_connection(dst: Gpu, connections: ExitStack) -> int:
    """Send a SYN from the namespace that this thread is in; the port it came from, or 0 if there is no route."""
    sock = connections.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    sock.setblocking(False)
    try:
        sock.connect((dst.ip, PROBE_PORT))
    except BlockingIOError:
        pass  # on its way
    except OSError:
        return 0
    port: int = sock.getsockname()[1]
    return port
