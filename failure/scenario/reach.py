"""What a fault takes, and what must live for it to show: pure."""

from dataclasses import dataclass

from railyard.failure.oracle.dead import gpus_of
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan


@dataclass(frozen=True, slots=True)
class FaultScope:
    """Nodes and cables by name (a cable: `d0g1-rail1`)."""

    affected: frozenset[str]
    required: frozenset[str] = frozenset()

    def conflicts_with(self, other: "FaultScope") -> bool:
        """Whether one of two at once would hide the other."""
        return bool(self.affected & (other.affected | other.required) or other.affected & self.required)


def targets(kind: FaultKind, plan: Plan) -> list[str]:
    """All that a fault of this kind can be at."""
    if kind in ("controller-crash", "registry-crash"):
        return [kind.removesuffix("-crash")]
    if kind == "server-crash":
        return list(plan.hb_bridges) if plan.spec.domains > 2 else []
    if kind == "spine-crash" or kind.startswith("rail-switch"):
        roles = ("spine",) if kind == "spine-crash" else ("rail", "single")
        return [switch.name for switch in plan.switches if switch.role in roles]
    return [gpu.name for gpu in plan.gpus]


def fault_scope(fault: Fault, plan: Plan) -> FaultScope:
    """Of a fault on this fabric."""
    gpus = gpus_of(fault, plan)
    if fault.kind == "registry-crash":  # its server is the controller's child, or told by it
        return FaultScope(frozenset({fault.target}), frozenset({"controller"}))
    if fault.kind == "server-crash":
        cables = {cable for gpu in gpus for cable in _cables(plan, gpu.name)}
        return FaultScope(frozenset({fault.target, *cables, *(gpu.name for gpu in gpus)}))
    if gpus:
        rail, hb = _cables(plan, fault.target)
        return FaultScope(frozenset({fault.target, rail, hb}), frozenset(_far_ends(plan, fault.target)))
    if fault.kind.startswith("link") or fault.kind == "hb-port-down":
        is_hb = fault.kind == "hb-port-down"
        cable, far = _cables(plan, fault.target)[is_hb], _far_ends(plan, fault.target)[is_hb]
        return FaultScope(frozenset({cable}), frozenset({fault.target, far}))
    return FaultScope(frozenset({fault.target}))


def _far_ends(plan: Plan, name: str) -> tuple[str, str]:
    """What its rail cable and its HB cable end at."""
    gpu = gpu_of_name(name)
    return plan.rail_switch_end(gpu).node, plan.hb_bridge_end(gpu).node


def _cables(plan: Plan, name: str) -> tuple[str, str]:
    rail, hb = _far_ends(plan, name)
    return f"{name}-{rail}", f"{name}-{hb}"
