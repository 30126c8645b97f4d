"""healthd: computes the scores of all rails, HB domains and the spine layer from counters of switches and bridges.

Source: health routing, part 1 ("healthd will then consolidate and normalize the data from all rails and domains").
Frames, drops and states of rail g's links (rail switch to GPUs) and of the spines' come by OpenFlow (`on_event`); those
of an HB domain's bridge, and all queues of shapers, from the kernel (`read`). A link is as loaded as the busier of its
directions. Reports may be missing, come too early, and begin anew after a reboot. `Healthd` has no sockets and no
clock; times are monotonic ns.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from railyard.controller.health.estimator import ESTIMATORS, Health, HealthSpec, Load, health, pooled
from railyard.controller.health.policy import Scores, idle
from railyard.controller.health.registry.client import connect
from railyard.controller.health.registry.etcd import EtcdServer
from railyard.controller.health.registry.unix_socket import SocketServer
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.fabric_kinds import End, Link
from railyard.topologies.measure.counters import TRAFFIC, PortReader, PortStats
from railyard.topologies.plan import Plan

NS: Final = 1_000_000_000
FOLDER: Final = Path("/run/railyard")
Element = tuple[Literal["rail", "domain", "spine"], int]
"""An element that has a score: ("rail", g), ("domain", d) or ("spine", 0), the layer as a whole."""


@dataclass
class _Meter:
    """Counters that only grow, and by how much they last grew (nothing before the second report) in how long."""

    min_interval_ns: int
    at_ns: int | None = None
    counters: tuple[int, ...] = ()
    period_s: float = 0.0
    deltas: tuple[int, ...] = ()

    def update(self, counters: tuple[int, ...], now_ns: int) -> None:
        if self.at_ns is not None:
            # replies that queued up arrive together, and would show as a burst
            if now_ns - self.at_ns < self.min_interval_ns:
                return
            deltas = tuple(new - old for new, old in zip(counters, self.counters, strict=True))
            # counters that fell began anew, after a reboot of the switch
            if min(deltas) >= 0:
                self.period_s = (now_ns - self.at_ns) / NS
                self.deltas = deltas
        self.at_ns = now_ns
        self.counters = counters


class _Cable:
    """State of one link. Frames are counted at its far end, the switch's or bridge's; each end has a queue."""

    def __init__(self, link: Link, spec: HealthSpec) -> None:
        self._min_interval_ns = round(spec.period / 2 * NS)
        self._capacity_bps = link.rate_bps
        self._backlog_limit_bytes = link.rate_bps * spec.full_queue / 8
        self.queue_dropped = {end: _Meter(self._min_interval_ns) for end in (link.a, link.b)}
        self.backlog_bytes = dict.fromkeys((link.a, link.b), 0)
        self.restart(up=True)

    def restart(self, up: bool) -> None:
        """Its switch came or went, so its counters begin anew."""
        self.up = up
        self.traffic = _Meter(self._min_interval_ns)

    def load(self) -> Load:
        rx_bytes, tx_bytes, rx_frames, tx_frames, rx_dropped, tx_dropped = self.traffic.deltas or (0,) * len(TRAFFIC)
        dropped = rx_dropped + tx_dropped
        for meter in self.queue_dropped.values():
            dropped += sum(meter.deltas)
        return Load(
            capacity_bps=self._capacity_bps,
            period_s=self.traffic.period_s,
            sent_bytes=max(rx_bytes, tx_bytes),
            frames=max(rx_frames, tx_frames),
            dropped=dropped,
            backlog_bytes=max(self.backlog_bytes.values()),
            backlog_limit_bytes=self._backlog_limit_bytes,
            up_ports=int(self.up),
        )


class Healthd:
    """Scores of all elements from reports: `on_event` and `read` take them in, in any order."""

    def __init__(self, plan: Plan, spec: HealthSpec) -> None:
        self._spec = spec
        self._cables: defaultdict[Element, list[_Cable]] = defaultdict(list)
        self._health: defaultdict[Element, Health] = defaultdict(Health)
        self._by_port: dict[int, dict[int, _Cable]] = {switch.dpid: {} for switch in plan.switches}
        self._by_end: dict[tuple[str, str], tuple[_Cable, End]] = {}  # by node and interface
        self._bridges = frozenset(plan.hb_bridges)
        self._dpids = plan.dpids
        self._last = idle(plan.spec.domains, plan.spec.rails)
        self._last_ns: int | None = None
        for link in plan.uplinks:
            self._add(link, ("spine", 0))
        for gpu in plan.gpus:
            for link in plan.cables(gpu, "rail"):
                self._add(link, ("rail", gpu.rank))
            for link in plan.cables(gpu, "hb"):
                self._add(link, ("domain", gpu.domain))

    def _add(self, link: Link, element: Element) -> None:
        """Count a link's load as that of an element."""
        cable = _Cable(link, self._spec)
        self._cables[element].append(cable)
        for end in (link.a, link.b):
            self._by_end[end.node, end.interface] = cable, end
        if link.b.port is not None:
            self._by_port[self._dpids[link.b.node]][link.b.port] = cable

    def on_event(self, event: SwitchEvent) -> None:
        """Take in a switch event; one that isn't of this fabric is ignored."""
        ports = self._by_port.get(event.dpid, {})
        match event.what:
            case "stats":
                for number in event.counters.keys() & ports.keys():
                    traffic = tuple(event.counters[number][name] for name in TRAFFIC)
                    ports[number].traffic.update(traffic, event.monotonic_ns)
            case "port" if event.port in ports:
                ports[event.port].up = event.up
            case "switch-up" | "switch-down":
                for number, cable in ports.items():
                    cable.restart(event.what == "switch-up" and number in event.up_ports)

    def read(self, node: str, stats: Mapping[str, PortStats], now_ns: int) -> None:
        """Take in the kernel's counters of a node's interfaces: all of a bridge's, the queues of others."""
        for interface, port_stats in stats.items():
            if (node, interface) not in self._by_end:
                continue
            cable, end = self._by_end[node, interface]
            cable.backlog_bytes[end] = port_stats.backlog_bytes
            cable.queue_dropped[end].update((port_stats.queue_dropped,), now_ns)
            if node in self._bridges:
                cable.up = port_stats.up
                cable.traffic.update(port_stats.traffic, now_ns)

    def scores(self, now_ns: int) -> Scores:
        """The scores now. The version is a new one only if a score differs."""
        elapsed_s = (now_ns - self._last_ns) / NS if self._last_ns is not None else 0.0
        self._last_ns = now_ns
        for element, cables in self._cables.items():
            loads = [cable.load() for cable in cables]
            share_up = sum(load.up_ports for load in loads) / len(loads)
            measured = health(loads, ESTIMATORS[self._spec.estimator], self._spec.links)
            self._health[element] = self._health[element].after(measured, share_up, elapsed_s, self._spec.smoothing_s)
        rails = tuple(self._health["rail", g].score for g in range(len(self._last.rails)))
        domains = tuple(self._health["domain", d].score for d in range(len(self._last.domains)))
        spine = self._health["spine", 0].score
        if (rails, domains, spine) != (self._last.rails, self._last.domains, self._last.spine):
            self._last = Scores(rails, domains, spine, self._last.version + 1)
        return self._last

    def loads(self) -> dict[Element, float]:
        """The share of its links' capacity (those that are up, together) that each element used, 0 to 1: unsmoothed."""
        used: dict[Element, float] = {}
        for element, cables in self._cables.items():
            loads = [cable.load() for cable in cables]
            used[element] = pooled(loads).used
        return used


