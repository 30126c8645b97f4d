"""One optical circuit switch that is connected: its fibres, its light, and what to send so that light goes through.

Decided in crossings.py. Not to be shared by threads: the app calls it under a lock of its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from railyard.controller.openflow import codec
from railyard.controller.openflow.cross_connects import Light, changes_of_light, crossings, moved_by, touched
from railyard.controller.openflow.flows import Flow, Ports

SETTLE_S: Final = 0.2
"""After lighting a port that tells of no carrier, the switch is asked: it says nothing of what it was asked to change,
nor of a carrier that went and came back before it looked.
"""


class Glass:
    """`later(seconds, what)` does something once ports have settled. The answer to what it asks comes to `see`.

    `dark`: how many reconfigurations each port is under. It is counted up here, and down by whoever knows when they are
    over, and is the same for the next connection of this switch. `is_recabled`: ports or fibres have changed since
    whoever puts in the flows of the crossings has last looked and reset it.
    """

    def __init__(self, datapath: Any, later: Callable[[float, Callable[[], None]], None], dark: Counter[int]) -> None:
        self._datapath, self._later, self._dark = datapath, later, dark
        self._ports: dict[int, Any] = {}
        self._lights: dict[int, Light] = {}
        self._lit_s: dict[int, float] = {}  # when we lit what has no carrier yet
        self._asks = False
        self.moved: dict[int, int] = {}
        self.is_recabled = True

    @property
    def ports(self) -> Ports:
        """All that are there, for crossings."""
        return dict.fromkeys(self._ports, True)

    def learn(self, flows: Iterable[Flow]) -> None:
        """Take up the crossings that the switch has from before: glass needs no controller to stay as it is."""
        self.moved = moved_by((flow.in_port, flow.port) for flow in flows if flow.in_port and flow.port)
        self.is_recabled = True

    def see(self, port: Any) -> None:
        """Take in what the switch says of a port."""
        number, light = port.port_no, codec.light_of(port)
        before, now = self._lights.get(number), time.monotonic()
        self._ports[number], self._lights[number] = port, light
        if before is None:
            self._lit_s[number] = now
            self.is_recabled = True
        late = now - self._lit_s.get(number, now) >= SETTLE_S
        if light.comes_in or late or (before and before.comes_in):  # seen to come or to go
            self._lit_s.pop(number, None)

    def lose(self, number: int) -> None:
        """The port itself is gone."""
        for known in (self._ports, self._lights, self._lit_s):
            known.pop(number, None)
        self.is_recabled = True

    def concerned(self, moved: Mapping[int, int]) -> dict[int, bool]:
        """The ports that go dark to move fibres so that those in `moved`, {fibre: place}, and no others don't go
        straight through. True: it has another side afterwards, and is lit again.
        """
        before, after = crossings(self._ports, self.moved), crossings(self._ports, moved)
        joined = {*after.keys(), *after.values()}
        return {port: port in joined for port in touched(before, after)}

    def darken(self, moved: Mapping[int, int]) -> frozenset[int]:
        """Begin to move them: the ports that this concerns, dark from now on.

        Those with a new other side go first: a switch sees to its ports one by one, some milliseconds each.
        """
        joined = self.concerned(moved)
        ports = frozenset(joined)
        self.moved, self.is_recabled = dict(moved), True
        self._dark.update(ports)
        for port in sorted(ports, key=lambda port: (not joined[port], port)):
            if not self._lights[port].darkened:
                self._set(port, lit=False)
        return ports

    def shine(self) -> None:
        """Send what it takes for light to go through, as far as ports have settled. Not at dark ones."""
        here = [port for port in self._ports if not self._dark[port]]
        lights = {port: replace(self._lights[port], settled=port not in self._lit_s) for port in here}
        for port, lit in sorted(changes_of_light(crossings(lights, self.moved), lights).items()):
            self._set(port, lit)
        if self._lit_s and not self._asks:
            self._asks = True
            self._later(max(self._lit_s.values()) + SETTLE_S - time.monotonic(), self._ask)

    def _ask(self) -> None:
        self._asks = False
        self._datapath.send_msg(codec.ask_ports(self._datapath))

    def _set(self, port: int, lit: bool) -> None:
        self._datapath.send_msg(codec.set_light(self._datapath, self._ports[port], lit))
        self._lights[port] = Light(darkened=not lit, comes_in=False)
        self._lit_s.pop(port, None)
        if lit:
            self._lit_s[port] = time.monotonic()
