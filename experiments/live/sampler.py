"""Samples of a fabric for the live page: its structure once, then the state, load and queue of every link.

Only the network's ends of links are read, in the namespaces of bridges and switches: 1 ms for 16 GPUs, 4 ms for 64.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from railyard.failure.faults import FAULTS
from railyard.failure.faults.definition import fault_kinds
from railyard.topologies.fabric_kinds import End, FabricPlan, Layer
from railyard.topologies.measure.counters import TRAFFIC, PortReader, PortStats
from railyard.topologies.plan import Plan

LAYERS: Final[tuple[Layer, ...]] = ("rail", "hb")
UPLINK: Final = "uplink"  # the class of links between switches, and their layer on the page
_RX = TRAFFIC.index("rx_bytes")
_TX = TRAFFIC.index("tx_bytes")
_DROPPED: Final = TRAFFIC.index("rx_dropped"), TRAFFIC.index("tx_dropped")


class LinkSample(NamedTuple):
    """State of a link. `to_network`, `from_network`: per mille of its rate since the last sample; `queue`: bytes that
    wait at the network's end; `drops`: frames dropped there since the last sample.
    """

    up: bool
    to_network: int
    from_network: int
    queue: int
    drops: int


def structure(label: str, plan: FabricPlan) -> dict[str, Any]:
    """Return what the page draws of a fabric, and which faults each element can have."""
    layer_of: dict[Any, tuple[str, str]] = {}
    for layer in LAYERS:
        for name in plan.link_names(layer):
            layer_of[plan.link_of(name, layer)] = name, layer
    places: dict[str, list[int]] = {}
    if isinstance(plan, Plan):
        places = {gpu.name: [gpu.domain, gpu.rank] for gpu in plan.gpus}
    links = []
    for link in plan.links:
        target, link_layer = layer_of.get(link, ("", ""))
        if link.kind == UPLINK:
            target = link.name
            link_layer = UPLINK
        drawn = {
            "a": link.a.node,
            "b": link.b.node,
            "rate": link.rate_bps,
            "kind": link.kind,
            "target": target,
            "layer": link_layer,
            "interface": link.a.interface,
        }
        links.append(drawn)
    hosts = [{"name": name, "place": places.get(name)} for name in plan.hosts]
    switches = [{"name": switch.name, "role": switch.role} for switch in plan.switches]
    inner = dict.fromkeys(plan.namespaces)
    for name in plan.hosts:
        inner.pop(name, None)
    return {
        "label": label,
        "title": plan.title,
        "hosts": hosts,
        "inner": list(inner),
        "switches": switches,
        "links": links,
        "control": list(plan.control_processes),
        "faults": _faults(plan),
    }


def _faults(plan: FabricPlan) -> list[dict[str, Any]]:
    """Return the fault kinds that have any target in a fabric."""
    uplinks = frozenset(link.name for link in plan.links if link.kind == UPLINK)
    faults: list[dict[str, Any]] = []
    for kind in fault_kinds():
        targets = list(FAULTS[kind].targets(plan))
        if targets:
            faults.append(_fault(kind, targets, uplinks))
    return faults


def _fault(kind: str, targets: list[str], uplinks: frozenset[str]) -> dict[str, Any]:
    """Return a fault kind as the page offers it; `layer` of links says at which links."""
    definition = FAULTS[kind]
    layer: str | None = definition.layer
    if uplinks.issuperset(targets):
        layer = UPLINK
    defaults = definition.Parameters().model_dump(mode="json")
    parameters: dict[str, dict[str, Any]] = {}
    for name, field in definition.Parameters.model_fields.items():
        parameters[name] = {"default": defaults[name], "about": field.description or ""}
    about = (type(definition).__doc__ or "").partition("\n")[0]
    return {"kind": kind, "about": about, "layer": layer, "targets": targets, "parameters": parameters}


class Sampler:
    """Samples of all links of a fabric that is up. Close it before the fabric is taken down."""

    def __init__(self, plan: FabricPlan) -> None:
        # a GPU's connection to a NIC that it shares has no interface of its own at the NIC
        self._is_near = [link.kind == "nic" for link in plan.links]
        self._links: list[tuple[End, int]] = []
        for link, is_near in zip(plan.links, self._is_near, strict=True):
            self._links.append((link.a if is_near else link.b, link.rate_bps))
        self._reader = PortReader(sorted({end.node for end, _ in self._links}))
        self._before: Mapping[str, Mapping[str, PortStats]] = {}
        self._before_s = 0.0

    def sample(self) -> tuple[int, list[LinkSample]]:
        """Return when (monotonic ns), and a sample for each of the plan's links. OSError if the fabric is gone."""
        begun_ns = time.monotonic_ns()
        counters = self._reader.read()
        now_ns = (begun_ns + time.monotonic_ns()) // 2
        seconds = now_ns / 1e9 - self._before_s
        samples: list[LinkSample] = []
        for (end, rate_bps), is_near in zip(self._links, self._is_near, strict=True):
            before = self._before.get(end.node, {}).get(end.interface)
            after = counters.get(end.node, {}).get(end.interface)
            sample = link_sample(before, after, rate_bps, seconds)
            if is_near:
                sample = sample._replace(to_network=sample.from_network, from_network=sample.to_network)
            samples.append(sample)
        self._before = counters
        self._before_s = now_ns / 1e9
        return now_ns, samples

    def close(self) -> None:
        """Close the sockets, which keep namespaces alive."""
        self._reader.close()


def link_sample(before: PortStats | None, after: PortStats | None, rate_bps: int, seconds: float) -> LinkSample:
    """Return a link's sample from two states of its network end: None where the interface is missing."""
    if after is None:
        return LinkSample(False, 0, 0, 0, 0)
    if before is None or after.traffic[_RX] < before.traffic[_RX] or after.traffic[_TX] < before.traffic[_TX]:
        # lower counters are those of a new interface
        return LinkSample(after.up, 0, 0, after.backlog_bytes, 0)
    received = after.traffic[_RX] - before.traffic[_RX]
    sent = after.traffic[_TX] - before.traffic[_TX]
    drops = max(0, after.queue_dropped - before.queue_dropped)
    for column in _DROPPED:
        drops += after.traffic[column] - before.traffic[column]
    # bytes at a thousandth of the link's rate
    full = rate_bps * seconds / 8 / 1000
    return LinkSample(after.up, round(received / full), round(sent / full), after.backlog_bytes, max(0, drops))
