"""Runs allreduces on multi-rail fabrics: builds the fabrics, measures the workloads, and injects faults meanwhile."""

from typing import Final

from railyard.core.errors import BadInput
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.experiments.measures.allreduce.faults import run_fault
from railyard.experiments.measures.allreduce.records import RAILS, Rails
from railyard.experiments.measures.allreduce.session import calibrated_session
from railyard.experiments.measures.allreduce.spec import dilations_on, faults_on, rail_fabrics, workloads_on
from railyard.experiments.measures.definition import RunContext
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.run.session import surviving_interruptions
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.workloads.allreduce.balancing.costs import allreduce_cost, threshold
from railyard.workloads.allreduce.balancing.states import MIN_GAIN
from railyard.workloads.allreduce.engine_kind import rails_of

MIN_DILATED_BPS: Final = 200_000
"""Least rate of a rail in slow motion: a frame of 9000 bytes takes 0.36 s of it already, and a point minutes."""


def run_allreduces(context: RunContext) -> None:
    """Measure workloads, then faults, on fabrics that are built for each dilation."""
    spec = context.spec
    run = context.run
    for number, plan in enumerate(context.plans):
        check_dilations(spec, number, plan)
    built_labels: set[str] = set()
    for number, (label, plan) in enumerate(zip(spec.labels, context.plans, strict=True)):
        for dilation in dilations_on(spec, number):
            with (
                surviving_interruptions(run, IntervalId(label)),
                calibrated_session(context, number, plan.dilated(dilation)) as session,
            ):
                # fabrics that are built for a dilation each are one fabric with one record
                if label not in built_labels:
                    built_labels.add(label)
                    run.rows(RAILS).append(rails_record(label, plan, session.net.build_s))
                for workload in workloads_on(spec, number):
                    if dilation in workload.dilations(number, plan.spec):
                        workload.measure(session)
                if dilation == 1:
                    for fault in faults_on(spec, number):
                        run_fault(spec, session, fault)


def check_dilations(spec: ExperimentSpec, number: int, plan: MultirailPlan) -> None:
    """Raise BadInput where a dilation leaves less of a rail than frames can be timed at. `number`: of the fabric."""
    slowest_bps = min(plan.rates_bps)
    rail = plan.rails[plan.rates_bps.index(slowest_bps)].name
    for dilation in dilations_on(spec, number):
        if dilation > 1 and slowest_bps / dilation < MIN_DILATED_BPS:
            rate = format_rate(slowest_bps / dilation)
            max_dilation = max(1.0, slowest_bps / MIN_DILATED_BPS)
            allowed = (
                f"leaves {rate} of {rail}, of {format_rate(MIN_DILATED_BPS)} at least: "
                f"give {max_dilation:g} at most, or {rail} a higher rate"
            )
            raise BadInput(f"{_owner_of(spec, number, dilation)}.dilation", dilation, allowed)


def _owner_of(spec: ExperimentSpec, number: int, dilation: float) -> str:
    """Return the field of the fabric that has a dilation, else that of the first workload on it which asks for it."""
    fabric = rail_fabrics(spec)[number]
    if dilation in fabric.dilation.values():
        return f"fabrics.{number}"
    for workload in workloads_on(spec, number):
        if dilation in workload.dilations(number, fabric):
            return f"workloads.{workloads_of(spec).index(workload)}"
    raise LookupError(f"no workload on fabric {number} asks for a dilation of {dilation:g}")


def rails_record(label: str, plan: MultirailPlan, build_s: float) -> Rails:
    """Return the record of a fabric that was built in `build_s`."""
    rails = rails_of(plan)
    costs = [allreduce_cost(rail, plan.spec.nodes) for rail in rails]
    splits_from = threshold(costs, MIN_GAIN)
    # records have sizes as in the paper, before scaling
    if splits_from is not None:
        splits_from *= plan.scale
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
        threshold=splits_from,
    )
