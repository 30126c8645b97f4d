"""Effect of a fault on a fabric, as data: the one statement from which everything else about it is derived.

Dead and degraded parts for the oracle (failure/oracle), affected pairs (failure/pairs.py), controller events
that announce the fault (`is_signal_of`), and faults that it can't be combined with (`FaultScope`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from railyard.topologies.addresses import GPU_SWITCHES, Gpu, gpu_of_name, link_name, rail_name
from railyard.topologies.fabric_kinds import FabricPlan, Layer
from railyard.topologies.plan import Plan

Cable = frozenset[str]
"""The names of the nodes at its two ends: d0g1 and rail1, d0g1 and hb0, rail1 and spine0, d0g1 and switch0."""
_GPU_NAME: Final = re.compile(r"d\d+g\d+")


def cable(node: str, other: str) -> Cable:
    """Return the cable between two nodes."""
    return frozenset({node, other})


@dataclass(frozen=True)
class Impact:
    """Parts of a fabric that don't work, by name as in the plan.

    nodes: dead GPUs, rail switches, spines, switch0, HB bridges. cables: cut or silent. slowed: what is left of a
    cable's rate in each direction, bit/s. lossy: cables that lose some packets.
    """

    nodes: frozenset[str] = frozenset()
    cables: frozenset[Cable] = frozenset()
    slowed: Mapping[Cable, int] = field(default_factory=dict)
    lossy: frozenset[Cable] = frozenset()

    def __or__(self, other: "Impact") -> "Impact":
        """Both at once; a cable that is slowed twice has the lower rate."""
        slowed = dict(self.slowed)
        for ends, rate_bps in other.slowed.items():
            slowed[ends] = min(rate_bps, slowed.get(ends, rate_bps))
        return Impact(self.nodes | other.nodes, self.cables | other.cables, slowed, self.lossy | other.lossy)

    @property
    def impaired_cables(self) -> frozenset[Cable]:
        """Cables that are dead, slow or lossy."""
        return self.cables | self.lossy | self.slowed.keys()

    @property
    def dead_gpus(self) -> frozenset[Gpu]:
        """GPUs that neither send nor receive."""
        return frozenset(gpu_of_name(name) for name in self.nodes if _GPU_NAME.fullmatch(name))

    def gpus_impaired_at(self, layer: Layer) -> frozenset[Gpu]:
        """GPUs whose cable of a layer is impaired."""
        gpus: set[Gpu] = set()
        for ends in self.impaired_cables:
            is_hb_cable = any(end.startswith("hb") for end in ends)
            if is_hb_cable == (layer == "hb"):
                gpus.update(gpu_of_name(name) for name in ends if _GPU_NAME.fullmatch(name))
        return frozenset(gpus)


@dataclass(frozen=True, slots=True)
class FaultScope:
    """Parts that a fault affects, and those that must work for it to be detected."""

    affected: frozenset[str | Cable]
    required: frozenset[str | Cable] = frozenset()

    def conflicts_with(self, other: "FaultScope") -> bool:
        """Return whether one of two concurrent faults would hide the other."""
        return bool(self.affected & (other.affected | other.required) or other.affected & self.required)


def scope_of(impact: Impact, plan: FabricPlan) -> FaultScope:
    """Return the scope of an impact: a dead GPU takes all its cables along, and a cable needs both its ends."""
    cables = set(impact.impaired_cables)
    for node in impact.nodes:
        for link in plan.links_at.get(node, ()):
            near, far = plan.ends_of(*link)
            if near.node == node:
                cables.add(cable(near.node, far.node))
    ends = frozenset[str]().union(*cables)
    return FaultScope(impact.nodes | cables, ends - impact.nodes)


SILENCE_KEYS: Final = ("link", "gpu", "hb-link", "rail", "hb-domain")
"""What heartbeats report as silent: an event "silent" has one of these keys, with a name."""


def is_signal_of(impact: Impact, plan: Plan, event_kind: str, detail: Mapping[str, Any]) -> bool:
    """Return whether an event says that something is down because of this impact, as far as its fields can tell."""
    if event_kind == "switch-down":
        return detail.get("switch") in impact.nodes
    if event_kind == "port-down":
        return _is_port_down_of(impact, plan, detail.get("switch"), detail.get("port"))
    if event_kind == "silent":
        for key, names in _silent_names(impact, plan).items():
            if key in detail and str(detail[key]) in names:
                return True
    return False


def _is_port_down_of(impact: Impact, plan: Plan, switch: object, port: object) -> bool:
    """Return whether a port is down because of the impact. Ports of GPUs have the GPU's name, others their number."""
    if switch in [optical.name for optical in plan.optics.get("hb", ())]:
        return port in [gpu.name for gpu in impact.dead_gpus | impact.gpus_impaired_at("hb")]
    if (switch, port) in _uplink_ports(impact, plan):
        return True
    links: set[tuple[object, object]] = set()
    gpu_names: set[object] = set()
    for gpu, plane in impaired_links(impact, plan):
        end = plan.network_end(gpu, "rail", plane)
        # a shared NIC stays up when one of its GPUs crashes, so that says nothing
        if not plan.nics or gpu not in impact.dead_gpus:
            links.add((end.node, end.interface))
        gpu_names.add(gpu.name)
    if switch in [gpu_switch.name for gpu_switch in plan.switches_of(*GPU_SWITCHES)]:
        return (switch, port) in links
    # an optical switch of the rails: its name doesn't tell to which switch the GPU's link leads
    return port in gpu_names


