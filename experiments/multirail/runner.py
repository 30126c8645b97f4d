"""Measures an experiment on multi-rail fabrics: builds them, runs the workloads, injects the faults."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from math import ceil
from statistics import fmean, median
from typing import Any, Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.experiments.multirail.measured import InjectedFault, check_complete, cut, nic_rates
from railyard.experiments.multirail.session import MultirailSession, built
from railyard.experiments.multirail.size_sweep import run_sizes
from railyard.experiments.run.progress import Steps
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import RailFaultSpec
from railyard.failure.scenario.script import apply, confirm, prepare, repair
from railyard.results.runs.allreduce import DdpRun, Training, allreduce_interval
from railyard.results.runs.records import Rails, Run
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.workloads.allreduce.balancing.balancer import MIN_GAIN
from railyard.workloads.allreduce.balancing.costs import allreduce_cost, threshold
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.engines.railyard import Ranks
from railyard.workloads.allreduce.peers.training import DdpRanks, Step, TrainingResult
from railyard.workloads.allreduce.peers.training import Training as DdpTraining
from railyard.workloads.allreduce.workload import RailWorkload, learning_operations, sent_bytes
from railyard.workloads.jobs.allreduce import AllreduceSpec
from railyard.workloads.jobs.ddp import DdpSpec
from railyard.workloads.jobs.training import TrainingSpec, predicted_step_s


def run_fault(spec: ExperimentSpec, session: MultirailSession, fault: RailFaultSpec, steps: Steps) -> None:
    """Learn first, then break; a repeat begins when the one before it has ended, with all rails in use again."""
    plan, times, policy = session.plan, spec.times(fault), fault.policy
    rail, node = plan.place_of(fault.target)
    sent = sent_bytes(fault.size, plan.scale)
    with session.recording_skips(policy), Ranks(session.net, policy) as ranks:
        first = learning_operations(policy, fault.learning)
        ranks.run(Operations("allreduce", "int32", sent, first, spec.seed))
        for repeat in range(times):
            with steps.step(f"{session.label}: {fault.fault.name}, {policy}, {repeat + 1} of {times}"):
                where = (session.label, policy, fault.size, repeat)
                interval = allreduce_interval(*where, fault.kind, fault.target)
                injected = InjectedFault(interval, fault.kind, fault.target, rail, fault.size, sent, 0, 0)
                with session.watch().record_load(session.run, interval, faulted=True):
                    injected, reports = _inject_and_repair(spec, session, ranks, fault, injected)
                cut(injected, reports).add_to(session.run)
                session.run.goodput += nic_rates(injected, reports[node], [one.name for one in session.rails])
            if any(report.errors for report in reports):
                return


def _inject_and_repair(
    spec: ExperimentSpec, session: MultirailSession, ranks: Ranks, fault: RailFaultSpec, injected: InjectedFault
) -> tuple[InjectedFault, Sequence[RankReport]]:
    """Return the fault with its times, and the reports of the ranks that it interrupted."""
    operation_s = predicted_s(fault.policy, session.rails, session.nodes, injected.sent)
    count = ceil((fault.at + fault.repair + fault.after) / operation_s)
    seed = spec.seed + injected.interval.repeat
    ranks.begin([Operations("allreduce", "int32", injected.sent, count, seed, check=True)] * session.nodes)
    begun = time.monotonic()
    try:
        prepare(session.net, fault.fault)
    except RuntimeError as error:
        what = f"this kernel can't do {fault.kind}: nftables can't catch what leaves an interface"
        raise MissingRequirement(what, "use Linux 5.16") from error
    time.sleep(max(0.0, begun + fault.at - time.monotonic()))
    t_fault = apply(session.net, fault.fault)
    try:
        confirm(session.net, fault.fault)
        time.sleep(max(0.0, t_fault / 1e9 + fault.repair - time.monotonic()))
    finally:
        repair(session.net, fault.fault)
    t_repair = time.monotonic_ns()
    return replace(injected, t_fault=t_fault, t_repair=t_repair), ranks.finish()


@singledispatch
def run_workload(
    workload: RailWorkload, spec: ExperimentSpec, session: MultirailSession, number: int, steps: Steps
) -> None:
    """Measure a workload on a built fabric, as often as the experiment says. `number`: the fabric's."""
    raise TypeError(type(workload))  # `measure` has checked that there is a function