class HealthLoop:
    """Thread that computes scores and publishes them by its registry's `server`, which may be stopped and started.

    `ask_stats()` makes every switch send its counters, which come back by `on_event`. `emit` gets "health" once a
    period: version, and [load, score] of each rail, domain and the spine layer.
    """

    def __init__(
        self, plan: Plan, spec: HealthSpec, ask_stats: Callable[[], None], emit: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._period_s = spec.period
        self._ask_stats = ask_stats
        self._emit = emit
        self._healthd = Healthd(plan, spec)
        nodes = [*plan.hb_bridges]
        if spec.estimator != "utilisation":
            # others look at queues, also of switches and GPUs
            nodes += [*plan.dpids, *plan.hosts]
        self._reader = PortReader(nodes)
        is_etcd = spec.registry == "etcd"
        self.server = EtcdServer(FOLDER / "etcd") if is_etcd else SocketServer(FOLDER / "registry.sock")
        self.server.start()
        self._registry = connect(self.server.address, spec.stale)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="healthd", daemon=True)
        self._thread.start()

    def on_event(self, event: SwitchEvent) -> None:
        """Take in a switch event."""
        with self._lock:
            self._healthd.on_event(event)

    def stop(self) -> None:
        """End the loop and the registry."""
        self._stopped.set()
        self._thread.join()
        self._registry.close()
        self.server.stop()
        self._reader.close()

    def _run(self) -> None:
        next_tick_s = time.monotonic()
        while not self._stopped.wait(next_tick_s - time.monotonic()):
            self._tick()
            # after a stall it doesn't catch up
            next_tick_s = max(next_tick_s + self._period_s, time.monotonic())

    def _tick(self) -> None:
        # the switches answer a little later: their answers count in the next turn
        self._ask_stats()
        read = self._reader.read()
        now = time.monotonic_ns()
        with self._lock:
            for node, stats in read.items():
                self._healthd.read(node, stats, now)
            scores = self._healthd.scores(now)
            loads = self._healthd.loads()
        put_ns = time.monotonic_ns()
        self._registry.put(scores)
        layers = {"rail": scores.rails, "domain": scores.domains}
        layers["spine"] = (scores.spine,) if ("spine", 0) in loads else ()
        shares: dict[Any, float] = {**loads}
        event: dict[str, Any] = {"version": scores.version}
        for kind, values in layers.items():
            event[kind] = []
            for number, score in enumerate(values):
                share = round(shares.get((kind, number), 0.0), 4)
                event[kind].append([share, score])
        event["put_ns"] = put_ns
        self._emit("health", event)
