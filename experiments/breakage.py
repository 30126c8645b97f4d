"""A fault on a built fabric: which pairs to watch, the fault itself, and its rows in the records."""

from itertools import permutations
from typing import Final

from controller.paths import Broken, Path, default_path, usable
from experiments.faults import FaultSpec
from experiments.stage import Stage
from failure.dead import CONTROL
from failure.faults import Fault
from failure.kinds import FaultKind
from failure.pairs import Concern, Talkers, talkers
from failure.run import FaultRun, run_fault
from results.records import Event, GoodputTrace, Recovery, Run
from topologies.addresses import Gpu, gpu_of_name
from topologies.plan import Plan

_LIFELESS: Final[frozenset[FaultKind]] = frozenset({"gpu-crash", "gpu-hang", "server-crash"})
"""After these a GPU neither sends nor receives."""


def broken_by(fault: FaultSpec, plan: Plan) -> Broken:
    """What a fault kills or impairs, in the words of path choice. A GPU takes its rail link with it.

    These have no word for a GPU's HB port, nor for one spine of several, whose groups of switches go round it.
    """
    if fault.kind.startswith("rail-switch"):
        return Broken(rails=frozenset({next(s.index for s in plan.switches if s.name == fault.target)}))
    if fault.kind == "spine-crash":
        last = plan.spec.spine_count == 1
        return Broken(apart=frozenset(permutations(range(plan.spec.rails), 2)) if last else frozenset())
    if fault.kind == "hb-port-down":
        return Broken()
    return Broken(links=frozenset(_hit(fault, plan)))


def concern_of(fault: FaultSpec, plan: Plan) -> Concern:
    """Whom it hits. What carries no packets concerns everybody: nobody may notice."""
    if fault.kind in CONTROL:
        return Concern(lambda src, dst: True, lambda src, dst: False)
    broken = broken_by(fault, plan)

    def crosses(src: Gpu, dst: Gpu) -> bool:
        path = default_path(plan.policy, src, dst)
        if fault.kind == "spine-crash":  # by which spine a connection goes is a hash of the switch's
            return path.kind == "spine"
        if fault.kind == "hb-port-down":
            return gpu_of_name(fault.target) in _by_hb(path, src, dst)
        return not usable(path, src, dst, broken, plan.spec.kind)

    def own(src: Gpu, dst: Gpu) -> bool:
        near = Gpu(src.domain, default_path(plan.policy, src, dst).rail)
        return fault.kind.startswith("link-") and near.name == fault.target

    return Concern(crosses, own, frozenset(_hit(fault, plan) if fault.kind in _LIFELESS else ()))


def watched_pairs(fault: FaultSpec, plan: Plan) -> Talkers:
    """Who streams and who is probed while this fault happens."""
    return talkers(plan, concern_of(fault, plan))


def _hit(fault: FaultSpec, plan: Plan) -> tuple[Gpu, ...]:
    """The GPUs that a fault at GPUs is at."""
    if fault.kind == "server-crash":
        return tuple(gpu for gpu in plan.gpus if plan.hb_bridges[gpu.domain] == fault.target)
    return (gpu_of_name(fault.target),)


def _by_hb(path: Path, src: Gpu, dst: Gpu) -> set[Gpu]:
    """The GPUs whose HB ports a path goes through: at each end where it changes GPUs, both."""
    near = Gpu(src.domain, path.rail)
    far = Gpu(dst.domain, dst.rank if path.kind == "spine" else path.rail)
    return ({src, near} if near != src else set()) | ({far, dst} if far != dst else set())


def run_fault_once(stage: Stage, fault: FaultSpec, reroute: str, repeat: int, run: Run) -> None:
    """Break it, mend it, and add everything to the run."""
    workload = f"{fault.kind} {fault.target} (reroute {reroute})"
    with stage.watched(run, workload, repeat, faulted=True):
        seen = run_fault(
            stage.net,
            Fault(fault.kind, fault.target, **fault.parameters),
            watched_pairs(fault, stage.plan),
            fault.at,
            fault.repair,
            stage.events,
        )
    _record(stage, fault, reroute, repeat, seen, run)


def _record(stage: Stage, fault: FaultSpec, reroute: str, repeat: int, seen: FaultRun, run: Run) -> None:
    what = {"fabric": stage.label, "target": fault.target, "reroute": reroute, "repeat": repeat}
    run.events.append(Event(seen.fault_ns, "fault", fault.kind, what))
    run.events.append(Event(seen.repair_ns, "fault", "repair", what))
    run.recoveries.append(
        Recovery(
            fabric=stage.label,
            policy=stage.policy,
            reroute=reroute,
            repeat=repeat,
            fault=fault.kind,
            target=fault.target,
            t_fault=seen.fault_ns,
            t_repair=seen.repair_ns,
            detect_ms=seen.detect_ms,
            decided_ms=seen.decided_ms,
            reroute_ms=seen.reroute_ms,
            first_packet_ms=seen.first_packet_ms,
            source_ms=seen.source_ms,
            far_ms=seen.far_ms,
            goodput_ms=seen.goodput_ms,
            back_ms=seen.back_ms,
            lost_bytes=seen.lost_bytes,
            probes_lost=seen.probes_lost,
            return_lost=seen.return_lost,
            connections_lost=len(seen.broken),
            recovered=seen.recovered,
        )
    )
    run.goodput.append(
        GoodputTrace(
            fabric=stage.label,
            reroute=reroute,
            repeat=repeat,
            fault=fault.kind,
            target=fault.target,
            t_ms=seen.t_ms,
            bps=seen.bps,
            affected_bps=seen.affected_bps,
            repair_ms=(seen.repair_ns - seen.fault_ns) / 1e6,
        )
    )
