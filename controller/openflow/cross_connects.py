"""What an optical circuit switch does, on plain data: which fibre leads to which place, and which ports are lit.

A crossing joins a GPU's fibre to a place in the network, both ways, whatever the frames say. It is glass: where light
stops coming in at one port, none goes out at the other. An Open vSwitch doesn't do that by itself, so the controller
switches off the port that is crossed with one that lost its light, and marks it, so as not to take its own darkness
for somebody else's.

Fibres and places bear the names of the GPUs that the plan has there. Ports follow topologies/ports.py, and nothing but
the standard library is imported besides: the OpenFlow app reads this under Ryu.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from railyard.topologies.ports import NETWORK_SIDE


@dataclass(frozen=True, slots=True)
class Light:
    """A port: whether we switched it off, and whether light comes in.

    `settled`: that none comes in is to be believed. Right after a port is lit, its carrier takes a moment.
    """

    darkened: bool
    comes_in: bool
    settled: bool = True


def crossings(ports: Iterable[int], moved: Mapping[int, int]) -> dict[int, int]:
    """{fibre: place} as port numbers, of the ports that are there: straight through, but for those in `moved`.

    A fibre whose place is another's now is dark, and so is a place that its fibre has left.
    """
    there = frozenset(ports)
    taken = frozenset(moved.values())
    straight = {f: f + NETWORK_SIDE for f in there if f < NETWORK_SIDE and f not in moved}
    wanted = {f: place for f, place in straight.items() if place not in taken} | dict(moved)
    return {f: place for f, place in sorted(wanted.items()) if f in there and place in there}


def moved_by(crossed: Iterable[tuple[int, int]]) -> dict[int, int]:
    """What was moved, from the crossings that a switch has."""
    return {fibre: place for fibre, place in crossed if place != fibre + NETWORK_SIDE and fibre < NETWORK_SIDE}


def after_moves(moved: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    """`moved` after more moves. A fibre that loses a place that wasn't its own goes back to its own, if that is free.

    ValueError if two of `more` lead to one place.
    """
    if len(set(more.values())) < len(more):
        raise ValueError("two fibres can't lead to one place")
    taken = set(more.values())
    kept = {fibre: place for fibre, place in moved.items() if place not in taken}
    return moved_by((kept | dict(more)).items())


def touched(before: Mapping[int, int], after: Mapping[int, int]) -> frozenset[int]:
    """The ports at both sides of every crossing ({fibre: place}) that differs."""
    differ = set(before.items()) ^ set(after.items())
    return frozenset(port for crossing in differ for port in crossing)


def changes_of_light(crossed: Mapping[int, int], ports: Mapping[int, Light]) -> dict[int, bool]:
    """The ports to light (True) and to darken, so that light goes through: every crossing both ways.

    A port that is in no crossing is dark, if its own other side is there: else it is still being cabled.
    """
    todo: dict[int, bool] = {}
    for fibre, place in crossed.items():
        pair = (fibre, place)
        if all(ports[port].darkened for port in pair):
            todo |= dict.fromkeys(pair, True)
            continue
        for here, other in (pair, pair[::-1]):
            if ports[here].comes_in and ports[other].darkened:
                todo[other] = True
            elif not (ports[here].comes_in or ports[here].darkened) and ports[here].settled and ports[other].comes_in:
                todo[other] = False
    used = {port for pair in crossed.items() for port in pair}
    for port in ports.keys() - used:
        other = port - NETWORK_SIDE if port > NETWORK_SIDE else port + NETWORK_SIDE
        if other in ports and not ports[port].darkened:
            todo[port] = False
    return todo
