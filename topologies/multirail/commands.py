"""What the kernel is told of a multi-rail fabric's namespaces, as input for `ip -batch` and as sysctls: pure.

TCP's windows are bounded to what a rail moves in 30 ms: round trips take a few at most, so no link is left idle by it.
Unbounded they grow to megabytes, which at 100 Mbit/s wait for half a second before a cable. Heartbeats and whatever
else shares the NIC wait behind them, and TCP takes the wait for a loss. It is routes that bound them, since rails
differ: the receiver's route to the sender says how much that may have under way. It holds only while the kernel doesn't
size buffers itself, so each has the most from the start. Shapers queue 10,000 frames, more than all windows together,
so that no frame is dropped by a queue that is merely full.
"""

from typing import Final

from railyard.topologies.multirail.addresses import PREFIX_BITS, Nic, route_table, subnet
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.shapers import max_gso_segments
from railyard.topologies.plan import Link

SYSCTLS: Final = {
    "net/ipv6/conf/default/disable_ipv6": "1",  # no router solicitations among the measured packets
    "net/ipv6/conf/all/disable_ipv6": "1",
}
NODE_SYSCTLS: Final = SYSCTLS | {
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",  # to call over a dead NIC fails at once, not in seconds
    # links without loss leave it nothing to do, and it is the one that every kernel lets every namespace choose
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_moderate_rcvbuf": "0",
    "net/ipv4/tcp_slow_start_after_idle": "0",  # between two operations a connection is idle
    "net/ipv4/tcp_no_metrics_save": "1",  # one connection must not inherit what another one's path taught
}
QUEUE_FRAMES: Final = 10_000
WINDOW_S: Final = 0.03
MIN_WINDOW_FRAMES: Final = 8
FIRST_INDEX: Final = 1_000_000
"""Of NICs: numbers that no far end reaches (topologies/build/network.py says why)."""


def window_bytes(plan: MultirailPlan, rail: int) -> int:
    """What a TCP connection on a rail may have under way: 30 ms of its rate, and some frames at least."""
    return max(MIN_WINDOW_FRAMES * plan.spec.mtu, round(plan.rates_bps[rail] / 8 * WINDOW_S))


def node_sysctls(plan: MultirailPlan) -> dict[str, str]:
    """Of nodes and aggregators. Buffers count each frame with its overhead: they are twice the largest window."""
    buffer_bytes = 2 * max(window_bytes(plan, rail) for rail in range(len(plan.rails)))
    return NODE_SYSCTLS | {
        "net/ipv4/tcp_wmem": f"4096 {buffer_bytes} {buffer_bytes}",
        "net/ipv4/tcp_rmem": f"4096 {buffer_bytes} {buffer_bytes}",
    }


def link_command(plan: MultirailPlan, nic: Nic, link: Link) -> str:
    """The cable of a NIC."""
    common = f"mtu {plan.spec.mtu} txqueuelen {QUEUE_FRAMES}"
    gso_segments = max_gso_segments(link.rate_bps, plan.spec.mtu)
    return (
        f"link add {link.a.interface} index {FIRST_INDEX + nic.rail} netns {link.a.node} {common}"
        f" gso_max_segs {gso_segments} address {nic.mac}"
        f" type veth peer name {link.b.interface} netns {link.b.node} {common}\n"
    )


def node_commands(plan: MultirailPlan, namespace: str) -> str:
    """Addresses, neighbours and routes of a node or an aggregator.

    A rail's address is the source of what goes out by that rail's NIC and of nothing else: its route table knows that
    rail alone.
    """
    lines = ["link set lo up"]
    for nic in plan.nics_of(namespace):
        table, peers = route_table(nic.rail), (peer for peer in plan.nics_on(nic.rail) if peer != nic)
        route = f"{subnet(nic.rail)} dev {nic.interface} src {nic.ip} window {window_bytes(plan, nic.rail)}"
        lines += [
            f"link set {nic.interface} up",
            f"address add {nic.ip}/{PREFIX_BITS} dev {nic.interface} noprefixroute",
            f"route add {route}",
            f"route add {route} table {table}",
            f"route add unreachable default table {table}",
            f"rule add from {nic.ip} lookup {table}",
            *(f"neighbour replace {peer.ip} lladdr {peer.mac} dev {nic.interface} nud permanent" for peer in peers),
        ]
    return "\n".join(lines) + "\n"