def _silent_names(impact: Impact, plan: Plan) -> dict[str, set[str]]:
    """Return the names that heartbeats may report as silent for the impact, by key of `SILENCE_KEYS`."""
    gpus_on_hb = impact.dead_gpus | impact.gpus_impaired_at("hb")
    links = impaired_links(impact, plan)
    if plan.spec.definition.is_graph:
        for node in impact.nodes:
            links = links.union(product(plan.graph.gpus_at.get(node, ()), [0]))
    # A rail link can be reported as its whole rail, and an HB port as its domain: where too few members are left for
    # heartbeats to distinguish them.
    names: dict[str, set[str]] = {key: set() for key in SILENCE_KEYS}
    names["rail"] |= dead_rails(impact, plan)
    for gpu, plane in links:
        names["gpu"].add(gpu.name)
        names["link"].add(link_name(gpu, plane))
        names["rail"].add(rail_of(plan, gpu, plane))
    for gpu in gpus_on_hb:
        names["gpu"].add(gpu.name)
        names["hb-link"].add(gpu.name)
        names["hb-domain"].add(f"hb{gpu.domain}")
    return names


def _uplink_ports(impact: Impact, plan: Plan) -> set[tuple[object, object]]:
    """Return (switch, port as events name it) for both ends of the impaired cables between switches."""
    ports: set[tuple[object, object]] = set()
    for link in plan.uplinks:
        if cable(link.a.node, link.b.node) in impact.impaired_cables:
            for end in (link.a, link.b):
                ports.add((end.node, f"port {end.port}"))
    return ports


def impaired_links(impact: Impact, plan: Plan) -> frozenset[tuple[Gpu, int]]:
    """Return the rail links that are impaired, with their planes; a dead GPU takes all of its along."""
    dead = impact.dead_gpus
    cables = impact.impaired_cables
    impaired: set[tuple[Gpu, int]] = set()
    for gpu, plane in product(dead | impact.gpus_impaired_at("rail"), plan.spec.definition.all_planes):
        far_node = plan.nic_of(gpu) if plan.nics else plan.network_end(gpu, "rail", plane).node
        if gpu in dead or cable(gpu.name, far_node) in cables:
            impaired.add((gpu, plane))
    return frozenset(impaired)


def dead_rails(impact: Impact, plan: Plan) -> frozenset[str]:
    """Return the rails whose switch is dead, as heartbeats name them: the single switch is rail0."""
    switches = plan.switches_of(*GPU_SWITCHES)
    return frozenset(rail_name(switch.index) for switch in switches if switch.name in impact.nodes)


def rail_of(plan: Plan, gpu: Gpu, plane: int = 0) -> str:
    """Return a GPU's rail in a plane, as heartbeats name it."""
    return rail_name(plan.rail_switch(gpu, plane).index)
