"""Measures a multi-rail experiment: builds fabrics, measures policies, injects faults, replays trainings."""

from itertools import count
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.units import format_rate
from railyard.experiments.multirail.faults import run_fault
from railyard.experiments.multirail.parts import mix_of
from railyard.experiments.multirail.session import MultirailSession, built
from railyard.experiments.multirail.size_sweep import run_sizes
from railyard.experiments.multirail.spec import MultirailExperiment
from railyard.experiments.multirail.trainings import run_ddp, run_training
from railyard.experiments.run.progress import Steps
from railyard.results.runs.records import Rails, Run
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.workloads.allreduce.balancing.balancer import MIN_GAIN
from railyard.workloads.allreduce.balancing.costs import allreduce_cost, threshold
from railyard.workloads.allreduce.engine_kind import rails_of

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
        mix=mix_of(plan.spec),
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
