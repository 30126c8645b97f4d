"""Measures an experiment on multi-rail fabrics: builds them, runs the workloads, injects the faults."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.core.wait import sleep_until
from railyard.core.watch import ProgramFailed
from railyard.experiments.live import page
from railyard.experiments.run.progress import Steps, measure_undisturbed
from railyard.experiments.run.rail_results import InjectedFault, cut, nic_rates
from railyard.experiments.run.rail_session import MultirailSession, built
from railyard.experiments.run.session import record_late_injection, surviving_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import RailFaultSpec
from railyard.failure.active import ActiveFault
from railyard.results.runs.allreduce import allreduce_interval
from railyard.results.runs.records import Rails, Run
from railyard.topologies.capacity import Capacity
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.workloads.allreduce.balancing.balancer import MIN_GAIN
from railyard.workloads.allreduce.balancing.costs import allreduce_cost, threshold
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import predicted_s, rails_of
from railyard.workloads.allreduce.engines.railyard import Ranks
from railyard.workloads.allreduce.workload import learning_operations, sent_bytes

MIN_DILATED_BPS: Final = 200_000  # a frame of 9000 bytes takes 0.36 s of it already; every point would last for minutes


def measure(spec: ExperimentSpec, datapath: Datapath, capacity: Capacity | None, run: Run, steps: Steps) -> None:
    """Measure workloads, then faults, on fabrics built for each dilation. `capacity`: of the machine."""
    frames_per_s = capacity.frames_per_s if capacity else inf
    plans = [_plan(spec, number, frames_per_s) for number in range(len(spec.fabrics))]
    for number, (label, plan) in enumerate(zip(spec.labels, plans, strict=True)):
        for dilation in spec.dilations_on(number):
            slowed = plan.dilated(dilation)
            with (
                surviving_interruptions(run, IntervalId(label)),
                built(label, slowed, datapath, run, steps, number, spec.seed, spec.repeats) as session,
            ):
                if label not in {rails.label for rails in run.rails}:
                    run.rails.append(_rails(label, plan, session.net.build_s))
                for workload in spec.rail_workloads_on(number):
                    if dilation in workload.dilations(number, plan.spec):
                        workload.measure(session)
                for fault in spec.rail_faults_on(number) if dilation == 1 else ():
                    run_fault(spec, session, fault)


def _plan(spec: ExperimentSpec, number: int, frames: float) -> MultirailPlan:
    """Return the plan of a fabric. BadInput where a dilation leaves less of a rail than frames can be timed at."""
    fabric = spec.rail_fabrics[number]
    try:
        plan = make_multirail_plan(fabric, frames)
    except BadInput as error:
        field = error.field.replace("fabric", f"fabrics.{number}", 1)
        raise BadInput(field, error.value, error.allowed) from error
    slowest, name = min(zip(plan.rates_bps, (rail.name for rail in plan.rails), strict=True))
    for times in spec.dilations_on(number):
        if times > 1 and slowest / times < MIN_DILATED_BPS:
            owner = f"fabrics.{number}"
            if times not in fabric.dilation.values():
                given = (w for w in spec.rail_workloads_on(number) if times in w.dilations(number, fabric))
                owner = f"workloads.{spec.workloads.index(next(given))}"
            left = format_rate(slowest / times)
            min_rate = format_rate(MIN_DILATED_BPS)
            max_dilation = max(1.0, slowest / MIN_DILATED_BPS)
            allowed = (
                f"leaves {left} of {name}, of {min_rate} at least: "
                f"give {max_dilation:g} at most, or {name} a higher rate"
            )
            raise BadInput(f"{owner}.dilation", times, allowed)
    return plan


def _rails(label: str, plan: MultirailPlan, build_s: float) -> Rails:
    rails = rails_of(plan)
    splits_from = threshold([allreduce_cost(rail, plan.spec.nodes) for rail in rails], MIN_GAIN)
    return Rails(
        label=label,
        nodes=plan.spec.nodes,
        mix=plan.spec.mix,
        names=tuple(rail.name for rail in rails),
        kinds=tuple(rail.kind for rail in rails),
        bps=tuple(rail.rate * 8 for rail in rails),
        setup_s=tuple(rail.setup_s for rail in rails),
        scale=plan.scale,
        mtu=plan.spec.mtu,
        build_s=build_s,
        cpu_s_per_byte=tuple(rail.cpu_s_per_byte for rail in rails),
        threshold=None if splits_from is None else splits_from * plan.scale,
    )


def run_fault(spec: ExperimentSpec, session: MultirailSession, fault: RailFaultSpec) -> None:
    """Learn first, then break; a repeat begins when the one before it has ended, with all rails in use again."""
    plan = session.plan
    times = spec.times(fault)
    policy = fault.policy
    rail, node = plan.place_of(fault.target)
    sent = sent_bytes(fault.size, plan.scale)
    with session.recording_skips(policy), Ranks(session.net, policy) as ranks:
        first = learning_operations(policy, fault.learning)
        ranks.run(Operations("allreduce", "int32", sent, first, spec.seed))
        for repeat in range(times):
            where = (session.label, policy, fault.size, repeat)
            interval = allreduce_interval(*where, fault.kind, fault.target)
            injected = InjectedFault(interval, fault.kind, fault.target, rail, fault.size, sent, 0, 0)
            reports: Sequence[RankReport] = ()

            def measure(injected: InjectedFault = injected) -> bool:
                nonlocal reports
                with session.watch().record_load(session.run, injected.interval, faulted=True):
                    injected, reports = _inject_and_repair(spec, session, ranks, fault, injected)
                session.show_lost_rails(reports)
                cut(injected, reports).add_to(session.run)
                session.run.goodput += nic_rates(injected, reports[node], [one.name for one in session.rails])
                return not any(report.errors or report.wrong for report in reports)

            with session.steps.step(f"{session.label}: {fault.fault.name}, {policy}, {repeat + 1} of {times}"):
                measure_undisturbed(session.run, measure)
            if any(report.errors for report in reports):
                return


def _inject_and_repair(
    spec: ExperimentSpec, session: MultirailSession, ranks: Ranks, fault: RailFaultSpec, injected: InjectedFault
) -> tuple[InjectedFault, Sequence[RankReport]]:
    operation_s = predicted_s(fault.policy, session.rails, session.plan.spec.nodes, injected.sent)
    count = ceil((fault.at + fault.repair + fault.after) / operation_s)
    seed = spec.seed + injected.interval.repeat
    ranks.begin([Operations("allreduce", "int32", injected.sent, count, seed, check=True)] * session.plan.spec.nodes)
    begun = time.monotonic()
    due_s = begun + fault.at
    with ActiveFault(session.net, fault.fault, page.show_fault) as active:
        try:
            active.prepare()
        except ProgramFailed as error:
            problem = f"this kernel can't do {fault.kind}: nftables can't catch what leaves an interface"
            raise MissingRequirement(problem, "use Linux 5.16") from error
        sleep_until(due_s)
        active.inject()
        record_late_injection(session.run, injected.interval, fault.fault, active.injected_ns, round(due_s * 1e9))
        active.confirm()
        sleep_until(active.injected_ns / 1e9 + fault.repair)
    # Rails are back when the repair is done, not when it begins.
    t_repair = time.monotonic_ns()
    return replace(injected, t_fault=active.injected_ns, t_repair=t_repair), ranks.finish()