def _check_workloads(spec: ExperimentSpec) -> None:
    """Raise BadInput for a workload, as a plugin's, whose class has no function in `run_workload`."""
    for i, workload in enumerate(spec.workloads):
        if run_workload.dispatch(type(workload)) is run_workload.dispatch(object):
            needed = f"can't be measured: register a function for {type(workload).__name__} by {__name__}.run_workload"
            raise BadInput(f"workloads.{i}.kind", workload.kind, needed)


@run_workload.register
def _(workload: AllreduceSpec, *where: Any) -> None:
    run_sizes(workload, *where)


@run_workload.register
def _(workload: TrainingSpec, spec: ExperimentSpec, session: MultirailSession, number: int, steps: Steps) -> None:
    for repeat in range(spec.repeats):
        for policy in workload.policies_on(number, session.plan.spec):
            run_training(workload, spec.seed, session, policy, repeat, steps)


@run_workload.register
def _(workload: DdpSpec, spec: ExperimentSpec, session: MultirailSession, number: int, steps: Steps) -> None:
    for repeat in range(spec.repeats):
        run_ddp(workload, spec.seed + repeat, session, repeat, steps)


def run_training(
    training: TrainingSpec, seed: int, session: MultirailSession, policy: str, repeat: int, steps: Steps
) -> None:
    """First as many steps, without their computing, as have the operations that a policy is given to learn in."""
    peer, dilation = peer_rail(session.plan.spec), session.dilation
    step = training.step(session.nodes, session.plan.scale, session.rails[peer].rate * dilation)
    step = replace(step, compute_s=step.compute_s * dilation)
    predicted = predicted_step_s(step, session.rails, session.nodes, policy, peer)
    what = f"{training.label()}, {policy}"
    interval = IntervalId(session.label, training.label(), policy, repeat=repeat)
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(session.run, interval),
        session.recording_skips(policy),
        session.engine(policy) as ranks,
    ):
        for number in range(ceil(learning_operations(policy, training.learning) / len(step.sizes))):
            _one_step(ranks, replace(step, compute_s=0.0), seed + number)
        times = [_one_step(ranks, step, seed + number) for number in range(training.steps)]
        step_s = median(times) / dilation
        Training(
            interval,
            step_s=step_s,
            samples_per_s=step.samples / step_s,
            compute_s=step.compute_s / dilation,
            bytes=sum(step.sizes),
            steps=training.steps,
            dilation=dilation,
            predicted_s=predicted / dilation,
        ).add_to(session.run)


def _one_step(ranks: Group, step: Step, seed: int) -> float:
    """Seconds: of each run of like allreduces its computing, and from the first start to the last end."""
    total = 0.0
    for size, operations in step.groups:
        reports = ranks.run(Operations("allreduce", "float32", size, operations, seed, gap_s=step.gap_s))
        check_complete(reports)
        total += step.gap_s + _span_s(reports)
    return total


def _span_s(reports: Sequence[RankReport]) -> float:
    return (max(report.ends_ns[-1] for report in reports) - min(report.starts_ns[0] for report in reports)) / 1e9


MIN_LOSS: Final = 0.01
"""Smaller ones are compared as if they were this large: their last digits are float32's."""


def run_ddp(ddp_run: DdpSpec, seed: int, session: MultirailSession, repeat: int, steps: Steps) -> None:
    """Train over Gloo first, then over Railyard, on the same ranks."""
    training = DdpTraining(ddp_run.steps, width=ddp_run.width, bucket_mb=ddp_run.bucket / 2**20, seed=seed)
    what = f"DDP, {ddp_run.policy}"
    interval = IntervalId(session.label, ddp_run.label(), ddp_run.policy, repeat=repeat)
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(session.run, interval),
        session.recording_skips(what),
        DdpRanks(session.net, peer_rail(session.plan.spec)) as ranks,
    ):
        gloo, ours = ranks.train("gloo", training), ranks.train("railyard", training, policy=ddp_run.policy)
        compared(interval, gloo, ours).add_to(session.run)


