"""A fault on a built fabric: which pairs to watch, the fault itself, and its rows in the records."""

from controller.paths import Broken, default_path, usable
from experiments.spec import FaultSpec
from experiments.stage import Stage
from failure.faults import Fault
from failure.pairs import Talkers, talkers
from failure.run import FaultRun, run_fault
from results.records import Event, GoodputTrace, Recovery, Run
from topologies.addresses import Gpu, gpu_of_name
from topologies.plan import Plan


def broken_by(fault: FaultSpec, plan: Plan) -> Broken:
    """What a fault kills, in the words of path choice. A crashed GPU takes its rail link with it."""
    if fault.kind == "rail-switch-crash":
        return Broken(rails=frozenset({next(s.index for s in plan.switches if s.name == fault.target)}))
    return Broken(links=frozenset({gpu_of_name(fault.target)}))


def watched_pairs(fault: FaultSpec, plan: Plan) -> Talkers:
    """Who streams and who is probed while this fault happens."""
    broken = broken_by(fault, plan)

    def crosses(src: Gpu, dst: Gpu) -> bool:
        return not usable(default_path(plan.policy, src, dst), src, dst, broken, plan.spec.kind)

    return talkers(plan, crosses, broken.links if fault.kind == "gpu-crash" else ())


def run_fault_once(stage: Stage, fault: FaultSpec, reroute: str, repeat: int, run: Run) -> None:
    """Break it, mend it, and add everything to the run."""
    workload = f"{fault.kind} {fault.target} (reroute {reroute})"
    with stage.watched(run, workload, repeat, faulted=True):
        seen = run_fault(
            stage.net,
            Fault(fault.kind, fault.target),
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
            detect_ms=seen.detect_ms,
            reroute_ms=seen.reroute_ms,
            first_packet_ms=seen.first_packet_ms,
            goodput_ms=seen.goodput_ms,
            back_ms=seen.back_ms,
            lost_bytes=seen.lost_bytes,
            probes_lost=seen.probes_lost,
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
