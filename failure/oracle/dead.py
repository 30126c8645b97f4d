"""What faults leave of a fabric, in the oracle's words (survivors.py)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from railyard.failure.oracle.reachability import Dead, Survivors, cable
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.plan import Plan

CUT_KINDS: Final[frozenset[FaultKind]] = frozenset({"link-down", "link-silent", "link-flapping"})
CONTROL_PLANE_KINDS: Final[frozenset[str]] = frozenset({"controller-crash", "registry-crash"})
"""Nothing that carries packets breaks."""
INTERMITTENT_KINDS: Final[frozenset[FaultKind]] = frozenset({"link-flapping", "rail-switch-reboot"})
"""Dead at one moment and alive at another while they last: whoever looks must allow for both."""


def dead_parts(fault: Fault, plan: Plan) -> Dead:
    """What a fault kills or slows, at its worst. A gray link is none of it: what it loses is sent again."""
    if fault.kind in CONTROL_PLANE_KINDS or fault.kind == "link-gray":
        return Dead()
    if fault.kind == "hb-port-down":
        gpu = gpu_of_name(fault.target)
        return Dead(cables=frozenset({cable(gpu.name, plan.hb_bridge_end(gpu).node)}))
    if fault.kind in CUT_KINDS:
        return Dead(cables=frozenset({_rail_cable(plan, fault)}))
    if fault.kind == "link-slow":
        remaining_bps = round(plan.rail_link(gpu_of_name(fault.target)).rate_bps * fault.rate)
        return Dead(slowed={_rail_cable(plan, fault): max(1, remaining_bps)})
    return Dead(nodes=frozenset({fault.target, *(gpu.name for gpu in gpus_of(fault, plan))}))


def gpus_of(fault: Fault, plan: Plan) -> frozenset[Gpu]:
    """The GPUs that neither send nor receive while it lasts."""
    if fault.kind == "server-crash":
        return frozenset(gpu for gpu in plan.gpus if plan.hb_bridges[gpu.domain] == fault.target)
    return frozenset({gpu_of_name(fault.target)} if fault.kind in ("gpu-crash", "gpu-hang") else ())


def _rail_cable(plan: Plan, fault: Fault) -> frozenset[str]:
    gpu = gpu_of_name(fault.target)
    return cable(gpu.name, plan.rail_switch_end(gpu).node)


@dataclass(frozen=True)
class Bounds:
    """What must work, with all that is unsteady dead; and what may, with that alive."""

    lower: Survivors
    upper: Survivors


def bounds(plan: Plan, faults: Collection[Fault]) -> Bounds:
    """What these faults together leave of the fabric."""
    lower = Survivors(plan, _union(plan, faults))
    steady = [fault for fault in faults if fault.kind not in INTERMITTENT_KINDS]
    return Bounds(lower, lower if len(steady) == len(faults) else Survivors(plan, _union(plan, steady)))


def _union(plan: Plan, faults: Iterable[Fault]) -> Dead:
    return reduce(or_, (dead_parts(fault, plan) for fault in faults), Dead())
