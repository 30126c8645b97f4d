"""Whom a fault concerns: what it breaks in the words of path choice, and which pairs are watched meanwhile."""

from itertools import permutations
from typing import Final

from railyard.controller.failover.paths import Broken, usable
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.failure.oracle.dead import CONTROL_PLANE_KINDS
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.failure.scenario.pairs import FaultImpact, PairSelection, select_pairs
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.plan import Plan

_GPU_DOWN_KINDS: Final[frozenset[FaultKind]] = frozenset({"gpu-crash", "gpu-hang", "server-crash"})
"""After these a GPU neither sends nor receives."""


def broken_by(fault: Fault | BaseFaultSpec, plan: Plan) -> Broken:
    """What a fault kills or impairs, in the words of path choice. A GPU takes its rail link with it.

    These have no word for one spine of several, whose groups of switches go round it.
    """
    if fault.kind.startswith("rail-switch"):
        return Broken(rails=frozenset({next(s.index for s in plan.switches if s.name == fault.target)}))
    if fault.kind == "spine-crash":
        last = plan.spec.spine_count == 1
        return Broken(disconnected_ranks=frozenset(permutations(range(plan.spec.rails), 2)) if last else frozenset())
    if fault.kind == "hb-port-down":
        return Broken(hb=frozenset({gpu_of_name(fault.target)}))
    return Broken(links=frozenset(_gpus_hit(fault, plan)))


def impact_of(fault: Fault | BaseFaultSpec, plan: Plan) -> FaultImpact:
    """Whom it hits. What carries no packets concerns everybody: nobody may notice."""
    if fault.kind in CONTROL_PLANE_KINDS:
        return FaultImpact(lambda src, dst: True, lambda src, dst: False)
    broken = broken_by(fault, plan)

    def crosses(src: Gpu, dst: Gpu) -> bool:
        paths = [share.path for share in plan.spec.paths(src, dst)]
        if fault.kind == "spine-crash":  # by which spine a connection goes is a hash of the switch's
            return any(path.kind == "spine" for path in paths)
        return not all(usable(path, src, dst, broken, plan.spec.kind) for path in paths)

    def at_own_link(src: Gpu, dst: Gpu) -> bool:
        near = {Gpu(src.domain, share.path.rail).name for share in plan.spec.paths(src, dst)}
        return fault.kind.startswith("link-") and fault.target in near

    return FaultImpact(crosses, at_own_link, frozenset(_gpus_hit(fault, plan) if fault.kind in _GPU_DOWN_KINDS else ()))


def monitored_pairs(fault: Fault | BaseFaultSpec, plan: Plan) -> PairSelection:
    """Who streams and who is probed while this fault happens."""
    return select_pairs(plan, impact_of(fault, plan))


def _gpus_hit(fault: Fault | BaseFaultSpec, plan: Plan) -> tuple[Gpu, ...]:
    """The GPUs that a fault at GPUs is at."""
    if fault.kind == "server-crash":
        return tuple(gpu for gpu in plan.gpus if plan.hb_bridges[gpu.domain] == fault.target)
    return (gpu_of_name(fault.target),)
