"""Measures an experiment on fabrics of GPUs: builds and calibrates each, runs the workloads, injects the faults."""

import sys
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.records import IntervalId
from railyard.core.units import format_rate
from railyard.experiments.measures.definition import RunContext, measures_of
from railyard.experiments.measures.workloads.run import make_workloads, run_workloads
from railyard.experiments.run.fault_script import inject_faults
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
    if spec.has_load:
        for number, plan in enumerate(plans):
            with surviving_interruptions(run, IntervalId(spec.labels[number])):
                _load_and_break(spec, number, plan, datapath, run, steps)
    context = RunContext(spec, plans, datapath, capacity, run, steps)
    for each in measures_of(spec):
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


def _load_and_break(spec: ExperimentSpec, number: int, plan: Plan, datapath: Datapath, run: Run, steps: Steps) -> None:
    """Build a fabric for each `reroute`; run the workloads on the first, before anything is broken; inject faults."""
    label = spec.labels[number]
    make = partial(make_workloads, spec, plan, label, run)
    for reroute in spec.reroutes_on(number):
        with ExitStack() as stack:
            with steps.step(f"{label}: building"):
                session = stack.enter_context(built(label, plan, datapath, reroute == "on", run))
            if reroute == spec.reroutes_on(number)[0]:
                with steps.step(f"{label}: calibrating links"):
                    check_links(session, run)
                run_workloads(session, spec, run, steps)
            inject_faults(session, number, reroute, make, spec, run, steps)
