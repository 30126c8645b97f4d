"""Commands that set up the namespaces of a multi-rail fabric: input for `ip -batch` and `tc -batch`, and sysctls.

docs/topologies.md ("Queues", "MPTCP") has the reasons for windows of 30 ms, the class of control messages (DSCP EF, RFC
3246) on top of the rate, and short bursts. Two classes that borrow from each other instead cost a ring of 8 nodes 7 to
13% of the rate.
"""

import socket
from collections.abc import Sequence
from typing import Final

from railyard.topologies.build.shaping import ETHERNET, burst_bytes, control_burst_bytes, max_gso_segments
from railyard.topologies.fabric_kinds import Link
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import PREFIX_BITS, Nic, route_table, subnet

CONTROL_TOS: Final = 0xB8
_DSCP: Final = 0xFC
# control messages can take a fifth of the rate at most
_CONTROL_DIVISOR: Final = 5
_MIN_QUANTUM: Final = 20_000
GSO_BURST_S: Final = 4e-3
# operations are shorter than on GPU fabrics, and a policy learns from each
IDLE_BURST_S: Final = 1e-3


def shaper_commands(interface: str, rate_bps: int, mtu: int) -> str:
    """Return lines for `tc -batch`. `rate_bps`: rate for data, bit/s."""
    control_bps = rate_bps // _CONTROL_DIVISOR

    def lane(number: int, priority: int, bps: int, burst: int) -> str:
        rates = f"rate {bps}bit ceil {bps}bit burst {burst}b cburst {burst}b"
        quantum = max(mtu + ETHERNET, _MIN_QUANTUM)
        return f"class add dev {interface} parent 1: classid 1:{number} htb {rates} prio {priority} quantum {quantum}\n"

    return (
        f"qdisc add dev {interface} root handle 1: htb default 10\n"
        f"{lane(10, 1, rate_bps, burst_bytes(rate_bps, mtu, IDLE_BURST_S))}"
        f"{lane(20, 0, control_bps, control_burst_bytes(control_bps, mtu))}"
        f"filter add dev {interface} parent 1: protocol ip u32 match ip tos {CONTROL_TOS:#x} {_DSCP:#x} flowid 1:20\n"
    )


NODE_SYSCTLS: Final[dict[str, int | str]] = {
    # no router solicitations among the measured packets
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # a call over a dead NIC must fail at once, not in seconds
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
    # links without loss leave it nothing to do, and it is the one that every kernel lets every namespace choose
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_moderate_rcvbuf": "0",
    # between two operations a connection is idle
    "net/ipv4/tcp_slow_start_after_idle": "0",
    # a connection must not inherit what the path of another taught
    "net/ipv4/tcp_no_metrics_save": "1",
}
QUEUE_FRAMES: Final = 10_000
WINDOW_S: Final = 0.03
MIN_WINDOW_FRAMES: Final = 8
# interface numbers of NICs, which no far end reaches (build/network.py says why)
FIRST_INDEX: Final = 1_000_000


def window_bytes(plan: MultirailPlan, rail: int) -> int:
    """Return the TCP window on a rail: what it moves in 30 ms, and some frames at least."""
    return max(MIN_WINDOW_FRAMES * plan.spec.mtu, round(plan.rates_bps[rail] / 8 * WINDOW_S))


def node_sysctls(plan: MultirailPlan) -> dict[str, int | str]:
    """Return the sysctls of nodes and aggregators. Buffers count frames with overhead, so they are twice the window."""
    buffer_bytes = 2 * max(window_bytes(plan, rail) for rail in range(len(plan.rails)))
    return NODE_SYSCTLS | {
        "net/ipv4/tcp_wmem": f"4096 {buffer_bytes} {buffer_bytes}",
        "net/ipv4/tcp_rmem": f"4096 {buffer_bytes} {buffer_bytes}",
    }


def link_command(plan: MultirailPlan, nic: Nic, link: Link) -> str:
    """The cable of a NIC."""
    common = f"mtu {plan.spec.mtu} txqueuelen {QUEUE_FRAMES}"
    gso_segments = max_gso_segments(link.rate_bps, plan.spec.mtu, GSO_BURST_S)
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
        table = route_table(nic.rail)
        peers = (peer for peer in plan.nics_on(nic.rail) if peer != nic)
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


# the kernel's own limit, beyond the first subflow
MAX_SUBFLOWS: Final = 8


def has_mptcp() -> bool:
    """Return whether this kernel has MPTCP, and it is on."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError:
        return False
    return True


def mptcp_commands(nics: Sequence[Nic]) -> str:
    """Input for `ip -batch`: endpoints and limits of a node with these NICs."""
    other_nics = len(nics) - 1
    subflow_limit = min(2 * other_nics, MAX_SUBFLOWS)
    limits = f"mptcp limits set subflow {subflow_limit} add_addr_accepted {other_nics}\n"
    return limits + "".join(f"mptcp endpoint add {nic.ip} dev {nic.interface} signal\n" for nic in nics)
