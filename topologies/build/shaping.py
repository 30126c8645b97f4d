"""Shapers: HTB on every interface, what a link then carries, and the class that heartbeats get while they are sent.

The kernel's HTB charges a frame its Ethernet header and all above it, so a rate is a wire rate: TCP payload gets
`payload_fraction(mtu)` of it. Idle credit is `BURST_S` of the rate: what a link loses to a timer that fires late, later
than that, it never makes up for. HTB charges a packet after it let it pass, so the last one comes on top: on slow links
a GPU hands on frames, and no packets of many frames (docs/topologies.md, "Rates").
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Final

from railyard.topologies.build import namespaces
from railyard.topologies.fabric_kinds import LAYERS, End
from railyard.topologies.plan import Plan

ETHERNET: Final = 14
# IPv4, TCP, and the timestamp option that Linux always sends
IP_TCP: Final = 20 + 20 + 12
BURST_S: Final = 1.5e-3
# what a NIC hands on as one packet, if that is more than a frame
PACKET_S: Final = 1e-3
_MIN_BURST: Final = 1500  # bytes
LARGEST_PACKET: Final = 65_535


def payload_fraction(mtu: int) -> float:
    """TCP payload bytes per byte that HTB counts, for full-sized frames."""
    return (mtu - IP_TCP) / (mtu + ETHERNET)


def burst_bytes(rate_bps: int, mtu: int, seconds: float = BURST_S) -> int:
    """Return HTB's idle credit for data: what the link carries in `seconds`, and a small frame at least."""
    return max(min(_MIN_BURST, mtu), round(rate_bps * seconds / 8))


def control_burst_bytes(rate_bps: int, mtu: int) -> int:
    """Return the idle credit for control messages, which must not wait: as for data, and two frames at least."""
    return max(2 * (mtu + ETHERNET), burst_bytes(rate_bps, mtu))


