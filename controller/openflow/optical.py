"""Optical circuit switches: cross-connects, link states, and moves of fibres.

A cross-connect joins the port of a GPU's fibre (GPU side) to a port of the network (network side), in both directions.
Where one side of an optical switch loses its signal, the other side loses it too. An Open vSwitch doesn't do that by
itself, so the controller disables the port at the other side, and marks it as disabled by the controller.

The OpenFlow app imports this under Ryu, so it imports nothing outside the standard library and what the app needs.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from railyard.controller.openflow import codec
from railyard.controller.openflow.flows import ANYTHING, Flow, Tables
from railyard.topologies.addresses import NETWORK_PORT_OFFSET, Gpu, gpu_of_optical_port

CROSS_CONNECT_PRIORITY: Final = 100
SETTLE_S: Final = 0.2
"""Time after which the controller polls a port that it has enabled: a switch doesn't report every change by itself."""
AffectedPorts = Mapping[int, Mapping[int, bool]]
"""Ports that a move of fibres disables, by datapath id, and whether each is enabled again afterwards."""
Schedule = Callable[[float, Callable[[], None]], None]  # (seconds, action): run it later, under the app's lock


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of a port: whether we disabled it, and whether it has a carrier.

    `is_stable`: False right after a port is enabled, since its carrier takes a moment.
    """

    disabled: bool
    has_carrier: bool
    is_stable: bool = True


def cross_connects(ports: Iterable[int], moved: Mapping[int, int]) -> dict[int, int]:
    """Return {GPU side: network side} of the ports that exist: straight through, except for those in `moved`.

    A fibre whose network side another one has now is unconnected, and so is a network side that its fibre has left.
    """
    present = frozenset(ports)
    taken = frozenset(moved.values())
    wanted = dict(moved)
    for gpu_side in present:
        own_network_side = gpu_side + NETWORK_PORT_OFFSET
        if gpu_side < NETWORK_PORT_OFFSET and gpu_side not in moved and own_network_side not in taken:
            wanted[gpu_side] = own_network_side
    connected: dict[int, int] = {}
    for gpu_side, network_side in sorted(wanted.items()):
        if gpu_side in present and network_side in present:
            connected[gpu_side] = network_side
    return connected


def find_moved(connected: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the fibres that were moved, given the cross-connects of a switch."""
    moved: dict[int, int] = {}
    for gpu_side, network_side in connected:
        if gpu_side < NETWORK_PORT_OFFSET and network_side != gpu_side + NETWORK_PORT_OFFSET:
            moved[gpu_side] = network_side
    return moved


