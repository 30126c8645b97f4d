"""Cables that lose packets, some or all, and keep their carrier.

What enters such an end of a cable is handed to `sink-...`, an interface that is down, where it ends without an error
for its sender: a dropped packet would be told to TCP as one that never left. It is done where packets leave, at the
egress hook of both ends, because a userspace switch takes frames by a packet socket, which sees them before any
ingress hook does.

nft is a program, and too slow to be part of a fault. So its rules ask for a group of interfaces, and are there before
the interface is put into that group, which is one message to the kernel.
"""

import math
from collections.abc import Iterator
from typing import Final

from railyard.failure.faults.cables import rail_link
from railyard.failure.faults.definition import FaultDefinition
from railyard.failure.faults.frames import open_frames
from railyard.failure.faults.links import set_groups
from railyard.failure.scenario.kinds import Fault
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import End, Link

_GROUP: Final = 13
_NO_GROUP: Final = 0
_MILLION: Final = 1_000_000
SILENT_FRAMES: Final = 3
GRAY_FRAMES: Final = 10  # over the loss: that none of so many is lost has a chance of e to the -10


def loss_rules(interface: str, loss: float) -> str:
    """For `nft -f`: of what leaves the interface, once it is in the group, this share is lost at random.

    A packet is what the interface takes: with TSO, a TCP burst of up to 64 KB. On a switch's port a frame comes by
    twice, the second time as the marked copy that topologies/build/shaping.py makes of it; it is the first that counts.
    """
    chance = f"numgen random mod {_MILLION} < {round(loss * _MILLION)} " if loss < 1 else ""
    return (
        f"table netdev lossy_{interface} {{\n chain out {{\n"
        f'  type filter hook egress device "{interface}" priority -10\n'
        f'  meta oifgroup {_GROUP} meta mark 0 {chance}fwd to "hole-{interface}"\n'
        " }\n}\n"
    )


def prepare_loss(link: Link, loss: float) -> None:
    """Put the rules at both ends. Nothing is lost yet."""
    for end in (link.a, link.b):
        with namespaces.inside(end.node):
            sink = f"hole-{end.interface}"
            namespaces.run(["ip", "link", "add", sink, "type", "veth", "peer", "name", f"end-{end.interface}"])
            namespaces.run(["nft", "-f", "-"], loss_rules(end.interface, loss))


def enable_loss(*links: Link) -> None:
    """From now on these cables lose what their rules say."""
    set_groups(_ends(*links), _GROUP)


def disable_loss(*links: Link) -> None:
    """They lose nothing any more, and the rules go."""
    set_groups(_ends(*links), _NO_GROUP)
    for end in _ends(*links):
        with namespaces.inside(end.node):
            namespaces.run(["nft", "delete", "table", "netdev", f"lossy_{end.interface}"])
            namespaces.run(["ip", "link", "del", f"hole-{end.interface}"])


def _ends(*links: Link) -> Iterator[End]:
    for link in links:
        yield from (link.a, link.b)


def all_lost(link: Link) -> tuple[bool, bool]:
    """Whether none of some frames arrives, from a to b and from b to a."""
    with open_frames(link) as frames:
        return frames.send(SILENT_FRAMES) == SILENT_FRAMES, frames.reverse.send(SILENT_FRAMES) == SILENT_FRAMES


def some_lost(link: Link, loss: float) -> tuple[bool, bool]:
    """Whether any of so many frames is lost, from a to b and from b to a, that some must be."""
    max_frames = math.ceil(GRAY_FRAMES / loss)
    with open_frames(link) as frames:
        return frames.loses_any(max_frames), frames.reverse.loses_any(max_frames)


def _prepare_silent(net: FabricNet, fault: Fault) -> None:
    prepare_loss(rail_link(net, fault), 1.0)


def _prepare_gray(net: FabricNet, fault: Fault) -> None:
    prepare_loss(rail_link(net, fault), fault.loss)


def _start_loss(net: FabricNet, fault: Fault) -> None:
    enable_loss(rail_link(net, fault))


def _stop_loss(net: FabricNet, fault: Fault) -> None:
    disable_loss(rail_link(net, fault))


SILENT: Final = FaultDefinition(
    prepare=_prepare_silent,
    apply=_start_loss,
    repair=_stop_loss,
    symptoms=lambda net, fault: all_lost(rail_link(net, fault)),
)
GRAY: Final = FaultDefinition(
    prepare=_prepare_gray,
    apply=_start_loss,
    repair=_stop_loss,
    symptoms=lambda net, fault: some_lost(rail_link(net, fault), fault.loss),
)
