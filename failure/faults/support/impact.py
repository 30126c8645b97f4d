"""Effect of a fault on a fabric, as data: the one statement from which everything else about it is derived.

Dead and degraded parts for the oracle (failure/oracle), affected pairs (failure/scenario/pairs.py), controller events
that announce the fault (`is_signal_of`), and faults that it can't be combined with (`FaultScope`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from railyard.topologies.addresses import GPU_SWITCHES, Gpu, gpu_of_name, link_name, rail_name
from railyard.topologies.fabric_kinds import FabricPlan, Layer
from railyard.topologies.plan import Plan

Cable = frozenset[str]
"""The names of the nodes at its two ends: d0g1 and rail1, d0g1 and hb0, rail1 and spine0, d0g1 and switch0."""
_GPU_NAME: Final = re.compile(r"d\d+g\d+")


def cable(one: str, other: str) -> Cable:
    """Return the cable between two nodes."""
    return frozenset({one, other})


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
        slowed = {
            c: min(d.slowed[c] for d in (self, other) if c in d.slowed) for c in self.slowed.keys() | other.slowed
        }
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
        return frozenset(
            gpu_of_name(name)
            for ends in self.impaired_cables
            for name in ends
            if _GPU_NAME.fullmatch(name) and any(end.startswith("hb") for end in ends) == (layer == "hb")
        )


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
    links = ((node, plan.ends_of(*link)) for node in impact.nodes for link in plan.links_at.get(node, ()))
    cables = impact.impaired_cables | {cable(near.node, far.node) for node, (near, far) in links if near.node == node}
    ends = frozenset[str]().union(*cables)
    return FaultScope(impact.nodes | cables, ends - impact.nodes)


SILENCE_KEYS: Final = ("link", "gpu", "hb-link", "rail", "hb-domain")
"""What heartbeats report as silent: an event "silent" has one of these keys, with a name."""


def is_signal_of(impact: Impact, plan: Plan, event_kind: str, detail: Mapping[str, Any]) -> bool:
    """Return whether an event says that something is down because of this impact, as far as its fields can tell.

    A rail link can be reported as its whole rail, and an HB port as its domain: where too few members are left for
    heartbeats to tell them apart.
    """
    if event_kind == "switch-down":
        return detail.get("switch") in impact.nodes
    if event_kind == "port-down":
        return _is_port_down_of(impact, plan, detail.get("switch"), detail.get("port"))
    if event_kind == "silent":
        names = _silent_names(impact, plan)
        return any(str(detail[key]) in names[key] for key in SILENCE_KEYS if key in detail)
    return False


def _is_port_down_of(impact: Impact, plan: Plan, switch: object, port: object) -> bool:
    """Return whether a port is down because of the impact. Ports of GPUs have the GPU's name, others their number."""
    if any(switch == optical.name for optical in plan.optics.get("hb", ())):
        return any(port == gpu.name for gpu in impact.dead_gpus | impact.gpus_impaired_at("hb"))
    if any((switch, port) == (name, f"port {number}") for name, number in _uplink_ports(impact, plan)):
        return True
    links = {(plan.network_end(gpu, "rail", plane).node, gpu.name) for gpu, plane in impaired_links(impact, plan)}
    if any(switch == each.name and each.role in GPU_SWITCHES for each in plan.switches):
        return (switch, port) in links
    return any(port == gpu_name for _, gpu_name in links)


def _silent_names(impact: Impact, plan: Plan) -> dict[str, set[str]]:
    """Return the names that heartbeats may report as silent for the impact, by key of `SILENCE_KEYS`."""
    gpus_on_hb = impact.dead_gpus | impact.gpus_impaired_at("hb")
    links = impaired_links(impact, plan)
    if plan.spec.definition.is_graph:
        links |= {(gpu, 0) for name in impact.nodes for gpu in plan.graph.gpus_at.get(name, ())}
    gpus = gpus_on_hb | {gpu for gpu, _ in links}
    rails = {rail_of(plan, gpu, plane) for gpu, plane in links}
    return {
        "link": {link_name(gpu, plane) for gpu, plane in links},
        "gpu": {gpu.name for gpu in gpus},
        "hb-link": {gpu.name for gpu in gpus_on_hb},
        "rail": rails | dead_rails(impact, plan),
        "hb-domain": {f"hb{gpu.domain}" for gpu in gpus_on_hb},
    }


def _uplink_ports(impact: Impact, plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Yield the ports, by switch, of impaired cables between switches."""
    for link in plan.uplinks:
        if cable(link.a.node, link.b.node) in impact.impaired_cables:
            yield from ((end.node, end.port) for end in (link.a, link.b))


def impaired_links(impact: Impact, plan: Plan) -> frozenset[tuple[Gpu, int]]:
    """Return the rail links that are impaired, with their planes; a dead GPU takes all of its along."""
    links = product(impact.dead_gpus | impact.gpus_impaired_at("rail"), plan.spec.definition.all_planes)
    cables = {link: cable(link[0].name, plan.network_end(link[0], "rail", link[1]).node) for link in links}
    impaired = impact.impaired_cables
    dead = impact.dead_gpus
    return frozenset(link for link, ends in cables.items() if link[0] in dead or ends in impaired)


def dead_rails(impact: Impact, plan: Plan) -> frozenset[str]:
    """Return the rails whose switch is dead, as heartbeats name them: the single switch is rail0."""
    return frozenset(rail_name(s.index) for s in plan.switches if s.name in impact.nodes and s.role in GPU_SWITCHES)


def rail_of(plan: Plan, gpu: Gpu, plane: int = 0) -> str:
    """Return a GPU's rail in a plane, as heartbeats name it."""
    return rail_name(plan.rail_switch(gpu, plane).index)
