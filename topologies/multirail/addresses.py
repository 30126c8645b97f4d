"""Who is who on a multi-rail fabric: a NIC's address, MAC and switch port all follow from its rail and node.

| NIC                 | namespace, interface | IP           | MAC               | port of switch `rail<r>` |
|---------------------|----------------------|--------------|-------------------|--------------------------|
| node 0, rail 0      | n0, rail0            | 198.18.0.1   | 02:4d:00:00:00:00 | 1                        |
| node 5, rail 2      | n5, rail2            | 198.18.2.6   | 02:4d:00:00:02:05 | 6                        |
| rail 2's aggregator | agg2, rail2          | 198.18.2.254 | 02:4d:00:00:02:ff | 255                      |

A rail is a subnet of its own, 198.18.<r>.0/24, so that it is the address that says which rail a packet takes.
4d is ASCII M: a packet capture says at a glance what it is looking at.
"""

from typing import Final, NamedTuple

MAX_NODES: Final = 64
MAX_RAILS: Final = 8
PREFIX_BITS: Final = 24
SWITCH_DPID: Final = 0x5000
"""Plus the rail; other fabrics' switches end below (ports.py)."""
AGGREGATOR_NUMBER: Final = 0xFF
_AGGREGATOR_HOST: Final = 254
_TABLE: Final = 100


class Nic(NamedTuple):
    """What a node has on a rail; `node` is None for the rail's aggregator."""

    rail: int
    node: int | None

    @property
    def namespace(self) -> str:
        return f"agg{self.rail}" if self.node is None else f"n{self.node}"

    @property
    def interface(self) -> str:
        return f"rail{self.rail}"

    @property
    def ip(self) -> str:
        return f"198.18.{self.rail}.{_AGGREGATOR_HOST if self.node is None else self.node + 1}"

    @property
    def mac(self) -> str:
        return f"02:4d:00:00:{self.rail:02x}:{AGGREGATOR_NUMBER if self.node is None else self.node:02x}"

    @property
    def port(self) -> int:
        """OpenFlow port of the rail's switch that its cable goes to."""
        return AGGREGATOR_NUMBER if self.node is None else self.node + 1


def switch_name(rail: int) -> str:
    return f"rail{rail}"


def subnet(rail: int) -> str:
    return f"198.18.{rail}.0/{PREFIX_BITS}"


def route_table(rail: int) -> int:
    """The table that a packet with this rail's address as its source looks into."""
    return _TABLE + rail
