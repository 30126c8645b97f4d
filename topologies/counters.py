"""What the kernel counted in the fabric's namespaces: TCP segments and retransmissions, drops at queues and interfaces."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topologies import namespaces
from topologies.net import FabricNet
from topologies.shaping import HOLE

_DEV_DROPS: Final = (3, 11)  # rx and tx drop columns of /proc/net/dev, after the interface's name


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over the fabric since it was built."""

    segments: int
    retransmits: int
    drops: int

    def since(self, earlier: "Counters") -> "Counters":
        return Counters(
            self.segments - earlier.segments, self.retransmits - earlier.retransmits, self.drops - earlier.drops
        )


def count(net: FabricNet) -> Counters:
    """Read every namespace once (a few ms each)."""
    read = namespaces.in_threads(_read, net.node_names)
    return Counters(*(sum(values) for values in zip(*read, strict=True)))


def _read(node: str) -> tuple[int, int, int]:
    with namespaces.inside(node):
        tcp = tcp_counters(Path("/proc/thread-self/net/snmp").read_text())
        interfaces = Path("/proc/thread-self/net/dev").read_text()
        queues = json.loads(namespaces.run(["tc", "-s", "-j", "qdisc", "show"]))
    drops = interface_drops(interfaces) + sum(int(queue.get("drops", 0)) for queue in queues)
    return tcp["OutSegs"], tcp["RetransSegs"], drops


def tcp_counters(snmp: str) -> dict[str, int]:
    """The Tcp lines of /proc/net/snmp as a dictionary."""
    names, values = (line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:"))
    return dict(zip(names, map(int, values), strict=True))


def interface_drops(dev: str) -> int:
    """Dropped frames, both ways, over all links, from /proc/net/dev.

    Not those that end in a switch's hole: each is the original of a copy that went its way (shaping.py).
    """
    total = 0
    for line in dev.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        if name.strip() not in ("lo", HOLE):
            total += sum(int(columns[i]) for i in _DEV_DROPS)
    return total
