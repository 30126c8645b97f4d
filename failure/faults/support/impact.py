"""What a fault does to a fabric, as data: the one statement from which everything else about it is derived.

Dead and degraded parts for the oracle (failure/oracle), affected pairs (failure/scenario/pairs.py), controller events
that announce the fault (signals.py), and faults that it can't be combined with (`FaultScope`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.optical import LAYERS, Layer
from railyard.topologies.plan import Plan

Cable = frozenset[str]
"""The names of the nodes at its two ends: d0g1 and rail1, d0g1 and hb0, rail1 and spine0, d0g1 and switch0."""
_GPU_NAME: Final = re.compile(r"d\d+g\d+")


def cable(one: str, other: str) -> Cable:
    """The cable between two nodes."""
    return frozenset({one, other})


def gpu_cable(plan: Plan, gpu: Gpu, layer: Layer) -> Cable:
    """A GPU's cable to its rail switch or its HB domain; an optical switch in between is not a node of it."""
    end = plan.rail_switch_end(gpu) if layer == "rail" else plan.hb_bridge_end(gpu)
    return cable(gpu.name, end.node)


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
        return frozenset(gpu for gpu, own_layer in self._gpu_cables() if own_layer == layer)

    def _gpu_cables(self) -> Iterator[tuple[Gpu, Layer]]:
        for ends in self.impaired_cables:
            for name in ends:
                if _GPU_NAME.fullmatch(name):
                    (other,) = ends - {name}
                    yield gpu_of_name(name), "hb" if other.startswith("hb") else "rail"


@dataclass(frozen=True, slots=True)
class FaultScope:
    """Parts that a fault affects, and those that must work for it to be detected."""

    affected: frozenset[str | Cable]
    required: frozenset[str | Cable] = frozenset()

    def conflicts_with(self, other: "FaultScope") -> bool:
        """Whether one of two concurrent faults would hide the other."""
        return bool(self.affected & (other.affected | other.required) or other.affected & self.required)


def scope_of(impact: Impact, plan: Plan) -> FaultScope:
    """The scope that follows from an impact: a dead GPU takes its cables along, and a cable needs both its ends."""
    cables = impact.impaired_cables | {gpu_cable(plan, gpu, layer) for gpu in impact.dead_gpus for layer in LAYERS}
    ends = frozenset[str]().union(*cables)
    return FaultScope(impact.nodes | cables, ends - impact.nodes)
