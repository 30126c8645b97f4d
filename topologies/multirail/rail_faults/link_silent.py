"""Fault `link-silent` of a rail: no packet passes a NIC that keeps its carrier."""

import time
from typing import TYPE_CHECKING

from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import DISCARD_INTERFACE
from railyard.topologies.multirail.rail_fault import RAIL_FAULTS, RailFault, nic_of

if TYPE_CHECKING:
    from railyard.topologies.multirail.net import MultirailNet


class LinkSilent(RailFault):
    """A NIC that loses all packets in both directions.

    Packets that leave are forwarded to an interface that is down: a packet that nftables drops on its way out is one
    that TCP knows was never sent.
    """

    is_link = True

    def inject(self, net: "MultirailNet", node: str, rail: int) -> int:
        nic = nic_of(net, node, rail).interface
        rules = (
            f"table netdev silent_{nic} {{\n"
            f' chain in {{ type filter hook ingress device "{nic}" priority 0; drop; }}\n'
            f' chain out {{ type filter hook egress device "{nic}" priority 0; fwd to "{DISCARD_INTERFACE}"; }}\n'
            "}\n"
        )
        _replace_table(node, nic, rules)
        return time.monotonic_ns()

    def repair(self, net: "MultirailNet", node: str, rail: int) -> None:
        _replace_table(node, nic_of(net, node, rail).interface, "")


def _replace_table(node: str, nic: str, rules: str) -> None:
    table = f"silent_{nic}"
    with namespaces.inside(node):
        namespaces.run(["nft", "-f", "-"], f"table netdev {table}\ndelete table netdev {table}\n{rules}")


RAIL_FAULTS.add("link-silent", LinkSilent())
