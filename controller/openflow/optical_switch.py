"""One optical circuit switch that is connected: its fibres, its light, and what to send so that light goes through.

Decided in crossings.py. Not to be shared by threads: the app calls it under a lock of its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from railyard.controller.openflow import codec
from railyard.controller.openflow.cross_connects import (
    LinkState,
    changed_ports,
    cross_connects,
    find_moved,
    link_state_changes,
)
from railyard.controller.openflow.flows import Flow, Ports

SETTLE_S: Final = 0.2
"""After lighting a port that tells of no carrier, the switch is asked: it says nothing of what it was asked to change,
nor of a carrier that went and came back before it looked.
"""


class OpticalSwitch:
    """`later(seconds, what)` does something once ports have settled. The answer to what it asks comes to `on_port`.

    `reconfigurations`: how many reconfigurations each port is under. It is counted up here, and down by whoever knows
    when they are over, and is the same for the next connection of this switch. `has_changed`: ports or fibres have
    changed since whoever puts in the flows of the crossings has last looked and reset it.
    """

    def __init__(
        self, datapath: Any, schedule: Callable[[float, Callable[[], None]], None], reconfigurations: Counter[int]
    ) -> None:
        self._datapath, self._schedule, self._reconfigurations = datapath, schedule, reconfigurations
        self._ports: dict[int, Any] = {}
        self._link_states: dict[int, LinkState] = {}
        self._enabled_s: dict[int, float] = {}  # when we lit what has no carrier yet
        self._poll_pending = False
        self.moved: dict[int, int] = {}
        self.has_changed = True

    @property
    def ports(self) -> Ports:
        """All that are there, for crossings."""
        return dict.fromkeys(self._ports, True)

    def load_flows(self, flows: Iterable[Flow]) -> None:
        """Take up the crossings that the switch has from before: glass needs no controller to stay as it is."""
        self.moved = find_moved((flow.in_port, flow.port) for flow in flows if flow.in_port and flow.port)
        self.has_changed = True

    def on_port(self, port: Any) -> None:
        """Take in what the switch says of a port."""
        number, state = port.port_no, codec.link_state_of(port)
        before, now = self._link_states.get(number), time.monotonic()
        self._ports[number], self._link_states[number] = port, state
        if before is None:
            self._enabled_s[number] = now
            self.has_changed = True
        timed_out = now - self._enabled_s.get(number, now) >= SETTLE_S
        if state.has_carrier or timed_out or (before and before.has_carrier):  # seen to come or to go
            self._enabled_s.pop(number, None)

    def on_port_removed(self, number: int) -> None:
        """The port itself is gone."""
        for known in (self._ports, self._link_states, self._enabled_s):
            known.pop(number, None)
        self.has_changed = True

    def affected_ports(self, moved: Mapping[int, int]) -> dict[int, bool]:
        """The ports that go dark to move fibres so that those in `moved`, {fibre: place}, and no others don't go
        straight through. True: it has another side afterwards, and is lit again.
        """
        before, after = cross_connects(self._ports, self.moved), cross_connects(self._ports, moved)
        connected = {*after.keys(), *after.values()}
        return {port: port in connected for port in changed_ports(before, after)}

    def begin_moves(self, moved: Mapping[int, int]) -> frozenset[int]:
        """Begin to move them: the ports that this concerns, dark from now on.

        Those with a new other side go first: a switch sees to its ports one by one, some milliseconds each.
        """
        connected = self.affected_ports(moved)
        ports = frozenset(connected)
        self.moved, self.has_changed = dict(moved), True
        self._reconfigurations.update(ports)
        for port in sorted(ports, key=lambda port: (not connected[port], port)):
            if not self._link_states[port].disabled:
                self._set(port, enabled=False)
        return ports

    def apply_link_states(self) -> None:
        """Send what it takes for light to go through, as far as ports have settled. Not at dark ones."""
        enabled_ports = [port for port in self._ports if not self._reconfigurations[port]]
        states = {
            port: replace(self._link_states[port], is_stable=port not in self._enabled_s) for port in enabled_ports
        }
        for port, enabled in sorted(link_state_changes(cross_connects(states, self.moved), states).items()):
            self._set(port, enabled)
        if self._enabled_s and not self._poll_pending:
            self._poll_pending = True
            self._schedule(max(self._enabled_s.values()) + SETTLE_S - time.monotonic(), self._poll_ports)

    def _poll_ports(self) -> None:
        self._poll_pending = False
        self._datapath.send_msg(codec.port_desc_request(self._datapath))

    def _set(self, port: int, enabled: bool) -> None:
        self._datapath.send_msg(codec.port_mod_message(self._datapath, self._ports[port], enabled))
        self._link_states[port] = LinkState(disabled=not enabled, has_carrier=False)
        self._enabled_s.pop(port, None)
        if enabled:
            self._enabled_s[port] = time.monotonic()
