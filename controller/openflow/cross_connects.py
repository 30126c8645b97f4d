"""What an optical circuit switch does, on plain data: which fibre leads to which place, and which ports are lit.

A crossing joins a GPU's fibre to a place in the network, both ways, whatever the frames say. It is glass: where light
stops coming in at one port, none goes out at the other. An Open vSwitch doesn't do that by itself, so the controller
switches off the port that is crossed with one that lost its light, and marks it, so as not to take its own darkness
for somebody else's.

Fibres and places bear the names of the GPUs that the plan has there. Ports follow topologies/addresses.py, and nothing
but the standard library is imported besides: the OpenFlow app reads this under Ryu.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from railyard.topologies.addresses import NETWORK_PORT_OFFSET, Gpu, gpu_of_optical_port


@dataclass(frozen=True, slots=True)
class LinkState:
    """A port: whether we switched it off, and whether light comes in.

    `is_stable`: that none comes in is to be believed. Right after a port is lit, its carrier takes a moment.
    """

    disabled: bool
    has_carrier: bool
    is_stable: bool = True


def cross_connects(ports: Iterable[int], moved: Mapping[int, int]) -> dict[int, int]:
    """{fibre: place} as port numbers, of the ports that are there: straight through, but for those in `moved`.

    A fibre whose place is another's now is dark, and so is a place that its fibre has left.
    """
    present = frozenset(ports)
    taken = frozenset(moved.values())
    default = {f: f + NETWORK_PORT_OFFSET for f in present if f < NETWORK_PORT_OFFSET and f not in moved}
    target = {f: network_port for f, network_port in default.items() if network_port not in taken} | dict(moved)
    return {f: network_port for f, network_port in sorted(target.items()) if f in present and network_port in present}


def find_moved(connected: Iterable[tuple[int, int]]) -> dict[int, int]:
    """What was moved, from the crossings that a switch has."""
    return {
        gpu_port: network_port
        for gpu_port, network_port in connected
        if network_port != gpu_port + NETWORK_PORT_OFFSET and gpu_port < NETWORK_PORT_OFFSET
    }


def after_moves(moved: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    """`moved` after more moves. A fibre that loses a place that wasn't its own goes back to its own, if that is free.

    ValueError if two of `more` lead to one place.
    """
    if len(set(more.values())) < len(more):
        raise ValueError("two fibres can't lead to one place")
    taken = set(more.values())
    kept = {gpu_port: network_port for gpu_port, network_port in moved.items() if network_port not in taken}
    return find_moved((kept | dict(more)).items())


def changed_ports(before: Mapping[int, int], after: Mapping[int, int]) -> frozenset[int]:
    """The ports at both sides of every crossing ({fibre: place}) that differs."""
    differ = set(before.items()) ^ set(after.items())
    return frozenset(port for connection in differ for port in connection)


def link_state_changes(connected: Mapping[int, int], ports: Mapping[int, LinkState]) -> dict[int, bool]:
    """The ports to light (True) and to darken, so that light goes through: every crossing both ways.

    A port that is in no crossing is dark, if its own other side is there: else it is still being cabled.
    """
    todo: dict[int, bool] = {}
    for gpu_port, network_port in connected.items():
        pair = (gpu_port, network_port)
        if all(ports[port].disabled for port in pair):
            todo |= dict.fromkeys(pair, True)
            continue
        for here, other in (pair, pair[::-1]):
            if ports[here].has_carrier and ports[other].disabled:
                todo[other] = True
            elif (
                not (ports[here].has_carrier or ports[here].disabled)
                and ports[here].is_stable
                and ports[other].has_carrier
            ):
                todo[other] = False
    used = {port for pair in connected.items() for port in pair}
    for port in ports.keys() - used:
        other = port - NETWORK_PORT_OFFSET if port > NETWORK_PORT_OFFSET else port + NETWORK_PORT_OFFSET
        if other in ports and not ports[port].disabled:
            todo[port] = False
    return todo


def network_sides_in(affected_ports: Mapping[int, Mapping[int, bool]]) -> dict[Gpu, bool]:
    """Return whether each network side among {datapath id: {port: will be enabled again}} gets any link back."""
    found: dict[Gpu, bool] = {}
    for port, is_enabled in (entry for ports in affected_ports.values() for entry in ports.items()):
        if port > NETWORK_PORT_OFFSET:
            network_side = gpu_of_optical_port(port)
            found[network_side] = found.get(network_side, False) or is_enabled
    return found
