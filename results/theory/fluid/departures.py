"""Departures of transfers from their own GPUs: before they arrive, where a later link of the path is the slow one.

A replay begins what waits for a departure when the last byte has left the GPU that sends (workloads/replay/worker.py).
Up to a TCP window of a connection may then still wait at a GPU that forwards, or at a switch. Bytes of payload.
"""

from collections import defaultdict
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.results.theory.fluid.routes import Amounts, Numbers, Routes, nic_of
from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec
from railyard.workloads.replay.job import Windows

# rates that differ by rounding are the same
EQUAL: Final = 1 + 1e-9


class Network(NamedTuple):
    """Routes of flows, and the rate of each port now, like `Routes.rates`."""

    routes: Routes
    port_rates: Amounts


def own_hops(routes: Routes, src: Numbers, fabric: FabricSpec) -> NDArray[np.bool_]:
    """Return which hops of flows are links of their own sender, in the shape of `Routes.crossed`.

    `src`: the GPU of each flow.
    """
    ports_of_node: defaultdict[str, list[int]] = defaultdict(list)
    for number, port in enumerate(routes.ports):
        if port.is_out:
            ports_of_node[port.node].append(number)
    result = np.zeros(routes.crossed.shape, dtype=bool)
    for sender in np.unique(src).tolist():
        gpu = Gpu(*divmod(sender, fabric.rails)).name
        ports = ports_of_node[gpu] + ports_of_node[nic_of(sender, fabric)]
        is_sender = src == sender
        result[is_sender] = np.isin(routes.crossed[is_sender], ports)
    return result


def connection_windows(flows: Numbers, fabric: FabricSpec, windows: Windows) -> Amounts:
    """Return the window of each flow. `flows`: a row of source, destination and stripe for each."""
    _, pair, stripes = np.unique(flows[:, :2], axis=0, return_inverse=True, return_counts=True)
    domains = flows[:, :2] // fabric.rails
    total = np.where(domains[:, 0] == domains[:, 1], windows.hb, windows.rail)
    sizes: Amounts = np.maximum(windows.minimum, total // stripes[pair.ravel()]).astype(np.float64)
    return sizes


class Departures:
    """Departures of the transfers under way of flows. `at_s`: when each leaves its GPU; infinite if when it ends."""

    def __init__(self, flows: Numbers, fabric: FabricSpec, windows: Windows) -> None:
        """`flows`: a row of source, destination and stripe for each."""
        self.at_s = np.full(len(flows), inf)
        self._has_left = np.zeros(len(flows), dtype=bool)
        self._windows = connection_windows(flows, fabric, windows)
        self._src = flows[:, 0]
        self._fabric = fabric
        self._own_hops: dict[Routes, NDArray[np.bool_]] = {}

    def begin(self, flow: int) -> None:
        """Begin the next transfer of a flow."""
        self.at_s[flow] = inf
        self._has_left[flow] = False

    def leave(self, now_s: float) -> Numbers:
        """Return the flows whose transfers have left by now, each once for a transfer."""
        flows: Numbers = np.flatnonzero(self.at_s <= now_s)
        self.at_s[flows] = inf
        self._has_left[flows] = True
        return flows

    def has_left(self, flow: int) -> bool:
        """Return whether the transfer under way of a flow has left before its end."""
        return bool(self._has_left[flow])

    def update(self, flows: Numbers, now_s: float, remaining: Amounts, rates: Amounts, network: "Network") -> None:
        """Compute anew when transfers leave.

        `flows`: all that are under way and share ports with any of them. `remaining`, `rates`: bytes that have not
        arrived, and bytes a second, of each.
        """
        crossed = network.routes.crossed[flows]
        used = np.bincount(
            crossed.ravel(), (network.routes.shares[flows] * rates[:, None]).ravel(), len(network.port_rates)
        )
        is_full = used * EQUAL >= network.port_rates
        # at a full link of its own, a transfer waits in its GPU
        is_held = (is_full[crossed] & self._own(network.routes)[flows]).any(axis=1) | self._has_left[flows]
        waiting = np.maximum(0.0, remaining - self._windows[flows])
        at_s = np.full(len(flows), inf)
        np.divide(waiting, rates, out=at_s, where=(rates > 0) & ~is_held)
        self.at_s[flows] = now_s + at_s

    def _own(self, routes: Routes) -> NDArray[np.bool_]:
        if routes not in self._own_hops:
            self._own_hops[routes] = own_hops(routes, self._src, self._fabric)
        return self._own_hops[routes]
