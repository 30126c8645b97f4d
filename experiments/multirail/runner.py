"""Measures a multi-rail experiment: builds fabrics, measures policies, injects faults, replays trainings."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import ceil
from statistics import fmean, median
from typing import Final

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.experiments.multirail.measured import InjectedFault, check_complete, cut, nic_rates
from railyard.experiments.multirail.session import MultirailSession, built
from railyard.experiments.multirail.size_sweep import run_sizes
from railyard.experiments.predict.multi_rail import learning, predicted_step_s, sent_bytes, step_of
from railyard.experiments.run.progress import Steps
from railyard.experiments.spec.multi_rail import DdpSpec, FaultSpec, MultirailExperiment, TrainingSpec
from railyard.failure.faults import Fault
from railyard.failure.scenario.script import apply, confirm, prepare, repair
from railyard.results.runs.allreduce import DdpRun, Training, allreduce_interval
from railyard.results.runs.records import Rails, Run
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import switch_name
from railyard.workloads.allreduce.balancing.balancer import MIN_GAIN
from railyard.workloads.allreduce.balancing.costs import allreduce_cost, threshold
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine_kind import Group, peer_rail, predicted_s, rails_of
from railyard.workloads.allreduce.engines.railyard import Ranks
from railyard.workloads.allreduce.peers.training import DdpRanks, Step, TrainingResult
from railyard.workloads.allreduce.peers.training import Training as DdpTraining


def run_fault(spec: MultirailExperiment, session: MultirailSession, fault: FaultSpec, steps: Steps) -> None:
    """Learn first, then break; a repeat begins when the one before it has ended, with all rails in use again."""
    rail = next(number for number, one in enumerate(session.rails) if one.name == fault.rail)
    sent = sent_bytes(fault.size, session.plan.scale)
    with session.recording_skips(fault.policy), Ranks(session.net, fault.policy) as ranks:
        ranks.run(Operations("allreduce", "int32", sent, learning(fault.policy, spec.learning), spec.seed))
        for repeat in range(fault.repeats):
            what = f"{fault.name}, {fault.policy}"
            with steps.step(f"{session.label}: {what}, {repeat + 1} of {fault.repeats}"):
                where = (session.label, fault.policy, fault.size, repeat)
                interval = allreduce_interval(*where, fault.kind, fault.target)
                with session.watch().record_load(session.run, interval, faulted=True):
                    injected, reports = _inject_and_repair(spec, session, ranks, fault, rail, sent, interval)
                cut(injected, reports).add_to(session.run)
                session.run.goodput += nic_rates(injected, reports[fault.node], [one.name for one in session.rails])
            if any(report.errors for report in reports):
                return


def _inject_and_repair(
    spec: MultirailExperiment,
    session: MultirailSession,
    ranks: Ranks,
    fault: FaultSpec,
    rail: int,
    sent: int,
    interval: IntervalId,
) -> tuple[InjectedFault, Sequence[RankReport]]:
    operation_s = predicted_s(fault.policy, session.rails, session.nodes, sent)
    count = ceil((fault.at + fault.repair + fault.after) / operation_s)
    op = Operations("allreduce", "int32", sent, count, spec.seed + interval.repeat, check=True)
    broken = Fault(fault.kind, fault.target if fault.is_of_link else switch_name(rail), fault.parameters)
    ranks.begin([op] * session.nodes)
    begun = time.monotonic()
    try:
        prepare(session.net, broken)
    except RuntimeError as error:
        what = f"this kernel can't do {fault.kind}: nftables can't catch what leaves an interface"
        raise MissingRequirement(what, "use Linux 5.16") from error
    time.sleep(max(0.0, begun + fault.at - time.monotonic()))
    t_fault = apply(session.net, broken)
    try:
        confirm(session.net, broken)
        time.sleep(max(0.0, t_fault / 1e9 + fault.repair - time.monotonic()))
    finally:
        repair(session.net, broken)
    t_repair = time.monotonic_ns()
    reports = ranks.finish()
    return InjectedFault(interval, fault.kind, fault.target, rail, fault.size, sent, t_fault, t_repair), reports


def run_training(
    spec: MultirailExperiment, session: MultirailSession, training: TrainingSpec, policy: str, repeat: int, steps: Steps
) -> None:
    """First as many steps, without their computing, as have the operations that a policy is given to learn in."""
    peer, dilation = peer_rail(session.plan.spec), session.dilation
    step = step_of(training, session.nodes, session.plan.scale, session.rails[peer].rate * dilation)
    step = replace(step, compute_s=step.compute_s * dilation)
    predicted = predicted_step_s(step, session.rails, session.nodes, policy, peer)
    what = f"{training.name}, {policy}"
    interval = IntervalId(session.label, training.name, policy, repeat=repeat)
    with (
        steps.step(f"{session.label}: {what}"),
        session.watch().record_load(session.run, interval),
        session.recording_skips(policy),
        session.engine(policy) as ranks,
    ):
        for number in range(ceil(learning(policy, spec.learning) / len(step.sizes))):
            _one_step(ranks, replace(step, compute_s=0.0), spec.seed + number)
        times = [_one_step(ranks, step, spec.seed + number) for number in range(training.steps)]
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


def run_ddp(spec: MultirailExperiment, session: MultirailSession, ddp_run: DdpSpec, repeat: int, steps: Steps) -> None:
    """Both on the same ranks, Gloo first."""
    training = DdpTraining(
        ddp_run.steps, width=ddp_run.width, bucket_mb=ddp_run.bucket / 2**20, seed=spec.seed + repeat
    )
    what = f"DDP, {ddp_run.policy}"
    interval = IntervalId(session.label, f"DDP, width {ddp_run.width}", ddp_run.policy, repeat=repeat)
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


def measure(spec: MultirailExperiment, datapath: Datapath, frames_per_s: float, run: Run, steps: Steps) -> None:
    """Measure everything of the specification on every fabric. `frames_per_s`: what the machine carries."""
    plans = [_plan(spec, number, frames_per_s) for number in range(len(spec.fabrics))]
    for number, (label, plan) in enumerate(zip(spec.labels, plans, strict=True)):
        for dilation in spec.dilations_on(number):
            with built(label, plan.dilated(dilation), datapath, run, steps) as session:
                if label not in {rails.label for rails in run.rails}:
                    run.rails.append(_rails(label, plan, session.net.build_s))
                _measure(spec, number, session, steps)


def step_count(spec: MultirailExperiment) -> int:
    """Return the steps of `measure`: builds, sizes that all policies measure in turn, faults and trainings."""
    built = sum(len(spec.dilations_on(number)) for number in range(len(spec.fabrics)))
    return built + spec.size_runs + spec.injections + spec.replays


def _plan(spec: MultirailExperiment, number: int, frames: float) -> MultirailPlan:
    try:
        plan = make_multirail_plan(spec.fabrics[number], frames)
    except BadInput as error:
        field = error.field.replace("fabric", f"fabrics.{number}", 1)
        raise BadInput(field, error.value, error.allowed) from error
    _check_dilations(spec, number, plan)
    return plan


def _check_dilations(spec: MultirailExperiment, number: int, plan: MultirailPlan) -> None:
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


def _dilation_field(spec: MultirailExperiment, number: int, times: float) -> str:
    """Where it was given: the fabric's own, or a training's."""
    if times in spec.fabrics[number].dilation.values():
        return f"fabrics.{number}.dilation"
    trainings = spec.trainings_on(number)
    given = (n for n, training in enumerate(spec.trainings) if training in trainings and training.dilation == times)
    return f"trainings.{next(given)}.dilation"


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


def _measure(spec: MultirailExperiment, number: int, session: MultirailSession, steps: Steps) -> None:
    """What is measured on a fabric with this dilation."""
    dilation = session.plan.dilation
    for repeat in count():
        sizes = spec.sizes_to_measure(number, dilation, repeat)
        if not sizes:
            break
        run_sizes(spec, session, number, sizes, repeat, steps)
    if dilation == 1:
        for fault in spec.faults_on(number):
            run_fault(spec, session, fault, steps)
    for repeat in range(spec.repeats):
        for training in spec.trainings_on(number):
            for policy in spec.policies_on(number, training.policies) if training.dilation == dilation else ():
                run_training(spec, session, training, policy, repeat, steps)
        for ddp_run in spec.ddp_runs_on(number) if dilation == 1 else ():
            run_ddp(spec, session, ddp_run, repeat, steps)
