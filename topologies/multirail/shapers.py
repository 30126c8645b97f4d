"""HTB on each NIC and switch port of a multi-rail fabric: data have the rail's rate, control messages a lane beside.

A connection whose packets bear `CONTROL_TOS` (DSCP "expedited forwarding", RFC 3246; IP_TOS of a socket) passes
whatever data waits, as a priority of the network does for the control plane of real clusters. Otherwise a heartbeat
would come a whole window late, and a NIC that is merely busy would look like one that is dead.

What control messages take comes on top of the rate: some 1 Mbit/s on 8 nodes. Two classes that share the rate by
borrowing from each other cost a ring of 8 nodes 7 to 13% of it: each time small frames come by, the link idles for
about a frame of 9000 bytes.
"""

from typing import Final

from topologies.shaping import ETHERNET, burst_bytes

CONTROL_TOS: Final = 0xB8
_DSCP: Final = 0xFC
_CONTROL_PART: Final = 5  # of the rate is what control messages can take at most
_LEAST_QUANTUM: Final = 20_000


def shaper_commands(interface: str, rate_bps: int, mtu: int) -> str:
    """Lines for `tc -batch`. `rate_bps`: of data, bit/s."""

    def lane(number: int, priority: int, bps: int) -> str:
        rates = f"rate {bps}bit ceil {bps}bit burst {burst_bytes(bps, mtu)}b cburst {burst_bytes(bps, mtu)}b"
        quantum = max(mtu + ETHERNET, _LEAST_QUANTUM)
        return f"class add dev {interface} parent 1: classid 1:{number} htb {rates} prio {priority} quantum {quantum}\n"

    return (
        f"qdisc add dev {interface} root handle 1: htb default 10\n"
        f"{lane(10, 1, rate_bps)}{lane(20, 0, rate_bps // _CONTROL_PART)}"
        f"filter add dev {interface} parent 1: protocol ip u32 match ip tos {CONTROL_TOS:#x} {_DSCP:#x} flowid 1:20\n"
    )
