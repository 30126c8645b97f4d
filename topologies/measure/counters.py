"""What the kernel counted in the fabric's namespaces: TCP segments and retransmissions, drops at queues and
interfaces.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import DISCARD_INTERFACE

_DEV_DROPS: Final = (3, 11)  # rx and tx drop columns of /proc/net/dev, after the interface's name


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over the fabric since it was built.

    `retransmits` leaves out those that the receiver reported to have already (DSACK): TCP probes the end of a transfer
    after a pause, and a queue that takes long isn't a loss.
    """

    segments: int
    retransmits: int
    drops: int

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(self.segments + other.segments, self.retransmits + other.retransmits, self.drops + other.drops)

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(self.segments - other.segments, self.retransmits - other.retransmits, self.drops - other.drops)

    def since(self, earlier: "Counters") -> "Counters":
        """What came since then. A receiver may report only now that what was sent again before was needless."""
        return (self - earlier).non_negative

    @property
    def non_negative(self) -> "Counters":
        return replace(self, retransmits=max(0, self.retransmits))


def count(net: FabricNet) -> Counters:
    """Read every namespace once (a few ms each)."""
    return count_in(net.node_names)


def count_in(nodes: Sequence[str]) -> Counters:
    """The same of some namespaces."""
    read = namespaces.in_threads(_read, nodes)
    return Counters(*(sum(values) for values in zip(*read, strict=True)))


def _read(node: str) -> tuple[int, int, int]:
    with namespaces.inside(node):
        tcp = tcp_counters(Path("/proc/thread-self/net/snmp").read_text(), "Tcp:")
        extended = tcp_counters(Path("/proc/thread-self/net/netstat").read_text(), "TcpExt:")
        interfaces = Path("/proc/thread-self/net/dev").read_text()
        queues = json.loads(namespaces.run(["tc", "-s", "-j", "qdisc", "show"]))
    drops = interface_drops(interfaces) + sum(int(queue.get("drops", 0)) for queue in queues)
    return tcp["OutSegs"], max(0, tcp["RetransSegs"] - extended["TCPDSACKRecv"]), drops


def tcp_counters(text: str, kind: str) -> dict[str, int]:
    """The two lines of a kind (`Tcp:`, `TcpExt:`) of /proc/net/snmp or netstat as a dictionary."""
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith(kind))
    return dict(zip(names, map(int, values), strict=True))


def interface_drops(dev: str) -> int:
    """Dropped frames, both ways, over all links, from /proc/net/dev.

    Not those that end in a switch's hole: each is the original of a copy that went its way (shaping.py).
    """
    total = 0
    for line in dev.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        if name.strip() not in ("lo", DISCARD_INTERFACE):
            total += sum(int(columns[i]) for i in _DEV_DROPS)
    return total
