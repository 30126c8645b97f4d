"""Whom a fault concerns: what it breaks in the words of path choice, and which pairs are watched meanwhile."""

from itertools import permutations
from typing import Final

from railyard.controller.failover.paths import Broken, default_path, usable
from railyard.experiments.spec.faults import Breaking
from railyard.failure.oracle.dead import CONTROL
from railyard.failure.scenario.kinds import Fault, FaultKind
from railyard.failure.scenario.pairs import Concern, Talkers, talkers
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.plan import Plan

_LIFELESS: Final[frozenset[FaultKind]] = frozenset({"gpu-crash", "gpu-hang", "server-crash"})
"""After these a GPU neither sends nor receives."""


def broken_by(fault: Fault | Breaking, plan: Plan) -> Broken:
    """What a fault kills or impairs, in the words of path choice. A GPU takes its rail link with it.

    These have no word for one spine of several, whose groups of switches go round it.
    """
    if fault.kind.startswith("rail-switch"):
        return Broken(rails=frozenset({next(s.index for s in plan.switches if s.name == fault.target)}))
    if fault.kind == "spine-crash":
        last = plan.spec.spine_count == 1
        return Broken(apart=frozenset(permutations(range(plan.spec.rails), 2)) if last else frozenset())
    if fault.kind == "hb-port-down":
        return Broken(hb=frozenset({gpu_of_name(fault.target)}))
    return Broken(links=frozenset(_hit(fault, plan)))


def concern_of(fault: Fault | Breaking, plan: Plan) -> Concern:
    """Whom it hits. What carries no packets concerns everybody: nobody may notice."""
    if fault.kind in CONTROL:
        return Concern(lambda src, dst: True, lambda src, dst: False)
    broken = broken_by(fault, plan)

    def crosses(src: Gpu, dst: Gpu) -> bool:
        path = default_path(plan.policy, src, dst)
        if fault.kind == "spine-crash":  # by which spine a connection goes is a hash of the switch's
            return path.kind == "spine"
        return not usable(path, src, dst, broken, plan.spec.kind)

    def own(src: Gpu, dst: Gpu) -> bool:
        near = Gpu(src.domain, default_path(plan.policy, src, dst).rail)
        return fault.kind.startswith("link-") and near.name == fault.target

    return Concern(crosses, own, frozenset(_hit(fault, plan) if fault.kind in _LIFELESS else ()))


def watched_pairs(fault: Fault | Breaking, plan: Plan) -> Talkers:
    """Who streams and who is probed while this fault happens."""
    return talkers(plan, concern_of(fault, plan))


def _hit(fault: Fault | Breaking, plan: Plan) -> tuple[Gpu, ...]:
    """The GPUs that a fault at GPUs is at."""
    if fault.kind == "server-crash":
        return tuple(gpu for gpu in plan.gpus if plan.hb_bridges[gpu.domain] == fault.target)
    return (gpu_of_name(fault.target),)