def compared(interval: IntervalId, gloo: Sequence[TrainingResult], ours: Sequence[TrainingResult]) -> DdpRun:
    """Return the comparison of what every rank reports of both."""
    pairs = [p for g, o in zip(gloo, ours, strict=True) for p in zip(g.losses, o.losses, strict=True)]
    return DdpRun(
        interval,
        bytes=ours[0].gradient_bytes,
        gloo_losses=_mean_losses(gloo),
        losses=_mean_losses(ours),
        losses_apart=max(abs(mine - theirs) / max(abs(theirs), MIN_LOSS) for theirs, mine in pairs),
        gloo_step_s=_step_s(gloo),
        step_s=_step_s(ours),
    )


def _mean_losses(ranks: Sequence[TrainingResult]) -> tuple[float, ...]:
    return tuple(fmean(step) for step in zip(*(rank.losses for rank in ranks), strict=True))


def _step_s(ranks: Sequence[TrainingResult]) -> float:
    """Return the time of the slowest rank; the first step warms up and is left out."""
    return max(median(rank.seconds[1:]) for rank in ranks)


MIN_DILATED_BPS: Final = 200_000
"""A frame of 9000 bytes takes 0.36 s of it already; every point would last for minutes."""


def measure(spec: ExperimentSpec, datapath: Datapath, frames_per_s: float, run: Run, steps: Steps) -> None:
    """Measure all workloads, then all faults, on every fabric, built anew for each dilation. `frames_per_s`: what the
    machine carries. BadInput, before anything is built, for a workload that can't be measured.
    """
    _check_workloads(spec)
    plans = [_plan(spec, number, frames_per_s) for number in range(len(spec.fabrics))]
    for number, (label, plan) in enumerate(zip(spec.labels, plans, strict=True)):
        for dilation in spec.dilations_on(number):
            with built(label, plan.dilated(dilation), datapath, run, steps) as session:
                if label not in {rails.label for rails in run.rails}:
                    run.rails.append(_rails(label, plan, session.net.build_s))
                for workload in spec.rail_workloads_on(number):
                    if dilation in workload.dilations(number, plan.spec):
                        run_workload(workload, spec, session, number, steps)
                for fault in spec.rail_faults_on(number) if dilation == 1 else ():
                    run_fault(spec, session, fault, steps)


def step_count(spec: ExperimentSpec) -> int:
    """Return the steps of `measure`: builds, what workloads count, and faults."""
    return spec.fault_runs + sum(
        len(spec.dilations_on(number))
        + sum(workload.step_count(number, fabric, spec.repeats) for workload in spec.rail_workloads_on(number))
        for number, fabric in enumerate(spec.rail_fabrics)
    )


def _plan(spec: ExperimentSpec, number: int, frames: float) -> MultirailPlan:
    try:
        plan = make_multirail_plan(spec.rail_fabrics[number], frames)
    except BadInput as error:
        field = error.field.replace("fabric", f"fabrics.{number}", 1)
        raise BadInput(field, error.value, error.allowed) from error
    _check_dilations(spec, number, plan)
    return plan


def _check_dilations(spec: ExperimentSpec, number: int, plan: MultirailPlan) -> None:
    """BadInput where a rail would be left with less than frames can be timed at: rates are known only here."""
    slowest, name = min(zip(plan.rates_bps, (rail.name for rail in plan.rails), strict=True))
    for times in spec.dilations_on(number):
        if times > 1 and slowest / times < MIN_DILATED_BPS:
            left, min_rate = format_rate(slowest / times), format_rate(MIN_DILATED_BPS)
            max_dilation = max(1.0, slowest / MIN_DILATED_BPS)
            allowed = (
                f"leaves {left} of {name}, of {min_rate} at least: "
                f"give {max_dilation:g} at most, or {name} a higher rate"
            )
            raise BadInput(_dilation_field(spec, number, times), times, allowed)


def _dilation_field(spec: ExperimentSpec, number: int, times: float) -> str:
    """Return where it was given: the fabric's own, or a workload's."""
    if times in spec.rail_fabrics[number].dilation.values():
        return f"fabrics.{number}.dilation"
    mine = spec.rail_workloads_on(number)
    fabric = spec.rail_fabrics[number]
    given = (
        n for n, w in enumerate(spec.workloads) if w in mine and times in mine[mine.index(w)].dilations(number, fabric)
    )
    return f"workloads.{next(given)}.dilation"


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