def after_moves(moved: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    """Return `moved` after more moves. A fibre that loses a side that wasn't its own returns to its own, if free.

    ValueError if two of `more` lead to one network side.
    """
    taken = set(more.values())
    if len(taken) < len(more):
        raise ValueError("two fibres can't lead to one place")
    kept = {gpu_side: network_side for gpu_side, network_side in moved.items() if network_side not in taken}
    return find_moved((kept | dict(more)).items())


def link_state_changes(connected: Mapping[int, int], ports: Mapping[int, LinkState]) -> dict[int, bool]:
    """Return the ports to enable (True) and to disable, so that both sides of a cross-connect have the same state.

    A port without a cross-connect is disabled.
    """
    changes: dict[int, bool] = {}
    for pair in connected.items():
        if all(ports[port].disabled for port in pair):
            changes |= dict.fromkeys(pair, True)
            continue
        for port, other_port in (pair, pair[::-1]):
            state = ports[port]
            other_state = ports[other_port]
            if state.has_carrier and other_state.disabled:
                changes[other_port] = True
            is_down = not state.has_carrier and not state.disabled
            if is_down and state.is_stable and other_state.has_carrier:
                changes[other_port] = False
    connected_ports = {*connected.keys(), *connected.values()}
    for port in ports.keys() - connected_ports:
        # a port whose own other side doesn't exist is still being cabled
        if _other_side(port) in ports and not ports[port].disabled:
            changes[port] = False
    return changes


def _other_side(port: int) -> int:
    """Return the port at the other side of a port's own cable: for a GPU side the network side, and the reverse."""
    if port > NETWORK_PORT_OFFSET:
        return port - NETWORK_PORT_OFFSET
    return port + NETWORK_PORT_OFFSET


def cross_connect_flows(connected: Mapping[int, int]) -> frozenset[Flow]:
    """Return the flows of these cross-connects ({GPU side: network side}), in both directions."""
    flows: set[Flow] = set()
    for gpu_side, network_side in connected.items():
        flows.add(Flow(*ANYTHING, CROSS_CONNECT_PRIORITY, network_side, in_port=gpu_side))
        flows.add(Flow(*ANYTHING, CROSS_CONNECT_PRIORITY, gpu_side, in_port=network_side))
    return frozenset(flows)


def network_sides_in(affected_ports: AffectedPorts) -> dict[Gpu, bool]:
    """Return the network sides among these ports, and whether any of their ports is enabled again."""
    network_sides: dict[Gpu, bool] = {}
    for ports in affected_ports.values():
        for port, is_enabled in ports.items():
            if port > NETWORK_PORT_OFFSET:
                gpu = gpu_of_optical_port(port)
                network_sides[gpu] = network_sides.get(gpu, False) or is_enabled
    return network_sides


class OpticalSwitch:
    """One connected optical switch. Its callers hold the app's lock.

    `reconfigurations`: how many moves each port is part of, over all connections of the switch.
    """

    def __init__(self, datapath: Any, schedule: Schedule, reconfigurations: Counter[int]) -> None:
        self._datapath = datapath
        self._schedule = schedule
        self._reconfigurations = reconfigurations
        self._ports: dict[int, Any] = {}
        self._link_states: dict[int, LinkState] = {}
        # when we enabled ports that have no carrier yet
        self._enabled_s: dict[int, float] = {}
        self._poll_pending = False
        # ports or fibres, since the last `changed_tables`
        self._has_changed = True
        self.moved: dict[int, int] = {}
        self.is_loaded = False

    def load_flows(self, flows: Iterable[Flow]) -> None:
        """Adopt the cross-connects that the switch has from before: they need no controller to stay as they are."""
        self.moved = find_moved((flow.in_port, flow.port) for flow in flows if flow.in_port and flow.port)
        self._has_changed = self.is_loaded = True

    def on_port(self, port: Any) -> None:
        """Take in a port description."""
        # the switch keeps the mark of ports that we disabled
        state = LinkState(disabled=bool(port.config & codec.ofp.OFPPC_NO_FWD), has_carrier=codec.is_up(port))
        number = port.port_no
        before = self._link_states.get(port.port_no)
        now = time.monotonic()
        self._ports[number] = port
        self._link_states[number] = state
        if before is None:
            self._enabled_s[number] = now
            self._has_changed = True
        timed_out = now - self._enabled_s.get(number, now) >= SETTLE_S
        if state.has_carrier or timed_out or (before and before.has_carrier):  # seen to come or to go
            self._enabled_s.pop(number, None)

    def on_port_removed(self, number: int) -> None:
        """Forget a port that no longer exists."""
        self._ports.pop(number, None)
        self._link_states.pop(number, None)
        self._enabled_s.pop(number, None)
        self._has_changed = True

    def affected_ports(self, moved: Mapping[int, int]) -> dict[int, bool]:
        """Return the ports to disable so that the fibres in `moved`, {GPU side: network side}, and no others are moved:
        both sides of every cross-connect that differs. True: it has another side afterwards, and is enabled again.
        """
        before = cross_connects(self._ports, self.moved)
        after = cross_connects(self._ports, moved)
        connected = {*after.keys(), *after.values()}
        affected: dict[int, bool] = {}
        for pair in before.items() ^ after.items():
            for port in pair:
                affected[port] = port in connected
        return affected

    def begin_moves(self, moved: Mapping[int, int]) -> frozenset[int]:
        """Disable the ports that moving these fibres affects, and return them."""
        affected = self.affected_ports(moved)
        self.moved = dict(moved)
        self._has_changed = True
        self._reconfigurations.update(affected.keys())
        # ports with a new other side come first: a switch changes its ports one by one, in some milliseconds each
        for port in sorted(affected, key=lambda port: (not affected[port], port)):
            if not self._link_states[port].disabled:
                self._set(port, enabled=False)
        return frozenset(affected)

    def changed_tables(self) -> Tables | None:
        """Return the tables that its cross-connects need; None if no port or fibre has changed since the last call."""
        if not self._has_changed:
            return None
        self._has_changed = False
        return Tables(cross_connect_flows(cross_connects(self._ports, self.moved)))

    def apply_link_states(self) -> None:
        """Enable and disable ports as link states require, except unsettled ones and those being moved."""
        states: dict[int, LinkState] = {}
        for port in self._ports:
            if not self._reconfigurations[port]:
                states[port] = replace(self._link_states[port], is_stable=port not in self._enabled_s)
        for port, enabled in sorted(link_state_changes(cross_connects(states, self.moved), states).items()):
            self._set(port, enabled)
        if self._enabled_s and not self._poll_pending:
            self._poll_pending = True

            def poll_ports() -> None:
                self._poll_pending = False
                self._datapath.send_msg(codec.parser.OFPPortDescStatsRequest(self._datapath, 0))

            self._schedule(max(self._enabled_s.values()) + SETTLE_S - time.monotonic(), poll_ports)

    def _set(self, port: int, enabled: bool) -> None:
        self._datapath.send_msg(codec.port_mod_message(self._datapath, self._ports[port], enabled))
        self._link_states[port] = LinkState(disabled=not enabled, has_carrier=False)
        self._enabled_s.pop(port, None)
        if enabled:
            self._enabled_s[port] = time.monotonic()


class OpticalSwitches:
    """All connected optical switches. `sync(datapath id)` makes the app update a switch's tables and link states."""

    def __init__(self, lock: AbstractContextManager[object], sync: Callable[[int], None]) -> None:
        self._lock = lock
        self._sync = sync
        self._switches: dict[int, OpticalSwitch] = {}
        self._reconfigurations: defaultdict[int, Counter[int]] = defaultdict(Counter)  # outlives connections

    def connect(self, datapath: Any) -> OpticalSwitch:
        """Return the state of a switch that has connected."""
        counter = self._reconfigurations[datapath.id]
        switch = self._switches[datapath.id] = OpticalSwitch(datapath, self.schedule, counter)
        return switch

    def disconnect(self, dpid: int) -> None:
        """Forget a switch whose connection has ended, if it is an optical one."""
        self._switches.pop(dpid, None)

    def cross_connect(
        self,
        moves: Mapping[int, Mapping[int, int]],
        outage_s: float,
        on_done: Callable[[], None],
        on_start: Callable[[AffectedPorts], None] = lambda affected_ports: None,
    ) -> None:
        """Move fibres, {datapath id: {GPU side: network side}} in port numbers, and disable their ports for `outage_s`.

        `on_start` is called before any port is disabled; `on_done`, from another thread, once they are enabled again.
        ValueError, and nothing is moved, if a switch is not connected, or for two fibres to one network side.
        """
        with self._lock:
            # nothing is moved before all switches are known to be able to
            moved: dict[int, dict[int, int]] = {}
            for dpid in moves:
                switch = self._switches.get(dpid)
                if switch is None or not switch.is_loaded:
                    raise ValueError("an optical switch is not connected")
                moved[dpid] = after_moves(switch.moved, moves[dpid])
            on_start({dpid: self._switches[dpid].affected_ports(moved[dpid]) for dpid in moves})
            affected: dict[int, frozenset[int]] = {}
            for dpid in moves:
                affected[dpid] = self._switches[dpid].begin_moves(moved[dpid])
            # the new cross-connects exist from the start, so that a controller that connects next finds them
            for dpid in moves:
                self._sync(dpid)

        def finish() -> None:
            for dpid, ports in affected.items():
                self._reconfigurations[dpid].subtract(ports)
                self._sync(dpid)
            on_done()

        self.schedule(outage_s, finish)

    def schedule(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action later, in a thread of its own, under the app's lock."""

        def run() -> None:
            with self._lock:
                action()

        timer = threading.Timer(seconds, run)
        timer.daemon = True
        timer.start()
