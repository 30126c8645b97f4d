"""What a fault takes, and what must live for it to show: pure."""

from dataclasses import dataclass

from railyard.failure.oracle.dead import gpus_of
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.topologies.addresses import gpu_of_name
from railyard.topologies.plan import Plan


@dataclass(frozen=True, slots=True)
class Reach:
    """Nodes and cables by name (a cable: `d0g1-rail1`)."""

    takes: frozenset[str]
    needs: frozenset[str] = frozenset()

    def clashes(self, other: "Reach") -> bool:
        """Whether one of two at once would hide the other."""
        return bool(self.takes & (other.takes | other.needs) or other.takes & self.needs)


def targets(kind: FaultKind, plan: Plan) -> list[str]:
    """All that a fault of this kind can be at."""
    if kind in ("controller-crash", "registry-crash"):
        return [kind.removesuffix("-crash")]
    if kind == "server-crash":
        return list(plan.hb_bridges) if plan.spec.domains > 2 else []
    if kind == "spine-crash" or kind.startswith("rail-switch"):
        wanted = ("spine",) if kind == "spine-crash" else ("rail", "single")
        return [switch.name for switch in plan.switches if switch.role in wanted]
    return [gpu.name for gpu in plan.gpus]


def reach_of(fault: Fault, plan: Plan) -> Reach:
    """Of a fault on this fabric."""
    gpus = gpus_of(fault, plan)
    if fault.kind == "registry-crash":  # its server is the controller's child, or told by it
        return Reach(frozenset({fault.target}), frozenset({"controller"}))
    if fault.kind == "server-crash":
        cables = {cable for gpu in gpus for cable in _cables(plan, gpu.name)}
        return Reach(frozenset({fault.target, *cables, *(gpu.name for gpu in gpus)}))
    if gpus:
        rail, hb = _cables(plan, fault.target)
        return Reach(frozenset({fault.target, rail, hb}), frozenset(_far(plan, fault.target)))
    if fault.kind.startswith("link") or fault.kind == "hb-port-down":
        which = fault.kind == "hb-port-down"
        cable, far = _cables(plan, fault.target)[which], _far(plan, fault.target)[which]
        return Reach(frozenset({cable}), frozenset({fault.target, far}))
    return Reach(frozenset({fault.target}))


def _far(plan: Plan, name: str) -> tuple[str, str]:
    """What its rail cable and its HB cable end at."""
    gpu = gpu_of_name(name)
    return plan.rail_place(gpu).node, plan.hb_place(gpu).node


def _cables(plan: Plan, name: str) -> tuple[str, str]:
    rail, hb = _far(plan, name)
    return f"{name}-{rail}", f"{name}-{hb}"
