"""Runs the measures of an experiment on fabrics of GPUs, and builds those that measures share."""

import sys
from contextlib import ExitStack
from math import inf
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.experiments.measures.definition import (
    RunContext,
    SharedFabric,
    measures_of,
    shared_reroutes,
    sharing_measures,
)
from railyard.experiments.run.progress import Steps
from railyard.experiments.run.session import (
    built,
    check_links,
    surviving_interruptions,
)
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import (
    SLOWDOWN,
    Measurement,
    Run,
)
from railyard.topologies.capacity import Capacity, auto_rail_bps, max_rail_bps
from railyard.topologies.plan import Plan, make_plan

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes yields after so long, not after 5 ms: other threads react to events of the controller."""


def measure(spec: ExperimentSpec, datapath: Datapath, capacity: Capacity | None, run: Run, steps: Steps) -> None:
    """Measure everything of the specification on every fabric. `capacity`: of the machine, if it was measured."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    auto = auto_rail_bps(spec.gpu_fabrics, capacity) if capacity else 0
    plans = [make_plan(fabric, auto) for fabric in spec.gpu_fabrics]
    checked_plans = list(enumerate(plans))
    for each in measures_of(spec):
        checked_plans += each.plans(spec, capacity)
    for number, plan in checked_plans:
        check_rate(plan, number, capacity)
    context = RunContext(spec, plans, datapath, capacity, run, steps)
    if sharing_measures(spec):
        for number in range(len(plans)):
            with surviving_interruptions(run, IntervalId(spec.labels[number])):
                run_on_shared_fabrics(context, number)
    for each in measures_of(spec):
        if not each.shares_fabric:
            each.run(context)
    for s in Analysis(run).slowdowns:
        run.measurements.append(Measurement(s.interval, s.row.phase, SLOWDOWN, s.measured, "ratio", s.predicted))


def check_rate(plan: Plan, number: int, capacity: Capacity | None) -> None:
    """Raise BadInput for a fabric whose rails are faster than this machine carries. `number`: of the fabric."""
    max_bps = max_rail_bps(plan.spec, capacity) if capacity else inf
    if plan.rail_bps > max_bps:
        most = f"{format_rate(max_bps, 2)} or less for {plan.spec.gpus} GPUs, or auto"
        value = format_rate(plan.rail_bps)
        raise BadInput(f"fabrics.{number}.rail_rate", value, f"is more than this machine carries: {most}")


def run_on_shared_fabrics(context: RunContext, number: int) -> None:
    """Build a fabric for each mode of `reroute` that a measure needs, and run the measures that share it.

    `number`: of the fabric in the experiment. Its links are calibrated once.
    """
    spec = context.spec
    plan = context.plans[number]
    label = spec.labels[number]
    modes = shared_reroutes(spec, number)
    for reroute in modes:
        is_first = reroute == modes[0]
        with ExitStack() as stack:
            with context.steps.step(f"{label}: building"):
                fabric = built(label, plan, context.datapath, reroute == "on", context.run)
                session = stack.enter_context(fabric)
            if is_first:
                with context.steps.step(f"{label}: calibrating links"):
                    check_links(session, context.run)
            shared = SharedFabric(context, session, number, reroute, is_first)
            for measure in sharing_measures(spec):
                measure.run_on(shared)