def max_gso_segments(rate_bps: int, mtu: int, seconds: float = PACKET_S) -> int:
    """Return how many full frames a NIC may hand on as one packet: what the link carries in `seconds`."""
    return max(1, min(LARGEST_PACKET, round(rate_bps * seconds / 8)) // mtu)


def idle_credit_s(rate_bps: int, mtu: int, packet_s: float = PACKET_S, burst_s: float = BURST_S) -> float:
    """Return the most time (s) by which idle credit of `burst_s` shortens what a link carries in packets of `packet_s`.

    A token bucket of b bytes passes at most b + rt bytes in t seconds; HTB passes a whole packet for the last of them.
    """
    packet = max_gso_segments(rate_bps, mtu, packet_s) * (mtu + ETHERNET)
    return (burst_bytes(rate_bps, mtu, burst_s) + packet) * 8 / rate_bps


def htb_commands(interface: str, rate_bps: int, mtu: int) -> str:
    """Return lines for `tc -batch` that shape what leaves an interface."""
    root = f"qdisc add dev {interface} root handle 1: htb default 1\n"
    return root + htb_class_command(interface, 1, rate_bps, rate_bps, mtu)


def htb_class_command(
    interface: str,
    number: int | str,
    rate_bps: int,
    ceil_bps: int,
    mtu: int,
    parent: str = "1:",
    credit: Callable[[int, int], int] = burst_bytes,
) -> str:
    """Return the line of `tc -batch` that adds a class. `number`: as tc reads it, in hexadecimal."""
    bursts = f"burst {credit(rate_bps, mtu)}b cburst {credit(ceil_bps, mtu)}b"
    return (
        f"class add dev {interface} parent {parent} classid 1:{number} htb rate {rate_bps}bit ceil {ceil_bps}bit"
        f" {bursts} quantum {max(mtu + ETHERNET, 20_000)}\n"
    )


def _udp_filter(interface: str, udp_port: int, number: int, priority: str = "") -> str:
    return (
        f"filter add dev {interface} parent 1: protocol ip {priority}u32 match ip protocol 17 0xff"
        f" match ip dport {udp_port} 0xffff flowid 1:{number}\n"
    )


def shared_htb_commands(interface: str, rate_bps: int, reserved_bps: int, udp_port: int, mtu: int) -> str:
    """Return the same, with `reserved_bps` of it guaranteed to a UDP port; others may use what that leaves."""
    return (
        f"qdisc add dev {interface} root handle 1: htb default 10\n"
        + htb_class_command(interface, 1, rate_bps, rate_bps, mtu)
        + htb_class_command(interface, 10, max(1000, rate_bps - reserved_bps), rate_bps, mtu, "1:1")
        + htb_class_command(interface, 20, reserved_bps, rate_bps, mtu, "1:1")
        + _udp_filter(interface, udp_port, 20)
    )


HEARTBEAT_PORT: Final = 65433  # UDP port of heartbeats (controller/processes/heartbeat_main.py)
# a bound far above need: 50 heartbeats a second are 25 kbit/s
HEARTBEAT_BPS: Final = 1_000_000
_HEARTBEAT_CLASS: Final = 30
# heartbeats are looked for before the filter of `shared_htb_commands`
_HEARTBEAT_PRIORITY: Final = 1


def heartbeat_lane_commands(interface: str, mtu: int) -> str:
    """Return lines for `tc -batch` that let heartbeats pass whatever waits, on an interface that is shaped either way.

    A class beside the others and not below them: nothing of theirs is taken down or changed, and what heartbeats take
    comes on top of the link's rate.
    """
    lane = htb_class_command(interface, _HEARTBEAT_CLASS, HEARTBEAT_BPS, HEARTBEAT_BPS, mtu, credit=control_burst_bytes)
    return lane + _udp_filter(interface, HEARTBEAT_PORT, _HEARTBEAT_CLASS, f"prio {_HEARTBEAT_PRIORITY} ")


def remove_heartbeat_lane_commands(interface: str) -> str:
    """Return lines for `tc -batch` that undo it."""
    return (
        f"filter del dev {interface} parent 1: protocol ip prio {_HEARTBEAT_PRIORITY}\n"
        f"class del dev {interface} classid 1:{_HEARTBEAT_CLASS}\n"
    )


def shaper_commands(interface: str, rate_bps: int, mtu: int, reserved: tuple[int, int] | None, heartbeats: bool) -> str:
    """Return all classes of an interface.

    `reserved`: (bit/s, UDP port) of background load.
    `heartbeats`: a lane.
    """
    shared = reserved and shared_htb_commands(interface, rate_bps, *reserved, mtu)
    lane = heartbeat_lane_commands(interface, mtu) if heartbeats else ""
    return (shared or htb_commands(interface, rate_bps, mtu)) + lane


# an interface that is down discards frames without an error for the sender
DISCARD_INTERFACE: Final = "hole"


def switch_buffer_rules(interfaces: Iterable[str]) -> str:
    """Return input for `nft -f -` that gives a userspace switch a buffer at each port."""
    # All that waits in a switch's shapers would else be charged to one packet socket, so that two flows that meet at
    # one port would make the switch drop frames of all (docs/design.md, "A buffer at each port"). With these rules a
    # marked copy of each frame waits in the shaper, and the original ends at once, in an interface that is down.
    devices = ", ".join(interfaces)
    return (
        "table netdev railyard {\n chain buffer {\n"
        f"  type filter hook egress devices = {{ {devices} }} priority 0\n"
        f'  meta mark 0 meta mark set 1 dup to meta oif fwd to "{DISCARD_INTERFACE}"\n'
        " }\n}\n"
    )


ENABLED_FILE: Final = Path("/run/railyard/beat-lanes")


def ends(plan: Plan) -> frozenset[End]:
    """Return where heartbeats leave: both ends of each GPU's links, up to its place in the network; not at spines."""
    result: set[End] = set()
    for gpu, layer in product(plan.gpus, LAYERS):
        for link in plan.cables(gpu, layer):
            result |= {link.a, link.b}
    return frozenset(result)


def lanes_enabled() -> bool:
    """Return whether heartbeats have their class now."""
    return ENABLED_FILE.exists()


def enable_lanes(plan: Plan) -> None:
    """Add the class of heartbeats on a running fabric, whatever it carries."""
    _run(plan, lambda interface: heartbeat_lane_commands(interface, plan.spec.mtu))
    ENABLED_FILE.parent.mkdir(parents=True, exist_ok=True)
    ENABLED_FILE.touch()


def disable_lanes(plan: Plan) -> None:
    """Remove the class of heartbeats."""
    ENABLED_FILE.unlink()
    _run(plan, remove_heartbeat_lane_commands)


def _run(plan: Plan, command: Callable[[str], str]) -> None:
    lines: defaultdict[str, str] = defaultdict(str)
    for end in sorted(ends(plan), key=lambda end: (end.node, end.interface)):
        lines[end.node] += command(end.interface)

    def work(node: str) -> None:
        with namespaces.inside(node):
            namespaces.run(["tc", "-batch", "-"], lines[node])

    namespaces.in_threads(work, list(lines))
