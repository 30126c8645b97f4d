"""One optical circuit switch that is connected: its fibres, its light, and what to send so that light goes through.

Decided in crossings.py. Not to be shared by threads: the app calls it under a lock of its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from controller import openflow
from controller.crossings import Light, after_moves, changes_of_light, crossings, moved_by, touched
from controller.flows import Flow, Ports

SETTLE_S: Final = 0.2
"""A port that was lit this long ago and has no carrier gets no light."""


class Glass:
    """`later(seconds, what)` calls `shine` again, once ports have settled."""

    def __init__(self, datapath: Any, later: Callable[[float, Callable[[], None]], None]) -> None:
        self._datapath, self._later = datapath, later
        self._ports: dict[int, Any] = {}
        self._lights: dict[int, Light] = {}
        self._lit_s: dict[int, float] = {}  # when we lit what has no carrier yet
        self._reconfigured: Counter[int] = Counter()
        self._connected_s = time.monotonic()
        self._looks_again = False
        self.moved: dict[int, int] = {}

    @property
    def here(self) -> Ports:
        """The ports that may be crossed now: not those under reconfiguration."""
        return {port: True for port in self._ports if not self._reconfigured[port]}

    def learn(self, flows: Iterable[Flow]) -> None:
        """Take up the crossings that the switch has from before: glass needs no controller to stay as it is."""
        self.moved = moved_by((flow.in_port, flow.port) for flow in flows if flow.in_port and flow.port)

    def see(self, port: Any) -> None:
        """Take in what the switch says of a port."""
        number, light = port.port_no, openflow.light_of(port)
        before = self._lights.get(number)
        self._ports[number], self._lights[number] = port, light
        if light.comes_in or (before and before.comes_in):  # seen to come or to go
            self._lit_s.pop(number, None)
        elif before is None:
            self._lit_s[number] = self._connected_s

    def lose(self, number: int) -> None:
        """The port itself is gone."""
        for known in (self._ports, self._lights, self._lit_s):
            known.pop(number, None)

    def darken(self, moves: Mapping[int, int]) -> frozenset[int]:
        """Begin to move fibres, {fibre: place}: the ports that this concerns, which are dark until `relight`."""
        before, self.moved = crossings(self._ports, self.moved), after_moves(self.moved, moves)
        ports = touched(before, crossings(self._ports, self.moved))
        self._reconfigured.update(ports)
        for port in sorted(ports):
            self._set(port, lit=False)
        return ports

    def relight(self, ports: Iterable[int]) -> None:
        """The fibres are where they shall be: `shine` lights those ports that lead somewhere."""
        self._reconfigured.subtract(ports)

    def shine(self) -> None:
        """Send what it takes for light to go through, as far as ports have settled."""
        now = time.monotonic()
        lights = {port: self._light(port, now) for port in self.here}
        for port, lit in sorted(changes_of_light(crossings(lights, self.moved), lights).items()):
            self._set(port, lit)
        self._lit_s = {port: at for port, at in self._lit_s.items() if now - at < SETTLE_S}
        if self._lit_s and not self._looks_again:
            self._looks_again = True
            self._later(max(self._lit_s.values()) + SETTLE_S - now, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.shine()

    def _light(self, port: int, now: float) -> Light:
        return replace(self._lights[port], settled=now - self._lit_s.get(port, 0.0) >= SETTLE_S)

    def _set(self, port: int, lit: bool) -> None:
        self._datapath.send_msg(openflow.set_light(self._datapath, self._ports[port], lit))
        self._lights[port] = Light(darkened=not lit, comes_in=False)
        self._lit_s.pop(port, None)
        if lit:
            self._lit_s[port] = time.monotonic()
