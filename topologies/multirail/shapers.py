"""HTB on each NIC and switch port of a multi-rail fabric: data have the rail's rate, control messages a lane beside.

A connection whose packets bear `CONTROL_TOS` (DSCP "expedited forwarding", RFC 3246; IP_TOS of a socket) passes
whatever data waits, as a priority of the network does for the control plane of real clusters. Otherwise a heartbeat
would come a whole window late, and a NIC that is merely busy would look like one that is dead.

What control messages take comes on top of the rate: some 1 Mbit/s on 8 nodes. Two classes that share the rate by
borrowing from each other cost a ring of 8 nodes 7 to 13% of it: each time small frames come by, the link idles for
about a frame of 9000 bytes.

What passes at once counts on slow rails, whose whole share of a buffer may be some frames: a link that was idle has a
millisecond of its rate to its credit, 1500 bytes at least. HTB lets a frame go while any credit is left, and what TCP
hands on as one may be 64 KB, which at 15 Mbit/s are 34 ms. So a NIC hands on what it can send in 4 ms, or a single
frame: less would cost processors more than it makes truer.
"""

from typing import Final

from railyard.topologies.build.shaping import BURST_S, ETHERNET, burst_bytes

CONTROL_TOS: Final = 0xB8
_DSCP: Final = 0xFC
_CONTROL_DIVISOR: Final = 5  # of the rate is what control messages can take at most
_MIN_QUANTUM: Final = 20_000
_MIN_BURST: Final = 1500
_LARGEST_PACKET: Final = 65_535
_GSO_BURST_S: Final = 4e-3


def data_burst_bytes(rate_bps: int) -> int:
    """HTB's idle credit: a millisecond of the rate, and some small frames at least."""
    return max(_MIN_BURST, round(rate_bps * BURST_S / 8))


def max_gso_segments(rate_bps: int, mtu: int) -> int:
    """Full frames that a NIC may hand on as one."""
    return max(1, min(_LARGEST_PACKET, round(rate_bps * _GSO_BURST_S / 8)) // mtu)


def shaper_commands(interface: str, rate_bps: int, mtu: int) -> str:
    """Lines for `tc -batch`. `rate_bps`: of data, bit/s."""
    control_bps = rate_bps // _CONTROL_DIVISOR

    def lane(number: int, priority: int, bps: int, burst: int) -> str:
        rates = f"rate {bps}bit ceil {bps}bit burst {burst}b cburst {burst}b"
        quantum = max(mtu + ETHERNET, _MIN_QUANTUM)
        return f"class add dev {interface} parent 1: classid 1:{number} htb {rates} prio {priority} quantum {quantum}\n"

    return (
        f"qdisc add dev {interface} root handle 1: htb default 10\n"
        f"{lane(10, 1, rate_bps, data_burst_bytes(rate_bps))}"
        f"{lane(20, 0, control_bps, burst_bytes(control_bps, mtu))}"
        f"filter add dev {interface} parent 1: protocol ip u32 match ip tos {CONTROL_TOS:#x} {_DSCP:#x} flowid 1:20\n"
    )
