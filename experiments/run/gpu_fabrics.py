"""Measures an experiment on fabrics of GPUs: builds and calibrates each, runs the workloads, injects the faults."""

import sys
from contextlib import ExitStack
from functools import partial
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.host import Datapath
from railyard.core.units import format_rate
from railyard.experiments.run.fault_script import inject_faults
from railyard.experiments.run.replacement import planned, run_replacements
from railyard.experiments.run.session import FabricSession, Steps, built, check_links, repeat_suffix
from railyard.experiments.run.steered import MakeWorkloads, load_steered
from railyard.experiments.run.traffic import Workload, run_workload
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Measurement, Run
from railyard.topologies.measure import rates
from railyard.topologies.plan import Plan, make_plan
from railyard.workloads.spec import build

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that computes yields after so long, not after 5 ms: other threads react to events of the controller."""


def measure(spec: ExperimentSpec, datapath: Datapath, frames_per_s: float, run: Run, steps: Steps) -> None:
    """Measure everything of the specification on every fabric. `frames_per_s`: what the machine carries."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    auto = rates.auto_rail_bps(list(spec.gpu_fabrics), frames_per_s)
    plans = [make_plan(fabric, auto) for fabric in spec.gpu_fabrics]
    replacements = planned(spec, frames_per_s)
    for i, plan in [*enumerate(plans), *((one.fabric, one.plan) for one in replacements)]:
        max_bps = rates.max_rail_bps(plan.spec, frames_per_s)
        if plan.rail_bps > max_bps:
            most = f"{format_rate(max_bps, 2)} or less for {plan.spec.gpus} GPUs, or auto"
            value = format_rate(plan.rail_bps)
            raise BadInput(f"fabrics.{i}.rail_rate", value, f"is more than this machine carries: {most}")
    if spec.has_load:
        for number, plan in enumerate(plans):
            _load_and_break(spec, number, plan, datapath, run, steps)
    run_replacements(spec, replacements, datapath, run, steps)
    for s in Analysis(run).slowdowns:
        run.measurements.append(Measurement(s.interval, s.row.phase, "slowdown", s.measured, "ratio", s.predicted))


def _load_and_break(spec: ExperimentSpec, number: int, plan: Plan, datapath: Datapath, run: Run, steps: Steps) -> None:
    """Build a fabric for each `reroute`; run the workloads on the first, before anything is broken; inject faults."""
    label = spec.labels[number]
    make = partial(_workloads, spec, plan, label, run)
    for reroute in spec.reroutes_on(number):
        with ExitStack() as stack:
            with steps.step(f"{label}: building"):
                session = stack.enter_context(built(label, plan, datapath, reroute == "on", run))
            if reroute == spec.reroutes_on(number)[0]:
                with steps.step(f"{label}: calibrating links"):
                    check_links(session, run)
                load = load_steered if spec.routing else _load
                load(session, make, spec, run, steps)
            inject_faults(session, number, reroute, make, spec, run, steps)


def _workloads(spec: ExperimentSpec, plan: Plan, label: str, run: Run, seed: int) -> list[Workload]:
    """Build the schedules for this fabric from the seed; their scale goes into the run's record."""
    found = []
    for i, (name, workload) in enumerate(zip(spec.workload_labels, spec.workloads, strict=True)):
        built = build(workload, plan.spec, plan.rail_bps, plan.hb_bps, f"workloads.{i}", seed)
        is_iteration, is_independent = workload.is_iteration, workload.is_independent
        scaled = Workload(name, built.schedule, built.scale, is_iteration, built.measured_files, is_independent)
        found.append(scaled)
        run.scale.append({**built.scale.as_dict(), "workload": name, "fabric": label})
    return found


def _load(session: FabricSession, make: MakeWorkloads, spec: ExperimentSpec, run: Run, steps: Steps) -> None:
    workloads = make(spec.seed)
    for repeat in range(spec.repeats):
        for workload in workloads:
            what = f"{session.label}: {workload.label}" + repeat_suffix(repeat, spec.repeats)
            with steps.step(what, total=sum(workload.schedule.matrix.values())):
                run_workload(session, workload, repeat, spec.seed, run, steps.reached)
