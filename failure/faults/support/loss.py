"""Packet loss on a cable, of some packets or all, while the cable keeps its carrier.

Packets are lost where they leave, at the egress hook of both ends: a userspace switch reads frames by a packet socket,
before any ingress hook. They are forwarded to `hole-...`, an interface that is down, so that the sender gets no error:
TCP would treat a dropped packet as one that never left.

Starting nft takes too long for an injection. So its rules match a group of interfaces and are installed before; the
injection is the one netlink message that puts the interface into that group.
"""

import math
from collections.abc import Iterator
from typing import Final

from railyard.failure.faults.support.frames import open_frames
from railyard.failure.faults.support.links import set_groups
from railyard.topologies.build import namespaces
from railyard.topologies.plan import End, Link

_GROUP: Final = 13
_NO_GROUP: Final = 0
_MILLION: Final = 1_000_000
SILENT_FRAMES: Final = 3
GRAY_FRAMES: Final = 10  # divided by the loss: that none of so many is lost has a probability of exp(-10)


def loss_rules(interface: str, loss: float) -> str:
    """Return rules for `nft -f` that lose this share of what leaves the interface, at random, while it is in the group.

    A packet is what the interface takes: with TSO, a TCP burst of up to 64 KB. A frame passes a switch's port twice,
    the second time as the marked copy that topologies/build/shaping.py makes of it; only the first pass counts.
    """
    chance = f"numgen random mod {_MILLION} < {round(loss * _MILLION)} " if loss < 1 else ""
    return (
        f"table netdev lossy_{interface} {{\n chain out {{\n"
        f'  type filter hook egress device "{interface}" priority -10\n'
        f'  meta oifgroup {_GROUP} meta mark 0 {chance}fwd to "hole-{interface}"\n'
        " }\n}\n"
    )


def prepare_loss(link: Link, loss: float) -> None:
    """Install the rules at both ends. Nothing is lost yet."""
    for end in (link.a, link.b):
        with namespaces.inside(end.node):
            sink = f"hole-{end.interface}"
            namespaces.run(["ip", "link", "add", sink, "type", "veth", "peer", "name", f"end-{end.interface}"])
            namespaces.run(["nft", "-f", "-"], loss_rules(end.interface, loss))


def enable_loss(*links: Link) -> None:
    """Start the loss on cables that are prepared."""
    set_groups(_ends(*links), _GROUP)


def disable_loss(*links: Link) -> None:
    """Stop the loss, and remove the rules."""
    set_groups(_ends(*links), _NO_GROUP)
    for end in _ends(*links):
        with namespaces.inside(end.node):
            namespaces.run(["nft", "delete", "table", "netdev", f"lossy_{end.interface}"])
            namespaces.run(["ip", "link", "del", f"hole-{end.interface}"])


def _ends(*links: Link) -> Iterator[End]:
    for link in links:
        yield from (link.a, link.b)


def all_lost(link: Link) -> tuple[bool, bool]:
    """Return whether none of a few frames arrives, from a to b and from b to a."""
    with open_frames(link) as frames:
        return frames.send(SILENT_FRAMES) == SILENT_FRAMES, frames.reverse.send(SILENT_FRAMES) == SILENT_FRAMES


def some_lost(link: Link, loss: float) -> tuple[bool, bool]:
    """Return whether any of `GRAY_FRAMES / loss` frames is lost, from a to b and from b to a."""
    max_frames = math.ceil(GRAY_FRAMES / loss)
    with open_frames(link) as frames:
        return frames.loses_any(max_frames), frames.reverse.loses_any(max_frames)
