"""HTB on each NIC and switch port of a multi-rail fabric: one rate, and a lane for control messages within it.

A connection whose packets bear `CONTROL_TOS` (DSCP "expedited forwarding", RFC 3246; IP_TOS of a socket) passes
whatever data waits, as a priority of the network does for the control plane of real clusters. Otherwise a heartbeat
would come a whole window late, and a NIC that is merely busy would look like one that is dead.
"""

from typing import Final

from topologies.shaping import ETHERNET, burst_bytes

CONTROL_TOS: Final = 0xB8
_DSCP: Final = 0xFC
_CONTROL_PART: Final = 20  # of the rate is the lane's own; what it leaves, data may use, and the other way round
_LEAST_QUANTUM: Final = 20_000


def shaper_commands(interface: str, rate_bps: int, mtu: int) -> str:
    """Lines for `tc -batch`. `rate_bps`: of both together, bit/s."""
    control_bps = rate_bps // _CONTROL_PART
    quantum, ceiling = max(mtu + ETHERNET, _LEAST_QUANTUM), burst_bytes(rate_bps, mtu)

    def leaf(number: int, priority: int, own_bps: int) -> str:
        rates = f"rate {own_bps}bit ceil {rate_bps}bit burst {burst_bytes(own_bps, mtu)}b cburst {ceiling}b"
        return (
            f"class add dev {interface} parent 1:1 classid 1:{number} htb {rates} prio {priority} quantum {quantum}\n"
        )

    return (
        f"qdisc add dev {interface} root handle 1: htb default 10\n"
        f"class add dev {interface} parent 1: classid 1:1 htb rate {rate_bps}bit ceil {rate_bps}bit"
        f" burst {ceiling}b cburst {ceiling}b\n"
        f"{leaf(10, 1, rate_bps - control_bps)}{leaf(20, 0, control_bps)}"
        f"filter add dev {interface} parent 1: protocol ip u32 match ip tos {CONTROL_TOS:#x} {_DSCP:#x} flowid 1:20\n"
    )
